"""A crash at every single operation of a workload, in every variant: nothing that was promised is lost."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest
from helpers.configs import Config
from helpers.crashing import Story
from helpers.effort import examples, stride
from helpers.model import Leaf, RaggedLeaf

import diskreplay as dr
from diskreplay.schema import columns as schema

STACKS = Config("stacks", Leaf((3, 12), frames=3, axis=0), frame_stack=3, capacity=14, chunk_rows=2, shard_rows=4)
FRAMES = Config(
    "frames and vectors of two environments", {"a": Leaf((2, 5)), "b": Leaf((3,), "f4")}, num_envs=2,
    frame_stack={"a": 3, "b": 1}, padding="reset", capacity=20, chunk_rows=2, shard_rows=4, columns={"value": "f4"},
)  # fmt: skip
RAGGED = Config(
    "ragged", {"a": RaggedLeaf(), "b": Leaf((2, 5))}, num_envs=2, capacity=24, chunk_rows=4, shard_rows=16,
    columns={"tokens": ((None,), "i4")},
)  # fmt: skip
GROWING = Config("ragged values that grow", RaggedLeaf(), capacity=12, chunk_rows=4, shard_rows=16)
VECTORS = Config("vectors", Leaf((3,), "f4"), capacity=10, chunk_rows=2, shard_rows=4)


def a_life(story: Story) -> None:
    """Chunks are sealed, shards roll, rows are evicted, checkpoints pin and are dropped, one is gone back to."""
    story.create()
    story.add(5)
    story.commit()
    story.add(6)
    story.checkpoint("first")
    story.add(11)
    story.close()
    story.open()
    story.checkpoint("second")
    story.drop("first")
    story.add(9)
    story.commit()
    story.close()
    story.back("second")
    story.add(3)
    story.close()


def wide_rows(story: Story) -> None:
    """Several environments and leaves, columns of the user."""
    story.create()
    story.add(7)
    story.commit()
    story.add(9)
    story.checkpoint("only")
    story.add(6)
    story.close()


def two_streams(story: Story) -> None:
    """A second writer joins; a checkpoint pins rows of both; each evicts for itself."""
    story.create()
    story.add(3)
    story.commit()
    story.open("b", num_envs=2, capacity=12)
    story.add(5, "b")
    story.commit("b")
    story.buffers["0"].refresh()
    story.checkpoint("both")
    story.add(9, "b")
    story.close()
    story.drop("both", "b")
    story.close("b")


def recoveries(story: Story) -> None:
    """What repairs the work of a crash may crash too."""
    story.create()
    story.add(7)
    story.commit()
    story.add(6)
    for at in (31, 55, 80):  # while shards grow; while new ones are made; after the record
        assert story.die(story.commit, at)
        story.open()
        story.add(8)
    story.checkpoint("here")
    story.add(4)
    story.close()
    assert story.die(lambda: story.back("here"), 5)  # the record went back, the shards did not
    story.open()
    assert story.die(lambda: story.drop("here"), 2)
    story.open()
    story.close()


def resized(story: Story) -> None:
    """Grown and shrunk, open, at opening, at a checkpoint and closed: rows that no commit holds come along."""
    story.create()
    story.add(9)
    story.commit()
    story.add(8)
    story.resize(24)
    story.add(12)
    story.checkpoint("here")
    story.add(2)
    story.resize(6)
    story.add(3)
    story.close()
    story.grow(18)
    story.add(5)
    story.close()
    story.grow(30, "here")
    story.add(3)
    story.resize(4)
    story.close()
    story.resize_closed(9)
    story.resize_closed(3)
    story.open()
    story.drop("here")
    story.add(2)
    story.close()


def resized_streams(story: Story) -> None:
    """Two streams at once: each is whole, as it was or as it is to be, and the same call again does the rest."""
    story.create()
    story.add(7)
    story.commit()
    story.open("b", num_envs=1, capacity=12)
    story.add(9, "b")
    story.close()
    story.close("b")
    story.resize_closed(80)
    story.open()
    story.add(6)
    story.resize(44)
    story.add(2)
    story.close()
    story.resize_closed(7)


CASES: list[tuple[Callable[[Story], None], Config]] = [
    (a_life, STACKS),
    (a_life, RAGGED),
    (a_life, GROWING),
    (wide_rows, FRAMES),
    (two_streams, VECTORS),
    (recoveries, VECTORS),
    (resized, STACKS),
    (resized_streams, FRAMES),
]


class Inline(concurrent.futures.Executor):
    """Compresses at once: a thousand stores are opened, and starting threads for each would take longest."""

    def __init__(self, *arguments: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(work(*arguments))
        return future


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::diskreplay.errors.SamplerWarning")  # priorities go with a crash, which it says
@pytest.mark.parametrize(
    ("workload", "config"), CASES, ids=[f"{workload.__name__}, {config.name}" for workload, config in CASES]
)
def test_every_operation(
    workload: Callable[[Story], None],
    config: Config,
    record_property: pytest.RecordProperty,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Inline)
    if workload is resized_streams:
        monkeypatch.setattr(schema, "RESIDENT_COLUMN_BYTES", 400)  # vectors leave RAM on the way
    story = Story(config, random_losses=examples(1), sampler=dr.Proportional, every=stride(300, "crash points"))
    workload(story)
    found = f"{story.points:,} crash points, {len(story.states):,} different disks, {story.checked:,} of them checked"
    record_property("figures", f"{workload.__name__}, {config.name}: {found}")
    assert story.points > 1000
    assert len(story.states) > 400
