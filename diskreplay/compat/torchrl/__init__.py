"""torchrl's replay buffers over a store on disk: a storage for them, and a store as a dataset of theirs.

``ReplayBuffer(storage=DiskReplayStorage(1_000_000, path="pong.replay"), ...)``: torchrl's buffer, samplers, writer and
transforms are torchrl's own; only where the rows lie changes.
"""

from __future__ import annotations

try:
    import tensordict  # noqa: F401  # what is needed is looked for here, so that one sentence says what to install
    import torchrl  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "diskreplay.compat.torchrl needs torchrl: pip install 'diskreplay[torchrl]'", name=error.name
    ) from error

from diskreplay.compat.torchrl.replay_dataset import DiskReplayDataset
from diskreplay.compat.torchrl.storage import DiskReplayStorage

__all__ = ["DiskReplayDataset", "DiskReplayStorage"]
