"""XuanCe's buffers for multi-agent learning (``xuance.common.memory_tools_marl``) over stores on disk.

The positional arguments are those of XuanCe; ``path`` and the store's other options are keyword arguments, see
:class:`MultiAgentBuffer`. Where these classes do something else than XuanCe's, and why, is in ``docs/compat.md``.

>>> import numpy as np
>>> buffer = MARL_OffPolicyBuffer(2, None, (4,), (), (2, 1), (2,), 1, 100, 3)
>>> obs = np.zeros((1, 2, 4))
>>> step = {"obs": obs, "actions": np.zeros((1, 2)), "obs_next": obs, "rewards": np.ones((1, 2, 1))}
>>> buffer.store({**step, "terminals": np.zeros((1, 2)), "agent_mask": np.ones((1, 2))})
>>> buffer.sample()["rewards"].shape
(3, 2, 1)
"""

from diskreplay.compat.xuance.marl.base import BaseBuffer
from diskreplay.compat.xuance.marl.off_policy import MARL_OffPolicyBuffer, MeanField_OffPolicyBuffer
from diskreplay.compat.xuance.marl.on_policy import COMA_Buffer, MARL_OnPolicyBuffer, MeanField_OnPolicyBuffer
from diskreplay.compat.xuance.marl.recurrent import COMA_Buffer_RNN, MARL_OffPolicyBuffer_RNN, MARL_OnPolicyBuffer_RNN

__all__ = [
    "BaseBuffer",
    "COMA_Buffer",
    "COMA_Buffer_RNN",
    "MARL_OffPolicyBuffer",
    "MARL_OffPolicyBuffer_RNN",
    "MARL_OnPolicyBuffer",
    "MARL_OnPolicyBuffer_RNN",
    "MeanField_OffPolicyBuffer",
    "MeanField_OnPolicyBuffer",
]
