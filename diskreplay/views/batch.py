"""The classes of batches, and functions over the arrays of a batch.

A batch is what ``sample`` or a rollout returns: arrays with one entry for each item.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from typing import Any, NoReturn, Self

import numpy as np
from typing_extensions import TypeVar

from diskreplay.errors import InputError
from diskreplay.process.locks import held_back
from diskreplay.schema.ragged import Lists, Padded, entries, is_lists
from diskreplay.views.notebooks import batch_html


class Arrays:
    """The base class of all batches. A batch is a dataclass; its fields are arrays, or Dicts and Tuples of arrays.

    Each batch has a field ``index``, ``(B,)``. You may set a field: ``batch.obs = batch.obs / 255``.

    A batch can also be read like a dict: ``batch["obs"]``, ``batch.items()``, ``dict(batch)``, ``learn(**batch)``. The
    names in ``extra`` are keys, too. A field that is None has no key.

    ``batch[:8]``, ``batch[[0, 3]]`` and ``batch[batch.weight < 1]`` are smaller batches.
    """

    index: Any

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Any) -> Any:
        """Return the array of a name, or a batch of some entries.

        Entries are given as a slice, as integers ``(n,)`` or as bools ``(B,)``. Raises KeyError for an unknown name,
        IndexError for entries that the batch does not have, and TypeError for a single number.
        """
        if isinstance(key, str):
            if key in self:
                return self._named()[key]
            raise KeyError(f"the batch has no {key!r}; it has {', '.join(self.keys())}")
        if isinstance(key, slice | list) or getattr(key, "ndim", 0) == 1:
            count = len(self)
            return self.map(lambda value: entries(value, key, count) if is_lists(value) else value[key])
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
        """Return the names of the arrays, with the names in ``extra``."""
        return self._named().keys()

    def values(self) -> ValuesView[Any]:
        """Return the arrays. Observations and actions of a Dict or Tuple space stay nested."""
        return self._named().values()

    def items(self) -> ItemsView[str, Any]:
        """Return the arrays with their names."""
        return self._named().items()

    def _named(self) -> dict[str, Any]:
        """Return the arrays by name. If a column in ``extra`` has the name of a field, the name means the field."""
        held = {name: value for name, value in vars(self).items() if value is not None}
        extra = held.pop("extra", {})
        return {**held, **{name: value for name, value in extra.items() if name not in held}}

    def __repr__(self) -> str:
        parts = [f"{name}={_shown(value)}" for name, value in vars(self).items() if value is not None]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return batch_html(f"{type(self).__name__} of {len(self):,}", vars(self), self.leading_axes)

    @property
    def leading_axes(self) -> int:
        """The number of axes before those of one observation: 1, or 2 if each entry is a sequence or an episode."""
        mask: Any = getattr(self, "mask", None)
        return 1 if mask is None else len(mask.shape)

    def map(self, function: Callable[[Any], Any]) -> Self:
        """Return a batch of the same class, with ``function`` applied to each array."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        return type(self)(**{field.name: map_arrays(function, getattr(self, field.name)) for field in fields})

    def torch(self, device: Any = None) -> Self:
        """Return the batch as torch tensors, on ``device`` if one is given.

        Tensors on the CPU share the memory of the arrays. :class:`~diskreplay.Lists` become nested tensors with the
        layout ``torch.jagged``. Raises ModuleNotFoundError if torch is not installed.
        """
        try:
            with held_back():
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
    """A batch of ``B`` transitions.

    Observations and actions of a Dict or Tuple space are Dicts or Tuples of arrays. The values of a ragged column are a
    :class:`~diskreplay.Padded` or a :class:`~diskreplay.Lists`. No two arrays share memory, so you may change each
    array in place.

    Attributes:
        obs, next_obs: ``(B, *obs_shape)``, or ``(B, frame_stack, *frame_shape)``, with dtypes of the observation space.
        action: ``(B, *action_shape)``, with dtypes of the action space.
        reward: ``(B,)``, with the store's reward dtype (float32 by default). For ``n_step`` steps, a discounted sum.
        terminated, truncated: ``(B,)`` bool, of the transition's last step.
        discount: ``(B,)`` float32. It is 0 where ``terminated`` is True, else ``gamma ** k`` after ``k`` steps.
        index: ``(B,)`` int64, the ids. An id names its transition for ever, unless the store goes back to a
            checkpoint from before that transition.
        weight: ``(B,)`` float32, the importance weights. They are 1 for uniform sampling.
        extra: the user's own columns by name, ``(B, *shape)``, of the transition's first step. A column ``name`` whose
            values are written later has a mask ``name_known``, ``(B,)`` bool: it is False where no value was written
            yet. Such a value is shown as zeros.
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
"""The class of the batches that a view makes. A buffer with that view gives batches of this class, too:
``ReplayBuffer[SequenceBatch]``.
"""


@dataclasses.dataclass(kw_only=True, repr=False)
class SequenceBatch(Batch):
    """A batch of ``B`` sequences of ``T`` steps. Each step is a transition of one step.

    Its arrays are those of :class:`Batch`, with the shape ``(B, T, ...)`` in place of ``(B, ...)``. A short sequence is
    padded with zeros. ``index`` and ``weight`` have the shape ``(B,)``; ``index`` names the first step. A
    :class:`~diskreplay.Lists` has ``B * T`` rows: the steps of the first sequence, then those of the next.

    Attributes:
        mask: ``(B, T)`` bool, False where there is no step.
        is_first: ``(B, T)`` bool, True at a step that does not continue the step before it. A learner resets its
            recurrent state there.
    """

    mask: Any
    is_first: Any

    def overlapped(self) -> Self:
        """Return a batch for ``sample(..., out=batch)`` in which ``next_obs`` is ``obs`` one step later.

        Both are views of one array ``(B, T + 1, ...)``, ``batch.obs.base``, which is read once: half of the bytes are
        written. To write into one is to write into the other. Where a short sequence ends, its last
        ``next_obs`` stands in ``obs``, too, at the first step that ``mask`` leaves out. The other arrays are new ones
        like those of this batch; the values of all are any.
        """

        def longer(array: Any) -> Any:
            return np.empty((len(array), array.shape[1] + 1, *array.shape[2:]), array.dtype)

        whole = map_arrays(longer, self.obs)
        obs, next_obs = map_arrays(lambda array: array[:, :-1], whole), map_arrays(lambda array: array[:, 1:], whole)
        return dataclasses.replace(self.map(np.empty_like), obs=obs, next_obs=next_obs)


@dataclasses.dataclass(kw_only=True, repr=False)
class EpisodeBatch(Batch):
    """A batch of ``B`` episodes of at most ``T`` steps. Each step is a transition of one step.

    Its arrays are those of :class:`Batch`, with the shape ``(B, T, ...)`` in place of ``(B, ...)``. A shorter episode
    is padded with zeros. ``index`` and ``weight`` have the shape ``(B,)``; ``index`` names the first step. A
    :class:`~diskreplay.Lists` has ``B * T`` rows: the steps of the first episode, then those of the next.

    Attributes:
        mask: ``(B, T)`` bool, False where there is no step.
        length: ``(B,)`` int64, the number of steps that the batch has of each episode.
    """

    mask: Any
    length: Any


@dataclasses.dataclass(kw_only=True, repr=False)
class HindsightBatch(Batch):
    """A batch of ``B`` transitions with goals. Some transitions have another goal than the one that was recorded.

    Attributes:
        relabelled: ``(B,)`` bool, True where ``desired_goal`` and ``reward`` are new. If the view has a
            ``terminated_fn``, ``terminated`` and ``discount`` are new there, too.
    """

    relabelled: Any


@dataclasses.dataclass(kw_only=True, repr=False)
class DeltaBatch(Batch):
    """A batch of ``B`` rows, with values at ``T`` times around each row.

    If ``deltas`` has times for the name of an array, the array has the shape ``(B, T, ...)``, with the times in the
    order of ``deltas``. Each leaf of the observations and actions can have its own times. An array without times has
    the shape ``(B, ...)``, with the values of the row itself. ``next_obs`` and ``discount`` are None.

    Attributes:
        is_pad: for each name with times, ``(B, T)`` bool. It is True where the episode has no row at that time, or
            where that row has left the window. The value there is that of the episode's nearest row.
    """

    is_pad: Mapping[str, Any]


@dataclasses.dataclass(kw_only=True, repr=False)
class RolloutBatch(Arrays):
    """A batch of ``B`` steps of a rollout, or of ``B`` episodes of it.

    The shapes below are those of steps. In a batch of episodes, each array except ``index`` has the shape
    ``(B, T, ...)`` in place of ``(B, ...)``. ``T`` is the length to which episodes are padded.

    Attributes:
        obs: ``(B, *obs_shape)``, or a Dict or Tuple of arrays, as the observation space.
        action: ``(B, *action_shape)``, or a Dict or Tuple of arrays, as the action space.
        reward: ``(B,)``, with the store's reward dtype (float32 by default).
        value, log_prob: ``(B,)`` float32, as they were given to ``add``.
        advantage: ``(B,)`` float32. It is normalised if the buffer has ``normalize_advantage=True``.
        returns: ``(B,)`` float32, the targets of a critic: the advantage before it was normalised, plus the value.
        terminated, truncated: ``(B,)`` bool.
        index: ``(B,)`` int64, the id of each step, or of each episode's first step.
        mask: ``(B,)`` bool, False where an episode has no step. In a batch of steps it is True throughout.
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


def kinds_of_batches(base: type[Arrays] = Arrays) -> set[type[Arrays]]:
    """Return the classes of batches that were imported, for libraries that want each class told to them."""
    below = (kinds_of_batches(each) for each in base.__subclasses__())
    return {base}.union(*below) if dataclasses.is_dataclass(base) else set().union(*below)


def _shown(value: Any) -> str:
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
    """Return a value with ``function`` applied to each array in it.

    The value is an array, or a Dict or Tuple of values. None stays None. ``function`` gets a :class:`Lists` as a whole.
    """
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
    """Apply ``function`` to each array or tensor of a batch or a mapping, and return a result of the same class.

    Raises InputError for any other value.
    """
    if not isinstance(batch, Arrays | Mapping):
        raise InputError(f"batches for a device are this package's, or mappings of tensors, got {type(batch).__name__}")
    if isinstance(batch, Arrays):
        return batch.map(function)
    kind: Any = type(batch)
    return kind(map_arrays(function, batch))


def by_item(batch: Batch, count: int, steps: int) -> dict[str, Any]:
    """Return the fields of a batch of transitions, grouped into ``count`` items of ``steps`` transitions each.

    ``index`` and ``weight`` stay as they are. Any other array gets the shape ``(count, steps, ...)``; a :class:`Lists`
    stays flat.
    """
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    whole = {name: fields.pop(name) for name in ("index", "weight")}
    return {**whole, **{name: in_steps(value, count, steps) for name, value in fields.items()}}


def in_steps(value: Any, count: int, steps: int) -> Any:
    """Change the shape of each array in a value from ``(count * steps, ...)`` to ``(count, steps, ...)``.

    A :class:`Lists` stays flat.
    """

    def split(array: Any) -> Any:
        if isinstance(array, Lists):  # stays flat: its rows are those of the first item, then those of the next
            return array
        return array.reshape(count, steps, *array.shape[1:])

    return map_arrays(split, value)
