"""The logs of Dopamine's circular replay buffer, in which the DQN Replay Dataset is published.

The dataset is of Agarwal et al. 2020, "An Optimistic Perspective on Offline Reinforcement Learning". A
directory of checkpoints, numbered ``N``; each file is one NumPy array, compressed with gzip:

=================================  ======================  ==========================================================
file                               shape                   what it holds
=================================  ======================  ==========================================================
``$store$_observation_ckpt.N.gz``  ``(rows, *obs_shape)``  single frames
``$store$_action_ckpt.N.gz``       ``(rows, *shape)``      actions
``$store$_reward_ckpt.N.gz``       ``(rows,)``             rewards
``$store$_terminal_ckpt.N.gz``     ``(rows,)`` uint8       ``terminated``
``$store$_<name>_ckpt.N.gz``       ``(rows, *shape)``      the user's own columns (Dopamine's ``extra_storage_types``)
``add_count_ckpt.N.gz``            ``()``                  rows ever added; modulo ``rows`` it is the cursor
``invalid_range_ckpt.N.gz``        ``(k + horizon,)``      rows around the cursor that are not sampled
``episode_end_indices_ckpt.N.gz``  a pickled set           rows that end an episode; of newer versions only
=================================  ======================  ==========================================================

What comes in follows the rules of ``OutOfGraphReplayBuffer``:

1. With ``add_count`` of at least ``rows`` the buffer is a full ring: its oldest row is at the cursor. Otherwise the
   rows from the cursor on were never written. The logs of the DQN Replay Dataset are written one row before the ring
   is full, so that their last row belongs before their first one, or, in the first log, nowhere.
2. Checkpoints of one run go on in each other: by their counts, rows that two of them hold are taken once. A count that
   does not grow, or another number of rows, begins another run.
3. Before each episode stand ``k - 1`` rows of zeros, where observations stack ``k`` frames. They are left out, and
   ``k`` is found from them.
4. A terminal row has no next observation, and nothing depends on it. The row that ends an episode without being
   terminal is no transition.
5. Pickles are never loaded. The set of ends is read token by token, and only if it holds plain numbers.

What goes out is sampled by Dopamine as it is in the store: each file is a buffer of its own that is not full, and ends
with its last episode. Three things are as Dopamine reads them, but not as it writes them: arrays are as long as their
rows; padding after an end that is not terminal is in ``episode_end_indices``, because Dopamine samples it otherwise;
and a last terminal row is followed by a row of zeros, because Dopamine never samples the row before the cursor.
``diskreplay.json`` holds the layout and the ends whose flags the files do not tell.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import pickle
import re
from collections.abc import Iterator, Mapping

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import episode_blocks
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.names import Names, files_below
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions, with_next_obs
from diskreplay.formats.files.dopamine_logs import (
    DESCRIPTION,
    NAMES,
    OTHERS,
    OWN,
    TERMINAL,
    Logs,
    check_arrays,
    description,
    file_name,
    find,
    infer_layout,
    linked,
    open_checkpoint,
    padding_rows,
)
from diskreplay.formats.files.gzip_arrays import GzipWriter, compressed
from diskreplay.schema.columns import ACTION, OBS, REWARD, Start

CAPACITY = 1_000_000
"""The number of rows of the buffers that the DQN Replay Dataset was logged from."""
NUMBERED = re.compile(r"(_ckpt\.)\d+(?=\.gz$)")
"""What the name of a file of a checkpoint ends with."""
FILE_ROWS = 900_000
"""The rows after which the next episode begins a new checkpoint: the room that is left is for one long episode."""


class CheckpointWriter:
    """One checkpoint that is filled episode by episode."""

    def __init__(self, folder: pathlib.Path, suffix: int, layout: Layout) -> None:
        self._folder, self._suffix, self._layout = folder, suffix, layout
        self._shapes = {OBS: layout.obs[OBS], ACTION: layout.action[ACTION], REWARD: ((), layout.reward_dtype)}
        self._shapes |= {**layout.columns, TERMINAL: ((), np.dtype(np.uint8))}
        self._files: dict[str, GzipWriter] = {}
        self._opened = contextlib.ExitStack()  # which closes all, though the disk may be full
        for name, (shape, dtype) in self._shapes.items():
            file = (folder / file_name(NAMES.get(name, name), suffix)).open("wb")
            self._files[name] = self._opened.enter_context(contextlib.closing(GzipWriter(file, shape, dtype)))
        self.rows = 0
        self.odd: dict[bool, list[int]] = {False: [], True: []}
        """The rows that end an episode in neither flag, and those that end one in both."""
        self._ends: list[int] = []
        self._terminal = False

    def begin(self, first: Array) -> None:
        """Begin an episode with its padding; ``first`` is its first frame."""
        count = padding_rows(self._layout)
        if not self._terminal and self.rows:
            self._ends += range(self.rows, self.rows + count)
        frame = first if self._layout.padding == Start.REPEAT else np.zeros_like(first)
        self._append({OBS: np.broadcast_to(frame, (count, *first.shape))}, count)

    def add(self, steps: Transitions) -> None:
        """Take steps of the episode."""
        self._append({**steps.columns(), TERMINAL: steps.terminated}, len(steps))
        if steps.last[-1]:
            self._terminal, truncated = bool(steps.terminated[-1]), bool(steps.truncated[-1])
            self._ends.append(self.rows - 1)
            if self._terminal == truncated:
                self.odd[truncated].append(self.rows - 1)

    def _append(self, columns: Mapping[str, Array], count: int) -> None:
        for name, (shape, dtype) in self._shapes.items():
            values = columns.get(name)
            self._files[name].append(np.zeros((count, *shape), dtype) if values is None else values)
        self.rows += count

    def finish(self) -> None:
        if self._terminal:
            self._append({}, 1)
        for file in self._files.values():
            file.finish()
        frames = padding_rows(self._layout) + 1
        around = (self.rows - 1 + np.arange(frames + 1)) % CAPACITY
        for name, values in (("add_count", np.array(self.rows)), ("invalid_range", around)):
            data = io.BytesIO()
            np.save(data, values, allow_pickle=False)
            self._write(name, data.getvalue())
        self._write("episode_end_indices", pickle.dumps(set(self._ends), protocol=4))

    def _write(self, name: str, data: bytes) -> None:
        (self._folder / f"{name}_ckpt.{self._suffix}.gz").write_bytes(compressed(data))

    def close(self) -> None:
        self._opened.close()


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    target.mkdir()
    with contextlib.ExitStack() as stack:

        def opened(suffix: int) -> CheckpointWriter:
            return stack.enter_context(contextlib.closing(CheckpointWriter(target, suffix, source.layout)))

        checkpoints = [opened(0)]
        for block in episode_blocks(source.blocks()):
            if not block.start:
                if checkpoints[-1].rows >= FILE_ROWS:
                    checkpoints[-1].finish()
                    checkpoints.append(opened(len(checkpoints)))
                checkpoints[-1].begin(block.steps.obs[OBS][0])
            checkpoints[-1].add(block.steps)
        checkpoints[-1].finish()
    described = {
        "layout": source.layout.to_json(),
        "cut": {str(suffix): checkpoint.odd[False] for suffix, checkpoint in enumerate(checkpoints)},
        "both": {str(suffix): checkpoint.odd[True] for suffix, checkpoint in enumerate(checkpoints)},
    }
    (target / DESCRIPTION).write_text(json.dumps(described, indent=1))


def check(layout: Layout) -> None:
    """Raise InputError for columns that have the name of one of Dopamine's own arrays."""
    for name in layout.columns:
        if name in OWN:
            raise InputError(f"dopamine has an array {name!r} of its own, and cannot hold a column of that name")


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a directory of checkpoints, or the one that a file of observations belongs to, as a source."""
    folder, suffixes = find(path)
    if not suffixes:
        raise InputError(f"{str(path)!r} holds no {file_name(NAMES[OBS], 0)}, nor one of another number")
    names = Names(files_below(path) if path.is_dir() else [path.name], lambda name: NUMBERED.sub(r"\1*", name))
    checkpoints = [open_checkpoint(folder, suffix, choice) for suffix in suffixes]
    names.take(DESCRIPTION, *(f"{name}_ckpt.{suffix}.gz" for name in OTHERS for suffix in suffixes))
    names.take(*(path.name for checkpoint in checkpoints for path in checkpoint.paths.values()))
    told, odd = description(folder / DESCRIPTION)
    layout = infer_layout(checkpoints) if told is None else told.only(choice.columns)
    for checkpoint in checkpoints:
        check_arrays(checkpoint, layout)
    logs = Logs(linked(checkpoints), layout, told is not None, odd)
    each = [(int(rows.kept.sum()), int(rows.last[rows.kept].sum())) for _, rows in logs.each()]
    steps, episodes = sum(count for count, _ in each), sum(count for _, count in each)
    yield Source(layout, steps, lambda: with_next_obs(logs.steps()), episodes, names)


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory of logs, or a file of observations of one."""
    return bool(find(path)[1]) if path.exists() else False


FORMATS = (
    Format(
        "dopamine", "Dopamine, DQN Replay: gzip logs of a circular replay buffer", "directory",
        Holds(final_obs=False, next_obs=False, nested_obs=False, nested_action=False), recognise, read, write,
        ("gzip",), check=check,
    ),
)  # fmt: skip
