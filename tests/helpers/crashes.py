"""The death of a writer, as far as one process can see it; and objects that nobody collects."""

from __future__ import annotations

import contextlib
import gc
import itertools
import random
from collections.abc import Iterator

from helpers.commits import settled
from helpers.testing import WRITES, FaultyFiles, Operation, SimulatedDisk

import diskreplay as dr


def kill(buffer: dr.ReplayBuffer) -> None:
    """Leaves the store as a killed process would: nothing more is written, and the system gives the lock back."""
    writer = buffer.engine.streams.writer
    assert writer is not None
    settled(buffer)
    writer.release()


def die(buffer: dr.ReplayBuffer) -> None:
    """Likewise, of an open store whose ``close`` would write: it does nothing from now on."""
    settled(buffer)
    buffer.engine.streams.release()
    buffer.engine.gate.closed = True


def images_of(disk: SimulatedDisk, files: FaultyFiles, every: int) -> list[SimulatedDisk]:
    """What a kill and two losses of power leave of a disk, at every so many-th write from now on."""
    images: list[SimulatedDisk] = []
    writes = itertools.count(1)

    def look(operation: Operation) -> None:
        if operation.name in WRITES and (at := next(writes)) % every == 0:
            images.extend([disk.after_kill(), disk.after_power_loss(), disk.after_power_loss(random.Random(at))])

    files.decide = look  # type: ignore[assignment]
    return images


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """The collector of garbage has run, and does not again: what goes now is no reference cycle."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
