"""Frames in, packets out: the encoding of video while steps are recorded.

1. Each camera has an encoder, which gives a frame's packet some frames later.
2. A row waits, without its frames, until all cameras have the packets of its observation and of its next one.
3. At the end of an episode the encoders give what is left, and the next one gets encoders of its own, so that it
   begins with a key frame.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import arrays, check_array, check_count
from diskreplay.engine import arguments
from diskreplay.errors import InputError, StateError
from diskreplay.process.locks import held_back
from diskreplay.schema import spaces
from diskreplay.schema.columns import OBS
from diskreplay.video import MAX_PACKETS, Video, record

if TYPE_CHECKING:
    from diskreplay.buffers.replay import ReplayBuffer

KEY_FRAMES = 2
"""A key frame stands every so many frames, as in LeRobot's datasets: a frame is decoded from two packets at most."""
ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "av1": ("libsvtav1", {"crf": "30", "preset": "12"}),
    "h264": ("libx264", {"crf": "30", "bf": "0"}),
    "hevc": ("libx265", {"crf": "30", "x265-params": "bframes=0:log-level=none"}),
    "vp9": ("libvpx-vp9", {"crf": "30", "b": "0", "deadline": "realtime", "cpu-used": "8"}),
}
"""FFmpeg's encoder of each codec, and its options: quality and speed as LeRobot has them, and no B-frames."""
NOT_ENCODED = "only frames of observations are encoded, and {} are columns of their own"


@contextlib.contextmanager
def as_a_guest() -> Iterator[None]:
    """Keep SVT-AV1, which is opened within, from filling the screen and from holding up other processes.

    It writes thirty lines unless ``SVT_LOG`` is set. Run by root, it gives a priority in real time (SCHED_FIFO, 99) to
    its threads and to the one that opens it; at the end all get the scheduling that the latter had before.
    """
    os.environ.setdefault("SVT_LOG", "1")
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    others = _threads() - {int(pathlib.Path("/proc/thread-self").readlink().name)}
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in _threads() - others:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setscheduler(thread, policy, priority)


def _threads() -> set[int]:
    return {int(task.name) for task in pathlib.Path("/proc/self/task").iterdir()}


class Encoded(NamedTuple):
    """The packet of one frame; ``key`` tells whether it is a key frame."""

    packet: bytes
    key: bool


class VideoEncoder:
    """An encoder of one camera: each packet that it gives shows the next frame.

    Args:
        video: the codec, size, pixel format and frames a second.
        key_frames: the number of frames from one key frame to the next.
        options: more options of FFmpeg's encoder, which replace those of ``ENCODERS``.

    Attributes:
        parameters: what a decoder must know before the first packet; empty, as that packet says it too, unless the
            options have ``{"flags": "+global_header"}``.

    Raises ImportError without PyAV (``pip install 'diskreplay[video]'``), InputError where the encoder refuses, or
    ``key_frames`` is no number from 1 to 4,096.

    >>> encoder = VideoEncoder(Video("h264", 64, 48))
    >>> frames = [*encoder.encode(np.zeros((48, 64, 3), np.uint8)), *encoder.finish()]
    >>> [frame.key for frame in frames]
    [True]
    """

    def __init__(self, video: Video, key_frames: int = KEY_FRAMES, options: Mapping[str, str] | None = None) -> None:
        try:
            with held_back():
                import av
        except ImportError as error:
            raise ImportError("encoding video needs PyAV: pip install 'diskreplay[video]'") from error
        key_frames = check_count("key_frames", key_frames, most=MAX_PACKETS)
        self._av = av
        self._video = video
        name, own = ENCODERS[video.codec]
        try:
            context: Any = av.CodecContext.create(name, "w")
            context.width, context.height, context.pix_fmt = video.width, video.height, video.pix_fmt
            context.framerate, context.time_base = video.fps, 1 / video.fps
            context.gop_size, context.max_b_frames = key_frames, 0
            context.options = {**own, **(options or {})}
            with as_a_guest():
                context.open()
        except (av.FFmpegError, ValueError) as error:
            raise InputError(
                f"{name} does not encode {video.width}x{video.height} {video.pix_fmt}: {error}; give another size, "
                "pixel format or codec, or other options"
            ) from error
        self._context = context
        self.parameters = bytes(context.extradata or b"")
        self._given = self._got = 0

    def encode(self, frame: NDArray[np.uint8]) -> list[Encoded]:
        """Take a frame ``(height, width, 3)``, and return the packets of earlier frames that are ready.

        Raises InputError for another shape or dtype, and from an encoder whose packets are not in the order of frames;
        StateError after :meth:`finish`.
        """
        context = self._open_context()
        shape, frame = self._video.shape, arrays("frame", frame)
        if not isinstance(frame, np.ndarray) or frame.shape != shape or frame.dtype != np.uint8:
            what = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else type(frame).__name__
            raise InputError(f"a frame must be an array of uint8 {shape}, got {what}")
        given = self._av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        given.pts = self._given
        given.pict_type = 0  # the encoder decides
        self._given += 1
        return list(self._taken(context.encode(given)))

    def finish(self) -> list[Encoded]:
        """Return the packets of all frames that are left; the encoder takes no more, and is not finished again."""
        context, self._context = self._open_context(), None
        left = list(self._taken(context.encode(None)))
        if self._got != self._given:
            raise StateError(f"the encoder gave {self._got} packets of {self._given} frames")
        return left

    def _open_context(self) -> Any:
        if self._context is None:
            raise StateError("the encoder has finished; make another one")
        return self._context

    def _taken(self, packets: Any) -> Iterator[Encoded]:
        for packet in packets:
            if packet.pts != self._got:
                raise InputError(
                    f"the packet of frame {packet.pts} came where that of {self._got} was due: leave out the option "
                    "that has the encoder make B-frames, which cannot be kept"
                )
            self._got += 1
            yield Encoded(bytes(packet), bool(packet.is_keyframe))


def parameters_of(video: Video) -> int:
    """Return which parameters of a column are those of the packets of an encoder without options.

    Such packets need no parameters, so the number of the empty ones is returned. For AV1 and VP9, whose decoders read
    the packets alone, 0 will do. Raises InputError if the column has no empty parameters and needs them.
    """
    if b"" in video.parameters:
        return video.parameters.index(b"")
    if video.codec in ("av1", "vp9"):
        return 0
    raise InputError(
        f"a {video.codec} column whose packets all need parameters, as those of a dataset do, takes no frames of "
        "another encoder: record into a new store, whose video is dataclasses.replace(video, parameters=(b'',)), and "
        "merge the two"
    )


class _Camera:
    """The frames of one leaf of the observations, which are numbered through an episode, and their values."""

    def __init__(self, video: Video) -> None:
        self._video, self._parameters = video, parameters_of(video)
        self._encoder: VideoEncoder | None = None
        self._group = b""
        self.ready = 0
        """The number of frames of the episode whose values are there."""
        self.values: dict[int, NDArray[np.uint8]] = {}

    def encode(self, frame: Any) -> None:
        if self._encoder is None:
            self._encoder = VideoEncoder(self._video)
        self._take(self._encoder.encode(check_array("frame", frame).astype(np.uint8, copy=False)))

    def end(self) -> None:
        if self._encoder is not None:
            encoder, self._encoder = self._encoder, None
            self._take(encoder.finish())

    def _take(self, frames: list[Encoded]) -> None:
        for frame in frames:
            self._group = (b"" if frame.key else self._group) + record(frame.packet, frame.key, self._parameters)
            self.values[self.ready] = np.frombuffer(self._group, np.uint8)
            self.ready += 1


class VideoRows:
    """A buffer with video columns to which one adds frames: its calls are those of the buffer.

    A call that raises drops the rows that wait, as none may come behind a hole; so the next step begins an episode.

    Attributes:
        arguments: the rules for the arguments of :meth:`add`.
    """

    def __init__(self, buffer: ReplayBuffer[Any]) -> None:
        self._buffer = buffer
        schema, videos = buffer.schema, buffer.schema.videos
        if others := [name for name in videos if name.partition("/")[0] != OBS]:
            raise InputError(NOT_ENCODED.format(others))
        self._videos = {at: videos[each.name] for at, each in enumerate(schema.obs_columns) if each.name in videos}
        self.arguments = arguments.of_frames(schema)
        self._over()

    def _over(self) -> None:
        self._cameras = {leaf: _Camera(video) for leaf, video in self._videos.items()}
        self._frames = 0
        """The number of frames of the episode that were given."""
        self._waiting: collections.deque[tuple[int, Callable[[], object]]] = collections.deque()
        """Calls, each with the number of its last frame."""

    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, **extra: Any
    ) -> None:
        """Add a step that continues the one before it, unless that ended or :meth:`cut` was called."""
        tree = self._buffer.schema.obs_tree
        leaves, following = spaces.flatten(tree, obs, OBS), spaces.flatten(tree, next_obs, "next_obs")
        with self._no_hole():
            for frames in (leaves, following) if not self._frames else (following,):
                for leaf, camera in self._cameras.items():
                    camera.encode(frames[leaf])
                self._frames += 1
            for leaf in self._cameras:
                leaves[leaf] = following[leaf] = None
            rest = action, reward, following, terminated, truncated, extra
            self._waiting.append((self._frames - 1, functools.partial(self._add, self._frames - 1, leaves, *rest)))
            self._release()
            if terminated or truncated:
                self.end()
                self._over()

    def cut(self) -> None:
        """End the episode, as the buffer's method."""
        self.end()
        self._over()
        self._buffer.cut()

    def begin_episode(self, **facts: Any) -> None:
        """Begin an episode with these facts, as the buffer's method."""
        self.end()
        self._over()
        self._buffer.begin_episode(**facts)

    def annotate_episode(self, **facts: Any) -> None:
        """Tell more of the newest episode, as the buffer's method."""
        self._waiting.append((self._frames - 1, functools.partial(self._buffer.annotate_episode, **facts)))
        self._release()

    def commit(self) -> None:
        """Add what waits, and commit."""
        self.end()
        self._buffer.commit()

    def end(self) -> None:
        """Add what waits. An episode that goes on gets other encoders, and its values begin with a key frame again."""
        with self._no_hole():
            for camera in self._cameras.values():
                camera.end()
            self._release()

    @contextlib.contextmanager
    def _no_hole(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._over()
            raise

    def _release(self) -> None:
        ready = min(camera.ready for camera in self._cameras.values())
        while self._waiting and self._waiting[0][0] < ready:
            self._waiting.popleft()[1]()

    def _add(
        self, frame: int, obs: list[Any], action: Any, reward: Any, next_obs: list[Any], terminated: Any,
        truncated: Any, extra: Mapping[str, Any],
    ) -> None:  # fmt: skip
        for leaf, camera in self._cameras.items():
            obs[leaf], next_obs[leaf] = camera.values.pop(frame - 1), camera.values[frame]
        here, there = (spaces.unflatten(self._buffer.schema.obs_tree, leaves) for leaves in (obs, next_obs))
        self._buffer.add(here, action, reward, there, terminated, truncated, **extra)
