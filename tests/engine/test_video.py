"""What goes into video columns, and what is refused before anything changes."""

from __future__ import annotations

import fractions
import inspect
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr
from diskreplay import video
from diskreplay.engine.arguments import of_frames
from diskreplay.errors import CorruptionError, InputError, SchemaError
from diskreplay.ops.verify import verify
from diskreplay.schema.columns import Schema

CHOICE = spaces.Discrete(3)
FACTS = dr.Video("h264", 64, 48, fps=30, parameters=(b"first", b"second"))
FRAME = spaces.Box(0, 255, (48, 64, 3), np.uint8)
SPACE = spaces.Dict({"camera.top": FRAME, "state": spaces.Box(-1, 1, (2,), np.float32)})


def create(path: Any, **options: Any) -> dr.ReplayBuffer:
    arguments = {"observation_space": SPACE, "action_space": CHOICE, "capacity": 50, "video": {"camera.top": FACTS}}
    return dr.ReplayBuffer.create(path, **{**arguments, "ragged": "lists", **options})


def value(count: int, first: int = 0, parameters: int = 0) -> Any:
    """The records of the first packets of a group, which are no packets of any codec."""
    parts = [video.record(bytes([first + at]) * (20 + at), at == 0, parameters) for at in range(count)]
    return np.frombuffer(b"".join(parts), np.uint8)


def observation(packets: Any) -> dict[str, Any]:
    return {"camera.top": packets, "state": np.zeros(2, np.float32)}


def add(rb: dr.ReplayBuffer, now: Any, after: Any, ends: bool = False, **more: Any) -> None:
    rb.add(observation(now), 0, 0.0, observation(after), ends, False, **more)


def items(rb: dr.ReplayBuffer, name: str = "obs/camera.top") -> int:
    return int(rb.engine.streams.writer.items[name].end)


def test_a_group_of_pictures_is_stored_once(path: str) -> None:
    with create(path) as rb:
        for at in range(1, 8):
            add(rb, value(at), value(at + 1) if at < 7 else value(1, 50))
        add(rb, value(1, 50), value(2, 50).tobytes(), ends=True)
        assert (items(rb), len(rb.episodes)) == (len(value(7)) + len(value(2, 50)), 1)
    with dr.ReplayBuffer.open(path, ragged={"obs/camera.top": "lists"}) as rb:
        batch = rb.get(rb.items())
        packets = [list(row) for row in batch.obs["camera.top"]]
        assert packets == [value(at).tolist() for at in range(1, 8)] + [value(1, 50).tolist()]
        assert (rb.schema.ragged["obs/camera.top"].video, rb.observation_space) == (FACTS, SPACE)
    assert verify(path).ok


def test_many_rows_at_once_share_too(path: str) -> None:
    values = [value(at) for at in range(1, 10)]
    zeros, no = np.zeros(8, int), np.zeros(8, bool)
    states = np.zeros((8, 2), np.float32)
    with create(path) as rb:
        now, after = ({"camera.top": part, "state": states} for part in (values[:-1], values[1:]))
        rb.extend(now, zeros, zeros * 0.0, after, no, no)
        assert items(rb) == len(values[-1])
        add(rb, values[-1], value(10))
        assert items(rb) == len(value(10))


def test_a_column_of_the_users_holds_video(path: str) -> None:
    facts = dr.Video("av1", 8, 4)
    with create(path, columns={"wrist": (facts.shape, np.uint8)}, video={"wrist": facts}) as rb:
        frame = np.zeros((48, 64, 3), np.uint8)
        for at in range(1, 4):
            add(rb, frame, frame, wrist=value(at))
        assert items(rb, "wrist") == len(value(3))
        assert [len(row) for row in rb.get(rb.items()).extra["wrist"]] == [len(value(at)) for at in range(1, 4)]


GOOD = value(3).tobytes()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (np.zeros((48, 64, 3), np.uint8), "encode frames with diskreplay.VideoEncoder"),
        (np.zeros((1, 48, 64, 3), np.uint8), "not the frame itself"),
        (np.zeros(20, np.int32), "of uint8, of records"),
        ([1, 2, 3], "of uint8, of records"),
        ("packets", "of uint8, of records"),
        (b"", "a transition must have a frame"),
        (None, "a transition must have a frame"),
        (GOOD[:5], "record 0 has 5 bytes, and a header has 8"),
        (GOOD[:-1], "the packet of record 2 has 22 bytes"),
        (GOOD + b"1234", "record 3 has 4 bytes"),
        (b"\xff\xff\xff\xff" + GOOD[4:], "the packet of record 0 has 4,294,967,295 bytes"),
        (b"\0\0\0\0" + GOOD[4:], "the packet of record 0 has 0 bytes"),
        (value(2).tobytes()[28:], "record 0 has the flags 0, 0: the first must be a key frame"),
        (GOOD + GOOD, "record 3 has the flags 1, 0"),
        (GOOD[:5] + b"\1" + GOOD[6:], "record 0 has the flags 1, 1"),
        (value(1, parameters=2), "it names the parameters 2, and the column has 2"),
        (value(1).tobytes() + video.record(b"x", False, 1), "record 1 has other parameters"),
        (b"".join(video.record(b"x", not at) for at in range(4097)), "a row may have 4,096 packets"),
    ],
)
def test_bad_packets_change_nothing(path: str, given: Any, error: str) -> None:
    with create(path) as rb:
        add(rb, value(1), value(2))
        before = items(rb)
        for now, after in ((given, value(3)), (value(2), given)):
            with pytest.raises(InputError, match=error):
                add(rb, now, after)
            no = np.zeros(1, bool)
            state = np.zeros((1, 2), np.float32)
            with pytest.raises(InputError, match=error):
                rb.extend(
                    {"camera.top": [now], "state": state}, [0], [0.0], {"camera.top": [after], "state": state}, no, no
                )
        assert (len(rb), items(rb)) == (1, before)
        add(rb, value(2), value(3))


def test_a_row_that_is_no_transition_may_have_none(path: str) -> None:
    with create(path) as rb:
        add(rb, None, None, valid=False)
        with pytest.raises(InputError, match="flags"):
            add(rb, value(2)[28:], None, valid=False)
        add(rb, value(1), value(2))
        assert len(rb) == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"video": {"camera": FACTS}}, "there is no column 'camera'"),
        ({"video": {"action": FACTS}}, "there is no column 'action'"),
        ({"video": {"reward": FACTS}}, "there is no column 'reward'"),
        ({"video": {"state": FACTS}}, r"must be \(48, 64, 3\) of uint8"),
        ({"video": {"camera.top": "h264"}}, "mapping of columns to Video"),
        ({"video": FACTS}, "mapping of columns to Video"),
        ({"video": {"camera.top": dr.Video("h264", 48, 64)}}, r"must be \(64, 48, 3\) of uint8"),
        ({"num_envs": 2}, "one environment a stream, got num_envs=2"),
        ({"frame_stack": 2}, "cannot have a frame_stack"),
        ({"frame_stack": {"camera.top": 2}}, "cannot have a frame_stack"),
        ({"observation_space": spaces.Dict({"camera.top": spaces.Box(0, 1, (48, 64, 3), np.uint8)})}, "must be an obs"),
        ({"view": dr.Hindsight(lambda *_: 0)}, "Hindsight cannot take ragged columns"),
        ({"ragged": None}, "cannot take ragged columns"),
    ],
)
def test_bad_specs_make_no_store(path: str, options: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        create(path, **options)
    assert not pathlib.Path(path).exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("mjpeg", 8, 8), "must be one of"),
        (("av1", 0, 8), "width must be 1 to 8192"),
        (("av1", 8, 8193), "height must be 1 to 8192"),
        (("av1", 8, 8, ""), "pix_fmt must be"),
        (("av1", 8, 8, "yuv420p", 0), "fps must be above 0"),
        (("av1", 8, 8, "yuv420p", "fast"), "fps must be a number"),
        (("av1", 8, 8, "yuv420p", float("nan")), "fps must be a number"),
        (("av1", 8, 8, "yuv420p", 30, b"extra"), "must be a tuple of bytes"),
        (("av1", 8, 8, "yuv420p", 30, ()), "must be 1 to 1024 bytes"),
        (("av1", 8, 8, "yuv420p", 30, ("x",)), "must be 1 to 1024 bytes"),
        (("av1", 8, 8, "yuv420p", 30, (b"x" * 65537,)), "must be 1 to 1024 bytes"),
    ],
)
def test_bad_facts_are_refused(arguments: tuple[Any, ...], error: str) -> None:
    with pytest.raises(InputError, match=error):
        dr.Video(*arguments)


def test_facts_come_back_from_json() -> None:
    for facts in (FACTS, dr.Video("av1", 1, 8192, "yuv444p10le", 30000 / 1001, (b"", b"\0\xff"))):
        assert video.Video.from_json(facts.to_json()) == facts
    assert dr.Video("vp9", 2, 2, fps=fractions.Fraction(30000, 1001)).to_json()["fps"] == [30000, 1001]
    for given in (30, 30.0, fractions.Fraction(30), np.float64(30)):
        assert dr.Video("vp9", 2, 2, fps=given) == dr.Video("vp9", 2, 2)
    assert "fps: 'int | float" in str(inspect.signature(dr.Video))


def test_other_streams_have_one_environment_too(path: str) -> None:
    create(path).close()
    with pytest.raises(InputError, match="one environment a stream, got num_envs=3"):
        dr.ReplayBuffer.open(path, stream="b", num_envs=3, capacity=9)
    dr.ReplayBuffer.open(path, stream="b").close()


@pytest.mark.parametrize(
    "change",
    [
        {"codec": "bmp"}, {"width": 0}, {"width": 64.0}, {"height": 1 << 20}, {"fps": [30]}, {"fps": [30, 0]},
        {"fps": "30"}, {"parameters": ["?"]}, {"parameters": [7]}, {"parameters": []}, {"width": 65},
    ],
)  # fmt: skip
def test_a_schema_with_other_facts_is_refused(path: str, change: dict[str, Any]) -> None:
    with create(path) as rb:
        stored = rb.schema.to_json()
    assert Schema.from_json(stored) == rb.schema
    stored["ragged"][0]["video"] |= change
    with pytest.raises((CorruptionError, SchemaError)):
        Schema.from_json(stored)


def test_the_packets_of_a_record() -> None:
    for wrong in (b"", b"x" * (64 << 20)):
        with pytest.raises(InputError, match="a packet must have"):
            video.record(wrong, True)
    for wrong in (5, "x", None, [300]):  # of 5, bytes() makes five zeros
        with pytest.raises(InputError, match="a packet must be bytes, got"):
            video.record(wrong, True)
    for wrong in (1 << 16, -1, "1", True):
        with pytest.raises(InputError, match="parameters must be"):
            video.record(b"x", True, wrong)
    found = video.records(value(3, parameters=1))
    assert [(bytes(one.data), one.key, one.parameters) for one in found] == [
        (bytes([at]) * (20 + at), not at, 1) for at in range(3)
    ]
    assert video.records(b"") == []
    both = np.concatenate([value(3, parameters=1), value(2, parameters=0)])
    assert np.array_equal(video.renumbered(both, [1, 0]), [*value(3, parameters=0), *value(2, parameters=1)])
    for damaged in (both[:-25], both):
        with pytest.raises(InputError, match="the records of packets are damaged"):
            video.renumbered(damaged, [1])


@pytest.mark.parametrize("side", [64, 8192])
def test_rows_of_frames_are_checked_as_those_of_pictures(path: str, side: int) -> None:
    facts = dr.Video("h264", side, 16)
    space = spaces.Dict({"top": spaces.Box(0, 255, facts.shape, np.uint8), "state": spaces.Box(-1, 1, (2,))})
    with create(path, observation_space=space, video={"top": facts}, columns={"note": ((None,), np.int64)}) as rb:
        rules = of_frames(rb.schema)
    seen = {"top": np.ones(facts.shape, np.int64), "state": np.zeros(2, np.float32)}
    row = rules.row(seen, 1, 0.0, seen, False, False, None, {"note": [1, 2]})
    assert [leaf.dtype for leaf in (*row.obs, *row.next_obs, *row.extras)] == [*"fB", *"fB", "l"]
    for wrong in (np.ones((2, 2, 3), np.uint8), b"packets", np.full(facts.shape, 256)):
        with pytest.raises(InputError, match="next_obs/top: must"):
            rules.row(seen, 1, 0.0, {**seen, "top": wrong}, False, False, None, {"note": []})
