"""Images as PNG, which is lossless, for formats that keep one file for each image."""

from __future__ import annotations

import functools
import io
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.process import background

CHANNELS = (1, 3, 4)
PNG_LEVEL = 4
AT_ONCE = 16
"""The number of images that a thread takes at once."""

KINDS: dict[bytes, Any] = {b"\x89PNG\r\n\x1a\n": PngImageFile, b"\xff\xd8\xff": JpegImageFile}
PIXELS_A_BYTE = 1 << 13
"""The limit of pixels for each byte of a file: more than either format can hold."""
DAMAGE = (OSError, EOFError, ValueError, TypeError, SyntaxError, KeyError, IndexError, OverflowError, struct.error,
          zlib.error)  # fmt: skip
"""The errors that Pillow raises for a damaged image."""

Some = TypeVar("Some")


def is_image(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether a PNG holds such values: uint8 ``(height, width)``, or with 1, 3 or 4 channels last."""
    return dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[-1] in CHANNELS))


def _in_threads(work: Callable[[Sequence[Any]], list[Some]], items: Sequence[Any]) -> list[Some]:
    parts = [items[start : start + AT_ONCE] for start in range(0, len(items), AT_ONCE)]
    tasks = [background.submit(functools.partial(work, part)) for part in parts]
    return [found for task in tasks for found in task.result()]


def encoded(values: Array) -> list[bytes]:
    """Return uint8 images ``(n, height, width)``, or with channels as the last axis, each as a PNG."""
    return _in_threads(lambda part: [_png(value) for value in part], cast(Sequence[Array], values))


def _png(value: Array) -> bytes:
    if value.ndim == 3 and value.shape[-1] == 1:
        value = value[..., 0]
    out = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(value)).save(out, "png", compress_level=PNG_LEVEL)
    return out.getvalue()


def decoded(images: Sequence[Any], where: str) -> list[Array]:
    """Return images as ``(height, width)``, or with channels last; raise InputError, naming ``where``, for others."""
    return _in_threads(lambda part: [_pixels(image, where) for image in part], images)


def _pixels(image: Any, where: str) -> Array:
    """Return a PNG or JPEG as uint8 ``(height, width)``, or with channels last; raise InputError for others.

    Pillow is asked for these two by name: it knows formats that run other programs, and warns of sizes that are refused
    here.
    """
    data = bytes(image)
    try:
        kind = next((kind for magic, kind in KINDS.items() if data.startswith(magic)), None)
        if kind is None:
            raise ValueError("it is neither PNG nor JPEG")
        with kind(io.BytesIO(data)) as opened:
            if opened.width * opened.height > PIXELS_A_BYTE * len(data):
                raise ValueError(f"{len(data):,} bytes cannot hold {opened.width} x {opened.height} pixels")
            opened.info.pop("transparency", None)
            plain = opened if opened.mode in ("L", "RGB", "RGBA") else opened.convert("RGB")
            return np.asarray(plain)
    except DAMAGE as error:
        raise InputError(f"{where}: holds something that is no image: {error}") from error


class EncodedImages:
    """The images ``(count, height, width)``, or with channels as the last axis, decoded as they are asked for.

    Args:
        where: the name of the images in errors.
        take: a function that returns the encoded bytes of entries ``[start, stop)``.
        count: the number of images.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, where: str, take: Callable[[int, int], Sequence[bytes]], count: int) -> None:
        self._where, self._take = where, take
        self.shape: tuple[int, ...] = (count, *(_pixels(take(0, 1)[0], where).shape if count else ()))

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        out = np.empty((max(0, stop - start), *self.shape[1:]), np.uint8)
        for at, image in enumerate(decoded(self._take(start, stop), self._where) if stop > start else ()):
            if image.shape != self.shape[1:]:
                raise InputError(f"{self._where}: has images of shape {self.shape[1:]} and of {image.shape}")
            out[at] = image
        return out
