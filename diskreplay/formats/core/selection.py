"""A store as a source: its episodes and columns, their order, and what a format would lose of them.

1. Episodes are numbered as ``ReplayBuffer.episodes`` has them, and as ``diskreplay episodes`` prints them.
2. They are read environment by environment, stream by stream, each in the order of its steps, so that every chunk is
   decoded once.
3. Episodes that follow each other are read as one span of rows; rows between them are no transitions.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import CorruptionError, InputError
from diskreplay.formats.core.format import Holds, Loss
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.log_rows import LogRows, open_rows
from diskreplay.formats.core.transitions import NO_START, Source, Transitions
from diskreplay.index import rewards
from diskreplay.index.episodes import Episode
from diskreplay.index.selecting import chosen
from diskreplay.index.where import Where
from diskreplay.reading.reads import Reads
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import CUT_START, RECORDED, REWARD, START, Start
from diskreplay.schema.ids import Ids, pack
from diskreplay.storage.paths import PathLike, named


@dataclasses.dataclass(frozen=True)
class Selection:
    """The choice of a part of a store.

    Attributes:
        episodes: the episodes with these numbers, a range or some; all if None.
        min_return: the least undiscounted sum of an episode's rewards.
        envs: numbers of environments, in each stream; all if None.
        columns: names of observation leaves and of further columns; all if None. Action, reward and flags are always
            part of it.
        where: a condition on the episodes; see :mod:`diskreplay.index.where`.
    """

    episodes: slice | tuple[int, ...] | None = None
    min_return: float | None = None
    envs: tuple[int, ...] | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None

    def of(self, every: Sequence[Episode], streams: Mapping[int, str]) -> list[Episode]:
        """Return the chosen episodes; raise InputError for a missing episode or environment, or a wrong condition.

        ``streams`` has the streams' names by their numbers.
        """
        where = None if self.where is None else Where(self.where)
        for env in self.envs or ():
            if every and env not in {episode.env for episode in every}:
                most = max(episode.env for episode in every)
                raise InputError(f"there is no environment {env}; they are 0 to {most}")
        numbers = self.episodes
        if isinstance(numbers, tuple):
            for number in numbers:
                if not 0 <= number < len(every):
                    raise InputError(f"there is no episode {number}; there are {len(every):,}, counted from 0")
            every = [every[number] for number in numbers]
        elif numbers is not None:
            every = every[numbers]
        if where is not None:
            every = list(itertools.compress(every, chosen(where, every, streams)))
        return [
            episode
            for episode in every
            if (self.min_return is None or episode.total_reward >= self.min_return)
            and (self.envs is None or episode.env in self.envs)
        ]


EVERYTHING = Selection()


class SelectedStore:
    """The selected part of a store, as of its last commit."""

    def __init__(self, path: PathLike, streams: Sequence[LogRows], selection: Selection = EVERYTHING) -> None:
        self.path = str(path)
        self.schema = streams[0].schema
        self.streams = streams
        self.provenance = streams[0].store.provenance
        self.reward = streams[0].reward
        self._columns = selection.columns
        self.layout = self._layout_of(stacked=False)
        every = [(rows, episode) for rows in streams for episode in rows.episodes]
        names = {rows.log.stream: rows.name for rows in streams}
        wanted = {place_of(episode) for episode in selection.of([episode for _, episode in every], names)}
        every.sort(key=lambda pair: place_of(pair[1]))
        numbers = [number for number, (_, episode) in enumerate(every) if place_of(episode) in wanted]
        self._chosen = [every[number] for number in numbers]
        self._left_out = [number - at for at, number in enumerate(numbers)]
        """How many episodes before each chosen one are not chosen: as many for those that follow each other."""
        if Layout.of(self.schema, stacked=True).stacked:
            usual = max((Start.ZEROS, Start.REPEAT), key=self._starts().count)
            self.layout = dataclasses.replace(self.layout, padding=usual)

        if self.reward != REWARD:
            every_row = ((rows.log, env, rows.valid_rows(env, spans)) for rows, env, spans in self._spans())
            rewards.check(self.reward, ((log, at, np.full_like(at, env)) for log, env, at in every_row))

    def _layout_of(self, *, stacked: bool) -> Layout:
        found = Layout.of(self.schema, stacked=stacked, provenance=self.provenance)
        if self.reward != REWARD:
            found = dataclasses.replace(found, columns={RECORDED: ((), found.reward_dtype), **found.columns})
        return found.only(self._columns)

    @property
    def episodes(self) -> list[Episode]:
        """The chosen episodes, in the order in which they are read."""
        return [episode for _, episode in self._chosen]

    def numbered(self) -> dict[int, Episode]:
        """Return the chosen episodes by their numbers, in the order of these."""
        chosen = set(map(place_of, self.episodes))
        every = enumerate(episode for rows in self.streams for episode in rows.episodes)
        return {number: episode for number, episode in every if place_of(episode) in chosen}

    @property
    def steps(self) -> int:
        return sum(episode.length for _, episode in self._chosen)

    def source(self, *, stacked: bool = False) -> Source:
        """Return the part to be read: single frames, or with ``stacked`` observations just as they were given."""
        layout = self._layout_of(stacked=True) if stacked else self.layout

        def kept() -> Iterator[Transitions]:
            every = (rows.blocks(env, spans, stacked=bool(layout.stacked)) for rows, env, spans in self._spans())
            for steps in itertools.chain.from_iterable(every):
                yield dataclasses.replace(
                    steps,
                    obs={name: steps.obs[name] for name in layout.obs},
                    next_obs={name: steps.next_obs[name] for name in layout.obs},
                    extra={name: steps.extra[name] for name in layout.columns},
                )

        facts = tuple(map(told, self.episodes))
        return Source(layout, self.steps, kept, len(self._chosen), facts=facts if any(facts) else ())

    def ids(self) -> Ids:
        """Return the ids of all steps in the order in which they are read, int64 ``(steps,)``."""
        none = np.empty(0, np.int64)
        return np.concatenate(
            [none] + [pack(e.stream, np.arange(e.start, e.stop), e.env, rows.log.num_envs) for rows, e in self._chosen]
        )

    def written_later(self, ids: Ids) -> dict[str, NDArray[Any]]:
        """Return what was written later to steps, as arrays ``(n, *shape)`` by column, and which values are known.

        Raises CorruptionError for a damaged chunk, StateError when a live writer evicted a row before it was read.
        """
        reads = Reads()
        try:
            found = Samples(self.schema, [rows.stream for rows in self.streams], ids, reads=reads).written_later()
            reads.finish()
        except CorruptionError as error:
            for rows in self.streams:
                if rows.name == error.stream:
                    rows.explain(error)
            raise
        return found

    def losses(
        self, holds: Holds, between: Callable[[], object] = lambda: None, *, later: bool = False
    ) -> list[Loss]:  # fmt: skip
        """Return what a format that holds just this would lose, without losses of count 0.

        ``between`` is called now and then where observations are compared, which takes a while. With ``later`` the
        values that were written later are no loss: the caller writes them itself.
        """
        ends = [(episode.terminated, episode.truncated) for episode in self.episodes]
        own = [name for name in self.layout.columns if name != RECORDED]
        ragged = sorted(self.layout.ragged_columns & holds.odd(self.layout))
        written = {} if later else self._written_later()
        stacked = Layout.of(self.schema, stacked=True).stacked
        final_obs = next_obs = 0
        if not holds.final_obs:
            final_obs = self._final_obs(between) if holds.final_steps else len(ends)
        if not holds.next_obs:
            next_obs = self.own_next_obs(between)
        counts = {
            "final observations": final_obs,
            "next observations that differ from the next step's observation": next_obs,
            "truncations apart from terminations": 0 if holds.truncated else sum(truncated for _, truncated in ends),
            "ends without a flag apart from truncations": 0 if holds.unfinished else sum(not any(end) for end in ends),
            **{f"values of column {name!r}": self.steps for name in own if not holds.columns},
            **{f"values of the ragged column {name!r}": self.steps for name in ragged if holds.columns},
            "facts about where the steps come from": 0 if holds.provenance else len(self.provenance),
            "facts of episodes": 0 if holds.facts else sum(bool(episode.facts) for episode in self.episodes),
            **{f"values of {name!r} that were written later": count for name, count in written.items()},
            "stacked frames that are no steps of the episode": 0 if holds.stacks and stacked else self._odd_stacks(),
        }
        return [Loss(what, count) for what, count in counts.items() if count]

    def _written_later(self) -> dict[str, int]:
        """Return by column how many transitions have a value that was written later: no format holds those."""
        each = [rows.written_later(env, spans) for rows, env, spans in self._spans()]
        names = [column.name for column in self.schema.later if column.name != self.reward]
        return {name: sum(counts[name] for counts in each) for name in names}

    def _spans(self) -> Iterator[tuple[LogRows, int, list[tuple[int, int]]]]:
        """Yield stream, environment and a range of rows to be read of it; episodes that follow each other are one."""
        chosen = zip(self._chosen, self._left_out, strict=True)
        for (rows, env, _), each in itertools.groupby(chosen, lambda one: (one[0][0], one[0][1].env, one[1])):
            episodes = [episode for (_, episode), _ in each]
            yield rows, env, [(episodes[0].start, episodes[-1].stop)]

    def _starts(self) -> list[int]:
        return [int(rows.log.take(START, *np.array([[e.start], [e.env]]))[0] % CUT_START) for rows, e in self._chosen]

    def own_next_obs(self, between: Callable[[], object] = lambda: None) -> int:
        """Count steps, but for the last ones of episodes, whose next observation is not the next step's ``obs``."""
        total = 0
        for (rows, env), each in itertools.groupby(self._chosen, lambda pair: (pair[0], pair[1].env)):
            spans = [(episode.start, episode.stop) for _, episode in each]
            for count in rows.own_next_obs(env, spans, list(self.layout.obs)):
                between()
                total += count
        return total

    def _final_obs(self, between: Callable[[], object]) -> int:
        found = 0
        for rows, episode in self._chosen:
            between()
            for steps in rows.blocks(episode.env, [(episode.stop - 1, episode.stop)]):
                found += any(
                    steps.next_obs[name][0].tobytes() != steps.obs[name][0].tobytes() for name in self.layout.obs
                )
        return found

    def _odd_stacks(self) -> int:
        """Count observations whose older frames no padding explains once single frames are stacked again."""
        reach = max(stack.frames for stack in self.layout.stacks) - 1
        odd = sum(
            min(reach, episode.length)
            for (_, episode), start in zip(self._chosen, self._starts(), strict=True)
            if start != self.layout.padding or not episode.complete_start
        )
        unusual = {(rows.log.stream, row, env) for rows in self.streams for row, env in rows.log.next_older_patches}
        return odd + sum(
            e.stream == stream and e.env == env and e.start <= row < e.stop
            for stream, row, env in unusual
            for e in self.episodes
        )


def open_selected(path: PathLike, selection: Selection = EVERYTHING, reward_column: str | None = None) -> SelectedStore:
    """Return the selected part of the store at ``path``, unchanged and possibly beside a writer.

    The values of ``reward_column``, where one is given, are the rewards.

    Raises:
        InputError: for a selection that names what is not there, a ``reward_column`` that does not give rewards.
        StoreNotFoundError, NotAStoreError, FormatVersionError, CorruptionError: when the store cannot be opened.
    """
    full = named(path)
    return SelectedStore(full, open_rows(full, reward_column), selection)


def told(episode: Episode) -> dict[str, Any]:
    """Return the facts of an episode for a :class:`Source`: if its first steps are missing, that is among them."""
    found: dict[str, Any] = episode.facts
    return found if episode.complete_start else {**found, NO_START: True}


def place_of(episode: Episode) -> tuple[int, int, int]:
    """Return the episode's place in the order of reading, which names it."""
    return episode.stream, episode.env, episode.start
