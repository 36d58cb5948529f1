"""The way of a row into a stream: checked, its frames stored once, its place in the episode found.

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

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.engine.arguments import Arguments, Row
from diskreplay.engine.continuity import Break, OneEnvironment, SeveralEnvironments
from diskreplay.engine.inputs import NO_FREEDOMS, Freedoms
from diskreplay.engine.leaves import ObsLeaf, split
from diskreplay.engine.misuse import Watch
from diskreplay.engine.ragged_rows import RaggedRows
from diskreplay.engine.row_buffers import RowBuffers
from diskreplay.engine.steps import Steps
from diskreplay.errors import StateError
from diskreplay.index.facts import EpisodeFacts
from diskreplay.index.log import StreamLog
from diskreplay.interrupts import Block
from diskreplay.schema import PATCHES, REPEAT, REWARD, TERMINATED, TRUNCATED, VALID, ZEROS, Schema
from diskreplay.storage.commit import MAX_IDS
from diskreplay.storage.stream import StreamWriter

Array = NDArray[Any]

FLAGS = TERMINATED, TRUNCATED, VALID


class Appender:
    """The writer of one stream's rows, the only way in; whoever calls it is alone in writing.

    Args:
        schema, writer, log, facts: of the stream.
        change: the block of a change, which guards readers.
        freedoms: what :meth:`add` allows.
        ragged: takes the items of ragged columns, if there are some.

    Attributes:
        arguments: the rules for what :meth:`add` is given.
        buffers: where the rows go.
        single_frames: whether no observation leaf is given as stacks.
        watch: looks for signs of misuse.
    """

    def __init__(
        self, schema: Schema, writer: StreamWriter, log: StreamLog, facts: EpisodeFacts, change: Block,
        freedoms: Freedoms = NO_FREEDOMS, ragged: RaggedRows | None = None,
    ) -> None:  # fmt: skip
        num_envs = log.num_envs
        self.schema = schema
        self.writer = writer
        self.log = log
        self.facts = facts
        """The facts of the episodes: rows that begin some take them along."""
        self.change = change
        self.num_envs = num_envs
        self._ragged = ragged
        self._leaves = [ObsLeaf(c, s, num_envs) for c, s in zip(schema.obs_columns, schema.stacks, strict=True)]
        self.arguments = Arguments(schema, self._leaves, num_envs, freedoms)
        self.single_frames = not any(leaf.stacked for leaf in self._leaves)
        self.watch = Watch()
        self.buffers = RowBuffers(schema, writer, log)
        self._before: OneEnvironment | SeveralEnvironments = (
            OneEnvironment(self._leaves) if num_envs == 1 else SeveralEnvironments(self._leaves, num_envs)
        )
        self._by_flags = schema.continuity == "flags"
        self._context = schema.context
        self._opened_at = log.end
        """The first row of this writer: flags do not tell whether it goes on with what an earlier writer left."""
        self._cuts: tuple[int, NDArray[np.bool_]] = -1, np.zeros(num_envs, bool)
        """A row, and the environments that begin a new episode with it because :meth:`cut` said so."""

    def resume(self, pending: list[Array] | None) -> None:
        """Take up after the committed rows; ``pending`` are the newest next stacks, ``(num_envs, frames, *shape)``."""
        log = self.log
        if pending is None or log.end == 0:
            return
        terminated, truncated, valid = (log.span(name, log.end - 1, log.end)[0] for name in FLAGS)
        follows = np.array([(log.end - 1, env) not in log.next_older_patches for env in range(self.num_envs)])
        self._before.resume(terminated | truncated | ~valid, follows, pending)
        self.buffers.reserve(1)
        self.buffers.put_pending([stacks[:, -1] if self.num_envs > 1 else stacks[0, -1] for stacks in pending])
        log.pending = True
        self.buffers.pending_patched = True

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any,
        valid: Any, extra: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Add one row; raise InputError, before any change, if an argument breaks its rule."""
        row = self.arguments.row(obs, action, reward, next_obs, terminated, truncated, valid, extra)
        self.check(1)
        if self._ragged is not None:
            with self.change:
                row = self._ragged.place(row, self._pending())
        self.add_row(row)

    def _pending(self) -> list[Any] | None:
        """Return the frames of the pending observation by leaf, None if there is none."""
        return self.buffers.pending() if self.log.pending else None

    def steps(self, values: Row) -> Steps:
        """Return many checked steps, after the items of ragged columns were appended."""
        self.check(len(values.terminated))
        if self._ragged is not None:
            with self.change:
                values = self._ragged.place_steps(values, self._pending())
        return Steps.of(values)

    def add_row(self, row: Row) -> None:
        """Add one row that was checked."""
        if self.single_frames:
            stacks, next_stacks = frames, next_frames = row.obs, row.next_obs
        else:
            stacks, frames = split(self._leaves, row.obs)
            next_stacks, next_frames = split(self._leaves, row.next_obs)
        log, buffers, before = self.log, self.buffers, self._before
        if log.end >= buffers.load_at:
            buffers.load()
        with self.change:
            buffers.reserve(1)
            if (
                before.going and self.single_frames and row.valid is self.arguments.all_valid
                and self._cuts[0] != log.end and buffers.add(row)
            ):  # fmt: skip
                before.note(row.terminated, row.truncated)
                self._added()
                return
            found = self._look(stacks, row.valid)
            # Where every environment goes on, the frames stand in the write buffer already: they were pending there.
            start = before.goes_on if found is None else self._begin(found, stacks, frames, next_frames, row)
            buffers.write(row.columns(frames, start), len(frames) if found is None else 0)
            buffers.put_pending(next_frames)
            before.note(row.terminated, row.truncated, row.valid)
            if not self.single_frames:
                self._keep(stacks, next_stacks)
            if row.valid is not self.arguments.all_valid:
                log.invalid += self.num_envs - int(np.count_nonzero(row.valid))
            self._added()

    def check(self, rows: int) -> None:
        """Raise StateError if ``rows`` rows cannot be added: the writer has stopped, or ids would not name them."""
        self.writer.check()
        if self._ragged is not None:
            self._ragged.check()
        if (self.log.end + rows) * self.num_envs > MAX_IDS:
            raise StateError(
                f"the stream {self.writer.name!r} can have {MAX_IDS:,} transitions ever, and no more {rows} rows of "
                f"{self.num_envs} after {self.log.end:,}; nothing was added: go on in another, open(path, stream=...)"
            )

    def cut(self, envs: NDArray[np.bool_]) -> None:
        """Have the next row begin a new episode in the environments of a mask ``(num_envs,)``."""
        row, before = self._cuts
        self._cuts = self.log.end, envs | before if row == self.log.end else envs

    def runs(self, steps: Steps) -> Iterator[tuple[int, int]]:
        """Return intervals of steps that :meth:`add_run` takes at once, or in parts."""
        return steps.runs() if self.single_frames else ((at, at + 1) for at in range(len(steps)))

    def add_run(self, steps: Steps, start: int, stop: int) -> None:
        """Add checked steps ``[start, stop)``, each but the first of which goes on with the one before.

        Where frames are given as stacks, it is a single step.
        """
        self.writer.check()
        first = steps.row(start)
        if not self.single_frames:
            self.add_row(first)
            return
        with self.change:
            self.buffers.reserve(stop - start)
            found = self._look(first.obs, first.valid)
            if found is not None:
                steps.starts[start] = self._begin(found, first.obs, first.obs, first.next_obs, first)
            self.buffers.write_run(steps.columns, slice(start, stop))
            newest = steps.row(stop - 1)
            self.buffers.put_pending(newest.next_obs)
            self._before.note(newest.terminated, newest.truncated, newest.valid)
            self.log.invalid += self.num_envs - int(np.count_nonzero(first.valid))
            self._added()

    def _added(self) -> None:
        """Move the window on after rows were added, so that nobody sees one that holds more than the capacity."""
        log = self.log
        if log.end - log.begin > log.rows:
            log.slide(log.end - log.rows)
        log.pending = True
        self.buffers.pending_patched = False

    def _look(self, stacks: Sequence[Any], valid: Any) -> Break | None:
        """Return how the row that is added breaks with the one before, or None if it does not."""
        log, (row, cut) = self.log, self._cuts
        if not log.pending:
            return Break([], list(range(self.num_envs)), [])
        by_flags = self._by_flags and log.end != self._opened_at
        return self._before.look(stacks, self.buffers.pending(), valid, cut if row == log.end else None, by_flags)

    def _begin(self, found: Break, stacks: list[Any], frames: list[Any], next_frames: list[Any], row: Row) -> Any:
        """Return the start codes of a row that does not go on everywhere.

        The pending observations that are not its own go to the patch table, as older frames do that nothing explains.
        """
        of = self._before.of
        if not self.buffers.pending_patched:
            self.buffers.patch_pending(found.unlike)
        self._watch(found, frames, next_frames, row)
        self.facts.begins(self.log.end, found.begins, row.valid if self.num_envs > 1 else (row.valid,))
        return self._before.codes(
            {env: self._explain(stacks, frames, env) if of(row.valid, env) else ZEROS for env in found.begins}
        )

    def _watch(self, found: Break, frames: list[Any], next_frames: list[Any], row: Row) -> None:
        """Look at the row for signs of misuse."""
        log, of = self.log, self._before.of
        if log.end == self._opened_at:
            return
        arrays, length = log.table.arrays, log.table.length
        before = (log.end - 1) % length
        earlier = min(max(log.end - 2, log.begin), log.end - 1) % length  # after clear, the window begins at no row
        ends = unmoved = empty = earning = 0
        for env in found.begins:
            if not of(row.valid, env) or not (arrays[TERMINATED][before, env] or arrays[TRUNCATED][before, env]):
                continue
            if env in found.unlike:
                ends += 1
            elif self._before.moves(frames, next_frames, env):
                ends += 1
                unmoved += 1
                empty += int(of(row.reward, env) == 0)
                earning += int(arrays[REWARD][earlier, env] != 0)
        self.watch.look((log.end - self._opened_at) * self.num_envs, len(found.cut), ends, unmoved, empty, earning)

    def _explain(self, stacks: list[Any], frames: list[Any], env: int) -> int:
        """Return the padding rule that gives the older frames of a new start, or put them into the patch table."""
        if self.single_frames:
            return self.schema.padding
        of = self._before.of
        stacks, frames = [of(stack, env) for stack in stacks], [of(frame, env) for frame in frames]
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
            self.buffers.patch(self.log.end, env, -back, values)
        return PATCHES

    def _keep(self, stacks: list[Array], following: list[Array]) -> None:
        """Keep the next stacks of the row that was added; those that do not follow go to the patch table."""
        row = self.log.end - 1
        for env in self._before.keep(stacks, following):
            given = [self._before.of(stack, env) for stack in following]
            for back in range(self._context + 1):
                values = []
                for leaf, frames in zip(self._leaves, given, strict=True):
                    if leaf.stacked:
                        values.append(frames[-1 - back] if back < leaf.stack.frames else np.zeros_like(frames[-1]))
                    else:
                        values.append(frames)  # a leaf without a stack: only offset 1 is ever looked at
                self.buffers.patch(row, env, 1 + back, values)
