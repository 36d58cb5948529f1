"""The batches that ``sample`` gives: arrays that training can use at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from typing import Any, NoReturn, Self

import numpy as np
from typing_extensions import TypeVar

from diskreplay.errors import InputError
from diskreplay.interrupts import undisturbed
from diskreplay.notebooks import batch_html
from diskreplay.ragged import Lists, Padded


class Arrays:
    """The base of all batches, which are dataclasses of arrays, nested or not.

    One of the fields is ``index``, ``(B,)``. A field may be given another value: ``batch.obs /= 255``.

    A batch is read by names as a dict is, those of ``extra`` among them: ``batch["obs"]``, ``batch.items()``,
    ``dict(batch)``, ``learn(**batch)``. What the batch does not hold (None) is no key. ``batch[:8]``,
    ``batch[[0, 3]]`` and ``batch[batch.terminated]`` are smaller batches.
    """

    index: Any

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Any) -> Any:
        """Return the array of a name, or the batch of some entries, by a slice, integers ``(n,)`` or bools ``(B,)``.

        Raises KeyError for another name, IndexError for entries that are not there, TypeError for a single number.
        """
        if isinstance(key, str):
            if key in self:
                return self._named()[key]
            raise KeyError(f"the batch has no {key!r}; it has {', '.join(self.keys())}")
        if isinstance(key, slice | list) or getattr(key, "ndim", 0) == 1:
            return self.map(lambda array: array[key])
        name = type(self).__name__
        raise TypeError(
            f"a {name} has no entry {key!r:.80}: batch.obs[0] is the first observation, batch[:1] a {name} of the "
            "first entry, batch['obs'] the array of that name"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} is not iterated or unpacked: take its arrays by name (batch.obs, batch['obs']), "
            "or go through them: for name, array in batch.items()"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._named()

    def keys(self) -> KeysView[str]:
        """Return the names of the arrays, those of ``extra`` among them."""
        return self._named().keys()

    def values(self) -> ValuesView[Any]:
        """Return the arrays, nested as their spaces are."""
        return self._named().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the arrays with their names."""
        return self._named().items()

    def _named(self) -> dict[str, Any]:
        """Return the arrays by name; a column of the user's with a field's name stands in ``extra`` alone."""
        held = {name: value for name, value in vars(self).items() if value is not None}
        extra = held.pop("extra", {})
        return {**held, **{name: value for name, value in extra.items() if name not in held}}

    def __repr__(self) -> str:
        parts = [f"{name}={_shown(value)}" for name, value in vars(self).items() if value is not None]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return a table of the arrays for notebooks, and thumbnails of observations that are pictures or sequences."""
        return batch_html(f"{type(self).__name__} of {len(self):,}", vars(self), self.leading_axes)

    @property
    def leading_axes(self) -> int:
        """The number of axes before an observation's own: 1, or 2 if each entry is a sequence or an episode."""
        mask: Any = getattr(self, "mask", None)
        return 1 if mask is None else len(mask.shape)

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Return the batch with ``function`` applied to every array."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return type(self)(**{field.name: map_arrays(function, getattr(self, field.name)) for field in fields})

    def torch(self, device: Any = None) -> Self:
        """Return the batch as torch tensors, on ``device`` if given; on the CPU they share the arrays' memory.

        Lists become nested tensors, in the layout ``torch.jagged``. Raises ModuleNotFoundError, saying what to install,
        when there is no torch.
        """
        try:
            with undisturbed():
                import torch
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("Batch.torch needs torch: pip install 'diskreplay[torch]'") from error

        def tensor(array: Any) -> Any:
            if isinstance(array, Lists):
                return array.nested(tensor)
            return torch.from_numpy(np.asarray(array)).to(device) if device is not None else torch.from_numpy(array)

        return self.map(tensor)


@dataclasses.dataclass(repr=False)
class Batch(Arrays):
    """A batch of ``B`` transitions; nested observations and actions have the structure of their spaces.

    No two arrays share memory: each may be changed in place, and be replaced. Where values are ragged there stands a
    :class:`~diskreplay.Padded` or a :class:`~diskreplay.Lists`.

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


SomeBatch = TypeVar("SomeBatch", bound=Batch, covariant=True, default=Batch)
"""The batch that a view makes, and that a buffer with it gives: ``ReplayBuffer[SequenceBatch]``."""


@dataclasses.dataclass(kw_only=True, repr=False)
class SequenceBatch(Batch):
    """A batch of ``B`` sequences of ``T`` steps, time on the second axis, with zeros for steps that are missing.

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
    """A batch of ``B`` whole episodes, padded with zeros to ``T`` steps; it adds two fields to :class:`SequenceBatch`.

    Attributes:
        mask: ``(B, T)`` bool; False where the arrays hold no step.
        length: ``(B,)`` int64: steps that are held.
    """

    mask: Any
    length: Any


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


def _shown(value: Any) -> str:
    """Return the shapes and dtypes of a nested value."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(part)}" for key, part in value.items()) + "}"
    if isinstance(value, Padded | Lists):
        fields = value._asdict() if isinstance(value, Padded) else vars(value)
        return f"{type(value).__name__}({', '.join(f'{name}={_shown(part)}' for name, part in fields.items())})"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_shown, value)) + ("," if len(value) == 1 else "") + ")"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return repr(value)


def map_arrays(function: Callable[[Any], Any], value: Any) -> Any:
    """Return a nested value with ``function`` applied to every array, and to :class:`Lists` whole; None stays."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: map_arrays(function, part) for key, part in value.items()}
    if isinstance(value, Padded):
        return Padded(*map(function, value))
    if isinstance(value, tuple):
        return tuple(map_arrays(function, part) for part in value)
    return function(value)


def rebuilt(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return a batch, or a mapping of the same kind, with a function applied to every array or tensor."""
    if not isinstance(batch, Arrays | Mapping):
        raise InputError(f"batches for a device are this package's, or mappings of tensors, got {type(batch).__name__}")
    if isinstance(batch, Arrays):
        return batch.map(function)
    kind: Any = type(batch)
    return kind(map_arrays(function, batch))


def by_item(batch: Batch, count: int, steps: int) -> dict[str, Any]:
    """Return the fields of a batch of ``count * steps`` transitions, each array as ``(count, steps, ...)``."""
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    whole = {name: fields.pop(name) for name in ("index", "weight")}

    def split(array: Any) -> Any:
        if isinstance(array, Lists):  # its rows stay in C order
            return array
        return array.reshape(count, steps, *array.shape[1:])

    return {**whole, **{name: map_arrays(split, value) for name, value in fields.items()}}
