"""Batches as arrays of JAX. Needs jax: ``pip install 'diskreplay[jax]'``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax

from diskreplay.buffers.loader import Loader, loading
from diskreplay.checks import check_count
from diskreplay.errors import InputError


def to_device(batches: Iterable[Any], device: Any = None, *, prefetch: int = 2) -> Loader[Any]:
    """Return batches of JAX's arrays, made by a thread of their own while the program learns from those before.

    As ``loader(n, device=jax.devices()[0])`` of a buffer, for what gives batches otherwise: ``buffer.shuffled(n)``.
    Close what is given, or leave its ``with`` block, where it is left early. The ``index`` of a batch stays a numpy
    array; of other arrays those of 64 bits get 32, unless JAX has ``jax_enable_x64``.

    Args:
        batches: this package's, or mappings of arrays.
        device: one of ``jax.devices()``, the first if None; or a sharding that suits every array.
        prefetch: batches on the device that may wait.

    Raises InputError for what is no device of JAX.
    """
    check_count("prefetch", prefetch, most=1 << 16)
    device = jax.devices()[0] if device is None else device
    if not isinstance(device, jax.Device | jax.sharding.Sharding):
        raise InputError(f"device must be one of jax.devices(), or a sharding, got {device!r}")
    return loading(lambda: iter(batches), prefetch, device)
