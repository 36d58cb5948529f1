"""The reading of checkpoints of Dopamine's replay buffer; :mod:`diskreplay.formats.dopamine` has the rules."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import re
from collections.abc import Iterator, Mapping

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.flat import flags, native
from diskreplay.formats.core.layout import Layout, Shape, column_name, infer_discrete, infer_space
from diskreplay.formats.core.transitions import BLOCK_BYTES, Transitions
from diskreplay.formats.core.untrusted import declared_count, read_json
from diskreplay.formats.files.gzip_arrays import gzip_array
from diskreplay.formats.files.pickled_set import pickled_set
from diskreplay.schema.columns import ACTION, OBS, REWARD, Stack

NAMES = {OBS: "observation", ACTION: "action", REWARD: "reward"}
TERMINAL = "terminal"
OWN = (*NAMES.values(), TERMINAL)
OTHERS = ENDS, COUNT, AROUND = "episode_end_indices", "add_count", "invalid_range"
DESCRIPTION = "diskreplay.json"
MAX_PADDING = 1023
"""The most rows of padding: a store stacks no more than 1,024 frames."""
STORED = re.compile(r"\$store\$_(.+)_ckpt\.(\d+)\.gz", re.DOTALL)


def file_name(name: str, suffix: int) -> str:
    """Return the file of an array of :data:`NAMES`, or of another column."""
    return f"$store$_{name}_ckpt.{suffix}.gz"


def padding_rows(layout: Layout) -> int:
    """Return the number of rows before an episode."""
    return layout.stacks[0].frames - 1


def find(path: pathlib.Path) -> tuple[pathlib.Path, list[int]]:
    """Return the directory and the numbers of the checkpoints that a path names."""
    paths = list(path.iterdir()) if path.is_dir() else [path]
    matches = [STORED.fullmatch(entry.name) for entry in paths if entry.is_file()]
    suffixes = sorted({int(match[2]) for match in matches if match and match[1] == NAMES[OBS]})
    return (path if path.is_dir() else path.parent), suffixes


@dataclasses.dataclass(frozen=True)
class StoredCheckpoint:
    """The files of one number that are read.

    Attributes:
        folder, suffix: the folder of the files, and the end of their names.
        paths: the paths of the arrays, by Dopamine's names.
        rows: entries of each array.
        count: rows that were ever added.
        around: entries of ``invalid_range``; None where that file is missing.
        skip: its oldest rows that the checkpoint before it holds, too.
        follows: it goes on where the one before it ends.
        goes_on: the next one follows it.
    """

    folder: pathlib.Path
    suffix: int
    paths: Mapping[str, pathlib.Path]
    rows: int
    count: int
    around: int | None
    skip: int = 0
    follows: bool = False
    goes_on: bool = False

    @property
    def where(self) -> str:
        return str(self.folder / file_name(NAMES[OBS], self.suffix))

    @property
    def begin(self) -> int:
        """The oldest row, counted from the first one ever added."""
        return max(0, self.count - self.rows)

    def spans(self) -> list[tuple[int, int]]:
        """Return ranges of rows from the oldest to the newest, without the oldest ``skip``."""
        turn = self.count - self.count % max(1, self.rows)  # the row that was written to place 0 last
        oldest = self.begin + self.skip - turn
        spans = [(self.rows + oldest, self.rows), (max(0, oldest), self.count - turn)]
        return [(start, stop) for start, stop in spans if start < stop]

    def column(self, name: str) -> Array:
        """Return a small array from the oldest row to the newest."""
        return self._in_order(gzip_array(self.paths[name]).value())

    def _in_order(self, values: Array) -> Array:
        return np.concatenate([values[:0], *(values[start:stop] for start, stop in self.spans())])

    def ends(self) -> Array:
        """Tell which rows ``episode_end_indices`` names, from the oldest on; it names none if it is missing."""
        marked = np.zeros(self.rows, bool)
        path = self.folder / f"{ENDS}_ckpt.{self.suffix}.gz"
        if path.exists():
            found = pickled_set(path, self.rows)
            if any(index < 0 for index in found):
                raise InputError(f"{path}: names rows below 0")
            marked[[index for index in found if index < self.rows]] = True
        return self._in_order(marked)


def open_checkpoint(folder: pathlib.Path, suffix: int, choice: Choice) -> StoredCheckpoint:
    """Return the checkpoint of a number; raise InputError for what is missing, ragged or not an array."""
    named = ((STORED.fullmatch(path.name), path) for path in folder.iterdir())
    paths = {match[1]: path for match, path in named if match and int(match[2]) == suffix}
    for name in OWN:
        if name not in paths:
            raise InputError(f"{str(folder)!r} lacks {file_name(name, suffix)}")
    choice.check_columns([OBS], [column_name(name) for name in paths if name not in OWN])
    paths = {name: path for name, path in paths.items() if name in OWN or choice.wants(column_name(name))}
    counted = folder / f"{COUNT}_ckpt.{suffix}.gz"
    if not counted.exists():
        raise InputError(f"{str(folder)!r} lacks {counted.name}: without it nobody knows which row is the oldest")
    count = gzip_array(counted).value()
    if count.size != 1 or count.dtype.kind not in "iu" or count.reshape(-1)[0] < 0:
        raise InputError(f"{counted}: must be one number of rows")
    arrays = {name: gzip_array(path) for name, path in paths.items()}
    rows = math.prod(arrays[NAMES[OBS]].shape[:1])
    for array in arrays.values():
        if not array.shape:
            raise InputError(f"{array.where}: is a single value, not an array of rows")
        if array.shape[0] != rows:
            raise InputError(f"{array.where}: ragged lengths: {array.shape[0]:,} entries for {rows:,} observations")
    for name in (NAMES[REWARD], TERMINAL):
        if math.prod(arrays[name].shape[1:]) != 1:
            raise InputError(f"{arrays[name].where}: holds values of shape {arrays[name].shape[1:]}, not one a step")
    if not rows and count.reshape(-1)[0]:
        raise InputError(f"{counted}: counts rows of an empty buffer")
    around = folder / f"{AROUND}_ckpt.{suffix}.gz"
    width = math.prod(gzip_array(around).shape) if around.exists() else None
    return StoredCheckpoint(folder, suffix, paths, rows, int(count.reshape(-1)[0]), width)


def linked(checkpoints: list[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """Return the checkpoints in their runs, by rule 2 of the module's docstring."""
    found: list[StoredCheckpoint] = []
    for one in checkpoints:
        before = found[-1] if found else None
        if before and before.rows == one.rows and one.begin <= before.count < one.count:
            found[-1] = dataclasses.replace(before, goes_on=True)
            one = dataclasses.replace(one, follows=True, skip=before.count - one.begin)
        found.append(one)
    return found


@dataclasses.dataclass(frozen=True)
class RowFlags:
    """The flags of a part's rows, from its oldest to its newest.

    Attributes:
        kept: the row is a step; others are padding.
        terminated, truncated, last: as in :class:`diskreplay.formats.core.transitions.Transitions`.
        left: rows of padding that the next part begins with.
    """

    kept: Array
    terminated: Array
    truncated: Array
    last: Array
    left: int


@dataclasses.dataclass(frozen=True)
class Logs:
    """A dataset of checkpoints.

    Attributes:
        parts: the checkpoints in order.
        layout: the layout of the steps.
        described: True if diskreplay wrote them: the layout then stands beside them, and padding is not looked for.
        odd: rows that end an episode in neither flag (False), or in both (True), by the checkpoint's number.
    """

    parts: list[StoredCheckpoint]
    layout: Layout
    described: bool
    odd: Mapping[bool, Mapping[str, list[int]]]

    def rows(self, part: StoredCheckpoint, left: int) -> RowFlags:
        """Return the flags of a part's rows; the part begins with ``left`` rows of padding."""
        padding, terminal = padding_rows(self.layout), part.column(TERMINAL)
        count = len(terminal)
        terminated = flags(str(part.paths[TERMINAL]), TERMINAL, terminal, count)
        ends = terminated | part.ends()
        kept = np.ones(count, bool)
        kept[:left] = ends[:left] = False
        left = max(0, left - count)
        for end in np.flatnonzero(ends).tolist():
            if ends[end]:  # not in the padding of an earlier one
                kept[end + 1 : end + 1 + padding] = ends[end + 1 : end + 1 + padding] = False
                left = max(0, end + 1 + padding - count)
        truncated = ends & ~terminated
        for flag, odd in self.odd.items():
            found = odd.get(str(part.suffix), [])
            if not all(0 <= row < count and ends[row] for row in found):
                raise InputError(f"{part.folder / DESCRIPTION}: names rows that end no episode")
            truncated[found] = flag
        if not part.goes_on and count:
            if count > 1 and kept[-1] and not ends[-1] and terminated[-2]:
                kept[-1] = False  # the first row of an episode, and all that there is of it
            ends[np.flatnonzero(kept)[-1:]] = True
        return RowFlags(kept, terminated, truncated, ends, left)

    def each(self) -> Iterator[tuple[StoredCheckpoint, RowFlags]]:
        """Yield the parts with the flags of their rows."""
        left = 0
        for part in self.parts:
            if not part.follows:
                left = padding_rows(self.layout) if self.described else 0
            rows = self.rows(part, left)
            left = rows.left
            yield part, rows

    def steps(self) -> Iterator[tuple[Transitions, None]]:
        """Yield all steps, a few MB at a time."""
        size = max(1, BLOCK_BYTES // self.layout.step_bytes)
        for part, rows in self.each():
            with contextlib.ExitStack() as stack:
                arrays = {
                    name: stack.enter_context(contextlib.closing(gzip_array(path)))
                    for name, path in part.paths.items()
                    if name != TERMINAL
                }
                done = 0
                for start, stop in part.spans():
                    for at in range(start, stop, size):
                        values = {name: array[at : min(at + size, stop)] for name, array in arrays.items()}
                        there = slice(done, done + len(values[NAMES[REWARD]]))
                        yield self._block(part, values, rows, there), None
                        done = there.stop

    def _block(self, part: StoredCheckpoint, values: Mapping[str, Array], rows: RowFlags, there: slice) -> Transitions:
        kept = rows.kept[there]
        if not self.described:
            if not _zero(values[NAMES[OBS]][~kept]).all():
                raise InputError(
                    f"{part.where}: the {padding_rows(self.layout)} rows before each episode are not all "
                    f"zeros; nobody can tell how many frames its observations stack"
                )
            if not there.start and not part.follows:  # the rest of the padding of an episode whose begin is gone
                zero = np.logical_and.reduce([_zero(array) for array in values.values()])
                zero &= ~rows.last[there]
                most = min(padding_rows(self.layout), len(zero))
                kept = kept.copy()
                kept[:most] &= ~np.logical_and.accumulate(zero[:most])
        extra = {column_name(name): array[kept] for name, array in values.items() if name not in NAMES.values()}
        reward = values[NAMES[REWARD]][kept]
        return Transitions(
            {OBS: values[NAMES[OBS]][kept]}, {}, {ACTION: values[NAMES[ACTION]][kept]}, extra,
            reward.reshape(len(reward)), rows.terminated[there][kept],
            rows.truncated[there][kept], rows.last[there][kept],
        )  # fmt: skip


def description(path: pathlib.Path) -> tuple[Layout | None, dict[bool, dict[str, list[int]]]]:
    """Return the layout and the odd ends that :func:`write` left, None and no ends if it left none."""
    if not path.exists():
        return None, {}
    stored = read_json(path)
    try:
        layout = Layout.from_json(stored["layout"], str(path))
        odd = {
            flag: {str(key): [declared_count(row, "a row") for row in rows] for key, rows in stored[name].items()}
            for name, flag in (("cut", False), ("both", True))
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: the description that diskreplay left there cannot be read: {error}") from error
    return layout, odd


def check_arrays(checkpoint: StoredCheckpoint, layout: Layout) -> None:
    """Raise InputError if a checkpoint's arrays are not those of the layout."""
    found = _shapes(checkpoint)
    del found[REWARD]
    expected = {**layout.obs, **layout.action, **layout.columns}
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise InputError(f"{checkpoint.where}: its arrays are not those of the other checkpoints: {name}")


def _shapes(checkpoint: StoredCheckpoint) -> dict[str, Shape]:
    """Return shape and dtype of each array but that of the flags, by our names."""
    ours = {theirs: name for name, theirs in NAMES.items()}
    arrays = {ours.get(name) or column_name(name): gzip_array(path)
              for name, path in checkpoint.paths.items() if name != TERMINAL}  # fmt: skip
    return {name: (tuple(array.shape[1:]), native(array.dtype)) for name, array in arrays.items()}


def infer_layout(checkpoints: list[StoredCheckpoint]) -> Layout:
    """Return the layout of checkpoints that we did not write."""
    columns = _shapes(checkpoints[0])
    space = infer_space(*columns.pop(OBS), OBS)
    shape, dtype = columns.pop(ACTION)
    if not shape and dtype.kind in "iu":
        each = [checkpoint.column(NAMES[ACTION]) for checkpoint in checkpoints]
        bounds = [(int(values.min()), int(values.max())) for values in each if len(values)] or [(0, 0)]
        actions = infer_discrete(min(low for low, _ in bounds), max(high for _, high in bounds), dtype)
    else:
        actions = infer_space(shape, dtype, ACTION)
    _, reward = columns.pop(REWARD)
    stacks = (Stack(_padding_found(checkpoints[0]) + 1),)
    return Layout(space, actions, columns, reward if reward.kind == "f" else np.dtype(np.float32), stacks)


def _padding_found(checkpoint: StoredCheckpoint) -> int:
    """Return the rows of zeros before each episode: at most what ``invalid_range`` allows, and what follows any end."""
    most = 7 if checkpoint.around is None else min(max(0, checkpoint.around - 2), MAX_PADDING)
    terminal, action, reward = (checkpoint.column(name) for name in (TERMINAL, NAMES[ACTION], NAMES[REWARD]))
    count = len(terminal)
    zero = _zero(terminal) & _zero(action) & _zero(reward)
    starts = np.flatnonzero(terminal) + 1
    starts = starts[starts + most <= count]
    if len(starts):
        after = np.stack([zero[starts + place] for place in range(most)], 1) if most else np.zeros((1, 0), bool)
        most = int(np.logical_and.accumulate(after, axis=1).sum(1).min())
    if not checkpoint.begin:
        with contextlib.closing(gzip_array(checkpoint.paths[NAMES[OBS]])) as array:
            frames = array[: min(most, count)]
        black = _zero(frames) & zero[: len(frames)]
        # None at all: the log of a run's end, which begins within an episode.
        most = int(np.logical_and.accumulate(black).sum()) or most
    return most


def _zero(values: Array) -> Array:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.logical_not(values.any(axis=tuple(range(1, values.ndim))))
