"""What ``sample`` gives: arrays that training can use at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from diskreplay.interrupts import undisturbed
from diskreplay.notebooks import batch_html


class Arrays:
    """What every batch can do: a base of dataclasses of arrays, nested or not.

    One of the fields is ``index``, ``(B,)``. A field may be given another value: ``batch.obs /= 255``.
    """

    index: Any

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        parts = [f"{name}={_shown(value)}" for name, value in vars(self).items() if value is not None]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """For notebooks: a table of the arrays, and thumbnails of observations that are pictures."""
        return batch_html(f"{type(self).__name__} of {len(self):,}", vars(self))

    def map(self, function: Callable[[Any], Any]) -> Self:
        """The batch with ``function`` applied to every array."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return type(self)(**{field.name: map_arrays(function, getattr(self, field.name)) for field in fields})

    def torch(self, device: Any = None) -> Self:
        """The batch as torch tensors, on ``device`` if one is given; on the CPU they share memory with the arrays.

        Raises ModuleNotFoundError, saying what to install, when there is no torch.
        """
        try:
            with undisturbed():
                import torch
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("Batch.torch needs torch: pip install 'diskreplay[torch]'") from error

        def tensor(array: NDArray[Any]) -> Any:
            return torch.from_numpy(np.asarray(array)).to(device) if device is not None else torch.from_numpy(array)

        return self.map(tensor)


@dataclasses.dataclass(repr=False)
class Batch(Arrays):
    """A batch of ``B`` transitions; nested observations and actions have the structure of their spaces.

    No two arrays share memory: each may be changed in place, and be replaced.

    Attributes:
        obs, next_obs: ``(B, *obs_shape)``, or ``(B, frame_stack, *frame_shape)``; dtypes of the observation space.
        action: ``(B, *action_shape)``; dtypes of the action space.
        reward: ``(B,)``, the store's reward dtype (float32 by default); discounted sum for n-step transitions.
        terminated, truncated: ``(B,)`` bool, of the transition's last step.
        discount: ``(B,)`` float32: ``gamma ** steps``, 0 where terminated.
        index: ``(B,)`` int64; names each transition for ever within a timeline (until rows are taken back).
        weight: ``(B,)`` float32 importance weights, ones for uniform sampling.
        extra: the user's own columns by name, ``(B, *shape)``, of the transition's first step. Of a column ``name``
            that is written later, ``name_known``, ``(B,)`` bool, says which have a value; the others are zeros.
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


@dataclasses.dataclass(kw_only=True, repr=False)
class SequenceBatch(Batch):
    """A batch of ``B`` sequences of ``T`` steps, time on the second axis; what a sequence lacks is zeros.

    The fields of :class:`Batch` with ``(B, T, ...)`` in the place of ``(B, ...)``, each step a transition of one step;
    ``index`` and ``weight`` are ``(B,)``, of the sequence's first step.

    Attributes:
        mask: ``(B, T)`` bool; False where the arrays hold no step.
        is_first: ``(B, T)`` bool; the step does not continue the one before it: the place to reset a recurrent state.
    """

    mask: Any
    is_first: Any


@dataclasses.dataclass(kw_only=True, repr=False)
class EpisodeBatch(Batch):
    """A batch of ``B`` whole episodes, padded with zeros to ``T`` steps: the fields of :class:`SequenceBatch`, and

    Attributes:
        mask: ``(B, T)`` bool; False where the arrays hold no step.
        length: ``(B,)`` int64: steps that are held.
    """

    mask: Any
    length: Any

    @property
    def filled(self) -> Any:
        """The same as ``mask``: its name in earlier versions."""
        return self.mask


@dataclasses.dataclass(kw_only=True, repr=False)
class HindsightBatch(Batch):
    """A batch of ``B`` goal-conditioned transitions, some of them with another goal than they were recorded with.

    Attributes:
        relabelled: ``(B,)`` bool; ``desired_goal``, reward and termination are those of a goal chosen in hindsight.
    """

    relabelled: Any


@dataclasses.dataclass(kw_only=True, repr=False)
class RolloutBatch(Arrays):
    """A batch of ``B`` steps of a rollout, or of ``B`` episodes of it: then every ``(B, ...)`` is ``(B, T, ...)``.

    Attributes:
        obs: ``(B, *obs_shape)``, nested as the space.
        action: ``(B, *action_shape)``.
        reward: ``(B,)``.
        value, log_prob: ``(B,)`` float32, as they were given.
        advantage: ``(B,)`` float32, normalised where the buffer says so.
        returns: ``(B,)`` float32: advantage before normalisation plus value, which a critic learns.
        terminated, truncated: ``(B,)`` bool.
        index: ``(B,)`` int64; names each step, or an episode's first one.
        mask: ``(B,)`` bool; False where an episode holds no step.
        extra: the user's own columns by name, ``(B, *shape)``.
    """

    obs: Any
    action: Any
    reward: Any
    value: Any
    log_prob: Any
    advantage: Any
    returns: Any
    terminated: Any
    truncated: Any
    index: Any
    mask: Any
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def filled(self) -> Any:
        """The same as ``mask``: its name in earlier versions."""
        return self.mask


def _shown(value: Any) -> str:
    """Shapes and dtypes of a nested value."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_shown, value)) + ("," if len(value) == 1 else "") + ")"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)


def map_arrays(function: Callable[[Any], Any], value: Any) -> Any:
    """A nested value with ``function`` applied to every array; None stays."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: map_arrays(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_arrays(function, part) for part in value)
    return function(value)


def by_item(batch: Batch, count: int, steps: int) -> dict[str, Any]:
    """The fields of a batch of ``count * steps`` transitions, each array as ``(count, steps, ...)``."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    whole = {name: fields.pop(name) for name in ("index", "weight")}

    def split(array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(count, steps, *array.shape[1:])

    return {**whole, **{name: map_arrays(split, value) for name, value in fields.items()}}
