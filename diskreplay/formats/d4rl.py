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

import json
import pathlib

from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.array_writer import write_flat
from diskreplay.formats.core.convention import FLAT_NAMES, LAYOUT, NEXT_OBS, Convention
from diskreplay.formats.core.ends import CUT
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.files import hdf5, hdf5_writer
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

CUTS, LAYOUT_PLACE = "metadata/cut", "metadata/diskreplay"
KEYS = {
    OBS: "observations", ACTION: "actions", REWARD: "rewards", TERMINATED: "terminals", TRUNCATED: "timeouts",
}  # fmt: skip
OWN = tuple(f".attrs/{name}" for name in ("format", "written_by", "frame_stack", "frame_stack_note"))


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    layout = source.layout
    note = (
        "observations hold single frames; a stack of k frames is k consecutive entries of one episode, "
        f"padded with {'zeros' if layout.padding.name == 'ZEROS' else 'its first frame'} at its start"
    )
    own = "D4RL", "diskreplay", [stack.frames for stack in layout.stacks], note
    with hdf5_writer.created(target, compression) as out:
        for name, value in zip(OWN, own, strict=True):
            out.put(name, value)
        out.put(LAYOUT_PLACE, json.dumps(layout.to_json()))
        write_flat(layout, source.blocks(), out, _written(layout))


def _key(name: str) -> str:
    """Return the HDF5 key of a column: ``observations/camera`` for ``obs/camera``."""
    first, slash, rest = name.partition("/")
    return KEYS[first] + slash + rest if first in KEYS else f"infos/{name}"


def _written(layout: Layout) -> dict[str, str]:
    following = {name.replace(OBS, NEXT_OBS, 1): f"next_{_key(name)}" for name in layout.obs}
    return {**{name: _key(name) for name in layout.step_shapes}, **following, CUT: CUTS}


FLAT = Convention(
    {**FLAT_NAMES, LAYOUT_PLACE: LAYOUT}, absent=frozenset({"terminals", "episode_terminals"}), tells=True,
)  # fmt: skip
"""Flat arrays of others that tell in another way than D4RL where episodes end."""
D4RL = Convention(
    {**FLAT_NAMES, CUTS: CUT, LAYOUT_PLACE: LAYOUT}, absent=frozenset({"episode_terminals"}),
    required=(OBS, ACTION, REWARD, TERMINATED), written=_written, own=OWN,
)  # fmt: skip
TABLES = (FLAT, D4RL)
FORMATS = (
    array_format(
        "d4rl", "D4RL, and other flat arrays in HDF5", "file", hdf5.KIND, TABLES, Holds(), write,
        hdf5_writer.COMPRESSIONS,
    ),
)  # fmt: skip
