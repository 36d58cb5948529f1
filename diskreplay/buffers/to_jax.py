"""Batches as arrays of JAX, made by the loader's thread while the program learns from the ones before.

On the CPU JAX uses the memory of a numpy array, where it lies well, and later writes would show in JAX's array: so each
is copied first. A GPU that torch can use, too, is sent batches by :mod:`diskreplay.buffers.device`, and the tensors are
handed on by DLPack: each is memory of its own, which lives as long as JAX's array. Else ``jax.device_put`` moves them.

``index`` stays a numpy array: ids need 64 bits, which JAX's integers have only if it was told so. Lists stay
lists, of arrays of JAX. It imports jax.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from diskreplay.errors import InputError
from diskreplay.ragged import Lists, in_parts
from diskreplay.views.batch import rebuilt


def jax_sender_to(target: Any) -> Placer | Exporter:
    """Return what sends batches to a device of JAX, or where a sharding says."""
    if isinstance(target, jax.Device) and target.platform == "gpu":
        with contextlib.suppress(ImportError, InputError):  # no torch, or one without this GPU
            from diskreplay.buffers.device import Sender, sender_to

            if isinstance(sender := sender_to(f"cuda:{target.local_hardware_id}"), Sender):
                return Exporter(sender)
    return Placer(target)


class Placer:
    """Has JAX place copies of a batch's arrays."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def sent(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Place batches as they are asked for."""
        return (_but_ids(batch, batch, lambda each: jax.device_put(np.array(each), self._target)) for batch in batches)

    def take(self, sent: Any) -> Any:
        """Return the batch."""
        return sent


class Exporter:
    """Hands tensors that were sent by way of torch on to JAX."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._narrow: collections.deque[Any] = collections.deque()

    def sent(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Send batches as they are asked for."""
        with contextlib.closing(self._sender.sent(map(self._narrowed, batches))) as transfers:
            for transfer in transfers:
                yield transfer, self._narrow.popleft()

    def _narrowed(self, batch: Any) -> Any:
        """Return a batch in dtypes that JAX has, and keep it for its ids."""
        self._narrow.append(_but_ids(batch, batch, _fitting))
        return self._narrow[-1]

    def take(self, sent: tuple[Any, Any]) -> Any:
        """Return the batch for the calling thread."""
        transfer, narrow = sent
        return _but_ids(self._sender.take(transfer), narrow, _exported)


def _fitting(value: Any) -> Any:
    array = np.asarray(value)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _exported(tensor: Any) -> Any:
    """Return the array of a tensor; lists of a nested one, which DLPack does not know."""
    if tensor.is_nested:
        return in_parts(jax.dlpack.from_dlpack)(Lists(tensor.values(), tensor.offsets()))
    return jax.dlpack.from_dlpack(tensor)


def _but_ids(batch: Any, held: Any, function: Any) -> Any:
    """Return a batch with a function applied to all arrays but its ids, which are those of a batch that is held.

    Arrays of lists are taken one by one.
    """
    function = in_parts(function)
    ids = batch["index"] if "index" in batch else None  # noqa: SIM401  batches have no get
    return rebuilt(batch, lambda value: np.asarray(held["index"]) if value is ids else function(value))
