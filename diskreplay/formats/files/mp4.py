"""Videos in MP4 files, read forwards frame by frame, and written: packets as they are, or frames encoded.

A file holds many episodes, one behind another. A :class:`~diskreplay.formats.files.lerobot_meta.Clip` says from when to
when an episode goes; its frame ``k`` must stand at ``k / fps`` seconds after its begin.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, cast

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core import untrusted
from diskreplay.formats.files.lerobot_meta import PLACE, TOLERANCE_S, Clip, places
from diskreplay.reading.decoding import Decoder
from diskreplay.recording.video_encoding import ENCODERS, as_a_guest
from diskreplay.schema.ragged import Lists, offsets_of
from diskreplay.video import CODECS, MAX_PACKETS, MAX_VALUE_BYTES, Packet, Video, record

SMALLEST = 64
"""The least width and height that the encoder takes."""
LOOKED_AT = 256
"""The number of frames by which it is estimated how many bytes a row of packets has."""
FRESH = {"movflags": "faststart"}
Items = Iterator[tuple[float, Any]]
"""The packets or frames of a file, each with its time in seconds."""


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """Raise InputError for what FFmpeg raises for a damaged file."""
    import av

    with untrusted.damage(where, (av.FFmpegError, ValueError, LookupError, TypeError, OverflowError)):
        try:
            yield
        except av.FFmpegError as error:  # with a number of FFmpeg's, which is none of the system's
            raise InputError(f"{where} is damaged: {untrusted.one_line(error)}") from error


@contextlib.contextmanager
def opened(file: pathlib.Path) -> Iterator[Any]:
    """Open a file for its one stream of video; raise InputError if it is no such file."""
    import av

    with damage(repr(str(file))), av.open(str(file)) as container:
        if len(container.streams.video) != 1:
            raise InputError(f"{str(file)!r} must hold one stream of video, not {len(container.streams.video)}")
        stream = container.streams.video[0]
        context = stream.codec_context
        if context is None:
            raise InputError(f"{str(file)!r} has video of a codec that FFmpeg does not know")
        untrusted.check_size(str(file), (1, context.height, context.width, 3), 1, lambda: file.stat().st_size)
        yield stream


def _packets(stream: Any) -> Items:
    every = (packet for packet in stream.container.demux(stream) if packet.size)
    # The frame that a frame refers to comes right before it, so that the next packet's time tells.
    for packet, after in itertools.pairwise(itertools.chain(every, [None])):
        if packet.is_corrupt:
            raise InputError(f"{stream.container.name!r} is cut short; download the dataset again, whole")
        if packet.pts is None or packet.is_discard or (after is not None and not (after.pts or 0) > packet.pts):
            raise InputError(
                f"{stream.container.name!r} has frames that refer to later ones (B-frames), whose packets are not in "
                "the order of the frames; import it with --frames decoded"
            )
        yield float(packet.pts * packet.time_base), packet


def _frames(stream: Any) -> Items:
    stream.thread_type = "AUTO"
    for frame in stream.container.decode(stream):
        yield float(frame.pts * frame.time_base), frame


def rows(
    clips: Sequence[Clip], fps: float, read: Callable[[Any], Items], take: Callable[[Any, pathlib.Path], Any]
) -> Iterator[Any]:
    """Yield what ``take`` makes of each frame or packet in turn, for each frame of each clip.

    Args:
        clips: the clips, in order.
        fps: frames a second.
        read: a function that gives a file's items with their times.
        take: a function that is called with every item up to the last of a clip, and the file.

    Raises InputError for a damaged file, and for a frame that is not where its clip says.
    """
    file: pathlib.Path | None = None
    at = 0.0
    with contextlib.ExitStack() as stack:
        for clip in clips:
            if clip.file != file or clip.start_s < at - TOLERANCE_S:
                stack.close()
                items, file = read(stack.enter_context(opened(clip.file))), clip.file
            for number in range(clip.length):
                wanted = clip.start_s + number / fps
                with damage(str(clip.where)):
                    while True:
                        at, item = next(items, (np.inf, None))
                        if at > wanted + TOLERANCE_S:
                            raise _missing(clip, number, wanted, at)
                        value = take(item, clip.file)
                        if at >= wanted - TOLERANCE_S:
                            break
                        del value
                yield value


def _missing(clip: Clip, number: int, wanted: float, at: float) -> InputError:
    there = "the video ends before" if at == np.inf else f"the next frame is at {at:.4f} s"
    return InputError(
        f"{clip.where}: {clip.file.name} has no frame {number} of {clip.length:,} at {wanted:.4f} s; {there}: the "
        "number of its frames, or how many there are a second, is not the dataset's"
    )


class DecodedFrames:
    """The frames of a camera, uint8 ``(count, height, width, 3)``, decoded as they are asked for, forwards."""

    dtype = np.dtype(np.uint8)

    def __init__(self, clips: Sequence[Clip], fps: float) -> None:
        self._clips, self._fps = clips, fps
        with opened(clips[0].file) as stream:
            self.shape = (sum(clip.length for clip in clips), stream.height, stream.width, 3)
        self._begin()

    def _begin(self) -> None:
        self._at, self._rows = 0, rows(self._clips, self._fps, _frames, lambda frame, _: frame)

    def __getitem__(self, wanted: slice) -> Array:
        start, stop, _ = wanted.indices(self.shape[0])
        if start < self._at:
            self._begin()
        out = np.empty((max(0, stop - start), *self.shape[1:]), np.uint8)
        for number in range(self._at, stop):
            frame = next(self._rows)
            self._at = number + 1
            if number >= start:
                pixels = frame.to_ndarray(format="rgb24")
                if pixels.shape != out.shape[1:]:
                    raise InputError(f"{self._clips[0].where}: has frames of several sizes")
                out[number - start] = pixels
        return out


class PacketRows:
    """The packets of a camera, forwards: of each frame those of its group up to its own, as a video column has them.

    It is as an array of a ragged column whose items are bytes.

    Attributes:
        video: what a decoder must know, of all files.

    Raises InputError for files with other sizes or codecs, and for what a video column does not hold.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, clips: Sequence[Clip], fps: float) -> None:
        self._clips, self._fps = clips, fps
        self.shape = (sum(clip.length for clip in clips),)
        found = {file: _facts(file, fps) for file in dict.fromkeys(clip.file for clip in clips)}
        first = next(iter(found.values()))
        parameters = tuple(dict.fromkeys(one.parameters[0] for one in found.values()))
        self.video = dataclasses.replace(first, parameters=parameters)
        self._number = {file: parameters.index(one.parameters[0]) for file, one in found.items()}
        for file, one in found.items():
            if dataclasses.replace(one, parameters=parameters) != self.video:
                raise InputError(
                    f"{str(file)!r} has video as {one.codec} {one.width} x {one.height}, {one.pix_fmt}, and the first "
                    f"file {first.codec} {first.width} x {first.height}, {first.pix_fmt}"
                )
        self._begin()
        looked = [len(self._next()) for _ in range(min(LOOKED_AT, self.shape[0]))]
        self.row_bytes = sum(looked) // len(looked) + 1
        self._begin()

    def _begin(self) -> None:
        self._at, self._rows = 0, rows(self._clips, self._fps, _packets, self._taken)
        self._group: list[bytes] = []
        self._file: pathlib.Path | None = None
        """The file of the group."""

    def _taken(self, packet: Any, file: pathlib.Path) -> list[bytes]:
        if packet.is_keyframe:
            self._group = []
        elif not self._group or file != self._file:
            raise InputError(f"{str(file)!r} begins with a frame that is no key frame; import it with --frames decoded")
        self._file = file
        self._group.append(record(packet, packet.is_keyframe, self._number[file]))
        return self._group

    def _next(self) -> bytes:
        value = b"".join(next(self._rows))
        if len(self._group) > MAX_PACKETS or len(value) > MAX_VALUE_BYTES:
            raise InputError(
                f"{self._clips[0].where}: key frames are {len(self._group):,} frames and {len(value):,} bytes apart, "
                f"and may be {MAX_PACKETS:,} frames and {MAX_VALUE_BYTES:,} bytes; import it with --frames decoded"
            )
        self._at += 1
        return value

    def __getitem__(self, wanted: slice) -> Lists:
        start, stop, _ = wanted.indices(self.shape[0])
        if start < self._at:
            self._begin()
        while self._at < start:
            self._next()
        values = [self._next() for _ in range(start, stop)]
        lengths = np.array([len(value) for value in values], np.int64)
        return Lists(np.frombuffer(b"".join(values), np.uint8), offsets_of(lengths))


def _facts(file: pathlib.Path, fps: float) -> Video:
    with opened(file) as stream:
        context, codec = stream.codec_context, stream.codec_context.codec.canonical_name
        if codec not in CODECS:
            raise InputError(f"{str(file)!r} has video as {codec}; import it with --frames decoded")
        if context.format is None:  # pix_fmt would end the process
            raise InputError(f"{str(file)!r} ends before its first frame; download the dataset again, whole")
        extradata = context.extradata or b""
        return Video(codec, context.width, context.height, context.format.name, rate(fps), (extradata,))


# Out


def is_encodable(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether frames of such a shape can be encoded: ``(height, width, 3)`` uint8, even and not too small."""
    return (
        dtype == np.uint8
        and len(shape) == 3
        and shape[2] == 3
        and all(length >= SMALLEST and length % 2 == 0 for length in shape[:2])
    )


def rate(fps: float) -> Fraction:
    """Return frames a second as FFmpeg takes them."""
    return Fraction(fps).limit_denominator(1001)


class VideoFiles:
    """The files of one camera of a dataset that is written.

    Args:
        folder: the directory of the camera.
        fps: frames a second.
        file_bytes: the bytes of packets after which an episode begins a new file.
        chunk_files: the files of a directory.
    """

    def __init__(self, folder: pathlib.Path, fps: float, file_bytes: int, chunk_files: int) -> None:
        self._folder, self._rate, self._limit = folder, rate(fps), file_bytes
        self._places, self._place = places(chunk_files), dict[str, int]()
        self._size, self._frames = 0, 0
        self._parameters: Video | None = None
        self._container: Any = None

    def append(self, parameters: Video, packets: Sequence[tuple[bytes, bool]], hidden: int) -> dict[str, Any]:
        """Write an episode, whose first frame comes after ``hidden`` packets, and return its place."""
        if parameters != self._parameters or self._size >= self._limit:
            self.close()
            self._begin(parameters, packets[0][0])
        import av

        first = self._frames + hidden
        for data, key in packets:
            packet = av.Packet(data)
            packet.pts = packet.dts = self._frames
            packet.time_base, packet.duration, packet.is_keyframe = 1 / self._rate, 1, key
            packet.stream = self._stream
            self._container.mux(packet)
            self._frames += 1
            self._size += len(data)
        start, stop = (float(frame / self._rate) for frame in (first, self._frames))
        return {**self._place, "from_timestamp": start, "to_timestamp": stop}

    def _begin(self, parameters: Video, first: bytes) -> None:
        import av

        self._size, self._frames, self._parameters = 0, 0, parameters
        self._place = next(self._places)
        target = self._folder / f"{PLACE.format(**self._place)}.mp4"
        target.parent.mkdir(parents=True, exist_ok=True)
        self._container = av.open(str(target), "w", options=FRESH)
        name, options = ENCODERS[parameters.codec]
        stream = self._container.add_stream(name, self._rate, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = parameters.width, parameters.height, parameters.pix_fmt
        with as_a_guest():
            stream.codec_context.open()  # PyAV knows no stream without a codec; nothing is encoded
        # Where AV1 has no parameters, FFmpeg makes of the first packet what players look for, the box av1C.
        found = parameters.parameters[0] or (first if parameters.codec == "av1" else None)
        stream.codec_context.extradata = found
        stream.time_base = 1 / self._rate
        self._stream = stream

    def facts(self) -> dict[str, Any]:
        """Return what ``info.json`` says of the videos."""
        found = cast(Video, self._parameters)
        return {
            "video.height": found.height, "video.width": found.width, "video.codec": found.codec,
            "video.pix_fmt": found.pix_fmt, "video.is_depth_map": False, "video.fps": int(self._rate),
            "video.channels": 3, "has_audio": False,
        }  # fmt: skip

    def close(self) -> None:
        """Finish the file."""
        if self._container is not None:
            self._container.close()
            self._container = None


def decoded(video: Video, packets: Sequence[tuple[bytes, bool]]) -> Iterator[Array]:
    """Yield the frames of packets, uint8 ``(height, width, 3)``; ``video`` has one parameter."""
    decoder = Decoder(video, video.parameters[0])
    starts = [at for at, (_, key) in enumerate(packets) if key]
    for start, stop in itertools.pairwise([*starts, len(packets)]):
        group = [Packet(memoryview(data), key, 0, 0) for data, key in packets[start:stop]]
        yield from map(decoder.shown, decoder.frames(group))
