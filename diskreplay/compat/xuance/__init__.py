"""XuanCe's buffers for single-agent learning (``xuance.common.memory_tools``) over stores on disk.

The positional arguments are those of XuanCe; ``path`` and the store's other options are keyword arguments, see
:class:`OffPolicyBuffer`. Where these classes do something else than XuanCe's, and why, is in ``docs/compat/xuance.md``.

>>> import numpy as np
>>> from gymnasium import spaces
>>> buffer = PerOffPolicyBuffer(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), None, 2, 100, 6, 0.5)
>>> obs = np.zeros((2, 4))
>>> buffer.store(obs, np.array([0, 1]), np.ones(2), np.array([False, True]), obs)
>>> *_, weights, step_choices = buffer.sample(0.4)
>>> buffer.update_priorities(step_choices, np.ones(6))
>>> weights.shape
(2, 3)
"""

from diskreplay.compat.xuance.memory import Buffer, EpisodeBuffer, create_memory, sample_batch, store_element
from diskreplay.compat.xuance.off_policy import (
    DummyOffPolicyBuffer,
    DummyOffPolicyBuffer_Atari,
    OffPolicyBuffer,
    PerOffPolicyBuffer,
)
from diskreplay.compat.xuance.on_policy import DummyOnPolicyBuffer, DummyOnPolicyBuffer_Atari
from diskreplay.compat.xuance.recurrent import RecurrentOffPolicyBuffer

StoredBuffer = OffPolicyBuffer
"""The former name of :class:`OffPolicyBuffer`."""

__all__ = [
    "Buffer",
    "DummyOffPolicyBuffer",
    "DummyOffPolicyBuffer_Atari",
    "DummyOnPolicyBuffer",
    "DummyOnPolicyBuffer_Atari",
    "EpisodeBuffer",
    "OffPolicyBuffer",
    "PerOffPolicyBuffer",
    "RecurrentOffPolicyBuffer",
    "StoredBuffer",
    "create_memory",
    "sample_batch",
    "store_element",
]
