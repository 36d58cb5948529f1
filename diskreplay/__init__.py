"""diskreplay: a disk-backed, persistent replay store for reinforcement learning.

>>> import gymnasium, numpy, tempfile
>>> import diskreplay as dr
>>> spaces = gymnasium.spaces.Box(0, 255, (84, 84), numpy.uint8), gymnasium.spaces.Discrete(6)
>>> with tempfile.TemporaryDirectory() as folder:
...     with dr.ReplayBuffer.create(f"{folder}/pong.replay", *spaces, capacity=1000, frame_stack=4, seed=0) as rb:
...         frame = numpy.zeros((84, 84), numpy.uint8)
...         for step in range(100):
...             rb.add(frame, 2, 0.0, frame, False, step == 99)
...         batch = rb.sample(32)
>>> batch.obs.shape, batch.obs.dtype, batch.reward.shape
((32, 4, 84, 84), dtype('uint8'), (32,))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import fcntl as _fcntl  # noqa: F401  # asked for here, so that its absence is explained
except ModuleNotFoundError as error:
    raise ImportError(
        "diskreplay runs on Linux and macOS, whose file locks it needs; on Windows use it within WSL "
        "(https://learn.microsoft.com/windows/wsl/install)",
        name="fcntl",
    ) from error

if TYPE_CHECKING:
    from diskreplay import errors
    from diskreplay.buffers.autoreset import final_observations
    from diskreplay.buffers.kinds import open
    from diskreplay.buffers.limiter import RateLimiter
    from diskreplay.buffers.loader import Loader
    from diskreplay.buffers.mixture import Mixture
    from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer, MultiAgentRolloutBuffer
    from diskreplay.buffers.multi_agent_view import MultiAgentBatch, MultiAgentRolloutBatch
    from diskreplay.buffers.provenance import provenance
    from diskreplay.buffers.replay import ReplayBuffer
    from diskreplay.buffers.rollout import RolloutBuffer
    from diskreplay.index.episodes import Episode
    from diskreplay.ops.salvage import salvage
    from diskreplay.recording import Record, VectorRecord
    from diskreplay.recording.video_encoding import VideoEncoder
    from diskreplay.sampling.counting import Counting
    from diskreplay.sampling.groups import Groups
    from diskreplay.sampling.proportional import Proportional
    from diskreplay.sampling.rank_based import RankBased
    from diskreplay.sampling.recent import Recent
    from diskreplay.sampling.sampler_mixture import SamplerMixture
    from diskreplay.sampling.uniform import Uniform
    from diskreplay.schema.columns import Codec, Column, Schema, Start
    from diskreplay.schema.ragged import Lists, Pad, Padded
    from diskreplay.video import Video
    from diskreplay.views.batch import Batch, DeltaBatch, EpisodeBatch, HindsightBatch, RolloutBatch, SequenceBatch
    from diskreplay.views.delta_timestamps import DeltaTimestamps
    from diskreplay.views.hindsight import Hindsight
    from diskreplay.views.padded_episodes import PaddedEpisodes
    from diskreplay.views.sequence import Sequence
    from diskreplay.views.transition import Transition

__version__ = "1.0.0rc1"

_NAMES = {
    "buffers.autoreset": ("final_observations",),
    "buffers.kinds": ("open",),
    "buffers.limiter": ("RateLimiter",),
    "buffers.loader": ("Loader",),
    "buffers.mixture": ("Mixture",),
    "buffers.multi_agent": ("MultiAgentReplayBuffer", "MultiAgentRolloutBuffer"),
    "buffers.multi_agent_view": ("MultiAgentBatch", "MultiAgentRolloutBatch"),
    "buffers.provenance": ("provenance",),
    "buffers.replay": ("ReplayBuffer",),
    "buffers.rollout": ("RolloutBuffer",),
    "errors": ("errors",),
    "index.episodes": ("Episode",),
    "ops.salvage": ("salvage",),
    "recording": ("Record", "VectorRecord"),
    "recording.video_encoding": ("VideoEncoder",),
    "sampling.counting": ("Counting",),
    "sampling.groups": ("Groups",),
    "sampling.proportional": ("Proportional",),
    "sampling.rank_based": ("RankBased",),
    "sampling.recent": ("Recent",),
    "sampling.sampler_mixture": ("SamplerMixture",),
    "sampling.uniform": ("Uniform",),
    "schema.columns": ("Codec", "Column", "Schema", "Start"),
    "schema.ragged": ("Lists", "Pad", "Padded"),
    "video": ("Video",),
    "views.batch": ("Batch", "DeltaBatch", "EpisodeBatch", "HindsightBatch", "RolloutBatch", "SequenceBatch"),
    "views.delta_timestamps": ("DeltaTimestamps",),
    "views.hindsight": ("Hindsight",),
    "views.padded_episodes": ("PaddedEpisodes",),
    "views.sequence": ("Sequence",),
    "views.transition": ("Transition",),
}
"""The public names in each module.

A module is imported when one of its names is first asked for: a command that samples nothing needs no sampler, and a
program of one agent none of several.
"""
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Batch",
    "Codec",
    "Column",
    "Counting",
    "DeltaBatch",
    "DeltaTimestamps",
    "Episode",
    "EpisodeBatch",
    "Groups",
    "Hindsight",
    "HindsightBatch",
    "Lists",
    "Loader",
    "Mixture",
    "MultiAgentBatch",
    "MultiAgentReplayBuffer",
    "MultiAgentRolloutBatch",
    "MultiAgentRolloutBuffer",
    "Pad",
    "Padded",
    "PaddedEpisodes",
    "Proportional",
    "RankBased",
    "RateLimiter",
    "Recent",
    "Record",
    "ReplayBuffer",
    "RolloutBatch",
    "RolloutBuffer",
    "SamplerMixture",
    "Schema",
    "Sequence",
    "SequenceBatch",
    "Start",
    "Transition",
    "Uniform",
    "VectorRecord",
    "Video",
    "VideoEncoder",
    "errors",
    "final_observations",
    "open",
    "provenance",
    "salvage",
]


def __getattr__(name: str) -> Any:
    """Import what a public name stands for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    value = module if name == _HOMES[name] else getattr(module, name)
    globals()[name] = value  # once: from here on nobody asks
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
