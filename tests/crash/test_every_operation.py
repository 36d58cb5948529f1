"""A crash at every single operation of a workload, in every variant: nothing that was promised is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import residency
from helpers.configs import Config
from helpers.crashing import Story
from helpers.effort import examples, stride
from helpers.model import Leaf, RaggedLeaf
from helpers.tale import scripted

import diskreplay as dr

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


WORKLOADS: dict[str, Callable[[Story], None]] = {
    # Chunks are sealed, shards roll, rows are evicted, checkpoints pin and are dropped, one is gone back to.
    "a_life": scripted(
        "create, add 5, commit, add 6, checkpoint first, add 11, close, open, checkpoint second, drop first, add 9,"
        "commit, close, back second, add 3, close"
    ),
    # Several environments and leaves, columns of the user.
    "wide_rows": scripted("create, add 7, commit, add 9, checkpoint only, add 6, close"),
    # A second writer joins; a checkpoint pins rows of both; each evicts for itself.
    "two_streams": scripted(
        "create, add 3, commit, open b num_envs=2 capacity=12, add 5 b, commit b, refresh, checkpoint both, add 9 b,"
        "close, drop both b, close b"
    ),
    "recoveries": recoveries,
    # Grown and shrunk, open, at opening, at a checkpoint and closed: rows that no commit holds come along.
    "resized": scripted(
        "create, add 9, commit, add 8, resize 24, add 12, checkpoint here, add 2, resize 6, add 3, close, grow 18,"
        "add 5, close, grow 30 here, add 3, resize 4, close, resize_closed 9, resize_closed 3, open, drop here, add 2,"
        "close"
    ),
    # Two streams at once: each is whole, as it was or as it is to be, and the same call again does the rest.
    "resized_streams": scripted(
        "create, add 7, commit, open b num_envs=1 capacity=12, add 9 b, close, close b, resize_closed 80, open, add 6,"
        "resize 44, add 2, close, resize_closed 7"
    ),
}
CASES = [
    ("a_life", STACKS), ("a_life", RAGGED), ("a_life", GROWING), ("wide_rows", FRAMES), ("two_streams", VECTORS),
    ("recoveries", VECTORS), ("resized", STACKS), ("resized_streams", FRAMES),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::diskreplay.errors.SamplerWarning")  # priorities go with a crash, which it says
@pytest.mark.parametrize(
    ("workload", "config"), CASES, ids=[f"{workload}, {config.name}" for workload, config in CASES]
)
def test_every_operation(
    workload: str,
    config: Config,
    record_property: pytest.RecordProperty,
) -> None:
    if workload == "resized_streams":
        residency.hold_windows_up_to(400)  # vectors leave RAM on the way
    story = Story(config, random_losses=examples(1), sampler=dr.Proportional, every=stride(600, "crash points"))
    WORKLOADS[workload](story)
    found = f"{story.points:,} crash points, {len(story.states):,} different disks, {story.checked:,} of them checked"
    record_property("figures", f"{workload}, {config.name}: {found}")
    assert story.points > 1000
    assert len(story.states) > 400
