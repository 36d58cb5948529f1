"""Batches as arrays of JAX. Needs jax: ``pip install 'diskreplay[jax]'``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from diskreplay.buffers.loader import Loader, loading
from diskreplay.checks import check_count
from diskreplay.errors import InputError


def to_device(batches: Iterable[Any], device: Any = None, *, prefetch: int = 2) -> Loader[Any]:
    """Return an iterator over the batches as arrays of JAX; a thread makes them while the program learns.

    Use it for iterators such as ``buffer.shuffled(n)``. To sample, use ``buffer.loader(n, device=jax.devices()[0])``.
    If you stop before the last batch, close the iterator, or use it in a ``with`` block. The ``index`` of a batch stays
    a numpy array. Other arrays with 64 bits a value get 32, unless ``jax_enable_x64`` is set.

    Args:
        batches: batches of this package, or mappings of arrays.
        device: one of ``jax.devices()``, or a sharding that suits every array; the first device if None.
        prefetch: the most batches that wait on the device.

    Raises InputError if ``device`` is no device or sharding of JAX.
    """
    check_count("prefetch", prefetch, most=1 << 16)
    device = jax.devices()[0] if device is None else device
    if not isinstance(device, jax.Device | jax.sharding.Sharding):
        raise InputError(f"device must be one of jax.devices(), or a sharding, got {device!r}")
    return loading(lambda: iter(batches), prefetch, device)
