"""The wrapper of one environment, whose steps a thread may add."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.vector import VectorEnv

from diskreplay.buffers.options import CreateOptions, shared
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import arrays, check_count, check_flag
from diskreplay.engine.engine import Engine
from diskreplay.engine.facts import change_of_newest, checked
from diskreplay.errors import InputError, end_block
from diskreplay.process.background import CallQueue, Waited, nothing
from diskreplay.recording.columns import SEED
from diskreplay.recording.copies import copied
from diskreplay.recording.opening import NO_SEED, opened, seed_number
from diskreplay.recording.video_encoding import NOT_ENCODED, VideoEncoder, VideoRows, parameters_of
from diskreplay.sampling.window import Sampler
from diskreplay.schema.columns import OBS, REWARD, TERMINATED, TRUNCATED
from diskreplay.schema.spaces import named_leaves
from diskreplay.storage.paths import PathLike
from diskreplay.video import Video
from diskreplay.views.view import View

QUEUE_ROWS = 128


class Record(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose steps are recorded into a store.

    A store that is there goes on. ``env.buffer`` is the :class:`~diskreplay.ReplayBuffer` that is written: what it
    holds can be sampled at any time. :meth:`close` commits.

    ``spec`` is that of the environment without this wrapper: whoever makes it again records nothing.

    Args:
        env: a Gymnasium environment. It must not reset by itself: put ``gymnasium.wrappers.Autoreset`` around this one.
        path, view, sampler: as in :meth:`diskreplay.ReplayBuffer.open_or_create`; or, in the place of a path and of all
            options, a buffer with the environment's spaces that is open for writing. :meth:`close` closes it, too.
        capacity: steps that the store keeps; older ones are evicted. If None, as many as the one that is there does, or
            1,000,000 in a new one.
        columns: further values of each step, by name: a dtype, ``(shape, dtype)`` or a space. They are taken from
            ``info[name]`` of the step; a text becomes its code points.
        defaults: by name, the values of columns for steps whose info lacks them: NaN, 0, False or a row without items
            if nothing is given here. A MisuseWarning names the columns that no info of the first episode had.
        seeds: keep the seed that each episode's ``reset`` was given in the column ``"seed"``, int64; -1 where none was.
        background: have a thread add the steps, and commit, so that ``step`` waits for neither. What it does not wait
            for is not in ``env.buffer`` yet: :meth:`flush` waits.
        queue_rows: the steps that may wait for the thread, each with its observation in RAM. ``step`` waits when
            there are more.
        provenance: the store's provenance; that of :func:`diskreplay.provenance` if None.
        **options: all others of :meth:`diskreplay.ReplayBuffer.open_or_create`; ``seed`` is that of its sampler. With
            ``background`` the frames of its ``video`` columns, leaves of the observations, are encoded by the thread.

    Raises InputError for what is no environment, for a default that does not fit a column, and what ``open_or_create``
    raises. ``step`` and ``reset`` raise what ``add`` and ``cut`` of the buffer raise. With ``background`` what befalls
    the thread, such as a full disk, is raised by the next ``step``, ``reset``, :meth:`flush` or :meth:`close`, with a
    note of how many steps were not recorded; the next call must be ``reset`` then.
    """

    @shared(CreateOptions)
    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        path: PathLike | ReplayBuffer,
        *,
        capacity: int | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        seeds: bool = False,
        defaults: Mapping[str, Any] | None = None,
        background: bool = False,
        queue_rows: int = QUEUE_ROWS,
        checkpoint: str | None = None,
        take_over: bool = False,
        **options: Unpack[CreateOptions],
    ) -> None:
        check_flag("background", background)
        check_count("queue_rows", queue_rows)
        if options["video"] is not None:
            _check_video(options["video"], background)
        if not isinstance(env, gymnasium.Env) or isinstance(env, VectorEnv):  # EnvPool's are both
            other = "; VectorRecord records vector environments" if isinstance(env, VectorEnv) else ""
            raise InputError(f"env must be a gymnasium.Env, got {type(env).__name__}{other}")
        if options["video"]:
            leaves = named_leaves(env.observation_space, OBS)
            own = options["video"].keys() & set(options["columns"] or ())
            if others := [name for name in own if f"{OBS}/{name}" not in leaves]:
                raise InputError(NOT_ENCODED.format(others))
        super().__init__(env)
        spaces = env.observation_space, env.action_space
        opening = {**options, "checkpoint": checkpoint, "take_over": take_over}
        self.buffer, self._columns = opened(env, path, *spaces, 1, capacity, view, sampler, seeds, defaults, opening)
        """The buffer that takes the steps."""
        self._seeds = bool(seeds)
        self._facts: dict[str, Any] | None = None
        """The facts of the newest episode as the thread will leave them; None if the buffer has to be asked."""
        self._begins, self._waits = False, self.buffer.engine.appender.facts.waiting(0) is not None
        """Whether the next step begins an episode without facts, and whether facts wait for their first step."""
        self._at: tuple[Any, int] | None = None
        """The observation that the next step begins with, and the seed of its episode, or None between episodes."""
        self._rows: Any = self.buffer
        self._arguments = self.buffer.engine.appender.arguments
        self._queue: CallQueue | None = None
        self._tally = _Tally(self.buffer.engine)
        if self.buffer.schema.videos:
            _check_video(self.buffer.schema.videos, background)
            self._rows = VideoRows(self.buffer)
            self._arguments = self._rows.arguments
        if background:
            last = self._rows.end if isinstance(self._rows, VideoRows) else nothing
            self._queue = CallQueue(queue_rows, "recording", last, self._tally.note)
            self.buffer.engine.settle = self._queue.settle

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._check()  # ClosedError, before the environment is touched
        number = seed_number(seed) if self._seeds else NO_SEED
        self._at = None
        obs, info = self.env.reset(seed=seed, options=options)
        self._call(self._rows.cut)
        self._begins = not self._waits
        self._at = copied("obs", obs, self.buffer), number
        self._columns.end_episode()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._check()
        if self._at is None:
            raise ResetNeeded(
                "call reset() before step(): no episode has begun, or it has ended, or a step was cut short by an error"
            )
        obs, seed = self._at
        given = copied("action", action, self.buffer)
        self._at = None
        next_obs, reward, terminated, truncated, info = self.env.step(action)
        following = copied("next_obs", next_obs, self.buffer)
        result = {REWARD: reward, TERMINATED: terminated, TRUNCATED: truncated}
        gain, ends, cuts = (arrays(name, value) for name, value in result.items())
        extra = self._columns.of_step(info)
        if self._seeds:
            extra[SEED] = seed
        if self._queue is not None:
            gain, ends, cuts, extra = copy.deepcopy((gain, ends, cuts, extra))
            self._arguments.row(obs, given, gain, following, ends, cuts, None, extra)  # as add checks them
            self._tally.given += 1
        self._call(functools.partial(self._rows.add, obs, given, gain, following, ends, cuts, **extra))
        self._facts = {} if self._begins else self._facts
        self._begins = self._waits = False
        if not (ends or cuts):
            self._at = following, seed
        else:
            self._columns.end_episode()
        return next_obs, reward, terminated, truncated, info

    def begin_episode(self, **facts: Any) -> None:
        """Tell what is known of the episode whose first step comes next: after ``reset``, as the buffer's method.

        With ``background`` they wait in the queue of the steps; the buffer's own method would come too early.
        """
        self._check()
        found = checked(facts, {})
        self._call(functools.partial(self._rows.begin_episode, **found))
        self._facts, self._begins, self._waits = found, False, True

    def annotate_episode(self, **facts: Any) -> None:
        """Tell more of the newest episode, as the buffer's method; with ``background`` in the order of the steps."""
        self._check()
        found = checked(facts, {}, newest=True)
        if self._queue is not None:  # the thread would refuse them too late
            if self._facts is None:
                with self.buffer.engine.lock:
                    self._facts = change_of_newest(self.buffer.engine.appender, 0, {}).facts
            self._facts = checked(facts, self._facts)
        self._call(functools.partial(self._rows.annotate_episode, **found))

    def flush(self) -> None:
        """Wait until all steps so far are in ``env.buffer``, and commit them; raise what ``commit`` raises."""
        self._check()
        self._call(self._rows.commit)
        if self._queue is not None:
            self._queue.settle()
            self._check()

    @property
    def waited(self) -> Waited:
        """How often ``step`` had to wait since the queue of ``background`` was full, and how long at most."""
        return Waited() if self._queue is None else self._queue.waited

    def close(self) -> None:
        """Commit, close the store, and close the environment; a second call does nothing more."""
        with contextlib.ExitStack() as closing:
            closing.callback(self.env.close)
            closing.push(self.buffer)
            if self._queue is not None:
                self._queue.end()
        self._columns.end_episode()

    def __exit__(self, *exception: Any) -> None:  # type: ignore[override]
        end_block(self.close, exception[1])

    def _check(self) -> None:
        """Raise what stands against another call, before it touches the environment."""
        if self._queue is None:
            len(self.buffer)
            return
        engine = self.buffer.engine
        if engine.gate.closed or engine.refused:
            len(self.buffer)
        try:
            self._queue.check()
        except BaseException:
            self._at = self._facts = None  # the episode has a hole
            self._waits = self.buffer.engine.appender.facts.waiting(0) is not None
            raise

    def _call(self, call: Callable[[], object]) -> None:
        if self._queue is None:
            call()
        else:
            self._queue.put(call)

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """The spec of the environment that is recorded."""
        return self.env.spec


class _Tally:
    """How many steps a thread was given, beside those that came into the stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._end = engine.appender.log.end
        self.given = 0

    def note(self) -> str:
        """Return what came of the steps, and begin anew."""
        end, committed = self._engine.appender.log.end, self._engine.appender.writer.commit_record.end
        lost = self.given - (end - self._end)
        self.given, self._end = 0, end
        return (
            f"while steps were recorded in the background: the last {lost} were not recorded; the stream "
            f"{self._engine.stream!r} has {end} rows, of which {committed} are committed"
        )


def _check_video(columns: Any, background: bool) -> None:
    if not background:
        raise InputError("video= needs background=True: a thread encodes the frames")
    if not isinstance(columns, Mapping):
        raise InputError(f"video must be a mapping of columns to Video(...), got {columns!r:.200}")
    for video in columns.values():
        if isinstance(video, Video):
            parameters_of(video)
            VideoEncoder(video)
