"""A collector: it steps a vector environment with a policy, and writes the steps into a stream of its own.

1. Each collector makes a new stream when it starts, also one that takes the place of another that died: that one may
   run on unseen, cut off by a network, and then adds true rows to its own stream and to no other.
2. What :meth:`Collector.collect` has returned is committed. What it took before something raised is committed too.
3. Once its own window is full, all rows of the collectors of its name before it are older than any of its own: it
   empties their streams, but for one that is still being written. So the store's size has a bound, however often
   collectors are restarted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import secrets
import shutil
from collections.abc import Callable
from typing import Any, Unpack

import numpy as np
from gymnasium.vector import VectorEnv

from diskreplay.buffers.autoreset import AutoresetMode
from diskreplay.buffers.options import shared
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import arrays, check_count
from diskreplay.engine.run import EngineOptions
from diskreplay.errors import (
    ClosedError,
    CorruptionError,
    InputError,
    LockedError,
    NotAStoreError,
    RemoteConflictError,
    RemoteError,
    StoreNotFoundError,
)
from diskreplay.recording import VectorRecord
from diskreplay.remote import default_mirror
from diskreplay.sampling.uniform import Uniform
from diskreplay.storage.paths import PathLike, checked_url, full_path, is_url
from diskreplay.views.transition import Transition

CAPACITY = 1_000_000
PUSH_SECONDS = 60.0
"""The seconds in which a collector that ends, or begins after another, may push what is left."""
DAMAGED = (CorruptionError, NotAStoreError, RemoteConflictError, StoreNotFoundError)
"""The errors of a stream that is left to `diskreplay verify`."""

MakeEnvs = Callable[[], Any]
"""A function that makes a ``gymnasium.vector.VectorEnv``."""
Act = Callable[[Any], Any]
"""A function from observations ``(num_envs, *obs_shape)`` to actions ``(num_envs, *action_shape)``."""
Policy = Callable[[Any, np.random.Generator], Act]
"""A function from weights, and a random generator to explore with, to an :data:`Act`."""


@dataclasses.dataclass(frozen=True)
class Collected:
    """The result of a call of :meth:`Collector.collect`.

    Attributes:
        stream: the stream to which the steps were written.
        num_envs: environments of the collector.
        transitions: rows x environments that the stream ever held and that are committed; of a store under a URL, that
            are pushed.
        returns, lengths: the returns and lengths of the episodes that ended in this call, in the order of their ends.
        version: the version of the weights that chose the actions.
        push_error: why the last push of a store under a URL failed; None where it did not.
    """

    stream: str
    num_envs: int
    transitions: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    version: int
    push_error: str | None = None


class Collector:
    """A writer that steps a vector environment with a policy sent to it; ``ray.remote(Collector)`` makes it an actor.

    Each episode has the fact ``policy``: the version of the weights that chose its last action.

    Args:
        store: an existing store: a path that all nodes share, as text, which is passed on as it is; or a URL.
        make_envs: a function that makes the vector environment, in any of Gymnasium's autoreset modes, with the store's
            spaces.
        policy: ``policy(weights, rng)`` gives ``act``, and ``act(obs)`` the actions of all environments.
        weights: the first ones.
        capacity: transitions that the collector's stream keeps; older ones are evicted.
        name: its stream is called by it, with some letters more: ``collector-3f9a1c2e``.
        version: the version of the first weights.
        directory: the directory on the collector's node for its local store, where ``store`` is a URL; one below the
            user's cache directory if None.
        seed: the seed of the environments and of ``rng``; from the system's entropy if None.
        cache_bytes, commit_rows, commit_seconds, remote, push_seconds: as in :meth:`diskreplay.ReplayBuffer.open`.

    Raises InputError for what is no vector environment or has other spaces than the store, and what ``make_envs``,
    ``policy`` and ``ReplayBuffer.open`` raise.
    """

    @shared(EngineOptions)
    def __init__(
        self,
        store: str,
        make_envs: MakeEnvs,
        policy: Policy,
        weights: Any = None,
        *,
        capacity: int = CAPACITY,
        name: str = "collector",
        version: int = 0,
        directory: PathLike | None = None,
        **options: Unpack[EngineOptions],
    ) -> None:
        self._url = checked_url(store) if is_url(store) else None
        if self._url is None and directory is not None:
            raise InputError(f"directory is for collectors of a store under a URL, not for {store!r}")
        if self._url is not None:
            options = {**options, "remote": self._url}
            self._directory = pathlib.Path(
                full_path(directory) if directory is not None else f"{default_mirror(self._url)}-written"
            )
        random = np.random.default_rng(options["seed"])
        self._policy, self._policy_rng = policy, random.spawn(1)[0]
        self._seed: int | None = int(random.integers(1 << 31))
        """The seed of the first reset."""
        self.set_weights(weights, version)
        envs = made(make_envs)
        self.store, self.stream = store, f"{name}-{secrets.token_hex(4)}"
        opened = ReplayBuffer.open(
            self._path(self.stream), mode="a", stream=self.stream, num_envs=envs.num_envs, capacity=capacity,
            view=Transition(), sampler=Uniform(), **options,
        )  # fmt: skip
        try:
            self._envs = VectorRecord(envs, opened)
            self._before = self._those_before(f"{name}-")
            """The streams of earlier collectors of this name that hold rows."""
        except BaseException:
            opened.close()
            envs.close()
            raise
        count = envs.num_envs
        self._obs: Any = None
        """The observations that the next actions are chosen from, or None if the environments must be reset first."""
        self._resetting = np.zeros(count, bool)
        """The environments whose next step only resets them."""
        self._returns, self._lengths = np.zeros(count), np.zeros(count, np.int64)
        self._closed = False

    @property
    def num_envs(self) -> int:
        """The number of environments that it steps."""
        return int(self._envs.num_envs)

    def set_weights(self, weights: Any, version: int) -> None:
        """Have the policy act with other weights from the next step on, with errors as the policy raises them."""
        act = self._policy(weights, self._policy_rng)
        if not callable(act):
            raise InputError(f"policy(weights, rng) must give a function of observations, got {type(act).__name__}")
        self._act, self.version = act, check_count("version", version, least=0)

    def collect(self, steps: int, *, version: int | None = None, weights: Any = None) -> Collected:
        """Take ``steps`` steps of all environments, and commit them.

        Args:
            steps: the number of steps, 0 or more.
            version, weights: as in :meth:`set_weights`, which is called first; weights stay as they are if None.

        Raises InputError where the policy gives actions of another shape, and what environments and policy raise; then
        the next call begins new episodes. ClosedError after :meth:`close`.
        """
        if self._closed:
            raise ClosedError(f"the collector of the stream {self.stream!r} is closed")
        check_count("steps", steps, least=0)
        if version is not None:
            self.set_weights(weights, version)
        returns: list[float] = []
        lengths: list[int] = []
        try:
            for _ in range(steps):
                self._step(returns, lengths)
        except BaseException as error:
            self._envs.buffer.commit()
            if self._url is not None and isinstance(error, Exception):  # its process may be ended now
                with contextlib.suppress(RemoteError):
                    self._envs.buffer.push(PUSH_SECONDS)
            raise
        self._envs.buffer.commit()
        self._empty_those_before()
        return Collected(
            self.stream, self.num_envs, self._kept() * self.num_envs, tuple(returns), tuple(lengths), self.version,
            self._envs.buffer.stats()["remote"]["error"] if self._url is not None else None,
        )  # fmt: skip

    def close(self) -> None:
        """Commit, and close the stream and the environments; a second call does nothing."""
        if not self._closed:
            self._envs.close()  # interrupted while it pushes, it is not the end
            self._closed = True

    def _kept(self) -> int:
        """Return the number of rows that are committed, and of a store under a URL pushed."""
        if self._url is None:
            return int(self._envs.buffer.engine.appender.log.end)
        return int(self._envs.buffer.stats()["remote"]["pushed_rows"])

    def _step(self, returns: list[float], lengths: list[int]) -> None:
        if self._obs is None:
            self._begin()
        obs, self._obs = self._obs, None
        actions = self._checked(self._act(obs))
        next_obs, rewards, terminated, truncated, _ = self._envs.step(actions)
        rewards, terminated, truncated = arrays("a step", (rewards, terminated, truncated))
        ended = np.logical_or(terminated, truncated)
        taken = ~self._resetting
        self._returns[taken] += np.asarray(rewards)[taken]
        self._lengths[taken] += 1
        for env in np.flatnonzero(ended).tolist():
            self._envs.buffer.annotate_episode(env=env, policy=self.version)
            returns.append(float(self._returns[env]))
            lengths.append(int(self._lengths[env]))
            self._returns[env], self._lengths[env] = 0.0, 0
        if self._envs.autoreset_mode is AutoresetMode.DISABLED and ended.any():
            next_obs, _ = self._envs.reset(options={"reset_mask": ended})
        self._resetting = ended & (self._envs.autoreset_mode is AutoresetMode.NEXT_STEP)
        self._obs = next_obs

    def _begin(self) -> None:
        seed, self._seed = self._seed, None
        self._obs, _ = self._envs.reset(seed=seed)
        self._resetting[:] = False
        self._returns[:], self._lengths[:] = 0.0, 0

    def _checked(self, actions: Any) -> Any:
        space = self._envs.single_action_space
        if space.shape is None:  # a Dict or a Tuple
            return actions
        wanted = (self.num_envs, *space.shape)
        try:
            shape = tuple(np.shape(actions))
        except ValueError as error:
            raise InputError(f"the policy's actions must be of shape {wanted}, got a ragged list") from error
        if shape != wanted:
            raise InputError(f"the policy's actions must be of shape {wanted}, got {shape}")
        return actions

    def _path(self, stream: str) -> str:
        return self.store if self._url is None else str(self._directory / stream)

    def _those_before(self, prefix: str) -> set[str]:
        """Push what earlier collectors have left on this node, and return those of their streams that hold rows."""
        if self._url is None:
            return {
                other for other, commit in self._envs.buffer.engine.streams.commits.items()
                if other.startswith(prefix) and other != self.stream and commit.end > commit.begin
            }  # fmt: skip
        found = set()
        for other in (path.name for path in self._directory.iterdir()):
            if other.startswith(prefix) and other != self.stream:
                with contextlib.suppress(*DAMAGED):
                    self._opened(other, lambda buffer: buffer.push(PUSH_SECONDS))
                    found.add(other)
        return found

    def _empty_those_before(self) -> None:
        """Empty the streams of earlier collectors, once no row of theirs is newer than any of this one's window."""
        written = self._envs.buffer.engine.appender.log
        if not written.begin:
            return
        for other in sorted(self._before):
            try:
                if not self._opened(other, self._empty):
                    continue
            except DAMAGED:
                pass
            else:
                if self._url is not None:
                    shutil.rmtree(self._path(other), ignore_errors=True)
            self._before.discard(other)

    def _empty(self, buffer: ReplayBuffer) -> None:
        buffer.clear()
        if self._url is not None:
            buffer.push(PUSH_SECONDS)

    def _opened(self, stream: str, act: Callable[[ReplayBuffer], object]) -> bool:
        """Call ``act`` with another stream; return False if it is being written, or the network fails."""
        try:
            with ReplayBuffer.open(
                self._path(stream), mode="a", stream=stream, remote=self._url, view=Transition(), sampler=Uniform()
            ) as old:
                act(old)
        except DAMAGED:
            raise
        except (LockedError, RemoteError):
            return False
        return True


def made(make_envs: MakeEnvs) -> Any:
    """Return the vector environment; raise InputError if it is none."""
    envs = make_envs()
    if not isinstance(envs, VectorEnv):
        raise InputError(
            f"make_envs must make a gymnasium.vector.VectorEnv, got {type(envs).__name__}; gymnasium.make_vec makes one"
        )
    return envs
