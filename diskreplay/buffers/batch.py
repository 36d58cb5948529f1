"""What ``sample`` gives: arrays that training can use at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch of ``B`` transitions; nested observations and actions have the structure of their spaces.

    ``obs`` and ``next_obs`` of stacked frames are views of one block, so writing into one may show in the other.

    Attributes:
        obs, next_obs: ``(B, *obs_shape)``, or ``(B, frame_stack, *frame_shape)``; dtypes of the observation space.
        action: ``(B, *action_shape)``; dtypes of the action space.
        reward: ``(B,)``, the store's reward dtype (float32 by default); discounted sum for n-step transitions.
        terminated, truncated: ``(B,)`` bool, of the transition's last step.
        discount: ``(B,)`` float32: ``gamma ** steps``, 0 where terminated.
        index: ``(B,)`` int64; names each transition for ever within a timeline (until rows are taken back).
        weight: ``(B,)`` float32 importance weights, ones for uniform sampling.
        extra: the user's own columns by name, ``(B, *shape)``, of the transition's first step.
    """

    obs: Any
    action: Any
    reward: Any
    next_obs: Any
    terminated: Any
    truncated: Any
    discount: Any
    index: Any
    weight: Any
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.index)

    def map(self, function: Callable[[Any], Any]) -> Batch:
        """The batch with ``function`` applied to every array."""
        return Batch(**{field.name: _map(function, getattr(self, field.name)) for field in dataclasses.fields(self)})

    def torch(self, device: Any = None) -> Batch:
        """The batch as torch tensors, on ``device`` if one is given; on the CPU they share memory with the arrays.

        Raises ModuleNotFoundError, saying what to install, when there is no torch.
        """
        try:
            import torch
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("Batch.torch needs torch: pip install 'diskreplay[torch]'") from error

        def tensor(array: NDArray[Any]) -> Any:
            return torch.from_numpy(np.asarray(array)).to(device) if device is not None else torch.from_numpy(array)

        return self.map(tensor)


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _map(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_map(function, part) for part in value)
    return function(value)
