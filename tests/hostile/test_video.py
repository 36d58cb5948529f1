"""Damaged and forged packets of video columns: an error that names column and row, and never a process that dies."""

from __future__ import annotations

import pathlib
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.effort import places
from helpers.packets import ENCODERS, clip

import diskreplay as dr
from diskreplay import video
from diskreplay.engine import inputs
from diskreplay.errors import CorruptionError, DamageWarning, OpenError
from diskreplay.ops.verify import verify

CHOICE = spaces.Discrete(3)


def box(facts: dr.Video) -> spaces.Box:
    return spaces.Box(0, 255, facts.shape, np.uint8)


def store(path: Any, facts: dr.Video, values: list[Any]) -> None:
    """A store with one row for each value, checked or not."""
    with dr.ReplayBuffer.create(path, box(facts), CHOICE, capacity=len(values), video={"obs": facts}) as rb:
        for value in values:
            rb.add(value, 0, 0.0, value, True, False)


def damaged(group: list[bytes], rng: np.random.Generator) -> list[bytes]:
    """The packets of a group, one of them changed at random."""
    packets, at = list(group), int(rng.integers(len(group)))
    data = bytearray(packets[at])
    kind = rng.integers(5)
    if kind == 0:
        del data[int(rng.integers(1, len(data))) :]
    elif kind == 1:
        data += rng.bytes(int(rng.integers(1, 200)))
    elif kind == 2:
        low = int(rng.integers(len(data)))
        data[low : low + 16] = rng.bytes(len(data[low : low + 16]))
    else:
        for _ in range(int(rng.integers(1, 9))):
            data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    packets[at] = bytes(data)
    if kind == 4:
        packets.insert(at, packets[int(rng.integers(len(packets)))])
    return packets


def shown_or_named(path: Any, facts: dr.Video) -> tuple[int, int]:
    """How many rows are shown, and how many refused by name; anything else fails."""
    shown = refused = 0
    with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as rb:
        for row, item in enumerate(rb.items()):
            try:
                assert rb.get([item]).obs.shape == (1, *facts.shape)
                shown += 1
            except CorruptionError as error:
                named = (error.column, error.rows, f"row {row} in the video column 'obs'" in str(error))
                refused += named == ("obs", (row, row + 1), True)
    return shown, refused


def check_damages(path: Any, codec: str, count: int) -> None:
    rng = np.random.default_rng(count)
    groups, facts = clip(codec).groups, clip(codec).facts
    values = [
        b"".join(video.record(packet, not at) for at, packet in enumerate(damaged(groups[n % 3], rng)))
        for n in range(count)
    ]
    store(path, facts, values)
    shown, refused = shown_or_named(path, facts)
    assert shown + refused == count
    assert refused > count // 10
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        assert [bytes(row) for row in rb.get(rb.items()).obs] == values
    assert verify(path).ok, "the records themselves are whole"


@pytest.mark.parametrize("codec", sorted(ENCODERS))
def test_packets_damaged_at_random_are_named(path: str, codec: str) -> None:
    check_damages(path, codec, 40)


@pytest.mark.long
@pytest.mark.parametrize("codec", sorted(ENCODERS))
def test_a_thousand_damages_are_named(path: str, codec: str) -> None:
    check_damages(path, codec, places(1_000, "damages of a video", least=300))


def test_forged_records_are_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program of another's writes them: no check of ours looked at them."""
    rng, facts = np.random.default_rng(0), clip().facts
    good = clip().values[3].tobytes()
    values = [good[:5], good[:-1], good[8:], good + b"1234", b"\xff" * 8 + good, b"\0" * 40, good + good]
    for _ in range(50):
        data = bytearray(good)
        for at in (*rng.integers(0, len(data), 3).tolist(), int(rng.integers(8))):
            data[at] = int(rng.integers(256))
        values.append(bytes(data))
    with monkeypatch.context() as patched:
        patched.setattr(inputs, "wrong_video", lambda *given: None)
        store(path, facts, values)
    shown, refused = shown_or_named(path, facts)
    assert shown + refused == len(values)
    assert refused >= 7
    problems = verify(path).problems
    assert {problem.column for problem in problems} <= {"obs", "patches/obs"}
    assert problems


def test_a_span_that_ends_inside_a_packet(path: str) -> None:
    shown = clip()
    with dr.ReplayBuffer.create(path, box(shown.facts), CHOICE, capacity=900, video={"obs": shown.facts}) as rb:
        for at in range(4):
            rb.add(shown.values[at], 0, 0.0, shown.values[at + 1], False, False)
            if at == 2:
                rb.engine.streams.writer.rows["obs"].single[2][1] -= 3
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        assert np.array_equal(rb.get(rb.items()[:1]).obs, shown.shown[:1])
        with pytest.raises(CorruptionError, match="no packet ends after"):
            rb.get(rb.items())
    assert any("ends inside of a packet" in problem.what for problem in verify(path).problems)


@pytest.mark.parametrize("count", [30, pytest.param(1_000, marks=pytest.mark.long)])
def test_files_damaged_at_random_show_no_wrong_frame(path: str, count: int) -> None:
    """Checksums stand before the decoder: what was not committed is never shown.

    What has a copy is read from it, and what the shards hold is shown without the tail, each with a warning.
    """
    shown, rng = clip(), np.random.default_rng(count)
    store(path, shown.facts, shown.values)
    files = [file for file in sorted(pathlib.Path(path).rglob("*")) if file.is_file() and file.stat().st_size]
    files = [file for file in files if file.name != "zarr.json" or not [*file.parent.glob("c.*")]]  # no reader needs it
    named = 0
    for _ in range(count):
        file = files[int(rng.integers(len(files)))]
        before = file.read_bytes()
        data = bytearray(before)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", DamageWarning)
            try:
                with dr.ReplayBuffer.open(path, mode="r", cache_bytes=0) as rb:
                    rows = rb.items()
                    assert told or len(rows) == len(shown.shown)
                    assert not len(rows) or np.array_equal(rb.get(rows).obs, np.stack(shown.shown)[rows])
                named += len(told)
            except (CorruptionError, OpenError):
                named += 1
        file.write_bytes(before)
    assert named > count // 4


def test_a_frame_larger_than_the_schema_says(path: str) -> None:
    """FFmpeg refuses to make it: a few bytes cannot ask for gigabytes."""
    large = clip("h264", count=4, width=512, height=512)
    facts = dr.Video("h264", 64, 48)
    store(path, facts, [large.values[0]])
    assert shown_or_named(path, facts) == (0, 1)
