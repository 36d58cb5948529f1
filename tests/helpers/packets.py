"""Small videos: frames that move, their packets from PyAV's encoders, and what a plain decoder shows of them."""

from __future__ import annotations

import dataclasses
import fractions
import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import diskreplay as dr
from diskreplay import video
from diskreplay.recording.video_encoding import as_a_guest

av: Any = pytest.importorskip("av", reason="PyAV is not installed: pip install 'diskreplay[video]'")

Frames = NDArray[np.uint8]

ENCODERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "av1": ("libsvtav1", "libdav1d", {"crf": "30", "preset": "12", "svtav1-params": "lp=1"}),
    "h264": ("libx264", "h264", {"preset": "ultrafast", "crf": "20", "x264-params": "scenecut=0"}),
    "hevc": ("libx265", "hevc", {"preset": "ultrafast", "x265-params": "log-level=none:bframes=0:scenecut=0:pools=1"}),
    "vp9": ("libvpx-vp9", "vp9", {"lag-in-frames": "0", "auto-alt-ref": "0", "deadline": "realtime"}),
}
"""Encoder, decoder and options by codec."""


@dataclasses.dataclass(frozen=True)
class Clip:
    """A video: its facts, its groups of packets, and the values of its frames, as rows have them."""

    facts: dr.Video
    groups: list[list[bytes]]
    parameters: int = 0

    @functools.cached_property
    def values(self) -> list[Frames]:
        """For each frame the records of its group up to its own."""
        found = []
        for group in self.groups:
            parts = [video.record(packet, not at, self.parameters) for at, packet in enumerate(group)]
            found += [np.frombuffer(b"".join(parts[: at + 1]), np.uint8) for at in range(len(group))]
        return found

    @functools.cached_property
    def shown(self) -> list[Frames]:
        """The frames, each decoded by a decoder of its own, as PyAV's ``to_ndarray`` shows them."""
        return [decoded(self.facts, group[: at + 1]) for group in self.groups for at in range(len(group))]


def decoded(facts: dr.Video, packets: list[bytes], parameters: int = 0) -> Frames:
    """The last frame of some packets."""
    context = av.CodecContext.create(ENCODERS[facts.codec][1], "r")
    if facts.parameters[parameters]:
        context.extradata = facts.parameters[parameters]
    frames = [frame for packet in packets for frame in context.decode(av.Packet(packet))]
    return (frames + list(context.decode(None)))[-1].to_ndarray(format="rgb24")


def moving(count: int, width: int = 64, height: int = 48, seed: int = 0) -> Frames:
    """Frames of coloured blocks that move, ``(count, height, width, 3)``."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, (height // 8, width // 8, 3)).astype(np.uint8).repeat(8, 0).repeat(8, 1)
    return np.stack([np.roll(base, 3 * at, axis=1) for at in range(count)])


@functools.cache
def clip(
    codec: str = "h264", count: int = 12, every: int = 4, width: int = 64, height: int = 48, seed: int = 0
) -> Clip:
    """A video with a key frame ``every`` so many frames."""
    name, _, options = ENCODERS[codec]
    context: Any = av.CodecContext.create(name, "w")
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base, context.framerate = fractions.Fraction(1, 30), fractions.Fraction(30)
    context.gop_size, context.max_b_frames, context.thread_count = every, 0, 1
    context.options = {**options, "g": str(every)}
    with as_a_guest():
        context.open()
    packets: list[Any] = []
    for at, picture in enumerate(moving(count, width, height, seed)):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts = at
        packets += context.encode(frame)
    packets += context.encode(None)
    groups: list[list[bytes]] = []
    for packet in packets:
        if packet.is_keyframe:
            groups.append([])
        groups[-1].append(bytes(packet))
    return Clip(dr.Video(codec, width, height, fps=fractions.Fraction(30)), groups)
