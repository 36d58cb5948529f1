"""The supervision of collectors: a thread hands out steps, takes in what was done, and replaces collectors that died.

1. Each collector has one call at a time: so many steps, with the newest weights if it has older ones. The calls are the
   back-pressure: no leave to add, no call.
2. A call that fails ends its actor. A new one takes its place, with a stream of its own. Where a collector fails
   ``max_restarts + 1`` times in a row, with nothing committed in between, or where what it was given breaks a rule,
   all stop, and whoever calls next is told why.
3. A node that is gone takes its actors with it. Those that Ray finds no other node for wait; the others go on.
4. Inserts are counted from what calls return; of an actor that died, from its stream's commit record.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from diskreplay.errors import CollectorError, DiskReplayError, InputError
from diskreplay.ray.collector import Collected, Collector, MakeEnvs, Policy

LOG = logging.getLogger("diskreplay.ray")
POLL_SECONDS = 0.01
"""The seconds between two looks whether a waiting collector has leave to go on."""
BUSY_SECONDS = 0.2
"""The seconds to wait for a call at a time if no collector waits for leave."""
CLOSE_SECONDS = 60.0
"""The seconds in which collectors may end what they are at, and commit."""
RECENT_EPISODES = 100


class Seat:
    """The actor, which makes its collector in a call, so that an error there arrives as that of any call."""

    def begin(
        self, given: tuple[str, MakeEnvs, Policy], weights: Any, options: dict[str, Any]
    ) -> tuple[Collected, int, str]:
        """Return what a collector begins with, the number of its process, and Ray's name of its node."""
        store, make_envs, policy = given
        self._collector = Collector(store, make_envs, policy, weights, **options)
        return self._collector.collect(0), os.getpid(), ray.get_runtime_context().get_node_id()

    def collect(self, steps: int, version: int | None, weights: Any) -> Collected:
        return self._collector.collect(steps, version=version, weights=weights)

    def close(self) -> None:
        if hasattr(self, "_collector"):
            self._collector.close()


TOLD = ("stream", "process", "node", "transitions", "version", "restarts", "reason", "push_error")
"""The fields that :meth:`Supervisor.facts` tells of a place, beside its state."""


@dataclasses.dataclass
class CollectorSlot:
    """The place of one of the collectors, whoever fills it.

    Attributes:
        number: the number of the slot, from 0 on.
        actor, call: the actor that fills the slot, and its call that has not returned; None where nothing was asked.
        steps: the most steps that the call may take.
        stream, process, node: the actor's stream, process and node, once it has told them.
        transitions: rows x environments that the actor's stream ever held.
        version: the version of the weights that the actor was sent.
        restarts, failures: the restarts in all, and the failures in a row with nothing committed.
        reason: why it was restarted last.
        push_error: why its last push failed, where it pushes.
    """

    number: int
    actor: Any = None
    call: Any = None
    steps: int = 0
    stream: str | None = None
    process: int | None = None
    node: str | None = None
    transitions: int = 0
    version: int = 0
    restarts: int = 0
    failures: int = 0
    reason: str = ""
    push_error: str | None = None


class Supervisor:
    """The thread that runs the collectors from :meth:`start` to :meth:`stop`.

    Args:
        n: collectors.
        given: a reference to ``(store, make_envs, policy)``.
        options: the options of every collector.
        actor_options: Ray's options for every actor.
        weights: the first ones.
        seed: the seed of all collectors.
        num_envs: environments of each.
        steps: the most steps of a call.
        max_restarts: the most restarts in a row.
        leave: a function that returns how many steps may be handed out; it is told the transitions that were added or
            may be, and how many collectors wait. 0 for none.
        committed: a function that returns how many transitions of a stream are committed.
        inserts: transitions that the store held before.
    """

    def __init__(
        self, n: int, given: Any, options: Mapping[str, Any], actor_options: Mapping[str, Any], weights: Any,
        seed: int | None, num_envs: int, steps: int, max_restarts: int, leave: Callable[[int, int], int],
        committed: Callable[[str], int], inserts: int,
    ) -> None:  # fmt: skip
        self._given, self._options = given, dict(options)
        self._seat = ray.remote(Seat).options(**{"max_restarts": 0, **actor_options})
        self._newest = 0, ray.put(weights)
        """The version of the newest weights, and a reference to them."""
        self._seed = np.random.SeedSequence(seed)
        self._num_envs, self._steps, self._max_restarts = num_envs, steps, max_restarts
        self._leave, self._committed = leave, committed
        self._places = [CollectorSlot(number) for number in range(n)]
        self.inserts = inserts
        """The number of transitions that the store ever held, committed, as far as is known."""
        self.before = inserts
        """The number of them that were there at the start."""
        self.episodes = 0
        self._recent: collections.deque[tuple[float, int]] = collections.deque(maxlen=RECENT_EPISODES)
        self.changed = threading.Condition()
        """The condition that is notified when something was committed, and when all has failed."""
        self.commits = 0
        """The number of calls that have added something."""
        self.failure: DiskReplayError | None = None
        self._ended = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="diskreplay collectors", daemon=True)

    def start(self) -> None:
        for place in self._places:
            self._fill(place)
        self._thread.start()

    def stop(self) -> None:
        """End all collectors, which commit what they have; a second call does nothing."""
        if self._stopped:
            return
        self._ended.set()
        self._thread.join()
        begun = [place.actor for place in self._places if place.actor is not None and place.stream is not None]
        try:
            with contextlib.suppress(RayError):  # who is dead needs no closing
                calls = [actor.close.remote() for actor in begun]
                if calls:
                    ray.wait(calls, num_returns=len(calls), timeout=CLOSE_SECONDS)
        finally:
            for place in self._places:
                self._dismiss(place)
        self._stopped = True

    def set_weights(self, weights: Any) -> int:
        """Have weights sent with the next call to each collector, and return their version."""
        self._newest = self._newest[0] + 1, ray.put(weights)
        return self._newest[0]

    def facts(self) -> dict[str, Any]:
        """Return the facts of :meth:`diskreplay.ray.Collectors.stats`."""
        recent = list(self._recent)
        return {
            "transitions": self.inserts - self.before,
            "inserts": self.inserts,
            "episodes": self.episodes,
            "return_mean": float(np.mean([one for one, _ in recent])) if recent else None,
            "length_mean": float(np.mean([one for _, one in recent])) if recent else None,
            "restarts": sum(place.restarts for place in self._places),
            "version": self._newest[0],
            "collectors": [
                {**{name: getattr(place, name) for name in TOLD}, "state": self._state(place)} for place in self._places
            ],
        }

    def _state(self, place: CollectorSlot) -> str:
        if self._ended.is_set() or self.failure is not None:
            return "ended"
        return "starting" if place.stream is None else "waiting" if place.call is None else "collecting"

    # In the thread

    def _run(self) -> None:
        try:
            while not self._ended.is_set() and self.failure is None:
                self._hand_out()
                self._take_in()
        except BaseException as error:  # such as that Ray was shut down
            self._fail(CollectorError(f"the collectors cannot go on: {_line(error)}"))

    def _hand_out(self) -> None:
        waiting = sorted((place for place in self._places if place.call is None), key=lambda one: one.transitions)
        for left, place in enumerate(waiting):
            out = sum(other.steps for other in self._places) * self._num_envs
            steps = min(self._steps, self._leave(self.inserts + out, len(waiting) - left))
            if not steps:
                return
            version, weights = self._newest
            newer = version != place.version
            place.steps, place.version = steps, version
            place.call = place.actor.collect.remote(steps, version if newer else None, weights if newer else None)

    def _take_in(self) -> None:
        calls = {place.call: place for place in self._places if place.call is not None}
        if not calls:
            self._ended.wait(POLL_SECONDS)
            return
        timeout = BUSY_SECONDS if len(calls) == len(self._places) else POLL_SECONDS
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=timeout)
        if ready:
            ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0)
        for call in ready:
            place = calls[call]
            place.call = None
            try:
                done = ray.get(call)
            except RayTaskError as error:
                self._failed(place, error.cause if isinstance(error.cause, Exception) else error)
            except RayError as error:
                self._failed(place, error)
            else:
                self._done(place, done)

    def _done(self, place: CollectorSlot, done: Any) -> None:
        if isinstance(done, tuple):  # it has begun
            done, place.process, place.node = done
        place.stream, place.steps, place.push_error = done.stream, 0, done.push_error
        self.episodes += len(done.returns)
        self._recent.extend(zip(done.returns, done.lengths, strict=True))
        self._count(place, done.transitions)

    def _count(self, place: CollectorSlot, transitions: int) -> None:
        if transitions > place.transitions:
            with self.changed:
                self.inserts += transitions - place.transitions
                place.transitions, place.failures = transitions, 0
                self.commits += 1
                self.changed.notify_all()

    def _failed(self, place: CollectorSlot, error: Exception) -> None:
        place.steps, place.reason = 0, _line(error)
        self._dismiss(place)
        if place.stream is not None:
            self._count(place, self._committed(place.stream))
        place.failures += 1
        if isinstance(error, InputError):  # would fail again
            self._fail(type(error)(f"collector {place.number}: {error}"))
        elif place.failures > self._max_restarts:
            self._fail(
                CollectorError(
                    f"collector {place.number} failed {place.failures} times in a row with nothing committed in "
                    f"between, the last time by {place.reason}"
                )
            )
        else:
            LOG.warning("collector %d is restarted: %s", place.number, place.reason)
            place.restarts += 1
            self._fill(place)

    def _fill(self, place: CollectorSlot) -> None:
        place.stream = place.process = place.node = None
        place.transitions, (place.version, weights) = 0, self._newest
        (child,) = self._seed.spawn(1)
        options = {
            **self._options, "name": f"collector-{place.number}", "version": place.version,
            "seed": int(child.generate_state(1, np.uint64)[0]),
        }  # fmt: skip
        place.actor = self._seat.remote()
        place.call = place.actor.begin.remote(self._given, weights, options)

    def _dismiss(self, place: CollectorSlot) -> None:
        """End the actor of a place, if there is one; what it has committed stays."""
        actor, place.actor, place.call = place.actor, None, None
        if actor is not None:
            with contextlib.suppress(Exception):  # it is dead, or Ray is
                ray.kill(actor)

    def _fail(self, failure: DiskReplayError) -> None:
        with self.changed:
            self.failure = failure
            self.changed.notify_all()


def _line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
