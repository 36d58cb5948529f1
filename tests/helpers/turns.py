"""Several pushes at the same time, one request at a time, in an order drawn from a seed; some are killed."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable

from helpers.patience import PATIENCE
from helpers.testing import FaultyObjects, SimulatedObjects
from helpers.testing.faulty_objects import Fault, Request

KILL, FAIL = 0.01, 0.03
"""The share of requests before which a process is killed, and of those that fail."""
FAULTS: tuple[Fault, ...] = ("refused", "lost", "taken")


class KilledError(BaseException):
    """The process of a push was killed: nothing in it can handle that."""


class Turns:
    """Runs roles side by side, each in a thread that waits for its turn before every request.

    Args:
        objects: that all of them share.
        rng: says whose turn it is, and which requests fail or are a process's last.
    """

    def __init__(self, objects: SimulatedObjects, rng: random.Random) -> None:
        self._objects = objects
        self._rng = rng
        self._arrived: queue.Queue[int] = queue.Queue()
        self._go: list[threading.Semaphore] = []
        self._decisions: dict[int, Fault | BaseException | None] = {}

    def run(self, roles: list[Callable[[FaultyObjects], None]]) -> None:
        """Runs all roles to their ends; raises what one of them raised."""
        errors: list[BaseException] = []
        ended: set[int] = set()
        self._go = [threading.Semaphore(0) for _ in roles]

        def whole(number: int, role: Callable[[FaultyObjects], None]) -> None:
            self._go[number].acquire()
            objects = FaultyObjects(self._objects)
            objects.decide = lambda index, request: self._turn(number, request)
            try:
                role(objects)
            except BaseException as error:
                errors.append(error)
            finally:
                ended.add(number)
                self._arrived.put(number)

        threads = [threading.Thread(target=whole, args=one, daemon=True) for one in enumerate(roles)]
        for thread in threads:
            thread.start()
        waiting = list(range(len(roles)))
        while waiting:
            number = waiting.pop(self._rng.randrange(len(waiting)))
            draw = self._rng.random()
            fault = self._rng.choice(FAULTS) if draw < KILL + FAIL else None
            self._decisions[number] = KilledError() if draw < KILL else fault
            self._go[number].release()
            if self._arrived.get(timeout=PATIENCE) not in ended:
                waiting.append(number)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _turn(self, number: int, request: Request) -> Fault | None:
        self._arrived.put(number)
        self._go[number].acquire()
        decision = self._decisions.pop(number, None)
        if isinstance(decision, BaseException):
            raise decision
        return decision
