"""How a row gets into a stream: its arguments are checked, each frame is stored once, its place in the episode found.

1. Every argument is checked against its column before anything changes.
2. The observation is compared with the *pending* one: the ``next_obs`` of the call before, which already stands at the
   place of row ``end``. If the two are equal bit for bit, and the episode has not ended, the row continues the row
   before.
3. If they differ, the pending observation goes to the patch table, as the next observation of the row before. In a
   store whose continuity is "flags" the row still continues the row before, unless it is the first one after opening.
4. A row that does not continue the row before gets a start code, which says where its older frames come from. If no
   padding rule gives these frames, they go to the patch table.
5. The row is written, ``end`` moves on by one, and the new ``next_obs`` becomes pending.
6. A next stack that does not follow from its stack by one new frame goes to the patch table at once, with all frames.

Steps 2 to 6 are one change.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Array
from diskreplay.engine.arguments import Arguments, Row
from diskreplay.engine.continuity import Break, StackedRows
from diskreplay.engine.inputs import NO_EXCEPTIONS, InputExceptions
from diskreplay.engine.leaves import ObsLeaf, split
from diskreplay.engine.misuse import Watch
from diskreplay.engine.ragged_rows import RaggedRows
from diskreplay.engine.row_buffers import RowBuffers
from diskreplay.engine.row_call import RowCall
from diskreplay.engine.steps import Steps
from diskreplay.errors import StateError
from diskreplay.index.facts import EpisodeFacts
from diskreplay.index.log import StreamLog
from diskreplay.native import core
from diskreplay.process.locks import Block
from diskreplay.schema import spaces
from diskreplay.schema.columns import (
    CONTINUES,
    CUT_START,
    PATCHES,
    REPEAT,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VALID,
    ZEROS,
    Schema,
)
from diskreplay.storage.commit import MAX_IDS
from diskreplay.storage.stream import StreamWriter

FLAGS = TERMINATED, TRUNCATED, VALID
PLACED_STEPS = 256
"""The steps whose items are appended in one go; then readers have their turn."""


class Appender:
    """The only way in which rows get into one stream. Callers hold ``engine.write_lock``.

    Args:
        schema, writer, log, facts: the parts of the stream.
        change: the block around a change, which keeps readers out.
        gate: what bars the store from use.
        exceptions: the values that :meth:`add` takes against a rule.
        ragged: takes the items of ragged columns, if there are some.

    Attributes:
        arguments: the rules for the arguments of :meth:`add`.
        buffers: the places to which rows go.
        single_frames: True if no observation leaf is given as stacks.
        plain: True if arguments are what columns hold: neither stacks nor ragged.
        watch: the watch for signs of misuse.
        signs: the counts of that watch, of rows that begin episodes.
    """

    def __init__(
        self, schema: Schema, writer: StreamWriter, log: StreamLog, facts: EpisodeFacts, change: Block,
        gate: core.Gate, exceptions: InputExceptions = NO_EXCEPTIONS, ragged: RaggedRows | None = None,
    ) -> None:  # fmt: skip
        num_envs = log.num_envs
        self.schema = schema
        self.writer = writer
        self.log = log
        self.facts = facts
        """The facts of the stream's episodes; a row that begins an episode notes them."""
        self.change = change
        self.num_envs = num_envs
        self._ragged = ragged
        self._leaves = [ObsLeaf(c, s) for c, s in zip(schema.obs_columns, schema.stacks, strict=True)]
        self.arguments = Arguments(schema, self._leaves, num_envs, exceptions)
        self.single_frames = not any(leaf.stacked for leaf in self._leaves)
        self.watch = Watch()
        self.signs = self.watch.signs
        self._ended = np.ones(num_envs, bool)
        """True where the row before ended an episode, or was not a transition; the core keeps it up to date."""
        self._before = StackedRows(self._leaves, self._ended)
        self.plain = self.single_frames and ragged is None
        rules = self.arguments if self.plain else None
        bind = functools.partial(RowCall, schema, rules, log, self._ended, gate, self.signs, log.end)
        self.buffers = RowBuffers(schema, writer, log, bind)
        self._by_flags = schema.continuity == "flags"
        self._context = schema.context
        self._opened_at = log.end
        """The first row that this writer adds; flags alone cannot tell whether it continues the row before."""
        self._cut: tuple[NDArray[np.bool_], bool] = np.zeros(num_envs, bool), False
        """Where :meth:`cut` has row ``log.cut`` begin an episode, a mask, and ``first_missing``."""

    def resume(self, pending: list[Array] | None) -> None:
        """Go on after the committed rows; ``pending`` has the newest next stacks, ``(num_envs, frames, *shape)``."""
        log = self.log
        if pending is None or log.end == 0:
            return
        terminated, truncated, valid = (log.span(name, log.end - 1, log.end)[0] for name in FLAGS)
        follows = np.array([(log.end - 1, env) not in log.next_older_patches for env in range(self.num_envs)])
        self._ended[:] = terminated | truncated | ~valid
        self._before.resume(follows, pending)
        self.buffers.reserve(1)
        self.buffers.put_pending([stacks[:, -1] for stacks in pending])
        log.pending = True

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any,
        valid: Any, extra: Mapping[str, Any], exact: bool,
    ) -> None:  # fmt: skip
        """Add one row; raise InputError, before any change, if an argument breaks its rule.

        ``exact`` says that the core has found the arguments to need no conversion.
        """
        if exact:
            with self.change:
                self.buffers.reserve(1)
                done = self.buffers.call.row.add(
                    obs, action, reward, next_obs, terminated, truncated, valid, extra, True
                )
                if self._added(done, spaces.flatten(self.schema.obs_tree, next_obs, "next_obs")):
                    return
        row = self.arguments.row(obs, action, reward, next_obs, terminated, truncated, valid, extra)
        self.check(1)
        if self._ragged is not None:
            pending = self._seed_newest(self._ragged)
            with self.change:
                row = self._ragged.place(row, pending)
        self.add_row(row)

    def _seed_newest(self, ragged: RaggedRows) -> bool:
        """Make the pending observations the newest values of ragged columns, and tell whether there are any."""
        if self.log.pending:
            ragged.seed_newest(self.buffers.pending())
        return self.log.pending

    def steps(self, values: Row) -> Steps:
        """Return many checked steps, after the items of ragged columns were appended."""
        self.check(len(values.terminated))
        return Steps.of(values if self._ragged is None else self._placed(self._ragged, values))

    def _placed(self, ragged: RaggedRows, values: Row) -> Row:
        """Append the items of many checked steps, and return the steps with their spans."""
        pending = self._seed_newest(ragged)
        placed: list[Row] = []
        count = len(values.terminated)
        for at in range(0, count, PLACED_STEPS):
            given = [values.step(step) for step in range(at, min(at + PLACED_STEPS, count))]
            with self.change:
                for row in given:
                    placed.append(ragged.place(row, pending))
                    pending = True
        return ragged.with_spans(values, placed)

    def add_row(self, row: Row) -> None:
        """Add one row whose arguments were checked."""
        plain = self.plain and (row.valid is self.arguments.all_valid or np.all(row.valid))
        with self.change:
            self.buffers.reserve(1)
            if not (plain and self._added(self.buffers.call.row.put(row.values()), row.next_obs)):
                self._add(row, row if self.num_envs > 1 else row.by_environment())

    def _added(self, done: int, following: Sequence[Any]) -> bool:
        """Finish what the core has ``done`` of a row whose next observation has the frames ``following``, if it has."""
        if done == core.LOOK:
            self.look_for_misuse()
        return self.buffers.added(done, following)

    def _add(self, row: Row, each: Row) -> None:
        """Add a row; ``each`` has its values with an axis for the environments in any case."""
        stacks, frames = split(self._leaves, each.obs)
        next_stacks, next_frames = split(self._leaves, each.next_obs)
        values = self._exact(row, each._replace(obs=frames, next_obs=next_frames))
        found = self._find_break(values, stacks, each.valid)
        starts = self._begin(found, stacks, frames, next_frames, each) if found else np.zeros(self.num_envs, np.uint8)
        # If the row goes on everywhere, its frames are in the write buffers already: they were pending there.
        self.buffers.write(values, each.valid, starts, not found, next_frames)
        if not self.single_frames:
            self._keep(stacks, next_stacks)

    def _exact(self, row: Row, each: Row) -> list[Array]:
        """Return the values as the core takes them; ``each`` has those of a single environment with an axis for it."""
        return self.buffers.call.exact((row if self.plain else each).values())

    def check(self, rows: int) -> None:
        """Raise StateError if ``rows`` more rows cannot be added: the writer has stopped, or no ids are left."""
        self.writer.check()
        if self._ragged is not None:
            self._ragged.check()
        if (self.log.end + rows) * self.num_envs > MAX_IDS:
            raise StateError(
                f"the stream {self.writer.name!r} can have {MAX_IDS:,} transitions ever, and no more {rows} rows of "
                f"{self.num_envs} after {self.log.end:,}; nothing was added: go on in another, open(path, stream=...)"
            )

    def cut(self, envs: NDArray[np.bool_], first_missing: bool = False) -> None:
        """Have the next row begin a new episode in the environments of a mask ``(num_envs,)``.

        ``first_missing`` tells that the first steps of all episodes that begin at that row are missing.
        """
        log, (before, _) = self.log, self._cut
        self._cut = envs | before if log.cut == log.end else envs.copy(), first_missing
        log.cut = log.end

    def runs(self, steps: Steps) -> Iterator[tuple[int, int]]:
        """Return the intervals of steps that :meth:`add_run` can add, each at once or in parts."""
        return steps.runs(self._by_flags) if self.single_frames else ((at, at + 1) for at in range(len(steps)))

    def add_run(self, steps: Steps, start: int, stop: int, goes_on: bool) -> None:
        """Add checked steps ``[start, stop)``; each but the first continues the step before it.

        ``goes_on`` tells that the first does, too. If frames are given as stacks, there is only one step.
        """
        self.writer.check()
        if not goes_on:
            self.add_row(steps.row(start))
            start += 1
        if start == stop:
            return
        with self.change:
            self.buffers.reserve(stop - start)
            self.buffers.write_run(steps.columns, slice(start, stop))
            self._patch_run(steps, start, stop)
            newest = steps.row(stop - 1)
            self.buffers.put_pending(newest.next_obs)
            self._ended[:] = newest.terminated | newest.truncated
            self.log.going = not np.count_nonzero(self._ended)
            if self.log.end - self.log.begin > self.log.rows:  # no reader may see more rows than the capacity allows
                self.log.slide(self.log.end - self.log.rows)

    def _patch_run(self, steps: Steps, start: int, stop: int) -> None:
        """Put next observations that steps ``[start, stop)``, just written, do not have to the patch table."""
        at, *env = np.nonzero(steps.unlike[start:stop])
        if len(at):
            self.signs.differing += len(at)
            at += start - 1
            rows = at + self.log.end - stop
            places = np.stack([rows, env[0] if env else np.zeros_like(at), np.ones_like(at)], axis=1)
            self.buffers.patch(places, [leaf[(at, *env)] for leaf in steps.values.next_obs])

    def _find_break(self, values: list[Array], stacks: Sequence[Array], valid: NDArray[np.bool_]) -> Break:
        """Return how the new row breaks with the row before, by its frames, or by its stacks if it is given so."""
        log, buffers = self.log, self.buffers
        if not log.pending:
            return Break([], list(range(self.num_envs)), [])
        cut = self._cut[0] if log.cut == log.end else None
        if self.single_frames:
            unlike, begins = buffers.call.row.breaks(values, valid, cut)
            return Break.of(unlike, begins, begins & valid & ~self._ended & (True if cut is None else ~cut))
        by_flags = self._by_flags and log.end != self._opened_at
        return self._before.find_break(stacks, buffers.pending(), valid, cut, by_flags)

    def _begin(
        self, found: Break, stacks: list[Any], frames: list[Any], next_frames: list[Any], row: Row
    ) -> NDArray[np.uint8]:
        """Return the start codes ``(num_envs,)`` of a row that does not go on everywhere; all values lead with that.

        Pending observations that are not the row's own go to the patch table, and so do older frames that no padding
        rule gives.
        """
        more = CUT_START * (self._cut[1] and self.log.cut == self.log.end)
        self.buffers.patch_pending(found.unlike)
        self._watch(found, frames, next_frames, row)
        self.signs.episodes += int(np.count_nonzero(row.valid[found.begins]))
        self.signs.differing += len(set(found.unlike).difference(found.begins))
        self.facts.begins(self.log.end, found.begins, row.valid)
        codes = np.full(self.num_envs, CONTINUES, np.uint8)
        for env in found.begins:
            codes[env] = self._explain(stacks, frames, env) + more if row.valid[env] else ZEROS
        return codes

    def _watch(self, found: Break, frames: list[Any], next_frames: list[Any], row: Row) -> None:
        """Look at the row for signs of misuse."""
        log = self.log
        if log.end == self._opened_at:
            return
        arrays, length = log.table.arrays, log.table.length
        before = (log.end - 1) % length
        earlier = min(max(log.end - 2, log.begin), log.end - 1) % length  # after clear, the window begins at no row
        signs = self.signs
        signs.cuts += len(found.cut)
        for env in found.begins:
            if not row.valid[env] or not (arrays[TERMINATED][before, env] or arrays[TRUNCATED][before, env]):
                continue
            if env in found.unlike:
                signs.ends += 1
            elif any(
                now[env].tobytes() != after[env].tobytes() for now, after in zip(frames, next_frames, strict=True)
            ):
                signs.ends += 1
                signs.unmoved += 1
                signs.empty += int(row.reward[env] == 0)
                signs.earning += int(arrays[REWARD][earlier, env] != 0)
        self.watch.look((log.end - self._opened_at) * self.num_envs)

    def look_for_misuse(self) -> None:
        """Look for signs of misuse after the core has added a row."""
        self.watch.look((self.log.end - 1 - self._opened_at) * self.num_envs)

    def _explain(self, stacks: list[Any], frames: list[Any], env: int) -> int:
        """Return the start code of a row that begins an episode; put frames that no rule gives into the patch table."""
        if self.single_frames:
            return self.schema.padding
        stacks, frames = [stack[env] for stack in stacks], [frame[env] for frame in frames]
        stacked = [stack for leaf, stack in zip(self._leaves, stacks, strict=True) if leaf.stacked]
        # Bits are compared, as everywhere: a negative zero is no padding.
        if not any(any(stack[:-1].tobytes()) for stack in stacked):
            return ZEROS
        if all(stack[:-1].tobytes() == stack[-1].tobytes() * (len(stack) - 1) for stack in stacked):
            return REPEAT
        for back in range(1, self._context + 1):
            values = [
                stack[-1 - back] if leaf.stacked and back < leaf.stack.frames else np.zeros_like(frame)
                for leaf, stack, frame in zip(self._leaves, stacks, frames, strict=True)
            ]
            self.buffers.patch([(self.log.end, env, -back)], [value[None] for value in values])
        return PATCHES

    def _keep(self, stacks: list[Array], following: list[Array]) -> None:
        """Remember the next stacks of the added row; put those that do not follow from its own into the patch table."""
        row = self.log.end - 1
        for env in self._before.keep(stacks, following):
            given = [stack[env] for stack in following]
            for back in range(self._context + 1):
                values = []
                for leaf, frames in zip(self._leaves, given, strict=True):
                    if leaf.stacked:
                        values.append(frames[-1 - back] if back < leaf.stack.frames else np.zeros_like(frames[-1]))
                    else:
                        values.append(frames)  # a leaf without a stack: only offset 1 is ever looked at
                self.buffers.patch([(row, env, 1 + back)], [np.asarray(value)[None] for value in values])
