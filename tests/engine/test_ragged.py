"""What goes into ragged columns, and what is refused before anything changes."""

from __future__ import annotations

import contextlib
import errno
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import GraphInstance
from helpers.diff import diff
from helpers.line import rows_in
from helpers.testing import FaultyFiles

import diskreplay as dr
from diskreplay.engine import appender
from diskreplay.engine.appender import Appender
from diskreplay.engine.ragged_rows import RaggedRows
from diskreplay.errors import CheckpointError, CorruptionError, InputError, ReadFailedError, SchemaError
from diskreplay.ops import combine, convert
from diskreplay.ops.verify import verify
from diskreplay.schema import ragged

VECTOR, CHOICE = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)
COLUMNS: dict[str, Any] = {"tokens": ((None,), np.int32), "points": ((None, 3), np.float32)}
ZERO = np.zeros(2, np.float32)


def create(path: Any, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path, VECTOR, CHOICE, **{"capacity": 50, "columns": COLUMNS, "seed": 0, **options})


def add(rb: dr.ReplayBuffer, tokens: Any, points: Any = None, **more: Any) -> None:
    rb.add(ZERO, 0, 0.0, ZERO, True, False, tokens=tokens, points=points, **more)


def newest(rb: dr.ReplayBuffer) -> dict[str, Any]:
    return dict(rb.get(rb.items()[-1:]).extra)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"tokens": [0.5]}, "do not fit without loss"),
        ({"tokens": np.array([1 << 40])}, "do not fit without loss"),
        ({"tokens": np.array([1.5])}, "do not fit without loss"),
        ({"tokens": [[1, 2], [3]]}, "ragged value"),
        ({"tokens": np.zeros((2, 2), np.int32)}, r"must have shape \(n,\)"),
        ({"tokens": 7}, "must be an array"),
        ({"tokens": np.array(7)}, "must be an array"),
        ({"tokens": "words"}, "must be an array .* give the code points"),
        ({"tokens": [1j]}, "real numbers"),
        ({"points": np.zeros((4, 2), np.float32)}, r"must have shape \(n, 3\)"),
        ({"points": [[1, 2]]}, r"must have shape \(1, 3\)"),
        ({"points": np.zeros((0, 2), np.float32)}, "must have shape"),
        ({"points": [[np.nan, 0, 0]]}, "must be finite"),
    ],
)
def test_bad_rows_change_nothing(path: str, given: dict[str, Any], error: str) -> None:
    with create(path, finite=True) as rb:
        add(rb, [1, 2])
        with pytest.raises(InputError, match=error):
            add(rb, **{"tokens": [3], **given})
        with pytest.raises(InputError):
            add(rb, [1, 2], unknown=[3])
        assert len(rb) == 1
        assert [column.end for column in rb.engine.streams.writer.items.values()] == [2, 0]
        add(rb, [3, 4, 5])
        assert newest(rb)["tokens"].values.tolist() == [[3, 4, 5]]


def test_a_row_longer_than_the_longest(path: str) -> None:
    space = spaces.Text(5, min_length=0, charset="abé")
    with dr.ReplayBuffer.create(path, space, CHOICE, capacity=9) as rb:
        for wrong in ("ababab", "abc", 7, np.arange(6)):
            with pytest.raises(InputError, match="obs"):
                rb.add(wrong, 0, 0.0, "a", False, False)
        with pytest.raises(InputError, match="next_obs"):
            rb.add("a", 0, 0.0, "x", False, False)
        assert not len(rb)
        rb.add("é", 0, 0.0, "", True, False)
        batch = rb.get(rb.items())
        assert batch.obs.values.tolist() == [[ord("é")]]
        assert batch.next_obs.values.shape == (1, 0)


def test_rows_of_several_environments_are_lists(path: str) -> None:
    with create(path, num_envs=2) as rb:
        step: Any = [np.zeros((2, 2), np.float32), [0, 0], [0.0, 0.0], np.zeros((2, 2), np.float32)]
        for wrong in ([1, 2, 3], [[1]], [[1], [2], [3]], np.int32(3), np.array(3), "ab"):
            with pytest.raises(InputError):
                rb.add(*step, [False] * 2, [False] * 2, tokens=wrong, points=[None, None])
        assert not rb.engine.streams.writer.end
        rb.add(*step, [False] * 2, [False] * 2, tokens=[[1], []], points=[np.ones((2, 3)), None])
        tokens = rb.get(rb.items()).extra["tokens"]
        assert (tokens.values.tolist(), tokens.length.tolist()) == ([[1], [0]], [1, 0])


def test_extend_takes_what_a_batch_shows(path: str, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    with create(path) as rb, create(tmp_path / "again", ragged="lists") as other:
        for _ in range(20):
            add(rb, rng.integers(0, 9, rng.integers(0, 9)), rng.random((rng.integers(0, 4), 3)).astype(np.float32))
        batch = rb.get(rb.items())
        for extra in (batch.extra, {name: padded.lists() for name, padded in batch.extra.items()}):
            other.extend(
                batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated, batch.truncated, **extra
            )
        again = other.get(other.items())
        for name in COLUMNS:
            assert again.extra[name][:20].values.tobytes() == again.extra[name][20:].values.tobytes()
            assert again.extra[name][:20].pad().values.tobytes() == batch.extra[name].values.tobytes()
        with pytest.raises(InputError, match="20 rows"):
            other.extend(
                batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated, batch.truncated,
                **{**batch.extra, "tokens": again.extra["tokens"]},
            )  # fmt: skip


def test_what_is_repeated_is_stored_once(path: str) -> None:
    space = spaces.Dict({"mission": spaces.Text(40, charset="open the door"), "at": VECTOR})
    names = ("obs/mission", "prompt")
    with dr.ReplayBuffer.create(
        path, space, CHOICE, capacity=2_000, columns={"prompt": ((None,), np.int32)},
        chunk_rows=dict.fromkeys(names, 64), shard_rows=dict.fromkeys(names, 1024),
    ) as rb:  # fmt: skip
        for step in range(1_000):
            here, there = (np.array([at / 1_000, 0], np.float32) for at in (step, step + 1))
            rb.add(
                {"mission": "open the door", "at": here}, 0, 0.0, {"mission": "open the door", "at": there}, False,
                False, prompt=np.arange(50),
            )  # fmt: skip
        rb.commit()
        items = rb.engine.streams.writer.items
        assert (items["obs/mission"].end, items["prompt"].end, len(rb.episodes)) == (13, 50, 1)


def test_old_spans_do_not_keep_what_others_left(path: str) -> None:
    with create(path, num_envs=2, capacity=40, chunk_rows={"tokens": 8}, shard_rows={"tokens": 64}) as rb:
        for step in range(400):
            still, moving = np.arange(5), np.full(7, step)
            rb.add(
                np.zeros((2, 2), np.float32), [0, 0], [0.0, 0.0], np.zeros((2, 2), np.float32), [False] * 2,
                [False] * 2, tokens=[still, moving], points=[None, None],
            )  # fmt: skip
            if step % 10 == 9:
                rb.commit()
        begin, end, _ = rb.engine.streams.writer.commit_record.of("ragged/tokens")
        assert end - begin < 40 * 12 + 64
        assert len(list(pathlib.Path(path).glob("streams/0/ragged/tokens/c.*"))) <= (end - begin) // 64 + 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"columns": {"x": ((None, None), np.int32)}}, "first None"),
        ({"columns": {"x": ((3, None), np.int32)}}, "first None"),
        ({"columns": {"x": ((None,), "U8")}}, "no portable data type"),
        ({"columns": {"x": ((None,), str)}}, "text is kept as code points"),
        ({"columns": {"x": bytes}}, "a dtype without a size"),
        ({"columns": {"x": spaces.Dict({"a": spaces.Text(3)})}}, "must be one array"),
        ({"columns": {"x": spaces.Graph(VECTOR, None)}}, "must be one array"),
        ({"columns": {"ragged": ((None,), np.int32)}}, "'ragged' cannot be a column"),
        ({"columns": {"ragged": np.int32}}, "'ragged' cannot be a column"),
        ({"later": {"ragged": np.int32}}, "'ragged' cannot be a column"),
        ({"later": {"x": ((None,), np.int32)}}, "cannot be ragged"),
        ({"observation_space": spaces.Text(9), "frame_stack": 2}, "cannot have a frame_stack"),
        ({"observation_space": spaces.Text(9), "frame_stack": 2, "stack_axis": None}, "cannot have a frame_stack"),
        ({"observation_space": spaces.Sequence(spaces.Dict(a=VECTOR))}, "make it a Dict or Tuple of Sequences"),
        ({"observation_space": spaces.Sequence(spaces.Sequence(VECTOR))}, "no single array"),
        ({"chunk_rows": {"tokens": 0}}, "must be 1 to"),
        ({"ragged": "padded"}, "must be Pad"),
        ({"ragged": {"logits": "lists"}}, "no ragged column 'logits'"),
        ({"ragged": {"tokens": None}}, "must be Pad"),
        ({"ragged": None}, "cannot take ragged columns"),
        ({"view": dr.Hindsight(lambda *_: 0)}, "Hindsight cannot take ragged columns"),
    ],
)
def test_bad_specs_make_no_store(path: str, options: dict[str, Any], error: str) -> None:
    arguments = {"observation_space": VECTOR, "action_space": CHOICE, "capacity": 5, "columns": COLUMNS, **options}
    with pytest.raises(InputError, match=error):
        dr.ReplayBuffer.create(path, **arguments)
    assert not pathlib.Path(path).exists()


def test_other_buffers_refuse_them(path: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(SchemaError, match="RolloutBuffer cannot take ragged"):
        dr.RolloutBuffer.create(path, spaces.Text(4), CHOICE, steps=4)
    with pytest.raises(SchemaError, match="MultiAgentReplayBuffer cannot take ragged"):
        dr.MultiAgentReplayBuffer.create(path, VECTOR, CHOICE, 2, capacity=9, columns=COLUMNS)
    assert not pathlib.Path(path).exists()
    with create(path) as rb:
        for _ in range(5):
            add(rb, [1])
    for kind in ("d4rl", "minari", "minari-arrow", "robomimic"):
        with pytest.raises((InputError, ModuleNotFoundError), match=r"the ragged column 'points' \(5\)|needs"):
            convert.export(path, tmp_path / "out", kind)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SchemaError, match="cannot take ragged columns"):
        dr.ReplayBuffer.open(path, ragged=None)


GRAPH = spaces.Graph(spaces.Box(0, 1, (3,)), spaces.Discrete(5))


def test_graphs_texts_and_sequences_nest(path: str) -> None:
    space = spaces.Dict({
        "graph": GRAPH, "bare": spaces.Graph(spaces.Discrete(4), None), "text": spaces.Text(30),
        "pair": spaces.Tuple([spaces.Sequence(spaces.Discrete(9)), spaces.Sequence(VECTOR, stack=True)]),
    })  # fmt: skip
    action = spaces.Sequence(spaces.MultiBinary(2))
    space.seed(1)
    action.seed(2)
    with dr.ReplayBuffer.create(path, space, action, capacity=50) as rb:
        steps = [(space.sample(), action.sample(), space.sample()) for _ in range(20)]
        edgeless = {**steps[0][0], "graph": GraphInstance(np.ones((1, 3), np.float32), None, None)}
        for obs, act, after in [(edgeless, (), edgeless), *steps]:
            rb.add(obs, act, 0.0, after, True, False)
        for wrong in (
            {**edgeless, "bare": GraphInstance(np.zeros(2, np.int64), np.zeros(1), np.zeros((1, 2), np.int32))},
            {**edgeless, "graph": ("nodes", 1)},
            {**edgeless, "pair": ((9,), np.zeros((1, 2), np.float32))},
        ):
            with pytest.raises(InputError):
                rb.add(wrong, (), 0.0, edgeless, False, False)
        rb.commit()
    with dr.ReplayBuffer.open(path, mode="r", ragged="lists") as rb:
        assert rb.observation_space == space
        batch = rb.get(rb.items())
        assert not len(batch.obs["graph"]["edges"][0])
        assert batch.obs["graph"]["edge_links"][0].shape == (0, 2)
        for at, (obs, act, after) in enumerate(steps, 1):
            for got, want in ((batch.obs, obs), (batch.next_obs, after)):
                assert "".join(map(chr, got["text"][at])) == want["text"]
                assert got["graph"]["nodes"][at].tolist() == want["graph"].nodes.tolist()
                edges = want["graph"].edges
                assert got["graph"]["edges"][at].tolist() == ([] if edges is None else list(edges))
                assert got["bare"]["nodes"][at].tolist() == list(want["bare"].nodes)
                assert tuple(got["pair"][0][at]) == want["pair"][0]
                assert np.array_equal(got["pair"][1][at], want["pair"][1])
            assert [tuple(bits) for bits in batch.action[at]] == [tuple(bits) for bits in act]


@pytest.mark.long
def test_stores_are_merged_split_and_compared(path: str, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(3)
    with create(path, num_envs=2, commit_rows=7) as rb:
        for _ in range(40):
            rb.add(
                rng.random((2, 2), np.float32), [0, 1], rng.random(2), rng.random((2, 2), np.float32),
                rng.random(2) < 0.3, [False] * 2, tokens=[rng.integers(0, 9, rng.integers(0, 6)) for _ in range(2)],
                points=[rng.random((rng.integers(0, 3), 3), np.float32) for _ in range(2)],
            )  # fmt: skip
    assert diff(path, path) is None
    assert verify(path).ok
    both = combine.merge(tmp_path / "both", [path, path])
    alone = combine.merge(tmp_path / "alone", [path])
    assert both.transitions == 2 * alone.transitions
    again = combine.merge(tmp_path / "again", [tmp_path / "alone"])
    assert again.transitions == alone.transitions
    assert diff(tmp_path / "alone", tmp_path / "again") is None
    parts = combine.split(tmp_path / "both", [0.5], [tmp_path / "a", tmp_path / "b"])
    assert sum(part.transitions for part in parts) == both.transitions
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found is not None
    for name in ("both", "alone", "a", "b"):
        assert verify(tmp_path / name).ok


@pytest.mark.parametrize("other", [((None,), np.int64), ((None, 2), np.int32), ((2,), np.int64), spaces.Text(3)])
def test_stores_with_other_ragged_columns_are_not_merged(path: str, tmp_path: pathlib.Path, other: Any) -> None:
    """Their columns of spans are alike."""
    for place, kind in ((path, ((None,), np.int32)), (tmp_path / "other", other)):
        dr.ReplayBuffer.create(place, CHOICE, CHOICE, capacity=9, columns={"x": kind}).close()
    with pytest.raises(InputError, match="other ragged columns"):
        combine.merge(tmp_path / "both", [path, tmp_path / "other"])


def test_rows_of_one_length_do_not_go_to_a_ragged_column(path: str, tmp_path: pathlib.Path) -> None:
    for place, kind in ((path, ((None,), np.int32)), (tmp_path / "other", np.int32)):
        with dr.ReplayBuffer.create(place, CHOICE, CHOICE, capacity=9, columns={"x": kind}) as rb:
            rb.add(0, 0, 0.0, 0, True, False, x=[1] if place == path else 1)
    convert.export(tmp_path / "other", tmp_path / "other.npz", "npz")
    with pytest.raises(InputError, match=r"the source's ragged columns \[\] are not the store's \['x'\]"):
        convert.import_dataset(tmp_path / "other.npz", path, append=True)


@pytest.mark.parametrize("many", [False, True])
def test_a_read_that_fails_once_stops_no_writer(path: str, many: bool) -> None:
    """The first row after opening looks at the pending observation, which stands on disk if it is long."""
    space = spaces.Sequence(spaces.Box(0, 99, (), np.int32), stack=True)
    values = [np.full(20_000, step, np.int32) for step in range(8)]
    files = FaultyFiles()

    def add_one(rb: dr.ReplayBuffer, step: int) -> None:
        if many:
            no = np.zeros(1, bool)
            rb.extend(values[step : step + 1], [0], [0.0], values[step + 1 : step + 2], no, no)
        else:
            rb.add(values[step], 0, 0.0, values[step + 1], False, False)

    with dr.ReplayBuffer.create(path, space, CHOICE, capacity=50, files=files) as rb:
        for step in range(5):
            add_one(rb, step)
    with dr.ReplayBuffer.open(path, files=files) as rb:
        files.fail_at(0, errno.EIO, names=["pread"], times=1)
        with pytest.raises(ReadFailedError):
            add_one(rb, 5)
        assert len(rb) == 5
        for step in (5, 6):
            add_one(rb, step)
        batch = rb.get(rb.items())
        assert batch.obs.values[:, 0].tolist() == list(range(7))
        assert (batch.next_obs.values[:, -1].tolist(), len(rb.episodes)) == (list(range(1, 8)), 1)


def test_extend_lets_readers_in_between(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[int] = []
    place = RaggedRows.place

    def counted(rows: RaggedRows, *given: Any) -> Any:
        placed[-1] += 1
        return place(rows, *given)

    class Counted(contextlib.AbstractContextManager[None]):
        def __init__(self, change: Any) -> None:
            self.change = change

        def __enter__(self) -> None:
            placed.append(0)
            self.change.__enter__()

        def __exit__(self, *error: Any) -> None:
            self.change.__exit__(*error)

    slice_steps = appender.PLACED_STEPS
    count = 2 * slice_steps + 1
    space = spaces.Sequence(spaces.Box(0, 9999, (), np.int32), stack=True)
    values = [np.array([step, 1], np.int32) for step in range(count + 1)]
    zeros, no = np.zeros(count, int), np.zeros(count, bool)
    with dr.ReplayBuffer.create(path, space, CHOICE, capacity=5_000) as rb:
        monkeypatch.setattr(RaggedRows, "place", counted)
        monkeypatch.setattr(rb.engine.appender, "change", Counted(rb.engine.appender.change))
        rb.extend(values[:-1], zeros, zeros * 0.0, values[1:], no, no)
        assert [steps for steps in placed if steps] == [slice_steps, slice_steps, 1]
        batch = rb.get(rb.items())
        assert batch.obs.values[:, 0].tolist() == list(range(count))
        assert (batch.next_obs.values[:, 0].tolist(), len(rb.episodes)) == (list(range(1, count + 1)), 1)
        items = rb.engine.streams.writer.items["obs"].end
        assert items == 2 * (count + 1), "each observation is stored once, over the slices' borders too"


def test_items_without_rows_stay_with_their_checkpoint(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    with dr.ReplayBuffer.create(path, CHOICE, CHOICE, capacity=50, columns={"tokens": ((None,), np.int32)}) as rb:
        rb.add(0, 0, 0.0, 1, True, False, tokens=[])
        rb.checkpoint("none")
        zeros, ends = np.zeros(3, int), np.ones(3, bool)
        with monkeypatch.context() as patched:
            patched.setattr(Appender, "add_run", stop)  # between the items and the first row
            with pytest.raises(KeyboardInterrupt):
                rb.extend(zeros, zeros, zeros * 0.0, zeros, ends, ~ends, tokens=[[1] * 9] * 3)
        rb.annotate_episode(rb.episodes[0], success=True)
        rb.checkpoint("some")
    with pytest.raises(CheckpointError, match=r"\['some'\] still need"):
        dr.ReplayBuffer.open(path, checkpoint="none")
    assert rows_in(path, checkpoint="some") == 1
    with dr.ReplayBuffer.open(path) as rb:
        rb.drop_checkpoint("some")
    with dr.ReplayBuffer.open(path, checkpoint="none") as rb:
        rb.add(0, 0, 0.0, 1, True, False, tokens=[2, 3])
        rb.commit()
        assert rb.get(rb.items()).extra["tokens"].lists()[1].tolist() == [2, 3]
    assert not verify(path).problems


def test_forged_spans_are_refused(path: str) -> None:
    with create(path) as rb:
        for step in range(6):
            add(rb, np.full(4, step))
        tokens = rb.engine.streams.writer.rows["tokens"]
        tokens.single[3] = 21, 30  # beyond the items
    with pytest.raises(
        CorruptionError, match="a span of the ragged column 'tokens' is 21 to 30; its items are 0 to 24"
    ):
        dr.ReplayBuffer.open(path)
    problems = verify(path).problems
    assert [problem.column for problem in problems] == ["tokens"]


def test_a_mixture_pads_to_the_longest_of_all(path: str, tmp_path: pathlib.Path) -> None:
    for side in ("right", "left"):
        with (
            create(tmp_path / f"one-{side}", ragged=dr.Pad(side=side)) as one,
            create(tmp_path / f"two-{side}", ragged=dr.Pad(side=side)) as two,
        ):
            for rb, size in ((one, 3), (two, 8)):
                for step in range(40):
                    add(rb, np.full(size - step % 2, size))
            tokens = dr.Mixture([one, two]).sample(64).extra["tokens"]
            assert tokens.values.shape == (64, 8)
            assert np.array_equal(tokens.values != 0, tokens.mask)
            assert (tokens.mask.sum(axis=1) == tokens.length).all()
            assert tokens.mask[:, 0 if side == "right" else -1].all()


def test_a_mixture_pads_on_the_side_of_its_parts_where_no_row_is_padded(path: str, tmp_path: pathlib.Path) -> None:
    forms = {"tokens": dr.Pad(side="left"), "points": dr.Pad()}
    with create(path, ragged=forms) as one, create(tmp_path / "two", ragged=forms) as two:
        add(one, [1, 2], np.ones((1, 3)))
        add(two, [1, 2, 3, 4], np.ones((2, 3)))
        mixture = dr.Mixture([one, two])
        batch = mixture.sample(2)
        for shown in (batch, mixture.get(batch.index)):
            assert shown.extra["tokens"].values.tolist() == [[0, 0, 1, 2], [1, 2, 3, 4]]
            assert shown.extra["points"].mask.tolist() == [[True, False], [True, True]]
    with (
        dr.ReplayBuffer.open(path, ragged=forms) as one,
        dr.ReplayBuffer.open(tmp_path / "two") as two,
        pytest.raises(InputError, match="tokens is padded on the right here, and padded on the left there"),
    ):
        dr.Mixture([one, two])


def test_a_mixture_joins_lists(path: str, tmp_path: pathlib.Path) -> None:
    with create(path, ragged="lists") as one, create(tmp_path / "two", ragged="lists") as two:
        for rb, sizes in ((one, [1, 5, 3]), (two, [20, 2, 0])):
            for size in sizes:
                rb.add(ZERO, 0, float(size), ZERO, True, False, tokens=np.full(size, size), points=np.zeros((1, 3)))
        mixture = dr.Mixture([one, two])
        batch = mixture.sample(6)
        for shown in (batch, mixture.get(batch.index)):
            assert isinstance(shown.extra["tokens"], dr.Lists)
            found = [row.tolist() for row in shown.extra["tokens"]]
            assert found == [[size] * size for size in shown.reward.astype(int).tolist()]
    with (
        dr.ReplayBuffer.open(path, ragged="lists") as one,
        dr.ReplayBuffer.open(tmp_path / "two") as two,
        pytest.raises(InputError, match="do not fit"),
    ):
        dr.Mixture([one, two])


def test_a_slice_of_lists_is_no_copy() -> None:
    lists = ragged.Lists(np.arange(1, 10), np.array([0, 3, 3, 9]))
    for stop in range(-4, 5):
        for start in (None, *range(-4, 5)):
            found = lists[start:stop]
            assert [row.tolist() for row in found] == [row.tolist() for row in [*lists][start:stop]]
            assert found.offsets[0] == 0
            assert not len(found.values) or np.shares_memory(found.values, lists.values)
    assert [row.tolist() for row in lists[::-1]] == [[4, 5, 6, 7, 8, 9], [], [1, 2, 3]]


def test_padding_is_as_it_says() -> None:
    lists = ragged.Lists(np.arange(1, 10), np.array([0, 3, 3, 9]))
    assert [row.tolist() for row in lists] == [[1, 2, 3], [], [4, 5, 6, 7, 8, 9]]
    assert lists[[2, 0]].values.tolist() == [4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert lists[-1].tolist() == lists[np.array([False, False, True])].values.tolist()
    assert lists.pad(dr.Pad(to=4)).values.tolist() == [[1, 2, 3, 0], [0] * 4, [4, 5, 6, 7]]
    assert lists.pad(dr.Pad(multiple=4, side="left")).mask.sum(axis=1).tolist() == [3, 0, 6]
    left = lists.pad(dr.Pad(side="left"))
    assert left.values[0].tolist() == [0, 0, 0, 1, 2, 3]
    assert left.lists().values.tolist() == lists.values.tolist()
    for wrong in ({"to": 0}, {"multiple": 0}, {"side": "up"}, {"to": 10, "multiple": 4}):
        with pytest.raises(InputError):
            dr.Pad(**wrong)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (dr.Lists(np.arange(3), np.array([0, 2, 9])), "offsets of lists"),
        (dr.Lists(np.arange(3), np.array([0, 3, 1])), "offsets of lists"),
        (dr.Lists(np.arange(3), np.array([-1, 1, 3])), "offsets of lists"),
        (dr.Lists(np.arange(3), np.array([0.0, 1.0, 3.0])), "offsets of lists"),
        (dr.Lists(np.arange(3), np.array([], np.int64)), "offsets of lists"),
        (dr.Lists(np.arange(3), None), "offsets of lists"),
        (dr.Padded(np.zeros((2, 3), np.int32), np.ones((2, 2), bool), np.array([2, 2])), "mask of padded"),
        (dr.Padded(np.zeros((2, 3), np.int32), np.ones((2, 3), bool), np.array([1, 3])), "mask of padded"),
        (dr.Padded(np.zeros((2, 3), np.int32), np.ones((2, 3), int), np.array([3, 3])), "mask of padded"),
        (dr.Padded(np.zeros((2, 3), np.int32), None, np.array([3, 3])), "mask of padded"),
    ],
)
def test_forms_whose_parts_do_not_fit_are_refused(path: str, given: Any, error: str) -> None:
    no, zeros = np.zeros(2, bool), np.zeros(2, np.int64)
    with dr.ReplayBuffer.create(path, CHOICE, CHOICE, capacity=9, columns={"tokens": ((None,), np.int32)}) as rb:
        with pytest.raises(InputError, match=error):
            rb.extend(zeros, zeros, zeros * 1.0, zeros, no, no, tokens=given)
        assert len(rb) == 0


@pytest.mark.parametrize("kind", [list, tuple])
def test_graphs_of_several_environments(path: str, kind: Any) -> None:
    """Gymnasium's vector environments give a tuple of them."""
    graphs = kind(GraphInstance(np.ones((count, 3), np.float32), None, None) for count in (1, 2))
    with dr.ReplayBuffer.create(path, spaces.Dict(graph=GRAPH), CHOICE, num_envs=2, capacity=9) as rb:
        rb.add({"graph": graphs}, [0, 0], [0.0, 0.0], {"graph": graphs}, [True, True], [False, False])
        assert rb.get(rb.items()).obs["graph"]["nodes"].length.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"edge_links": np.array([[0, 1]], np.int32)}, "a link for each edge"),
        ({"edge_links": None}, "a link for each edge"),
        ({"edges": None}, "a link for each edge"),
        ({"edge_links": np.array([[0, 1], [1, 2]], np.int32)}, "numbers of the 2 nodes"),
        ({"edge_links": np.array([[0, 1], [-1, 0]], np.int32)}, "numbers of the 2 nodes"),
        ({"edge_links": "ab"}, "a link for each edge"),
        ({"edge_links": [[0], [1, 2]]}, "edge_links"),
    ],
)
def test_graphs_whose_links_do_not_fit_are_refused(path: str, change: dict[str, Any], error: str) -> None:
    links = np.array([[0, 1], [1, 0]], np.int32)
    good = spaces.GraphInstance(np.zeros((2, 3), np.float32), np.array([1, 2]), links)
    with dr.ReplayBuffer.create(path, GRAPH, CHOICE, capacity=9) as rb:
        with pytest.raises(InputError, match=error):
            rb.add(good._replace(**change), 0, 0.0, good, True, False)
        with pytest.raises(InputError, match=error):
            rb.add(good, 0, 0.0, good._replace(**change), True, False)
        rb.add(good, 0, 0.0, good, True, False)
        assert len(rb) == 1


def test_wrong_forms_are_refused_by_name(path: str) -> None:
    with create(path) as rb:
        add(rb, [1, 2])
    with pytest.raises(InputError, match="no ragged column ''"):
        dr.ReplayBuffer.open(path, ragged={"": "lists"})
    with pytest.raises(InputError, match="how must be Pad"):
        dr.Lists(np.arange(3), np.array([0, 3])).pad("left")  # type: ignore[arg-type]
