"""What batches show of video columns: the frames that a plain decoder shows, each group decoded once."""

from __future__ import annotations

import pathlib
import pickle
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.packets import ENCODERS, Clip, clip

import diskreplay as dr
from diskreplay import video
from diskreplay.errors import CorruptionError
from diskreplay.reading import decoding

CHOICE = spaces.Discrete(9)


def space(facts: dr.Video) -> spaces.Dict:
    return spaces.Dict(
        {"camera": spaces.Box(0, 255, facts.shape, np.uint8), "state": spaces.Box(0, 999, (1,), np.int64)}
    )


def fill(path: Any, shown: Clip, *, ends: int = 6, **options: Any) -> None:
    """A store with a row for each frame but the last; an episode ends after so many rows."""
    facts = shown.facts
    arguments = {"capacity": 1_000, "video": {"camera": facts}, **options}
    with dr.ReplayBuffer.create(path, space(facts), CHOICE, **arguments) as rb:
        last = len(shown.values) - 1
        for at in range(last):
            now, after = ({"camera": shown.values[n], "state": np.array([n])} for n in (at, at + 1))
            rb.add(now, 0, 0.0, after, at % ends == ends - 1, False)


@pytest.mark.parametrize("codec", sorted(ENCODERS))
def test_frames_are_those_of_a_plain_decoder(path: str, codec: str) -> None:
    shown = clip(codec)
    assert [len(group) for group in shown.groups] == [4, 4, 4]
    fill(path, shown)
    for cache_bytes in (0, 64 << 20):
        with dr.ReplayBuffer.open(path, cache_bytes=cache_bytes, seed=0) as rb:
            for _ in range(2):
                batch = rb.get(rb.items())
                assert batch.obs["camera"].shape == (11, 48, 64, 3)
                assert np.array_equal(batch.obs["camera"], shown.shown[:11])
                assert np.array_equal(batch.next_obs["camera"], shown.shown[1:])
            batch = rb.sample(8)
            at = batch.obs["state"][:, 0]
            assert np.array_equal(batch.obs["camera"], np.stack(shown.shown)[at])
            assert np.array_equal(batch.next_obs["camera"], np.stack(shown.shown)[at + 1])
            batch.obs["camera"][:] = 7  # a batch is the caller's own
            assert np.array_equal(rb.get(rb.items()).obs["camera"], shown.shown[:11])
            frames = rb.stats()["cache"].get("frames", {"rows": 0, "bytes": 0})
            assert frames["bytes"] == frames["rows"] * 48 * 64 * 3
            assert frames["rows"] == (12 if cache_bytes else 0)


def test_rows_that_no_commit_holds_are_shown_too(path: str) -> None:
    shown = clip()
    facts = shown.facts
    with dr.ReplayBuffer.create(path, space(facts), CHOICE, capacity=99, video={"camera": facts}) as rb:
        for at in range(9):
            now, after = ({"camera": shown.values[n], "state": np.array([n])} for n in (at, at + 1))
            rb.add(now, 0, 0.0, after, False, False)
            assert np.array_equal(rb.get(rb.items()).obs["camera"], shown.shown[: at + 1])
            assert np.array_equal(rb.get(rb.items()[-1:]).next_obs["camera"][0], shown.shown[at + 1])
            if at == 5:
                rb.commit()


def test_sequences_show_frames_of_each_step(path: str) -> None:
    shown = clip()
    fill(path, shown)
    with dr.ReplayBuffer.open(path, view=dr.Sequence(4), seed=0) as rb:
        batch = rb.sample(8)
        assert batch.obs["camera"].shape == (8, 4, 48, 64, 3)
        steps = batch.obs["state"][..., 0]
        frames = np.stack(shown.shown)
        assert np.array_equal(batch.obs["camera"][batch.mask], frames[steps[batch.mask]])
        assert np.array_equal(batch.next_obs["camera"][batch.mask], frames[steps[batch.mask] + 1])
        assert not batch.obs["camera"][~batch.mask].any()
    with dr.ReplayBuffer.open(path, view=dr.PaddedEpisodes(8)) as rb:
        episodes = rb.get(rb.items())
        assert np.array_equal(episodes.obs["camera"][0][:6], shown.shown[:6])
        assert not episodes.obs["camera"][~episodes.mask].any()
    with dr.ReplayBuffer.open(path, view=dr.Transition(n_step=3)) as rb:
        batch = rb.get(rb.items())
        assert np.array_equal(batch.next_obs["camera"][0], shown.shown[3])


def test_each_group_is_decoded_once_a_batch(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shown, decoded = clip(), []
    fill(path, shown)
    frames = decoding.Decoder.frames

    def counted(decoder: Any, packets: Any) -> Any:
        decoded.append(len(packets))
        return frames(decoder, packets)

    monkeypatch.setattr(decoding.Decoder, "frames", counted)
    with dr.ReplayBuffer.open(path, cache_bytes=0) as rb:
        rb.get(rb.items())
        assert sorted(decoded) == [4, 4, 4], "obs and next_obs together"
        decoded.clear()
        rb.get(rb.items()[[0, 0, 1, 0]])
        assert decoded == [3], "up to the last frame that is asked for"


def test_batches_of_other_kinds_show_frames(path: str) -> None:
    shown = clip()
    fill(path, shown)
    frames = np.stack(shown.shown)
    with dr.ReplayBuffer.open(path, mode="r", seed=0) as rb:
        for batch in rb.shuffled(4):
            assert np.array_equal(batch.obs["camera"], frames[batch.obs["state"][:, 0]])
        for batch, _ in zip(rb.loader(4), range(5), strict=False):
            assert np.array_equal(batch.next_obs["camera"], frames[batch.next_obs["state"][:, 0]])
        copied = pickle.loads(pickle.dumps(rb))
        with copied:
            assert np.array_equal(copied.get(rb.items()).obs["camera"], frames[:11])


def test_torch_takes_frames_and_packets(path: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    shown = clip()
    fill(path, shown)
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        camera = rb.get(rb.items()).torch().obs["camera"]
        assert (camera.dtype, tuple(camera.shape)) == (torch.uint8, (11, 48, 64, 3))
        assert np.array_equal(camera.numpy(), shown.shown[:11])
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        packets = rb.get(rb.items()).torch().obs["camera"]
        assert packets[2].numpy().tobytes() == shown.values[2].tobytes()


def test_files_may_have_other_parameters(path: str) -> None:
    """H.264 as MP4 files hold it needs what stands beside the packets, and two files differ."""
    first, second = clip("h264", seed=1), clip("h264", seed=2, every=6)
    facts = dr.Video("h264", 64, 48, parameters=(b"", b""))
    values = first.values + Clip(facts, second.groups, 1).values
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, facts.shape, np.uint8), CHOICE, capacity=99, video={"obs": facts}
    ) as rb:
        for at in range(len(values) - 1):
            rb.add(values[at], 0, 0.0, values[at + 1], False, False)
        assert np.array_equal(rb.get(rb.items()).obs, (first.shown + second.shown)[:-1])


def test_frames_leave_the_cache_with_their_rows(path: str) -> None:
    shown = clip(count=40)
    with dr.ReplayBuffer.create(
        path, space(shown.facts), CHOICE, capacity=8, video={"camera": shown.facts}, cache_bytes=8 << 20,
        chunk_rows={"obs/camera": 64}, shard_rows={"obs/camera": 128},
    ) as rb:  # fmt: skip
        for at in range(39):
            now, after = ({"camera": shown.values[n], "state": np.array([n])} for n in (at, at + 1))
            rb.add(now, 0, 0.0, after, False, False)
            if at % 4 == 3:
                rb.commit()
                assert np.array_equal(rb.get(rb.items()).obs["camera"], shown.shown[max(0, at - 7) : at + 1])
                assert rb.stats()["cache"]["frames"]["rows"] <= 16


def test_a_row_without_packets_is_black(path: str) -> None:
    shown = clip()
    state = {"state": np.array([1])}
    with dr.ReplayBuffer.create(
        path, space(shown.facts), CHOICE, capacity=9, video={"camera": shown.facts}, view=dr.Sequence(2)
    ) as rb:
        rb.add({"camera": shown.values[0], **state}, 0, 0.0, {"camera": shown.values[1], **state}, False, False)
        rb.add({"camera": None, **state}, 0, 0.0, {"camera": None, **state}, False, False, valid=False)
        rb.add({"camera": shown.values[2], **state}, 0, 0.0, {"camera": shown.values[3], **state}, True, False)
        batch = rb.get(rb.items())
        assert np.array_equal(batch.obs["camera"][:, 0], [shown.shown[0], shown.shown[2]])
        assert not batch.obs["camera"][:, 1].any()


def add_one(path: Any, facts: dr.Video, value: Any) -> None:
    box = spaces.Box(0, 255, facts.shape, np.uint8)
    with dr.ReplayBuffer.create(path, box, CHOICE, capacity=9, video={"obs": facts}) as rb:
        rb.add(value, 0, 0.0, value, False, False)


def joined(*packets: bytes) -> bytes:
    return b"".join(video.record(packet, not at) for at, packet in enumerate(packets))


@pytest.mark.parametrize("codec", sorted(ENCODERS))
def test_packets_that_show_no_frame_are_named(tmp_path: pathlib.Path, codec: str) -> None:
    shown, large = clip(codec), clip(codec, width=128, height=96)
    facts, group = shown.facts, shown.groups[0]
    for number, (given, error) in enumerate([
        (joined(b"no packet at all"), "frame of row 0 in the video column 'obs' cannot be shown"),
        (joined(group[0], bytes(range(200))), "cannot be shown"),
        (joined(group[0] + group[1], group[1][:3]), "cannot be shown"),
        (joined(*large.groups[0]), "cannot be decoded|has 128 x 96 pixels, and the column's have 64 x 48"),
        (joined(group[1], group[2]), "cannot be shown"),
    ]):  # fmt: skip
        path = tmp_path / f"{number}.replay"
        add_one(path, facts, given)
        with dr.ReplayBuffer.open(path) as rb:
            with pytest.raises(CorruptionError, match=error) as caught:
                rb.get(rb.items())
            assert (caught.value.stream, caught.value.column, caught.value.rows) == ("0", "obs", (0, 1))
        with dr.ReplayBuffer.open(path, ragged="lists") as rb:
            assert bytes(rb.get(rb.items()).obs[0]) == given


def test_good_groups_are_shown_after_a_bad_one(path: str) -> None:
    shown = clip()
    fill(path, Clip(shown.facts, [[b"no packet"], *shown.groups]), ends=1)
    with dr.ReplayBuffer.open(path, cache_bytes=0) as rb:
        for _ in range(2):
            with pytest.raises(CorruptionError, match="row 0"):
                rb.get(rb.items())
        batch = rb.get(rb.items()[1:])
        assert np.array_equal(batch.obs["camera"], shown.shown[:11])


def test_what_is_missing_is_named(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(path, clip())
    with dr.ReplayBuffer.open(path) as rb:
        with monkeypatch.context() as patched:
            patched.setitem(decoding.DECODERS, "h264", "no-such-decoder")
            with pytest.raises(ImportError, match="cannot decode h264: install PyAV from its wheels"):
                rb.sample(2)
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "av", None)
            with pytest.raises(ModuleNotFoundError, match=r"pip install 'diskreplay\[video\]'"):
                rb.sample(2)
            assert "no pictures: to show the frames of video columns needs PyAV" in rb._repr_html_()
        assert len(rb.sample(2))
