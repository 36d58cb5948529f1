"""Batches as arrays of JAX. The loader's thread makes them while the program learns from earlier ones.

- On the CPU, JAX may use the memory of a numpy array. Later writes to that memory would change JAX's array, so each
  array is copied first.
- If torch can use the GPU, too, :mod:`diskreplay.buffers.device` sends the batches, and JAX takes the tensors over by
  DLPack. Each tensor has memory of its own, which lives as long as JAX's array. Otherwise ``jax.device_put`` copies the
  arrays.
- ``index`` stays a numpy array: ids need 64 bits, but JAX's integers have 32 by default.
- :class:`~diskreplay.ragged.Lists` stay lists; their values and offsets are arrays of JAX.

This module imports jax.
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
    """Return an object that sends batches to a device of JAX, or to the devices of a sharding."""
    if isinstance(target, jax.Device) and target.platform == "gpu":
        with contextlib.suppress(ImportError, InputError):  # no torch, or one without this GPU
            from diskreplay.buffers.device import Sender, sender_to

            if isinstance(sender := sender_to(f"cuda:{target.local_hardware_id}"), Sender):
                return Exporter(sender)
    return Placer(target)


class Placer:
    """Sends batches with ``jax.device_put``, as copies of their arrays."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def sent(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield each batch as arrays of JAX, made when the batch is asked for."""
        return (_but_ids(batch, batch, lambda each: jax.device_put(np.array(each), self._target)) for batch in batches)

    def take(self, sent: Any) -> Any:
        """Return the batch, which needs nothing more."""
        return sent


class Exporter:
    """Sends batches with torch, and has JAX take the tensors over by DLPack."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._narrow: collections.deque[Any] = collections.deque()

    def sent(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield a transfer of each batch, begun when it is asked for, and the batch itself."""
        with contextlib.closing(self._sender.sent(map(self._narrowed, batches))) as transfers:
            for transfer in transfers:
                yield transfer, self._narrow.popleft()

    def _narrowed(self, batch: Any) -> Any:
        """Return the batch in dtypes that JAX has; keep it, because its ids are needed later."""
        self._narrow.append(_but_ids(batch, batch, _fitting))
        return self._narrow[-1]

    def take(self, sent: tuple[Any, Any]) -> Any:
        """Return the batch as arrays of JAX, which the calling thread may use."""
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
