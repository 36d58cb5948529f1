"""The HDF5 layout of D4RL (Fu et al. 2020, "D4RL: Datasets for Deep Data-Driven Reinforcement Learning").

One flat array a key, one entry a transition:

======================  =======================  ======================================================
key                     shape                    from
======================  =======================  ======================================================
``observations``        ``(N, *obs_shape)``      ``obs``
``actions``             ``(N, *action_shape)``   ``action``
``rewards``             ``(N,)``                 ``reward``
``terminals``           ``(N,)`` bool            ``terminated``
``timeouts``            ``(N,)`` bool            ``truncated``, and every other end of a run that is no terminal
``next_observations``   ``(N, *obs_shape)``      the true next observations, final ones included
``infos/<name>``        ``(N, *shape)``          the user's own columns
======================  =======================  ======================================================

1. Transitions stand environment by environment, each in the order of its steps, so that the format's rule holds: an
   entry's next observation is the next entry's observation, unless ``terminals`` or ``timeouts`` is set.
2. Episodes that were cut off without a flag, and those that still go on, therefore end in a timeout. The array
   ``metadata/cut`` has the entries of these, so that they are told apart when they come back.
3. Rows that are no transition (a vector environment's reset step) are left out.
4. Frames are written as they are stored, single: an observation that stacks ``k`` frames is ``k`` consecutive entries
   of one episode. The file's attribute ``frame_stack`` says how many.
5. Dict and Tuple observations and actions become groups: ``observations/<name>``. Dtypes are kept.
6. ``metadata/diskreplay`` is the layout as JSON. D4RL's own loaders skip what lies in ``metadata``.

What comes in may lack ``timeouts``, ``next_observations`` and ``infos``. Without ``next_observations`` the next entry's
observation is taken, as ``d4rl.qlearning_dataset`` does, and the last step of an episode that timed out, whose next
observation is not known, is left out, as there.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, flags, length
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, column_name
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.files import hdf5
from diskreplay.formats.files.hdf5_writer import COMPRESSIONS, FileWriter
from diskreplay.schema import ACTION, OBS, REWARD

CUT, LAYOUT = "metadata/cut", "metadata/diskreplay"
KEYS = {OBS: "observations", ACTION: "actions"}
KNOWN = ("observations", "next_observations", "actions", "rewards", "terminals", "timeouts", "infos")


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    layout, count = source.layout, source.steps
    with FileWriter(target, compression) as out:
        for name, (shape, dtype) in layout.obs.items():
            out.add(_key(name), count, shape, dtype)
            out.add(f"next_{_key(name)}", count, shape, dtype)
        for name, (shape, dtype) in {**layout.action, **layout.columns}.items():
            out.add(_key(name), count, shape, dtype)
        out.add("rewards", count, (), layout.reward_dtype)
        for name in ("terminals", "timeouts"):
            out.add(name, count, (), np.dtype(bool))
        _describe(out.file, layout)
        cuts: list[int] = []
        done = 0
        for steps in source.blocks():
            for key, values in _entries(steps):
                out.columns[key].append(values)
            cuts += (done + np.flatnonzero(steps.last & ~steps.terminated & ~steps.truncated)).tolist()
            done += len(steps)
        if cuts:
            out.file.create_dataset(CUT, data=np.array(cuts, np.int64))


def _key(name: str) -> str:
    """Return the HDF5 key of a column: ``observations/camera`` for ``obs/camera``."""
    first, slash, rest = name.partition("/")
    if first in KEYS:
        return KEYS[first] + slash + rest
    return "rewards" if name == REWARD else f"infos/{name}"


def _describe(file: h5py.File, layout: Layout) -> None:
    file.attrs["format"] = "D4RL"
    file.attrs["written_by"] = "diskreplay"
    file.attrs["frame_stack"] = [stack.frames for stack in layout.stacks]
    file.attrs["frame_stack_note"] = (
        "observations hold single frames; a stack of k frames is k consecutive entries of one episode, "
        f"padded with {'zeros' if layout.padding.name == 'ZEROS' else 'its first frame'} at its start"
    )
    hdf5.write_layout(file, LAYOUT, layout)


def _entries(steps: Transitions) -> Iterator[tuple[str, Any]]:
    for name, values in (*steps.obs.items(), *steps.action.items(), *steps.extra.items()):
        yield _key(name), values
    for name, values in steps.next_obs.items():
        yield f"next_{_key(name)}", values
    yield "rewards", steps.reward
    yield "terminals", steps.terminated
    yield "timeouts", steps.truncated | (steps.last & ~steps.terminated)


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a file as a source, as the module's docstring says."""
    where = str(path)
    with hdf5.opened(path) as file:
        layout = hdf5.read_layout(file, LAYOUT, where)
        rewards = hdf5.dataset(file, "rewards", where)
        count = rewards.shape[0] if rewards.shape else 0
        terminated = flags(where, "terminals", hdf5.dataset(file, "terminals", where), count)
        truncated = flags(where, "timeouts", hdf5.optional(file, "timeouts", where), count)
        last = terminated | truncated
        cut = hdf5.optional(file, CUT, where)
        if cut is not None:
            cuts = cut[: min(length(where, CUT, cut), count)] if len(cut.shape) == 1 else np.empty(0)
            if cuts.dtype.kind not in "iu" or (cuts < 0).any() or (cuts >= count).any() or not last[cuts].all():
                raise InputError(f"{where}: {CUT} names entries that end no episode")
            truncated[cuts] = False
        names = hdf5.keys(file, where)
        following = _leaves(file, "next_observations", OBS, where) if "next_observations" in names else None
        infos = _leaves(file, "infos", "", where) if "infos" in names else {}
        ignored = tuple(sorted(set(names) - {*KNOWN, "metadata"}))
        yield FlatArrays(
            where, _leaves(file, "observations", OBS, where), _leaves(file, "actions", ACTION, where), terminated,
            truncated, last, rewards,
            {column_name(key): values for key, values in infos.items() if key}, following,
            layout=layout, names=Names(ignored),
        ).source()  # fmt: skip


def _leaves(file: h5py.File, key: str, name: str, where: str) -> Mapping[str, ArrayLike]:
    """Return the arrays of a key by our names: one, or those of a group."""
    group = hdf5.find(file, key, where)
    if isinstance(group, h5py.Group):
        return {f"{name}/{path}": values for path, values in hdf5.datasets(group, where).items()}
    return {name: hdf5.dataset(file, key, where)}


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is an HDF5 file with observations, actions, rewards and terminals."""
    if not hdf5.is_hdf5(path):
        return False
    with hdf5.opened(path) as file:
        return {"observations", "actions", "rewards", "terminals"} <= set(hdf5.keys(file, str(path)))


FORMATS = (
    Format(
        "d4rl", "D4RL: one HDF5 file of flat arrays", "file", Holds(), recognise, read, write,
        compressions=COMPRESSIONS,
    ),
)  # fmt: skip
