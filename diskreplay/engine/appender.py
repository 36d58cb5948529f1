"""A row comes in: checked, its frames stored once, its place in the episode found.

1. Every argument is checked against its column; nothing changes before all are good.
2. Continuity: is ``obs`` the ``next_obs`` of the call before, bit for bit? Then only its frame is new, and it already
   stands in row ``end``, where that call left it *pending*.
3. Where it is not, the pending observation goes to the patch table as the true next observation of the row before. The
   row continues it all the same where the store's continuity is that of flags, unless it is the first after opening.
4. A row that does not continue the one before gets a start code that explains its older frames; where no padding rule
   does, the frames go to the patch table.
5. The row is written, ``end`` moves on, and the new ``next_obs`` becomes pending in the row after.
6. A next stack that does not follow from its stack goes to the patch table at once, whole (special).

All but the first is one change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.engine.inputs import NO_FREEDOMS, Freedoms, Slot, action_slots, check_reward, column_slots, obs_slots
from diskreplay.engine.misuse import Watch
from diskreplay.errors import InputError, StateError
from diskreplay.index.facts import EpisodeFacts
from diskreplay.index.log import NEXT_PATCH, StreamLog
from diskreplay.interrupts import Block
from diskreplay.schema import (
    OBS,
    PATCHES,
    PLACE,
    REPEAT,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    ZEROS,
    Column,
    Schema,
    Stack,
)
from diskreplay.storage.commit import MAX_IDS
from diskreplay.storage.stream import StreamWriter

Array = NDArray[Any]


class ObsLeaf:
    """One observation leaf on its way in: the given array, and the frames that are stored of it."""

    def __init__(self, column: Column, stack: Stack, num_envs: int) -> None:
        self.name = column.name
        self.stack = stack
        self.num_envs = num_envs
        self.stacked = stack.axis is not None
        self.pending: Array | None = None
        """A copy of the last next stack, ``([num_envs,] frames, *shape)``; kept only of stacked input."""
        self.frame_shape = column.shape
        shape = column.shape
        if stack.axis == 0:
            shape = (stack.frames * shape[0], *shape[1:]) if stack.channels else (stack.frames, *shape)
        elif stack.axis == -1:
            shape = (*shape[:-1], stack.frames * shape[-1]) if stack.channels else (*shape, stack.frames)
        self.shape = shape
        self.lead = 0 if num_envs == 1 else 1
        self.column = column

    def frames(self, given: Array) -> Array:
        """The stack as ``([num_envs,] frames, *frame_shape)``, oldest first: a view."""
        lead, count = self.lead, self.stack.frames
        if self.stack.axis == 0:
            return given.reshape(*given.shape[:lead], count, *self.frame_shape)
        if self.stack.channels:
            given = given.reshape(*given.shape[:-1], count, self.frame_shape[-1])
            return np.moveaxis(given, -2, lead)
        return np.moveaxis(given, -1, lead)

    def split(self, given: Array) -> tuple[Array, Array]:
        """The given array as frames, if stacked, and its newest frame."""
        if not self.stacked:
            return given, given
        frames = self.frames(given)
        return frames, frames[:, -1] if self.lead else frames[-1]


class Appender:
    """Writes one stream: the only way rows come into it; whoever calls it is alone in writing.

    Args:
        schema, writer, log, facts: of the stream.
        change: the block of a change, which guards readers.
        freedoms: what :meth:`add` allows.
    """

    def __init__(
        self, schema: Schema, writer: StreamWriter, log: StreamLog, facts: EpisodeFacts, change: Block,
        freedoms: Freedoms = NO_FREEDOMS,
    ) -> None:  # fmt: skip
        num_envs = log.num_envs
        self.schema = schema
        self.writer = writer
        self.log = log
        self.facts = facts
        """Of the episodes: the rows that begin some take them along."""
        self.change = change
        self.num_envs = num_envs
        self.lead = 0 if num_envs == 1 else 1
        """Axes before the frames: the environments, when there are several."""
        self.leaves = [ObsLeaf(c, s, num_envs) for c, s in zip(schema.obs_columns, schema.stacks, strict=True)]
        self.obs, self.next_obs = obs_slots(schema, [leaf.shape for leaf in self.leaves], num_envs, freedoms)
        self.actions = action_slots(schema, num_envs, freedoms)
        self.reward = Slot(REWARD, (), writer.rows[REWARD].column.dtype, num_envs, lossy=True)
        self._largest_reward = float(np.finfo(self.reward.dtype).max)
        self.flag = {name: Slot(name, (), np.dtype(bool), num_envs) for name in (TERMINATED, TRUNCATED, VALID)}
        self.extras = column_slots(schema, num_envs, freedoms)
        self.alive = freedoms.alive
        self.single_frames = not any(leaf.stacked for leaf in self.leaves)
        self._nested_obs = not isinstance(schema.obs_tree, str)
        self._nested_action = not isinstance(schema.action_tree, str)
        self._choose()
        self._continues: Any = np.uint8(0) if num_envs == 1 else np.zeros(num_envs, np.uint8)
        self._all_valid: Any = True if num_envs == 1 else np.ones(num_envs, bool)
        self._ended: Any = True  # whether the row before ended or was no transition, of each environment
        self._follows: Any = True  # whether the pending stack follows from the row before
        self._pending_patched = False
        """The pending observation stands in the patch table already."""
        self._by_flags = schema.continuity == "flags"
        self._opened_at = log.end
        """The first row of this writer: flags say nothing of whether it goes on with what an earlier one left."""
        self._cuts: tuple[int, NDArray[np.bool_]] = -1, np.zeros(num_envs, bool)
        """A row, and the environments that begin a new episode with it because :meth:`cut` said so."""
        self.watch = Watch()

    def _choose(self) -> None:
        """Looks which columns the log holds."""
        self._held = self.log.resident
        self._columns = [
            (column, name if name in self._held else None, column.column.chunk_rows)
            for name, column in self.writer.rows.items()
        ]
        """Each column, its name in the log's table (None for a column that is not held there), and rows of a chunk."""
        self._obs = self._columns[: len(self.leaves)]

    def resume(self, pending: list[Array] | None) -> None:
        """Takes up after the committed rows; ``pending`` are the newest next stacks, ``(num_envs, frames, *shape)``."""
        log = self.log
        if pending is None or log.end == 0:
            return
        last = np.full(self.num_envs, log.end - 1)
        envs = np.arange(self.num_envs)
        ended = log.take(TERMINATED, last, envs) | log.take(TRUNCATED, last, envs) | ~log.take(VALID, last, envs)
        follows = np.array([(log.end - 1, env) not in log.next_older_patches for env in range(self.num_envs)])
        self._ended = bool(ended[0]) if self.num_envs == 1 else ended
        self._follows = bool(follows[0]) if self.num_envs == 1 else follows
        log.reserve()
        for leaf, frames in zip(self.leaves, pending, strict=True):
            frames = frames if self.lead else frames[0]
            if leaf.stacked:
                leaf.pending = frames.copy()
        newest = [frames[:, -1] if self.lead else frames[0, -1] for frames in pending]
        self._put_pending(newest)
        log.pending = True
        self._pending_patched = True

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any,
        valid: Any, extra: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Adds one row; InputError, before any change, where an argument breaks its rule."""
        is_valid = self._all_valid if valid is None else self.flag[VALID].check(valid)
        if self._nested_obs:
            given = self._check_obs(self.obs, obs, OBS, is_valid)
            following = self._check_obs(self.next_obs, next_obs, "next_obs", is_valid)
        else:
            given, following = [self.obs[0].check(obs, is_valid)], [self.next_obs[0].check(next_obs, is_valid)]
        extras = []
        if extra or self.extras:
            self.check_columns(extra)
            extras = [slot.check(extra[name], is_valid) for name, slot in self.extras.items()]
        acting = is_valid if self.alive is None else self.acting(is_valid, extra[self.alive])
        if self._nested_action:
            flat = spaces.flatten(self.schema.action_tree, action, "action")
            values = [slot.check(value, acting) for slot, value in zip(self.actions, flat, strict=True)]
        else:
            values = [self.actions[0].check(action, acting)]
        rewards = self.reward.check(reward)
        check_reward(rewards, self._largest_reward)
        ends, cuts = self.flag[TERMINATED].check(terminated), self.flag[TRUNCATED].check(truncated)
        self.check(1)
        if self.single_frames:
            stacks = frames = given
            next_stacks = next_frames = following
        else:
            stacks, frames = self._split(given)
            next_stacks, next_frames = self._split(following)
        log = self.log
        with self.change:
            self._reserve(1)
            start = self._start(stacks, frames, is_valid, rewards, next_frames)
            row = log.end
            # Where every environment goes on, the frames stand in the write buffer already: they were pending there.
            in_place = len(frames) if start is self._continues else 0
            self._write(row, [*frames, *values, rewards, ends, cuts, is_valid, start, *extras], in_place)
            log.end = row + 1
            self._put_pending(next_frames)
            self._ended = ends | cuts | ~is_valid if self.lead else (ends or cuts or not is_valid)
            if not self.single_frames:
                self._follow(stacks, next_stacks, row)
            if valid is not None:
                log.invalid += self.num_envs - int(np.count_nonzero(is_valid))
            self._added()

    def check(self, rows: int) -> None:
        """StateError where so many rows cannot be added: the writer has stopped, or ids would not name them."""
        self.writer.check()
        if (self.log.end + rows) * self.num_envs > MAX_IDS:
            raise StateError(
                f"the stream {self.writer.name!r} can have {MAX_IDS:,} transitions ever, and no more {rows} rows of "
                f"{self.num_envs} after {self.log.end:,}; nothing was added: go on in another, open(path, stream=...)"
            )

    def cut(self, envs: NDArray[np.bool_]) -> None:
        """The next row begins a new episode in the environments of a mask ``(num_envs,)``."""
        row, before = self._cuts
        self._cuts = self.log.end, envs | before if row == self.log.end else envs

    def add_run(
        self, values: Sequence[Array], next_frames: Sequence[Array], ended: Array, start: int, stop: int
    ) -> int:
        """Adds steps ``[start, stop)`` of those that were checked, or as many as no chunk's end stands between.

        Args:
            values: of each column in the order of the store's, ``(steps, num_envs, *shape)``; single frames. Each step
                is a transition that continues the one before it, and the first one the newest row.
            next_frames: of each observation leaf, likewise.
            ended: whether a step ended an episode, ``(steps, num_envs)``.

        Returns how many were added.
        """
        log = self.log
        count = min(stop - start, *(rows - log.end % rows for _, _, rows in self._columns))
        self.writer.check()
        with self.change:
            self._reserve(count)
            self._put_run(values, slice(start, start + count))
            newest = start + count - 1
            self._put_pending([frames[newest] for frames in next_frames])
            self._ended = ended[newest]
            self._added()
        return count

    def _put_run(self, values: Sequence[Array], given: slice) -> None:
        log, row, count = self.log, self.log.end, given.stop - given.start
        positions = np.arange(row, row + count) % log.table.length
        for (column, name, rows), value in zip(self._columns, values, strict=True):
            at = row % rows
            column.single[at : at + count] = value[given]
            if name is not None:
                log.table.arrays[name][positions if self.lead else (positions, 0)] = value[given]
            column.end = row + count - 1
            if at + count == rows:
                column.advance()
            else:
                column.end = row + count
        log.table.arrays[NEXT_PATCH][positions] = -1
        for later in log.later:
            log.table.arrays[later][positions] = 0
        log.end = row + count

    def _reserve(self, rows: int) -> None:
        """Makes room for rows that are added."""
        if self._held is not self.log.resident:  # it was resized
            self._choose()
        self.log.reserve(rows)

    def _added(self) -> None:
        """After rows were added: moves the window on, so that nobody sees one that holds more than the capacity."""
        log = self.log
        if log.end - log.begin > log.rows:
            log.slide(log.end - log.rows)
        log.pending = True
        self._pending_patched = False

    def check_columns(self, extra: Mapping[str, Any]) -> None:
        """InputError where these are not just the user's columns."""
        if extra.keys() != self.extras.keys():
            missing, unknown = sorted(self.extras.keys() - extra.keys()), sorted(extra.keys() - self.extras.keys())
            raise InputError(
                f"add: the columns {missing} are missing" if missing else f"add: unknown columns {unknown}"
            )

    @staticmethod
    def acting(is_valid: Any, alive: Any) -> Array:
        """Which agents act in a transition, ``(..., n_agents)``."""
        acting: Array = np.asarray(is_valid)[..., None] & np.asarray(alive, bool)
        return acting

    def _check_obs(self, slots: list[Slot], value: Any, what: str, is_valid: Any) -> list[Array]:
        """The leaves of a nested observation, as given."""
        flat = spaces.flatten(self.schema.obs_tree, value, what)
        return [slot.check(part, is_valid) for slot, part in zip(slots, flat, strict=True)]

    def _split(self, given: list[Array]) -> tuple[list[Array], list[Array]]:
        """The leaves as stacks, where they are given so, and their newest frames."""
        pairs = [leaf.split(value) for leaf, value in zip(self.leaves, given, strict=True)]
        return [stack for stack, _ in pairs], [frame for _, frame in pairs]

    def _start(
        self, stacks: list[Array], frames: list[Array], is_valid: Array, reward: Array, next_frames: list[Array]
    ) -> Any:
        """The row's start codes; puts the pending observations that it does not continue into the patch table."""
        log = self.log
        if log.pending:
            same = self._same(stacks)
            ended = self._ended
            if self._cuts[0] == log.end:
                ended = ended | self._cuts[1]
            if not self.lead:
                if same and not ended and self._follows and is_valid:
                    return self._continues
                same = np.array([same])
            elif same.all() and not np.any(ended) and np.all(self._follows) and is_valid.all():
                return self._continues
            if not self._pending_patched:
                self._patch_next(np.flatnonzero(~same).tolist())
            goes_on = same
            if self._by_flags and log.end != self._opened_at:
                goes_on = same | self._same_older(stacks)
            ended, valid = np.atleast_1d(ended), np.atleast_1d(is_valid)
            continues = goes_on & ~ended & np.atleast_1d(self._follows) & valid
            self._look(same, ~goes_on & ~ended & valid, valid, reward, zip(frames, next_frames, strict=True))
        else:
            continues = np.zeros(self.num_envs, bool)
        start = np.zeros(self.num_envs, np.uint8)
        begins = np.flatnonzero(~continues).tolist()
        self.facts.begins(log.end, begins, np.atleast_1d(is_valid))
        for env in begins:
            start[env] = self._explain(stacks, frames, env) if np.atleast_1d(is_valid)[env] else ZEROS
        return start if self.lead else start[0]

    def _same(self, stacks: list[Array]) -> Any:
        """Whether the observation is the pending one, bit for bit: a bool, or one for each environment."""
        row = self.log.end
        same: Any = True
        for leaf, (column, _, rows), given in zip(self.leaves, self._obs, stacks, strict=True):
            expected = column.single[row % rows] if leaf.pending is None else leaf.pending
            if not self.lead:
                same = same and np.asarray(given, expected.dtype).tobytes() == expected.tobytes()
            else:
                same = same & _same_rows(given, expected)
        return same

    def _look(
        self, same: Array, cut: Array, valid: Array, reward: Array, frames: Iterable[tuple[Array, Array]]
    ) -> None:
        """Has the row looked at for signs of misuse; ``cut`` where nothing said that it begins anew."""
        log = self.log
        if log.end == self._opened_at:
            return
        last, envs = np.full(self.num_envs, log.end - 1), np.arange(self.num_envs)
        after = valid & (log.take(TERMINATED, last, envs) | log.take(TRUNCATED, last, envs))
        unmoved, earning = after & same, np.zeros(self.num_envs, bool)
        if unmoved.any():
            moves = np.any([_differ(now, following, self.lead) for now, following in frames], axis=0)
            after, unmoved = after & (moves | ~same), unmoved & moves
            earning = log.take(REWARD, np.maximum(last - 1, log.begin), envs) != 0
        steps = (log.end - self._opened_at) * self.num_envs
        self.watch.look(steps, cut, after, unmoved, np.atleast_1d(reward) == 0, earning)

    def _same_older(self, stacks: list[Array]) -> NDArray[np.bool_]:
        """Whether the older frames of stacks are those of the pending ones, as they are of single frames."""
        same = np.ones(self.num_envs, bool)
        for leaf, given in zip(self.leaves, stacks, strict=True):
            if leaf.pending is not None:
                before, now = (a if self.lead else a[None] for a in (leaf.pending, given))
                same &= _same_rows(now[:, :-1], before[:, :-1])
        return same

    def _explain(self, stacks: list[Array], frames: list[Array], env: int) -> int:
        """Which padding rule gives the older frames of a row that starts anew; the patch table takes them if none."""
        if self.single_frames:
            return self.schema.padding
        if self.lead:
            stacks, frames = [stack[env] for stack in stacks], [frame[env] for frame in frames]
        older = [stack[:-1] for leaf, stack in zip(self.leaves, stacks, strict=True) if leaf.stacked]
        newest = [frame for leaf, frame in zip(self.leaves, frames, strict=True) if leaf.stacked]
        # Bits are compared, as everywhere: a negative zero is no padding.
        if not any(any(part.tobytes()) for part in older):
            return ZEROS
        if all(part.tobytes() == frame.tobytes() * len(part) for part, frame in zip(older, newest, strict=True)):
            return REPEAT
        for back in range(1, self.schema.context + 1):
            values = []
            for leaf, stack, frame in zip(self.leaves, stacks, frames, strict=True):
                given = leaf.stacked and back < leaf.stack.frames
                values.append(stack[-1 - back] if given else np.zeros_like(frame))
            self._patch(self.log.end, env, -back, values)
        return PATCHES

    def _write(self, row: int, values: list[Any], in_place: int) -> None:
        """Puts a row into the write buffers and the rings, and moves the columns on.

        The first ``in_place`` values are in their write buffers already.
        """
        table = self.log.table
        # One environment: the value lacks the axis, which numpy would have to broadcast.
        position: Any = row % table.length if self.lead else (row % table.length, 0)
        for number, ((column, name, rows), value) in enumerate(zip(self._columns, values, strict=True)):
            at = row % rows
            if number >= in_place:
                column.single[at] = value
            if name is not None:
                table.arrays[name][position] = value
            if at + 1 == rows:
                column.advance(hurry=True)
            else:
                column.end = row + 1
        table.arrays[NEXT_PATCH][position] = -1
        for later in self.log.later:
            table.arrays[later][position] = 0

    def _put_pending(self, frames: list[Array], env: int | None = None) -> None:
        """Puts next frames into the place of row ``end``: the newest ones of all environments, or those of one."""
        row, table = self.log.end, self.log.table
        lanes: Any = env if env is not None else slice(None) if self.lead else 0
        for (column, name, rows), frame in zip(self._obs, frames, strict=True):
            if env is None:
                column.single[row % rows] = frame
            else:
                column.slots[row % rows, env] = frame
            if name is not None:
                table.arrays[name][row % table.length, lanes] = frame

    def _follow(self, stacks: list[Array], next_stacks: list[Array], row: int) -> None:
        """Keeps the next stacks for comparison; those that do not follow from ``stacks`` go to the patch table."""
        follows = np.ones(self.num_envs, bool)
        for leaf, stack, following in zip(self.leaves, stacks, next_stacks, strict=True):
            if not leaf.stacked:
                continue
            leaf.pending = following.copy()
            if self.lead:
                follows &= _same_rows(following[:, :-1], stack[:, 1:])
            else:
                follows[0] &= following[:-1].tobytes() == stack[1:].tobytes()
        for env in np.flatnonzero(~follows).tolist():
            for back in range(self.schema.context + 1):
                values = []
                for leaf, following in zip(self.leaves, next_stacks, strict=True):
                    frames = following[env] if self.lead else following
                    if leaf.stacked:
                        values.append(frames[-1 - back] if back < leaf.stack.frames else np.zeros_like(frames[-1]))
                    else:
                        values.append(frames)  # a leaf without a stack: only offset 1 is ever looked at
                self._patch(row, env, 1 + back, values)
        self._follows = follows if self.lead else bool(follows[0])

    def pending_frames(self, env: int) -> list[Array]:
        """The pending frames of one environment."""
        row = self.log.end
        return [column.slots[row % rows, env] for column, _, rows in self._obs]

    def patch_pending(self) -> None:
        """Puts the pending observations into the patch table, as a commit needs them: they are no row yet."""
        if not self.log.pending or self._pending_patched:
            return
        self._patch_next(range(self.num_envs))
        self._pending_patched = True

    def _patch_next(self, envs: Iterable[int]) -> None:
        """Puts the pending observations of environments into the patch table, unless they stand there already."""
        row = self.log.end - 1
        for env in envs:
            if self.log.table.arrays[NEXT_PATCH][row % self.log.table.length, env] < 0:
                self._patch(row, env, 1, self.pending_frames(env))

    def _patch(self, row: int, env: int, offset: int, frames: list[Array]) -> None:
        values = {PLACE: np.array([row, env, offset], np.int64)}
        values.update(zip((leaf.name for leaf in self.leaves), frames, strict=True))
        for name, column in self.writer.patches.items():
            column.single[column.end % column.column.chunk_rows] = values[name]
            column.advance()
        self.log.add_patches({name: values[name][None] for name in self.log.patches.arrays})


def _differ(a: Array, b: Array, lead: int) -> NDArray[np.bool_]:
    """Which environments have other values in two arrays."""
    differ: NDArray[np.bool_] = ~_same_rows(a, b) if lead else np.array([np.any(a != b)])
    return differ


def _same_rows(a: Array, b: Array) -> NDArray[np.bool_]:
    """Which entries of the first axis are the same, bit for bit."""
    same: NDArray[np.bool_] = (_words(a) == _words(b)).all(axis=1)
    return same


def _words(values: Array) -> Array:
    """Each entry of the first axis as integers, of eight bytes where that goes up: what compares fastest."""
    flat = values.reshape(len(values), -1)
    if flat.strides[1] != flat.itemsize:
        flat = np.ascontiguousarray(flat)
    return flat.view(np.uint64 if flat.shape[1] * flat.itemsize % 8 == 0 else np.uint8)
