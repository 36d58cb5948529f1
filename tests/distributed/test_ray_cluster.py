"""Several nodes, that share a disk or object storage: one is killed while collectors write from it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
from helpers import counting
from ray.cluster_utils import Cluster

import diskreplay as dr
from diskreplay.ops.verify import verify
from diskreplay.ray import Collectors

PATIENCE = 300


@contextlib.contextmanager
def nodes(*environments: dict[str, str]) -> Iterator[Any]:
    """The trainer's node has no place for collectors; each of the others has one for two, and its own variables."""
    if ray.is_initialized():
        ray.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            made.nodes = [made.add_node(num_cpus=2, env_vars=one) for one in environments]
            ray.init(address=made.address, log_to_driver=False, logging_level="error")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


@pytest.fixture
def cluster() -> Iterator[Any]:
    with nodes({}, {}) as made:
        yield made


def _until(holds: Any) -> None:
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < PATIENCE, "it has not come"
        time.sleep(0.01)


def test_training_survives_a_killed_node(cluster: Any, path: str) -> None:
    options: dict[str, Any] = {"capacity": 1_000_000, "steps_per_commit": 20, "seed": 0}
    spread = {"num_cpus": 1, "scheduling_strategy": "SPREAD"}
    with Collectors(
        3, path, counting.make_envs, counting.policy, actor_options=spread, sampler=dr.Recent(newest=300), **options
    ) as collecting:

        def facts() -> list[dict[str, Any]]:
            return list(collecting.stats()["collectors"])

        def sample() -> None:
            collecting.wait_to_sample(32, timeout=PATIENCE)
            counting.check(collecting.buffer.sample(32))

        _until(lambda: all(one["transitions"] >= 300 for one in facts()))
        sample()
        before = facts()
        nodes = [one["node"] for one in before]
        assert len(set(nodes)) == 2
        doomed = next(one for one in cluster.nodes if one.node_id == max(nodes, key=nodes.count))
        lost = [one for one in before if one["node"] == doomed.node_id]
        cluster.remove_node(doomed, allow_graceful=False)
        # One of the two that died has a place on the node that is left; the other waits for a node.
        _until(lambda: sum(one["node"] not in (None, doomed.node_id) for one in facts()) == 2)
        _until(lambda: collecting.stats()["restarts"] >= 2)
        for _ in range(20):
            sample()
        reached = {one["stream"]: one["transitions"] for one in facts() if one["stream"]}
        _until(lambda: all(one["transitions"] > reached.get(one["stream"], 0) for one in facts() if one["stream"]))
        # Between two calls a collector waits, for a moment.
        _until(lambda: {one["state"] for one in facts()} == {"collecting", "starting"})
        cluster.add_node(num_cpus=2)
        _until(lambda: all(one["transitions"] >= 300 for one in facts()))
        for _ in range(20):
            sample()
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        found = counting.check_all(reader)
        streams = reader.stats()["streams"]
        assert len(found) >= 5
        for one in (*before, *facts()):
            assert streams[one["stream"]]["end"] * counting.ENVS >= one["transitions"]
        assert {one["stream"] for one in lost} <= set(found)
    assert verify(path).ok


def test_what_was_pushed_survives_a_killed_node(server: int, tmp_path: pathlib.Path) -> None:
    url, spread = "s3://bucket/nodes.replay", {"num_cpus": 1, "scheduling_strategy": "SPREAD"}

    def disk(number: int) -> dict[str, str]:
        """Each node has one of its own."""
        return {"DISKREPLAY_MIRROR": str(tmp_path / f"node {number}")}

    with nodes(disk(0), disk(1)) as cluster:
        options: dict[str, Any] = {"capacity": 1_000_000, "steps_per_commit": 20, "push_seconds": 0.1, "seed": 0}
        with Collectors(
            3, url, counting.make_envs, counting.policy, actor_options=spread, sampler=dr.Proportional(),
            mirror=tmp_path / "mirror", **options,
        ) as collecting:  # fmt: skip

            def facts() -> list[dict[str, Any]]:
                return list(collecting.stats()["collectors"])

            def sample() -> None:
                collecting.wait_to_sample(32, timeout=PATIENCE)
                batch = collecting.buffer.sample(32)
                counting.check(batch)
                collecting.buffer.update_priorities(batch.index, batch.reward + 1.0)

            _until(lambda: all(one["transitions"] >= 300 for one in facts()))
            sample()
            before = facts()
            used = [one["node"] for one in before]
            assert len(set(used)) == 2
            doomed = next(one for one in cluster.nodes if one.node_id == max(used, key=used.count))
            lost = [one for one in before if one["node"] == doomed.node_id]
            cluster.remove_node(doomed, allow_graceful=False)
            _until(lambda: collecting.stats()["restarts"] >= 2)
            for _ in range(20):
                sample()
            collecting.buffer.checkpoint("after", metadata={"step": 21})
            total = collecting.buffer.sampler.total  # type: ignore[attr-defined]
            drawn = collecting.buffer.sample(32)
            cluster.add_node(num_cpus=2, env_vars=disk(2))
            _until(lambda: all(one["transitions"] >= 300 for one in facts()))
            sample()
            known = facts()
        # Whoever reads the URL, from another machine.
        with dr.ReplayBuffer.open(url, mode="r", mirror=tmp_path / "elsewhere") as reader:
            found = counting.check_all(reader)
            streams = reader.stats()["streams"]
            for one in (*before, *known):
                assert streams[one["stream"]]["end"] * counting.ENVS >= one["transitions"] > 0
            assert {one["stream"] for one in lost} <= set(found)
            assert not {one["stream"] for one in lost} & {one["stream"] for one in known}
        assert verify(url).ok
        # The trainer, started again on another machine.
        with Collectors(
            1, url, counting.make_envs, counting.policy, actor_options=spread, mirror=tmp_path / "third",
            sampler=dr.Proportional(), checkpoint="latest", **options,
        ) as again:  # fmt: skip
            assert again.buffer.checkpoint_metadata("after") == {"step": 21}
            np.testing.assert_array_equal(again.buffer.sample(32).index, drawn.index)
            assert again.buffer.sampler.total == total  # type: ignore[attr-defined]
            assert again.stats()["inserts"] >= sum(one["transitions"] for one in known)
