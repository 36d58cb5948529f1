"""A pytest plugin: torchrl's two lazy storages are ours, wherever its modules have them."""

from __future__ import annotations

import sys
from typing import Any

from torchrl.data import LazyMemmapStorage, LazyTensorStorage

from diskreplay.compat.torchrl import DiskReplayStorage


class DiskLazyTensorStorage(DiskReplayStorage):
    """Takes the arguments of torchrl's, of which one dimension of slots is supported."""

    def __init__(self, max_size: int, *, path: Any = None, device: Any = "cpu", ndim: int = 1, **options: Any) -> None:
        if ndim != 1:
            raise NotImplementedError(f"ndim is 1, got {ndim}")
        super().__init__(max_size, path=path, device="cpu" if device == "auto" else device)


class DiskLazyMemmapStorage(DiskLazyTensorStorage):
    pass


OURS = {LazyTensorStorage: DiskLazyTensorStorage, LazyMemmapStorage: DiskLazyMemmapStorage}
for name, module in list(sys.modules.items()):
    if name.startswith("torchrl.data"):
        for attribute, value in list(vars(module).items()):
            if isinstance(value, type) and value in OURS:
                setattr(module, attribute, OURS[value])
