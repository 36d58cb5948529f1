"""inspect: figures against the store's own, and what can still be said of a damaged one."""

from __future__ import annotations

import json
import pathlib

import gymnasium
import numpy as np
import pytest
from diskreplay_cli import page
from ops.stores import fill, images

import diskreplay as dr
from diskreplay.errors import StoreNotFoundError
from diskreplay.ops.inspect import inspect, spread


def test_facts(path: str) -> None:
    images(path, rows=60, capacity=80)
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("one", {"note": "here"})
        facts = inspect(path)  # beside the writer
        assert "process" in (facts.streams[0].writer or "")
        assert facts.transitions == len(buffer)
        episodes = buffer.episodes
    assert (facts.capacity, facts.streams[0].begin, facts.streams[0].end, facts.streams[0].num_envs) == (80, 20, 60, 2)
    assert (facts.health, facts.frame_stack) == ((), {"obs": 3})
    complete = [e for e in episodes if e.complete_start and (e.terminated or e.truncated)]
    assert facts.episodes is not None
    assert facts.episodes.lengths is not None
    assert facts.episodes.returns is not None
    assert (facts.episodes.count, facts.episodes.complete) == (len(episodes), len(complete))
    assert facts.episodes.complete + facts.episodes.running + facts.episodes.cut_off == len(episodes)
    assert facts.episodes.returns.mean == pytest.approx(np.mean([e.total_reward for e in complete]))
    assert sum(facts.episodes.returns.counts) == len(complete)
    obs = next(column for column in facts.columns if column.name == "obs")
    files = list(pathlib.Path(path, "streams/0/obs").glob("c.*"))
    assert (obs.shape, obs.dtype, obs.chunk_rows, obs.shard_rows, obs.codec) == ((40, 40), "uint8", 4, 16, "lz4hc:4")
    assert (obs.files, obs.stored_bytes) == (len(files), sum(file.stat().st_size for file in files))
    first = min(int(file.name.split(".")[1]) for file in files) * 16
    assert obs.raw_bytes == (60 - first) * 2 * 1600
    assert obs.ratio == pytest.approx(obs.raw_bytes / obs.stored_bytes)
    (checkpoint,) = facts.checkpoints
    assert (checkpoint.name, checkpoint.rows, checkpoint.metadata) == ("one", {"0": (20, 60)}, {"note": "here"})
    assert facts.stored_bytes == sum(f.stat().st_size for f in pathlib.Path(path).rglob("*") if f.is_file())
    assert json.loads(json.dumps(facts.to_json(), allow_nan=False))["columns"][0]["ratio"] == obs.ratio
    assert inspect(path).streams[0].writer is None


@pytest.mark.parametrize("continuity", ["observations", "flags"])
def test_ends_by_cause_and_continuity(path: str, continuity: str) -> None:
    images(path, rows=60, continuity=continuity)
    facts = inspect(path)
    assert facts.continuity == continuity
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert facts.streams[0].ends == buffer.stats()["streams"]["0"]["ends"]
    assert sum((facts.streams[0].ends or {}).values()) > 0
    assert json.loads(json.dumps(facts.to_json()))["streams"][0]["ends"] == facts.streams[0].ends


def test_an_empty_store(path: str) -> None:
    images(path, rows=0)
    facts = inspect(path)
    assert (facts.transitions, facts.raw_bytes, facts.health) == (0, 0, ())
    assert facts.episodes is not None
    assert facts.episodes.lengths is None
    assert all(column.ratio == 0 for column in facts.columns)


def test_several_streams_are_added_up(path: str) -> None:
    images(path, rows=10)
    with dr.ReplayBuffer.open(path, stream="second", num_envs=3, capacity=90) as buffer:
        fill(buffer, 8)
        held = len(buffer)
    facts = inspect(path)
    assert [stream.name for stream in facts.streams] == ["0", "second"]
    assert (facts.transitions, facts.capacity) == (held, 290)
    obs = next(column for column in facts.columns if column.name == "obs")
    assert obs.raw_bytes == (10 * 2 + 8 * 3) * 1600


@pytest.mark.parametrize("column", ["obs", "reward"])
def test_a_missing_shard_is_named(path: str, column: str) -> None:
    images(path, chunk_rows={"obs": 4, "reward": 4}, shard_rows={"obs": 16, "reward": 16})
    (file,) = pathlib.Path(path, "streams/0", column).glob("c.1.*")
    file.unlink()
    facts = inspect(path)
    assert facts.transitions is None
    assert facts.episodes is None
    assert facts.streams[0].ends is None or column == "obs"
    assert any(str(file) in problem and "missing" in problem for problem in facts.health)
    assert facts.streams[0].end == 50


def test_a_short_last_shard_is_named(path: str) -> None:
    images(path)
    file = pathlib.Path(path, "streams/0/obs/c.3.0.0.0")
    file.write_bytes(file.read_bytes()[:-1])
    assert any("committed bytes" in problem for problem in inspect(path).health)


def test_an_unreadable_commit_record_is_named(path: str) -> None:
    images(path)
    pathlib.Path(path, "streams/0/zarr.json").write_text("{")
    pathlib.Path(path, "streams/0/start/tail.1").unlink()  # else the record in the tail is taken
    facts = inspect(path)
    assert facts.streams == ()
    assert any("zarr.json" in problem for problem in facts.health)


def test_nothing_to_inspect(path: str) -> None:
    with pytest.raises(StoreNotFoundError):
        inspect(path)


def test_spread() -> None:
    assert spread([]) is None
    one = spread([3.0])
    assert one is not None
    assert (one.least, one.median, one.mean, one.most, one.counts) == (3, 3, 3, 3, (1,))
    many = spread([float(x) for x in range(100)])
    assert many is not None
    assert sum(many.counts) == 100
    assert len(many.edges) == len(many.counts) + 1 <= 25


def test_a_mixture_of_samplers_is_shown_as_it_is_written(tmp_path: pathlib.Path) -> None:
    sampler = dr.SamplerMixture([dr.Recent(newest=20), dr.Uniform()], weights=(1, 2))
    space = gymnasium.spaces.Discrete(3)
    dr.ReplayBuffer.create(tmp_path / "a.replay", space, space, capacity=10, sampler=sampler).close()
    shown = page._settings(inspect(tmp_path / "a.replay"))
    assert shown.endswith("SamplerMixture(samplers=[Recent(newest=20), Uniform()], weights=[1.0, 2.0])")


def test_checkpoints_of_a_mixture_say_so(tmp_path: pathlib.Path) -> None:
    space, paths = gymnasium.spaces.Discrete(3), [tmp_path / "a.replay", tmp_path / "b.replay"]
    buffers = [dr.ReplayBuffer.create(path, space, space, capacity=10, seed=0) for path in paths]
    with dr.Mixture(buffers, fractions=(1, 2)) as mixture:
        for buffer in buffers:
            for step in range(6):
                buffer.add(step % 3, 0, 0.0, (step + 1) % 3, False, False)
        buffers[0].checkpoint("alone")
        mixture.sample(6)
        mixture.checkpoint("both")
        shown = [dict(page._lines(inspect(path))) for path in paths]
    assert [one.mixture for one in inspect(paths[0]).checkpoints] == [None, {"fractions": [1, 2], "given": [2, 4]}]
    (other,) = inspect(paths[1]).checkpoints
    assert other.mixture == {"keeper": buffers[0].schema.identity}
    assert shown[0][""].endswith("of a mixture that has drawn [2, 4] of its parts")
    assert shown[1]["checkpoint"].endswith("of a mixture kept in another store")


def test_what_a_rate_limiter_has_counted_is_shown(tmp_path: pathlib.Path) -> None:
    space = gymnasium.spaces.Discrete(3)
    with dr.ReplayBuffer.create(tmp_path / "a.replay", space, space, capacity=10) as buffer:
        buffer.add(0, 0, 0.0, 1, False, False)
        assert "  sampled" not in dict(page._lines(inspect(tmp_path / "a.replay")))
        dr.RateLimiter(buffer, 8, 1, 9).wait_to_sample(4)
        buffer.commit()
        facts = inspect(tmp_path / "a.replay")
    assert facts.streams[0].sampled == facts.to_json()["streams"][0]["sampled"] == 4
    assert dict(page._lines(facts))["  sampled"].startswith("4 transitions")


@pytest.mark.parametrize("values", [[1e17] * 40, [1e17, 1e17 + 16] * 9, [-1e308, 1e308], [0.0, 5e-324]])
def test_spread_of_values_that_have_no_bins_between_them(values: list[float]) -> None:
    found = spread(values)
    assert found is not None
    assert sum(found.counts) == len(values)
    assert (found.least, found.most) == (min(values), max(values))
