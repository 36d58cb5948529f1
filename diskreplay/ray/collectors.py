"""Collectors beside a trainer: actors that write, the buffer to learn from, and the ratio between the two."""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Self, Unpack

import ray
from ray.exceptions import RayError, RayTaskError

from diskreplay.buffers.limiter import RateLimiter
from diskreplay.buffers.options import CreateOptions, shared
from diskreplay.buffers.provenance import provenance
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_count, checked_number
from diskreplay.compat.stores import closed_on_failure
from diskreplay.engine.run import engine_options
from diskreplay.errors import (
    ClosedError,
    CollectorError,
    DiskReplayError,
    InputError,
    RateLimitError,
    RemoteError,
    StoreNotFoundError,
    end_block,
)
from diskreplay.ray.collector import CAPACITY, MakeEnvs, Policy, made
from diskreplay.ray.supervisor import Supervisor
from diskreplay.sampling.window import Sampler
from diskreplay.storage.paths import PathLike, checked_url, full_path, is_url, named
from diskreplay.views.view import View

LEARNER = "learner"
"""The stream that the trainer writes: it holds no rows, but the count of samples."""
REFRESH_SECONDS = 1.0
"""The seconds that the trainer's buffer stays where it is, while there is enough to sample."""
MAKE_SECONDS = 120.0
"""The most seconds that making a store under a URL may take."""
WAIT_SECONDS = 1.0
"""The seconds between two looks of a waiting trainer at what others than these collectors have added."""


class Collectors:
    """A set of ``n`` collectors as Ray actors, each with its own stream in one store, and the buffer to learn from.

    They collect from the start on, in steps of ``steps_per_commit``, and are restarted with new streams where they die.
    ``collectors.buffer`` is a :class:`~diskreplay.ReplayBuffer` that samples from all streams, with the trainer's
    priorities and checkpoints; it writes the stream ``"learner"``, which holds no rows.

    Args:
        n: collectors.
        store: a path that all nodes share; or a URL (``s3://bucket/name``): then each collector writes a local store on
            its node, which it pushes, and ``buffer`` reads the URL. A store that is there goes on.
        make_envs: a function that makes a ``gymnasium.vector.VectorEnv``; called in each actor.
        policy: ``policy(weights, rng)`` gives ``act``, and ``act(obs)`` the actions ``(num_envs, *action_shape)``;
            called in each actor, at its start and for new weights. ``rng`` is a ``numpy.random.Generator``.
        weights: the first ones, anything that Ray can send.
        capacity: transitions that all collectors together keep, each an ``n``-th.
        samples_per_insert, min_size, error_buffer: as in :class:`~diskreplay.RateLimiter`, for all collectors together;
            without a ratio nobody waits but :meth:`wait_to_sample`, until there are ``min_size`` transitions. There is
            no ratio for a store under a URL: collectors learn too late what was sampled.
        steps_per_commit: steps of all of its environments that a collector takes between two commits, at most.
        max_restarts: the most times in a row that a collector is restarted that has committed nothing in between.
        actor_options: Ray's options for each actor: ``{"num_cpus": 1}``, ``{"scheduling_strategy": "SPREAD"}``.
        directory: the directory on each node for the local stores of collectors of a store under a URL; one below the
            user's cache directory if None.
        mirror, mirror_bytes: the mirror of ``buffer`` and its size, as in :meth:`diskreplay.ReplayBuffer.open`, where
            ``store`` is a URL.
        view, sampler, checkpoint, **options: the arguments of the buffer, as in
            :meth:`diskreplay.ReplayBuffer.open_or_create`. The collectors get ``seed``, ``commit_rows``,
            ``commit_seconds`` and ``push_seconds``, too.

    Raises:
        InputError: where an argument breaks a rule, or the store has other spaces than the environments.
        CollectorError: where ``make_envs`` raises.
        LockedError: where another process learns from the store.
        RemoteError: where object storage cannot be reached.
    """

    @shared(CreateOptions)
    def __init__(
        self,
        n: int,
        store: PathLike,
        make_envs: MakeEnvs,
        policy: Policy,
        weights: Any = None,
        *,
        capacity: int = CAPACITY,
        samples_per_insert: float | None = None,
        min_size: int = 1,
        error_buffer: float | None = None,
        steps_per_commit: int = 100,
        max_restarts: int = 3,
        actor_options: Mapping[str, Any] | None = None,
        directory: PathLike | None = None,
        mirror: PathLike | None = None,
        mirror_bytes: int | None = None,
        view: View | None = None,
        sampler: Sampler | None = None,
        checkpoint: str | None = None,
        take_over: bool = False,
        **options: Unpack[CreateOptions],
    ) -> None:
        self._n = check_count("n", n, most=1 << 14)
        for what, value in (("make_envs", make_envs), ("policy", policy)):
            if not callable(value):
                raise InputError(f"{what} must be callable, got {type(value).__name__}")
        check_count("capacity", capacity)
        self._min_size = check_count("min_size", min_size)
        self._steps = check_count("steps_per_commit", steps_per_commit)
        check_count("max_restarts", max_restarts, least=0)
        if samples_per_insert is not None:
            checked_number("samples_per_insert", samples_per_insert, above=True)
        url = checked_url(store) if is_url(store) else None
        places = {"directory": directory, "mirror": mirror, "mirror_bytes": mirror_bytes}
        _check_place(url, options["remote"], samples_per_insert, places)
        actor_options = {"num_cpus": 1, **(actor_options or {})}
        self._closed, self._ended, self._told = False, False, False
        directory = full_path(directory) if directory is not None else None
        where = named(store)
        given = _sent((where, make_envs, policy))
        observation_space, action_space, self._num_envs, known = _asked(given, actor_options)
        more: dict[str, Any] = {
            **options,
            "checkpoint": checkpoint,
            "take_over": take_over,
            "provenance": known if options["provenance"] is None else options["provenance"],
            "stream": options["stream"] or LEARNER,
            "ragged": None,
        }
        self.buffer = (
            ReplayBuffer.open_or_create(
                where, observation_space, action_space, capacity=capacity, view=view, sampler=sampler, **more
            )
            if url is None
            else _reader(url, observation_space, action_space, capacity, view, sampler, mirror, mirror_bytes, more)
        )
        """The buffer that the trainer samples from; :meth:`close` closes it."""
        with closed_on_failure(self.buffer):
            self._limiter: RateLimiter | None = None
            if samples_per_insert is not None:
                self._limiter = RateLimiter(self.buffer, samples_per_insert, min_size, error_buffer)
                self._limiter.check_step(self._num_envs)
            each = max(capacity // self._n, self._num_envs)
            self._supervisor = Supervisor(
                self._n, given, {**engine_options(more), "capacity": each, "directory": directory},
                actor_options, weights,
                options["seed"], self._num_envs, self._steps, max_restarts, self._leave, self._committed,
                sum(map(self._committed, self.buffer.engine.store.stream_names())),
            )  # fmt: skip
            self._start = time.monotonic()
            self._seen, self._seen_at = 0, self._start
            self._waiting = False
            """True if the trainer waits for collectors."""
            self._supervisor.start()
        atexit.register(self.close)  # before Ray's own end

    # For the trainer

    def wait_to_sample(self, count: int, timeout: float | None = None) -> None:
        """Wait until ``count`` transitions may be sampled from ``buffer``, and count them; call it before sampling.

        Where it had to wait, and once a second, the buffer goes on to the newest commits.

        Args:
            count: the number of transitions in the batch that is sampled next.
            timeout: seconds to wait; for ever if None.

        Raises:
            CollectorError, InputError: where a collector has failed for good.
            RateLimitError: when the time is over; nothing was counted.
            ClosedError: after :meth:`close`.
        """
        check_count("count", count)
        start = time.monotonic()
        if timeout is not None:
            timeout = checked_number("timeout", timeout)
        self._check()
        if self._supervisor.commits != self._seen and start - self._seen_at >= REFRESH_SECONDS:
            self._refresh()
        try:
            while True:
                seen = self._supervisor.commits
                if self._may_sample(count):
                    return
                self._waiting = True
                waited = time.monotonic() - start
                if timeout is not None and waited >= timeout:
                    raise RateLimitError(f"waited {waited:.1f} s and may not sample {count} transitions yet: {self!r}")
                self._wait(seen, WAIT_SECONDS if timeout is None else min(WAIT_SECONDS, timeout - waited))
                self._check()
        finally:
            self._waiting = False

    def set_weights(self, weights: Any) -> int:
        """Send weights to all collectors, which use them after their next commit; return their version, from 1 upwards.

        Raises CollectorError or InputError where a collector has failed for good, ClosedError after :meth:`close`.
        """
        self._check()
        return self._supervisor.set_weights(weights)

    def stats(self) -> dict[str, Any]:
        """Return what was done since the start.

        Returns a mapping of ``transitions`` that were collected, ``inserts`` and ``samples`` that the store counts in
        all, ``seconds``, ``episodes``, ``return_mean`` and ``length_mean`` of the last 100 episodes (None where there
        are none), ``restarts``, ``version`` of the newest weights, and ``collectors``: of each ``stream``, ``process``
        and ``node`` (Ray's name), None while it starts, ``transitions`` in the stream, ``version`` of its weights,
        ``restarts``, the ``reason`` of the last one, ``push_error``, why its last push failed, and ``state``:
        "starting", "collecting", "waiting" for leave to add, or "ended". Of a store under a URL only what is pushed is
        counted.
        """
        return {
            **self._supervisor.facts(),
            "samples": self._limiter.samples if self._limiter is not None else None,
            "seconds": time.monotonic() - self._start,
        }

    def close(self) -> None:
        """Have the collectors commit, end them, and close the buffer; a second call does nothing.

        Raises CollectorError or InputError where a collector has failed for good and nobody was told yet.
        """
        if self._ended:
            return
        self._closed = True
        try:
            self._supervisor.stop()
        finally:
            self.buffer.close()
        self._ended = True  # interrupted before, the next call ends what is left
        atexit.unregister(self.close)
        if self._supervisor.failure is not None and not self._told:
            self._told = True
            raise self._supervisor.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._told = self._told or error is not None  # what ended the block is what there is to know
        end_block(self.close, error)

    def __repr__(self) -> str:
        facts = self._supervisor.facts()
        states = [one["state"] for one in facts["collectors"]]
        found = ", ".join(f"{states.count(one)} {one}" for one in dict.fromkeys(states))
        return f"<Collectors {self.buffer.path!r}: {found}; {facts['inserts']} inserts, {facts['restarts']} restarts>"

    # Inside

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"the collectors of {self.buffer.path!r} are closed; make new ones")
        if self._supervisor.failure is not None:
            self._told = True
            raise self._supervisor.failure

    def _may_sample(self, count: int) -> bool:
        if self._limiter is not None:
            try:
                self._limiter.wait_to_sample(count, timeout=0)
            except RateLimitError:  # it has looked at all streams
                return False
            return True
        if len(self.buffer) < max(self._min_size, count):
            self._refresh()
        return len(self.buffer) >= max(self._min_size, count)

    def _refresh(self) -> None:
        self._seen = self._supervisor.commits
        self.buffer.refresh()
        self._seen_at = time.monotonic()

    def _wait(self, seen: int, seconds: float) -> None:
        supervisor = self._supervisor
        with supervisor.changed:
            supervisor.changed.wait_for(
                lambda: supervisor.commits != seen or supervisor.failure is not None, timeout=seconds
            )

    def _leave(self, inserts: int, waiting: int) -> int:
        """Return the steps that a collector may take now; the supervisor's thread calls it.

        So that commits stay few, there must be leave for its share of half the band, unless all wait for each other.
        """
        if self._limiter is None:
            return self._steps
        inserts = max(inserts, self._limiter.inserts)
        room = self._limiter.most_inserts - inserts
        if inserts < self._min_size:  # a step may pass the least size
            room = max(room, self._min_size - inserts + self._num_envs - 1)
        steps = max(0, room // self._num_envs)
        share = min(steps, max(1, steps // waiting))
        least = min(self._steps, max(1, self._limiter.band_inserts // self._num_envs // 2 // self._n))
        if share >= least or inserts < self._min_size:
            return share
        alone = waiting == self._n  # nobody is collecting
        return steps if alone and self._waiting else 0

    def _committed(self, stream: str) -> int:
        store = self.buffer.engine.store
        with contextlib.suppress(RemoteError):
            store.files.refresh()
        if not store.has_stream(stream):
            return 0
        record = store.newest_commit(stream)
        return record.end * record.num_envs


def _check_place(url: str | None, remote: str | None, ratio: float | None, places: Mapping[str, Any]) -> None:
    """Raise InputError for options that do not go with the place: a store under a URL, or a local one."""
    if url is None:
        for name, value in places.items():
            if value is not None:
                raise InputError(f"{name} is for stores under a URL")
        return
    if remote is not None:
        raise InputError(f"the store is {url!r} itself: leave remote= out")
    if ratio is not None:
        raise InputError(
            "samples_per_insert needs a store that trainer and collectors share by its path: under a URL what was "
            "sampled is known too late"
        )


def _reader(
    url: str, observation_space: Any, action_space: Any, capacity: int, view: View | None, sampler: Sampler | None,
    mirror: PathLike | None, mirror_bytes: int | None, options: Mapping[str, Any],
) -> ReplayBuffer:  # fmt: skip
    """Return a buffer that reads the store under a URL, which is made, with an empty stream, if there is none."""

    def opened() -> ReplayBuffer:
        return ReplayBuffer.open(
            url, mode="r", checkpoint=options["checkpoint"], or_last_commit=True, view=view, sampler=sampler,
            mirror=mirror, mirror_bytes=mirror_bytes, files=options["files"], seed=options["seed"],
            cache_bytes=options["cache_bytes"], ragged=None,
        )  # fmt: skip

    try:
        buffer = opened()
    except StoreNotFoundError:
        with tempfile.TemporaryDirectory(prefix="diskreplay-") as folder:
            making = {**options, "checkpoint": None, "take_over": False, "remote": url}
            with ReplayBuffer.open_or_create(
                f"{folder}/first", observation_space, action_space, capacity=capacity, view=view,
                sampler=sampler, **making,
            ) as first:  # fmt: skip
                first.push(MAKE_SECONDS)
        buffer = opened()
    there = buffer.schema.observation_space, buffer.schema.action_space
    if there != (observation_space, action_space):
        buffer.close()
        raise InputError(
            f"the store {url!r} holds observations of {there[0]} and actions of {there[1]}, and the environments have "
            f"{observation_space} and {action_space}"
        )
    return buffer


def _sent(given: tuple[str, MakeEnvs, Policy]) -> Any:
    """Return a reference to what every collector is given; raise InputError if it cannot be sent."""
    try:
        return ray.put(given)
    except Exception as error:
        cause = str(error).strip().splitlines()[0]
        raise InputError(f"make_envs and policy must be what Ray can send to another process: {cause}") from error


class _Asked:
    """An actor that tells what environments there are."""

    def describe(self, given: tuple[str, MakeEnvs, Policy]) -> tuple[Any, Any, int, dict[str, Any]]:
        envs = made(given[1])
        try:
            return envs.single_observation_space, envs.single_action_space, envs.num_envs, provenance(envs)
        finally:
            envs.close()


def _asked(given: Any, actor_options: Mapping[str, Any]) -> tuple[Any, Any, int, dict[str, Any]]:
    """Return spaces, environments and provenance, found out where collectors will run."""
    actor = ray.remote(_Asked).options(**actor_options).remote()
    try:
        found: tuple[Any, Any, int, dict[str, Any]] = ray.get(actor.describe.remote(given))
        return found
    except RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, DiskReplayError):
            raise type(cause)(str(cause)) from None
        line = str(cause).strip().splitlines()[0] if str(cause).strip() else ""
        raise CollectorError(f"make_envs failed in a collector's process by {type(cause).__name__}: {line}") from None
    except RayError as error:
        line = str(error).strip().splitlines()[0]
        raise CollectorError(f"no collector could be started by Ray: {line}") from error
    finally:
        ray.kill(actor)
