"""Stable-Baselines3's replay buffer over a store on disk, and models saved with it.

``DQN("CnnPolicy", env, replay_buffer_class=DiskReplayBuffer, replay_buffer_kwargs={"path": "pong.replay"})``; likewise
SAC, TD3, DDPG, and ``MultiInputPolicy`` with Dict observations. :func:`save` and :func:`load` keep model and
buffer in one checkpoint.
"""

try:
    import stable_baselines3  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("diskreplay.compat.sb3 needs Stable-Baselines3: pip install stable-baselines3") from error

from diskreplay.compat.sb3.replay_buffer import DiskReplayBuffer
from diskreplay.compat.sb3.saving import DiskCheckpointCallback, load, save, saved

__all__ = ["DiskCheckpointCallback", "DiskReplayBuffer", "load", "save", "saved"]
