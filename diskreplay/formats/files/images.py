"""Images as PNG, which is lossless, for formats that keep one file an image."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from diskreplay.errors import InputError
from diskreplay.formats.files.hdf5 import WORKERS

CHANNELS = (1, 3, 4)
PNG_LEVEL = 4
AT_ONCE = 16
"""Images that a thread takes at once."""

KINDS: dict[bytes, Any] = {b"\x89PNG\r\n\x1a\n": PngImageFile, b"\xff\xd8\xff": JpegImageFile}
PIXELS_A_BYTE = 1 << 13
"""More than either format can hold in a byte."""
DAMAGE = (OSError, EOFError, ValueError, TypeError, SyntaxError, KeyError, IndexError, OverflowError, struct.error,
          zlib.error)  # fmt: skip
"""What Pillow raises for a damaged image."""

Array = NDArray[Any]


def is_image(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Whether values are what a PNG holds: uint8 ``(height, width)``, or with 1, 3 or 4 channels as the last axis."""
    return dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[-1] in CHANNELS))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Shared by all: Pillow works without Python's lock while it compresses."""
    return ThreadPoolExecutor(WORKERS, "diskreplay-png")


def encoded(values: Array) -> list[bytes]:
    """Images ``(n, height, width)`` or ``(n, height, width, channels)``, uint8, each as a PNG."""
    parts = [values[start : start + AT_ONCE] for start in range(0, len(values), AT_ONCE)]
    return [image for part in _threads().map(_encoded, parts) for image in part]


def _encoded(values: Array) -> list[bytes]:
    return [_png(value) for value in values]


def _png(value: Array) -> bytes:
    if value.ndim == 3 and value.shape[-1] == 1:
        value = value[..., 0]
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(value)).save(out, "png", compress_level=PNG_LEVEL)
    return out.getvalue()


def decoded(images: Sequence[Any], where: str) -> list[Array]:
    """Each image as ``(height, width)`` or ``(height, width, channels)``; InputError, naming ``where``, for others."""
    parts = [images[start : start + AT_ONCE] for start in range(0, len(images), AT_ONCE)]
    return [image for part in _threads().map(lambda part: _decoded(part, where), parts) for image in part]


def _decoded(images: Sequence[Any], where: str) -> list[Array]:
    return [_pixels(image, where) for image in images]


def _pixels(image: Any, where: str) -> Array:
    try:
        return pixels(bytes(image))
    except DAMAGE as error:
        raise InputError(f"{where}: holds something that is no image: {error}") from error


def pixels(data: bytes) -> Array:
    """A PNG or JPEG as ``(height, width)`` or ``(height, width, channels)``, uint8; one of ``DAMAGE`` for others.

    Pillow is asked for these two by name: it knows formats that run other programs, and warns of sizes that are refused
    here.
    """
    kind = next((kind for magic, kind in KINDS.items() if data.startswith(magic)), None)
    if kind is None:
        raise ValueError("it is neither PNG nor JPEG")
    with kind(io.BytesIO(data)) as opened:
        if opened.width * opened.height > PIXELS_A_BYTE * len(data):
            raise ValueError(f"{len(data):,} bytes cannot hold {opened.width} x {opened.height} pixels")
        opened.info.pop("transparency", None)
        plain = opened if opened.mode in ("L", "RGB", "RGBA") else opened.convert("RGB")
        return np.asarray(plain)
