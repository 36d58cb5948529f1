"""The names that flat files of many projects use, whatever container they are in.

They are those of D4RL, Gymnasium, Stable-Baselines (``episode_starts``), Tianshou (``obs``, ``act``, ``rew``, ``done``,
``obs_next``), RL Unplugged (``step_type``) and our own exports.
"""

from __future__ import annotations

from diskreplay.formats.core.convention import EXTRA, FINAL_OBS, NEXT_OBS, OFFSETS
from diskreplay.formats.core.ends import DONE
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

NAMES = {
    "observations": OBS, "observation": OBS, "obs": OBS,
    "actions": ACTION, "action": ACTION, "act": ACTION,
    "rewards": REWARD, "reward": REWARD, "rew": REWARD,
    "next_observations": NEXT_OBS, "next_observation": NEXT_OBS, "next_obs": NEXT_OBS, "obs_next": NEXT_OBS,
    "terminals": TERMINATED, "terminal": TERMINATED, "terminations": TERMINATED, "terminated": TERMINATED,
    "timeouts": TRUNCATED, "truncations": TRUNCATED, "truncated": TRUNCATED, "dones": DONE, "done": DONE,
    "final_obs": FINAL_OBS, "last": "/last", "episode_starts": "/first", "episode_ends": "/ends",
    "episode_lengths": "/lengths", "traj_lengths": "/lengths", "step_type": "/step_type", "step_types": "/step_type",
    "infos": EXTRA, "info": EXTRA, "extra": EXTRA, "offsets": OFFSETS,
}  # fmt: skip
"""Our name of each of theirs."""
