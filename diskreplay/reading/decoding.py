"""The frames of video columns: of each group of pictures the packets are read and decoded once a batch.

1. With ``engine.lock`` held, :func:`read` takes the frames that are cached, and notes the packets of the others. Values
   of one group begin together (docs/design/0041), so the longest of them has the packets of all.
2. Without it, once the packets are there, :meth:`Decoding.run` has the package's threads decode them, and offers the
   frames to the cache. A thread uses one decoder for all groups of its part.

FFmpeg sees no packet whose record breaks a rule, and allocates no frame that is larger than the schema says.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay import video
from diskreplay.checks import Array
from diskreplay.errors import CorruptionError, InputError
from diskreplay.process import background
from diskreplay.reading import ragged_reads
from diskreplay.reading.addresses import Stream
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.reads import Reads
from diskreplay.schema.columns import RaggedColumn
from diskreplay.schema.ids import Ids
from diskreplay.schema.ragged import Lists
from diskreplay.storage.column import ColumnReader
from diskreplay.video import Packet, Video

Place = tuple[Array, int]
"""An array of frames, and the place of a frame in it."""

DECODERS = {"av1": "libdav1d", "h264": "h264", "hevc": "hevc", "vp9": "vp9"}
"""FFmpeg's decoders; its own of AV1 needs a graphics card."""
ALIGNED = 128
"""Sides are coded in blocks of at most so many pixels."""
PARTS = 2
"""The parts of a batch for each thread: more balance groups of different lengths, and each makes a decoder."""


@dataclasses.dataclass(eq=False)
class Pictures:
    """A group of pictures of which a batch shows frames.

    Attributes:
        start, stop: the items of the longest value that is asked for.
        row: the row that asked for it, for messages.
        wanted: the places of the frames, by the bytes up to each.
        read: the packets of some groups, and which of them are this one's.
    """

    items: ColumnReader
    cache: ChunkCache
    start: int
    stop: int
    row: int
    wanted: dict[int, list[Place]]
    read: tuple[Lists, int] | None = None


class Decoding:
    """The frames of one video column in one batch."""

    def __init__(self, column: RaggedColumn) -> None:
        self.column = column
        self._groups: dict[tuple[ColumnReader, int], Pictures] = {}
        self._cached: list[tuple[Array, Place]] = []
        self._shown: list[tuple[Pictures, int, Array]] = []
        """The frames to be cached, each with its group and the bytes up to it: the package's threads take no lock."""

    def ask(self, stream: Stream, spans: Array, rows: Ids, places: Sequence[Place]) -> list[Pictures]:
        """Ask for the frames of spans ``(n, 2)``, and return the groups whose packets are to be read."""
        items, cache = stream.disk.items[self.column.name], stream.cache
        new: dict[int, Pictures] = {}
        for (start, stop), row, place in zip(spans.tolist(), rows.tolist(), places, strict=True):
            if start == stop:
                continue
            if (frame := cache.frame(items, start, stop)) is not None:
                self._cached.append((frame, place))
                continue
            group = self._groups.setdefault((items, start), Pictures(items, cache, start, start, row, {}))
            group.wanted.setdefault(stop - start, []).append(place)
            if stop > group.stop:
                group.stop, group.row, new[start] = stop, row, group
        return list(new.values())

    def run(self) -> None:
        """Decode the packets, which are there now; raise CorruptionError, which names the row, for bad ones."""
        parts: list[Pictures | tuple[Array, Place]] = [*self._groups.values(), *self._cached]
        if parts:
            step = -(-len(parts) // (PARTS * background.THREADS))
            work = functools.partial(self._fill, parts)
            background.side_by_side(work, [*range(0, len(parts), step), len(parts)])
        for group, length, frame in self._shown:
            group.cache.keep_frame(group.items, group.start, group.start + length, frame)

    def _fill(self, parts: Sequence[Pictures | tuple[Array, Place]], begin: int, end: int) -> int:
        facts = self.column.video
        assert facts is not None
        decoders: dict[int, Decoder] = {}
        for part in parts[begin:end]:
            if isinstance(part, Pictures):
                try:
                    self._decode(part, facts, decoders)
                except InputError as error:
                    raise CorruptionError(
                        f"stream {part.items.stream!r}: the frame of row {part.row} in the video column "
                        f"{self.column.name!r} cannot be shown: {error}; run 'diskreplay verify', or read the packets "
                        f"with ragged={{{self.column.name!r}: 'lists'}}",
                        stream=part.items.stream, column=self.column.name, rows=(part.row, part.row + 1),
                    ) from error  # fmt: skip
            else:
                frame, (out, at) = part
                out[at] = frame
        return end

    def _decode(self, group: Pictures, facts: Video, decoders: dict[int, Decoder]) -> None:
        assert group.read is not None
        lists, at = group.read
        packets = video.records(lists[at], len(facts.parameters))
        ends = {packet.end for packet in packets}
        if wrong := sorted(group.wanted.keys() - ends):
            raise InputError(f"no packet ends after {wrong[0]} bytes of its group")
        number = packets[0].parameters
        decoder = decoders.get(number) or decoders.setdefault(number, Decoder(facts, facts.parameters[number]))
        try:
            for packet, frame in zip(packets, decoder.frames(packets), strict=True):
                if packet.end in group.wanted:
                    shown = decoder.shown(frame)
                    for out, to in group.wanted[packet.end]:
                        out[to] = shown
                    if group.cache.has_room(shown.nbytes):
                        self._shown.append((group, packet.end, shown))
        except BaseException:
            del decoders[number]  # its state is anything
            raise


def read(
    reads: Reads, column: RaggedColumn, spans: Array, streams: Iterable[tuple[Stream, Ids, Ids]]
) -> NDArray[np.uint8]:
    """Return the frames ``(n, H, W, 3)`` of spans ``(n, 2)``; where there is no packet, a frame is black.

    ``streams`` gives for each stream the positions of its spans, and their rows. The caller holds ``engine.lock``. The
    array is complete once ``reads`` is finished.
    """
    assert column.video is not None
    out: NDArray[np.uint8] = reads.empty((len(spans), *column.video.shape), np.uint8)
    out[spans[:, 0] == spans[:, 1]] = 0
    decoding = reads.last.setdefault(column.name, Decoding(column))
    assert isinstance(decoding, Decoding)
    for stream, here, rows in streams:
        new = decoding.ask(stream, spans[here], rows, [(out, at) for at in here.tolist()])
        if new:
            longest = np.array([(group.start, group.stop) for group in new], np.int64)
            found = ragged_reads.read(reads, column, longest, [(stream, np.arange(len(new)))], "lists")
            assert isinstance(found, Lists)
            for at, group in enumerate(new):
                group.read = found, at
    return out


def lacking(facts: Video) -> str:
    """Return why the frames of a video column cannot be decoded here, or ""."""
    try:
        Decoder(facts, b"")
    except ImportError as error:
        return str(error)
    return ""


class Decoder:
    """A decoder of FFmpeg's for one column, of one thread.

    Raises ModuleNotFoundError if PyAV is not installed, or its FFmpeg lacks the codec.
    """

    def __init__(self, facts: Video, parameters: bytes) -> None:
        try:
            import av
            from av.video.reformatter import VideoReformatter
        except ImportError as error:
            raise ModuleNotFoundError(
                "to show the frames of video columns needs PyAV: pip install 'diskreplay[video]'; ragged='lists' shows "
                "the packets without it"
            ) from error
        self._av: Any = av
        self._facts = facts
        try:
            self._context: Any = av.CodecContext.create(DECODERS[facts.codec], "r")
        except ValueError as error:
            raise ModuleNotFoundError(
                f"the FFmpeg of PyAV {av.__version__} cannot decode {facts.codec}: install PyAV from its wheels; "
                "ragged='lists' shows the packets without it"
            ) from error
        if parameters:
            self._context.extradata = parameters
        self._context.thread_count = 1  # frames of one batch are decoded side by side; more would delay each
        width, height = (-(-side // ALIGNED) * ALIGNED for side in (facts.width, facts.height))
        self._context.options = {"max_pixels": str(width * height), "err_detect": "explode"}
        self._reformatter: Any = VideoReformatter()  # one for all frames: to make one takes longer than to use it
        self._threads: dict[str, int] = {"threads": 1}

    def frames(self, packets: Sequence[Packet]) -> Iterator[Any]:
        """Return the frame of each packet of a group; raise InputError unless each shows one, in their order."""
        try:
            count = 0
            for frame in itertools.chain.from_iterable(self._decoded(packets)):
                if frame.pts != count or count == len(packets) or frame.is_corrupt:
                    raise InputError(f"frame {count} of its group is damaged, or in another order than its packets")
                if (frame.height, frame.width) != self._facts.shape[:2]:
                    raise InputError(
                        f"frame {count} of its group has {frame.width} x {frame.height} pixels, and the column's have "
                        f"{self._facts.width} x {self._facts.height}"
                    )
                count += 1
                yield frame
            if count != len(packets):
                raise InputError(f"the {len(packets)} packets of its group show {count} frames")
        except self._av.error.FFmpegError as error:
            raise InputError(f"the packets of its group cannot be decoded: {error}") from error

    def _decoded(self, packets: Sequence[Packet]) -> Iterator[list[Any]]:
        """Return the frames that the decoder gives after each packet, and after the last."""
        for number, packet in enumerate(packets):
            given = self._av.Packet(packet.data)
            given.pts = given.dts = number
            yield self._context.decode(given)
        yield self._context.decode(None)
        self._context.flush_buffers()

    def shown(self, frame: Any) -> NDArray[np.uint8]:
        """Return a frame's pixels, ``(H, W, 3)``."""
        try:
            picture = self._reformatter.reformat(frame, format="rgb24", **self._threads)
        except TypeError:  # PyAV 15 has no such argument, and uses one thread
            self._threads = {}
            picture = self._reformatter.reformat(frame, format="rgb24")
        found: NDArray[np.uint8] = picture.to_ndarray()
        return found
