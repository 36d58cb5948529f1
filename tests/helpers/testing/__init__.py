"""File systems and objects that fail, and interrupts at any place of a call, for tests of what happens then.

File systems are given as ``files=`` to a buffer.

:class:`FaultyFiles` records every operation of the file system below it, and fails or dies at a chosen one.
:class:`SimulatedDisk` keeps everything in RAM, knows what was synced, and gives the disk as it is after a kill or a
power loss. Together they ask what is left of a program's data if it dies at any moment:

>>> import random
>>> import diskreplay as dr, gymnasium
>>> box, discrete = gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Discrete(3)
>>> disk = SimulatedDisk()
>>> files = FaultyFiles(disk)
>>> rb = dr.ReplayBuffer.create("/a.replay", box, discrete, capacity=100, files=files)
>>> rb.add([0, 0], 1, 0.5, [0, 1], False, False)
>>> rb.commit()
>>> rb.add([0, 1], 1, 0.5, [1, 1], True, False)
>>> files.crash_at(4)  # the fifth operation from here on that writes
>>> try:
...     rb.commit()
... except Crash:
...     print("dead")
dead
>>> for after in disk.after_kill(), disk.after_power_loss(), disk.after_power_loss(random.Random(0)):
...     with dr.ReplayBuffer.open("/a.replay", files=after) as rb:
...         assert len(rb) in (1, 2)

:func:`small_thresholds` lets a few rows go where otherwise millions do: growth, evictions, ends of shards.

:class:`Interrupts` raises an exception at a chosen line of a call, or handles a Ctrl-C there, and asks what is left in
the program that goes on:

>>> rb = dr.ReplayBuffer.create("/b.replay", box, discrete, capacity=100, files=disk)
>>> interrupts = Interrupts(KeyboardInterrupt)
>>> place = interrupts.interrupt(30, lambda: rb.add([0, 0], 1, 0.5, [0, 1], False, False))
>>> len(rb) in (0, 1)
True
>>> rb.close()

:class:`SimulatedObjects` is object storage in RAM, and :class:`FaultyObjects` fails, loses or cuts the requests of a
remote store that it is told to.

A program that uses its own file system behind the same seam implements :class:`diskreplay.storage.files.Files`.
"""

from helpers.testing.disk import SimulatedDisk
from helpers.testing.faults import READS, WRITES, Crash, FaultyFiles, Operation
from helpers.testing.faulty_objects import FAULTS, FaultyObjects, Request, SimulatedObjects
from helpers.testing.interrupts import Interrupts, Place
from helpers.testing.thresholds import small_thresholds

__all__ = [
    "FAULTS",
    "READS",
    "WRITES",
    "Crash",
    "FaultyFiles",
    "FaultyObjects",
    "Interrupts",
    "Operation",
    "Place",
    "Request",
    "SimulatedDisk",
    "SimulatedObjects",
    "small_thresholds",
]
