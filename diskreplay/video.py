"""Video columns: packets as an encoder wrote them, each in a record, and the facts that a decoder needs besides.

The value of a row is what must be decoded to see its frame: the records of its group of pictures, from the key frame up
to the row's own packet. A record is a header of 8 bytes, little endian, and the packet:

======  ======  ==============================================================
offset  type    meaning
======  ======  ==============================================================
0       uint32  the bytes of the packet
4       uint8   flags: 1 where the packet is a key frame, else 0
5       uint8   0
6       uint16  which of the column's ``parameters`` the packet was encoded with
======  ======  ==============================================================
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import fractions
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import check_count
from diskreplay.errors import InputError, SchemaError

CODECS = ("av1", "h264", "hevc", "vp9")
"""The codecs of a video column: those whose packets each show one frame, in order, where there are no B-frames."""
HEADER = struct.Struct("<IBBH")
KEY = 1
"""The flag of a key frame."""
MAX_SIDE = 8192
"""The most pixels of a side of a frame."""
MAX_VALUE_BYTES = 64 << 20
"""The most bytes of the records of one row."""
MAX_PACKETS = 4096
"""The most packets of one row, which is also how far apart key frames may be."""
MAX_PARAMETERS, MAX_PARAMETER_BYTES = 1024, 1 << 16
"""The most parameters of a column, and the most bytes of each."""


@dataclasses.dataclass(frozen=True)
class Video:
    """The facts of a video column that its packets do not tell.

    Args:
        codec: "av1", "h264", "hevc" or "vp9".
        width, height: the size of a frame, in pixels. The column's space is ``Box(0, 255, (height, width, 3), uint8)``.
        pix_fmt: the pixel format that was encoded, as FFmpeg calls it.
        fps: frames a second, a number or a ``fractions.Fraction``.
        parameters: what a decoder must know before the first packet, the ``extradata`` of the encoder or of the file.
            A dataset of several files may have several; each record names its own.

    Raises SchemaError for another codec, and for values out of range.

    >>> Video("h264", 640, 480, fps=30).shape
    (480, 640, 3)
    """

    codec: str
    width: int
    height: int
    pix_fmt: str
    fps: fractions.Fraction
    parameters: tuple[bytes, ...]

    def __init__(
        self, codec: str, width: int, height: int, pix_fmt: str = "yuv420p",
        fps: int | float | fractions.Fraction = fractions.Fraction(30), parameters: Sequence[bytes] = (b"",),
    ) -> None:  # fmt: skip
        if codec not in CODECS:
            raise SchemaError(f"the codec of a video column must be one of {CODECS}, got {codec!r}")
        sides = [check_count(what, side, most=MAX_SIDE) for what, side in (("width", width), ("height", height))]
        if not isinstance(pix_fmt, str) or not 0 < len(pix_fmt) <= 32 or not pix_fmt.isalnum():
            raise SchemaError(f"pix_fmt must be a name such as 'yuv420p', got {pix_fmt!r:.80}")
        try:
            rate = fractions.Fraction(fps).limit_denominator(1 << 20)
        except (TypeError, ValueError, OverflowError, ArithmeticError) as error:
            raise SchemaError(f"fps must be a number, got {fps!r}") from error
        if not 0 < rate <= 1 << 20:
            raise SchemaError(f"fps must be above 0, got {fps!r}")
        if isinstance(parameters, bytes | str) or not isinstance(parameters, Sequence):
            raise SchemaError(f"parameters must be a tuple of bytes, got {type(parameters).__name__}")
        if not 1 <= len(parameters) <= MAX_PARAMETERS or not all(
            isinstance(one, bytes) and len(one) <= MAX_PARAMETER_BYTES for one in parameters
        ):
            raise SchemaError(
                f"parameters must be 1 to {MAX_PARAMETERS} bytes objects of at most {MAX_PARAMETER_BYTES:,} bytes each"
            )
        checked = (codec, *sides, pix_fmt, rate, tuple(parameters))
        for field, value in zip(dataclasses.fields(self), checked, strict=True):
            object.__setattr__(self, field.name, value)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a frame, ``(height, width, 3)``."""
        return self.height, self.width, 3

    def __str__(self) -> str:
        return f"{self.codec}, {self.width} x {self.height}, {float(self.fps):g} fps"

    def to_json(self) -> dict[str, Any]:
        """Return the facts as JSON has them."""
        return {
            "codec": self.codec, "width": self.width, "height": self.height, "pix_fmt": self.pix_fmt,
            "fps": [self.fps.numerator, self.fps.denominator],
            "parameters": [base64.b64encode(one).decode() for one in self.parameters],
        }  # fmt: skip

    @classmethod
    def from_json(cls, stored: Any) -> Video:
        """Return the facts of :meth:`to_json`; raise ValueError for other JSON."""
        numerator, denominator = (check_count("fps", part) for part in stored["fps"])
        try:
            parameters = tuple(base64.b64decode(one, validate=True) for one in stored["parameters"])
        except (TypeError, binascii.Error) as error:
            raise ValueError(f"the parameters of a video column cannot be read: {error}") from error
        fps = fractions.Fraction(numerator, denominator)
        return cls(stored["codec"], stored["width"], stored["height"], stored["pix_fmt"], fps, parameters)


def rates(provenance: Mapping[str, Any], videos: Mapping[str, Video]) -> dict[str, Any]:
    """Return by name what tells the rows a second of a store: its provenance, or else its video columns."""
    told = provenance.get("fps")
    return {name: float(video.fps) for name, video in videos.items()} if told is None else {"provenance": told}


class Packet(NamedTuple):
    """One packet of a value.

    Attributes:
        data: the bytes that a decoder takes.
        key: True if it is a key frame.
        parameters: which of the column's parameters it was encoded with.
        end: where its record ends in the value, in bytes.
    """

    data: memoryview
    key: bool
    parameters: int
    end: int


def record(packet: Any, key: bool, parameters: int = 0) -> bytes:
    """Return the record of a packet; the records of a group up to a row's frame, joined, are the row's value.

    Args:
        packet: bytes, or an object such as a packet of PyAV that gives them to ``bytes()``.
        key: True if it is a key frame.
        parameters: which of the column's parameters it was encoded with.

    Raises InputError for an empty or a too large packet, and for what gives no bytes.

    >>> [packet.key for packet in records(record(b"picture", True) + record(b"change", False))]
    [True, False]
    """
    try:
        if isinstance(packet, int):
            raise TypeError("bytes() of a number has so many zeros")
        data = bytes(packet)
    except (TypeError, ValueError) as error:
        raise InputError(f"a packet must be bytes, got {packet!r:.80}") from error
    if not 0 < len(data) <= MAX_VALUE_BYTES - HEADER.size:
        raise InputError(f"a packet must have 1 to {MAX_VALUE_BYTES - HEADER.size:,} bytes, got {len(data):,}")
    check_count("parameters", parameters, least=0, most=MAX_PARAMETERS - 1)
    return HEADER.pack(len(data), KEY if key else 0, 0, parameters) + data


def records(value: bytes | NDArray[np.uint8], count: int = MAX_PARAMETERS) -> list[Packet]:
    """Return the packets of a value; raise InputError, which says what is wrong, unless they are one group's.

    The first is a key frame, and the others are none. All have the same parameters, of which the column has ``count``.
    """
    data = memoryview(value if isinstance(value, bytes) else np.ascontiguousarray(value).data)
    if len(data) > MAX_VALUE_BYTES:
        raise InputError(f"the packets of a row may have {MAX_VALUE_BYTES:,} bytes, got {len(data):,}")
    found: list[Packet] = []
    at = 0
    while at < len(data):
        number = len(found)
        if len(data) - at < HEADER.size:
            raise InputError(f"record {number} has {len(data) - at} bytes, and a header has {HEADER.size}")
        length, flags, zero, parameters = HEADER.unpack_from(data, at)
        end = at + HEADER.size + length
        if not length or end > len(data):
            raise InputError(f"the packet of record {number} has {length:,} bytes, where {len(data) - at} are left")
        if zero or flags != (0 if number else KEY):
            raise InputError(
                f"record {number} has the flags {flags}, {zero}: the first must be a key frame (1, 0), and the "
                "others must be none (0, 0)"
            )
        if found and parameters != found[0].parameters:
            raise InputError(f"record {number} has other parameters than the key frame, {parameters}")
        if parameters >= count:
            raise InputError(f"it names the parameters {parameters}, and the column has {count}")
        if number == MAX_PACKETS:
            raise InputError(f"a row may have {MAX_PACKETS:,} packets: have the encoder set key frames more often")
        found.append(Packet(data[at + HEADER.size : end], not number, parameters, end))
        at = end
    return found


def renumbered(values: NDArray[np.uint8], numbers: Sequence[int]) -> NDArray[np.uint8]:
    """Return records, one after another, whose parameters have other numbers; raise InputError for what is none."""
    found, at = bytearray(values.tobytes()), 0
    try:
        while at < len(found):
            *rest, number = HEADER.unpack_from(found, at)
            HEADER.pack_into(found, at, *rest, numbers[number])
            at += HEADER.size + rest[0]
    except (struct.error, IndexError) as error:
        raise InputError(f"the records of packets are damaged: {error}") from error
    return np.frombuffer(found, np.uint8)


def wrong(video: Video, value: NDArray[np.uint8]) -> str | None:
    """Return what is wrong with the packets of a row of a column, or None; an empty value has nothing wrong."""
    try:
        records(value, len(video.parameters))
    except InputError as error:
        return str(error)
    return None
