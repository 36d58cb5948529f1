"""Merged and split stores, episode by episode."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import FRAME, check, given_stacks, moved_window, read, several_envs, several_streams, store
from gymnasium import spaces
from helpers.diff import diff

import diskreplay as dr
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.formats.core.format import Holds
from diskreplay.ops import combine
from diskreplay.ops.combine import deal, merge, split
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.edit import edit
from diskreplay.ops.verify import verify

ALL = Holds(stacks=True)


@pytest.mark.parametrize("name", ["environments and streams", "given stacks", "frames"])
def test_merge(name: str, tmp_path: pathlib.Path) -> None:
    makers = {
        "environments and streams": [several_envs, several_streams],
        "given stacks": [given_stacks(0, "odd"), given_stacks(0, "zero")],
        "frames": [store(FRAME, spaces.Discrete(3), frame_stack=3), store(FRAME, spaces.Discrete(3), frame_stack=3)],
    }[name]
    paths = [str(tmp_path / f"{number}.replay") for number in range(len(makers))]
    for make, path in zip(makers, paths, strict=True):
        make(path)
    result = merge(tmp_path / "all.replay", paths)
    wanted = [episode for path in paths for episode in read(path)]
    assert (result.episodes, result.transitions) == (len(wanted), sum(map(len, wanted)))
    check(read(tmp_path / "all.replay"), wanted, ALL)
    assert verify(tmp_path / "all.replay").ok


@pytest.mark.long
@pytest.mark.parametrize("given", ["stacks", "frames"])
def test_frame_stacks_beside_texts(given: str, path: str, tmp_path: pathlib.Path) -> None:
    """A store may stack one leaf of its observations, and hold texts in another."""
    shape = (3, 2) if given == "stacks" else (2,)
    space = spaces.Dict(state=spaces.Box(-99, 99, shape, np.float32), word=spaces.Text(9, min_length=0))

    def shown(at: int) -> dict[str, Any]:
        stack = np.repeat([[max(0, at - 2)], [max(0, at - 1)], [at]], 2, axis=1).astype(np.float32)
        return {"state": stack if given == "stacks" else stack[-1], "word": "ab" * (at % 4)}

    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=99, frame_stack={"state": 3}) as rb:
        for at in range(1, 9):
            rb.add(shown(at), 0, float(at), shown(at + 1), at == 8, False)
    merge(tmp_path / "both", [path, path], allow_loss=True)
    edit(path, tmp_path / "less", steps=[slice(3, 5)], allow_loss=True)
    assert diff(path, path) is None
    assert "transitions: 8 and 16" in str(diff(path, tmp_path / "both"))
    for name, wanted in (("both", [*range(1, 9)] * 2), ("less", [1, 2, 3, 6, 7, 8])):
        with dr.ReplayBuffer.open(tmp_path / name, mode="r", view=dr.Transition(), ragged="lists") as rb:
            batch = rb.get(rb.items())
            assert batch.reward.tolist() == wanted
            for at, state, word in zip(wanted, batch.obs["state"], batch.obs["word"], strict=True):
                assert state[-1].tolist() == [at, at]
                assert "".join(map(chr, word)) == shown(at)["word"]
            assert given == "frames" or batch.obs["state"].tolist() == [shown(at)["state"].tolist() for at in wanted]


def test_what_cannot_be_merged(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    other, out = str(tmp_path / "b.replay"), tmp_path / "all.replay"
    for options, said in (
        ({"action": spaces.Discrete(2)}, "action space"), ({"columns": {"x": np.int8}}, "columns .* they differ in x$"),
        ({"frame_stack": 2}, "frame stacks"), ({"obs": spaces.Box(-1, 1, (5,))}, "observation space"),
    ):  # fmt: skip
        name = f"{other}-{said.split()[0]}"
        store(**options)(name)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=f"other {said}"):
            merge(out, [path, name])
    moved_window(other)
    with pytest.raises(InputError, match=r"stacked frames .* \(2\).*--allow-loss"):
        merge(out, [other])
    with pytest.raises(InputError, match="apart"):
        merge(path, [path])
    with pytest.raises(InputError, match="at least one"):
        merge(out, [])
    assert not out.exists()
    assert merge(out, [other], allow_loss=True).transitions == 20


def key(episode: Any) -> bytes:
    return episode.obs["obs"].tobytes() + episode.next_obs["obs"].tobytes()


@pytest.mark.long
def test_split(path: str, tmp_path: pathlib.Path) -> None:
    store(lengths=[(3 + number % 5, (True, False)) for number in range(40)])(path)
    results = split(path, [0.5, 0.25], seed=3)
    assert [pathlib.Path(result.path).name for result in results] == ["a-1.replay", "a-2.replay", "a-3.replay"]
    total = sum(result.transitions for result in results)
    assert abs(results[0].transitions / total - 0.5) < 0.05
    assert abs(results[1].transitions / total - 0.25) < 0.05
    parts = [read(result.path) for result in results]
    assert sorted(key(episode) for part in parts for episode in part) == sorted(map(key, read(path)))
    assert all(verify(result.path).ok for result in results)
    again = split(path, [0.5], [tmp_path / "x", tmp_path / "y"], seed=3)
    assert [key(e) for e in read(again[0].path)] == [key(e) for e in parts[0]]
    other = split(path, [0.5], [tmp_path / "z", tmp_path / "w"], seed=4)
    assert [key(e) for e in read(other[0].path)] != [key(e) for e in parts[0]]


def test_a_split_beside_a_writer(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the window moved on between two parts, and episodes were in both of them, or in neither."""
    line, turn = spaces.Box(-np.inf, np.inf, (), np.float32), spaces.Discrete(2)

    def play(buffer: dr.ReplayBuffer, episode: int) -> None:
        for step in range(3):
            buffer.add(100 * episode + step, 0, 1.0, 100 * episode + step + 1, step == 2, False)

    with dr.ReplayBuffer.create(path, line, turn, capacity=60, commit_seconds=1e9) as buffer:
        for episode in range(20):
            play(buffer, episode)
        buffer.commit()
        write, more = combine.write_store, iter(range(20, 30))

        def write_and_move_on(*arguments: Any) -> None:
            write(*arguments)
            for _ in range(3):
                play(buffer, next(more))
            buffer.commit()

        monkeypatch.setattr(combine, "write_store", write_and_move_on)
        results = split(path, [0.5, 0.3], seed=1)
    starts = []
    for result in results:
        with dr.ReplayBuffer.open(result.path, mode="r") as part:
            starts += part.get(part.items()).obs[::3].tolist()
    assert sorted(starts) == [100 * episode for episode in range(20)]


def test_bad_splits_leave_nothing(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("")
    cases: list[tuple[list[float], list[Any], type[Exception], str]] = [
        ([], [], InputError, "fractions"), ([0.6, 0.6], [], InputError, "at most 1"),
        ([1.0], [], InputError, "0 and 1"),
        ([0.5], [tmp_path / "x"], InputError, "2 stores are to be made, but 1"),
        ([0.5], [tmp_path / "x"] * 2, InputError, "different names"),
        ([0.5], [tmp_path / "x", tmp_path / "b"], InputError, "exists"),
        ([0.1] * 9, [], NotEnoughDataError, "7 episodes"),
    ]  # fmt: skip
    for fractions, outs, error, said in cases:
        with pytest.raises(error, match=said):
            split(path, fractions, outs)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.replay", "b"]


def test_dealing() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        lengths = rng.integers(1, 100, rng.integers(3, 60)).tolist()
        dealt = deal(lengths, [0.6, 0.3, 0.1], seed)
        assert sorted(number for part in dealt for number in part) == list(range(len(lengths)))
        assert all(dealt)


def test_one_buffer_is_enough_for_both(path: str, tmp_path: pathlib.Path) -> None:
    """What was split can be merged, and sampled from."""
    store()(path)
    merge(tmp_path / "all", [result.path for result in split(path, [0.5])])
    with dr.ReplayBuffer.open(tmp_path / "all", seed=0) as buffer, dr.ReplayBuffer.open(path, mode="r") as before:
        assert len(buffer) == len(before)
        assert buffer.sample(8).obs.shape == (8, 5)


def options(path: Any) -> tuple[bool, str]:
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        return reader.schema.finite, reader.schema.continuity


@pytest.mark.parametrize("chosen", [{}, {"finite": True}, {"continuity": "flags"}])
def test_copies_keep_refused_values_and_ends_of_episodes(
    chosen: dict[str, Any], path: str, tmp_path: pathlib.Path
) -> None:
    store(**chosen)(path)
    wanted = chosen.get("finite", False), chosen.get("continuity", "observations")
    assert options(path) == wanted
    merge(tmp_path / "all.replay", [path])
    split(path, [0.5], [tmp_path / "part.replay", tmp_path / "rest.replay"])
    export(path, tmp_path / "out.replay", "store")
    import_dataset(path, tmp_path / "in.replay", "store")
    for copy in ("all", "part", "rest", "out", "in"):
        assert options(tmp_path / f"{copy}.replay") == wanted, copy
    assert options(path) == wanted


def test_merged_stores_that_differ_in_what_they_refuse(tmp_path: pathlib.Path) -> None:
    for name, chosen in (("a", {"finite": True}), ("b", {}), ("c", {"continuity": "flags"})):
        store(**chosen)(str(tmp_path / name))
    merge(tmp_path / "ab", [tmp_path / "a", tmp_path / "b"])
    merge(tmp_path / "ac", [tmp_path / "a", tmp_path / "c"])
    assert options(tmp_path / "ab") == (False, "observations")
    assert options(tmp_path / "ac") == (False, "flags")


def test_a_rollout_that_refuses_nan_has_some_and_is_copied(path: str, tmp_path: pathlib.Path) -> None:
    with dr.RolloutBuffer.create(
        path, FRAME, spaces.Discrete(2), steps=8, finite=True, gamma=0.9, gae_lambda=0.9
    ) as rollout:
        obs = np.zeros(FRAME.shape, FRAME.dtype)
        for step in range(8):
            rollout.add(obs, 0, 1.0, obs, step == 3, step == 6, value=0.0, log_prob=0.0)
    merge(tmp_path / "all.replay", [path])
    import_dataset(path, tmp_path / "in.replay", "store")
    for copy in ("all", "in"):
        with dr.ReplayBuffer.open(tmp_path / f"{copy}.replay") as found:
            assert found.schema.finite
            assert np.isnan(found.get(np.arange(8)).extra["final_value"]).any()


def test_episodes_of_a_store_by_flags_stay_as_they_are(path: str, tmp_path: pathlib.Path) -> None:
    """No observation is the next one of the step before, and one episode ends without a flag."""
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 99, (1,), np.float32), spaces.Discrete(2), capacity=40, continuity="flags"
    ) as buffer:
        for step in range(20):
            if step == 13:
                buffer.cut()
            buffer.add(np.float32([step]), 0, 0.0, np.float32([step + 50]), step == 5, False)
    merge(tmp_path / "all.replay", [path, path])
    wanted = read(path)
    assert [len(episode) for episode in wanted] == [6, 7, 7]
    check(read(tmp_path / "all.replay"), [*wanted, *wanted], ALL)
