"""Gymnasium wrappers that record what passes through them into a store.

1. A wrapper changes nothing of what passes. It adds a step once the environment has returned it, with observations of
   its own: environments may reuse their arrays, and programs change them.
2. What it has to know between two steps is one value, set at the end of a call. A call that is ended half-way, by an
   error or an interrupt, leaves None there: whether that step happened nobody can know, so the next one needs a reset.
3. A reset in the middle of an episode cuts it. So does opening a store again: its episodes do not go on.
4. With ``background=True`` all calls of the buffer go through a queue to a thread
   (:mod:`diskreplay.process.call_queue`), and the wrapper itself takes none of the buffer's locks.
"""

from diskreplay.recording.single import Record
from diskreplay.recording.vector import VectorRecord

__all__ = ["Record", "VectorRecord"]
