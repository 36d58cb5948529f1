"""Stores that writers of an older version broke, when they were interrupted, are opened or repaired without loss.

How each came about is said in ``interrupted_recipes.py``; the rows that were added stand in its log.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from format.specreader import Store as SpecStore
from helpers.effort import places

import diskreplay as dr
from diskreplay.errors import CorruptionError
from diskreplay.ops.repair import repair
from diskreplay.ops.verify import verify
from diskreplay.testing import Crash, FaultyFiles, SimulatedDisk

HERE = pathlib.Path(__file__).parent / "interrupted"
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
READABLE = {
    "patches-twice", "patches-with-a-hole", "tails-of-a-checkpoint-left-behind", "wide-vectors", "window-add",
    "window-add-stacked", "window-checkpoint", "window-extend",
}  # fmt: skip
WRONG = {"patches-overwritten", "patches-unknown"}
"""They can be opened, with the next observation of one transition wrong. All others are refused until repaired."""
BROKEN = [
    "patches-overwritten", "patches-past-a-shard", "patches-short", "patches-short-and-on", "patches-short-of-a-leaf",
    "patches-short-of-frames", "patches-short-twice", "patches-twice", "patches-unknown", "patches-with-a-hole",
    "tails-in-the-same-shard", "tails-of-a-checkpoint", "tails-of-a-checkpoint-left-behind", "tails-of-all-rows",
    "tails-of-everything", "tails-of-obs", "tails-of-the-first-commit", "tails-opened", "window-add",
    "window-add-stacked", "window-checkpoint", "window-extend",
]  # fmt: skip
GIVEN_UP = {"tails-opened": [15, 16, 17, 18], "patches-unknown": [32]}
"""Ids of what is on disk no more: rows whose shard that version unlinked when it opened the store to write; a next
observation that has two frames."""
CHECKPOINTS = {
    "tails-of-a-checkpoint": {"before": (0, 9), "after": (0, 17)},
    "tails-of-a-checkpoint-left-behind": {"wrong": (0, 9)},
    "window-checkpoint": {"full": (8, 18)},
}


class Log:
    """The rows that were added to a store."""

    def __init__(self, name: str) -> None:
        with np.load(HERE / f"{name}.npz") as file:
            self.arrays = {key: file[key] for key in file.files}
        self.begin, self.end = int(self.arrays["begin"]), int(self.arrays["committed"])
        assert len(self.arrays["reward"]) == self.end
        self.wide = "obs" in self.arrays and self.arrays["obs"].ndim == 1

    def leaves(self, name: str) -> list[str | None]:
        return [key.partition("/")[2] for key in self.arrays if key.startswith(f"{name}/")] or [None]

    def step(self, row: int) -> tuple[Any, ...]:
        """As it was given to ``add``."""

        def value(name: str) -> Any:
            leaves = self.leaves(name)
            return self.arrays[name][row] if leaves == [None] else {k: self.arrays[f"{name}/{k}"][row] for k in leaves}

        return tuple(value(name) for name in FIELDS)

    def compare(self, rb: dr.ReplayBuffer, rows: tuple[int, int], given_up: Sequence[int] = ()) -> None:
        """Every transition of these rows but those given up, no more and no less."""
        ids = np.setdiff1d(np.arange(rows[0] * rb.num_envs, rows[1] * rb.num_envs), given_up)
        assert len(rb) == len(ids)
        for part in np.array_split(ids, -(-len(ids) // 1024)):
            self.compare_batch(rb.get(part), part, rb.num_envs)

    def compare_batch(self, batch: Any, ids: np.ndarray, envs: int) -> None:
        row, env = np.divmod(ids, envs)
        for name in FIELDS:
            for leaf in self.leaves(name):
                given = self.arrays[name if leaf is None else f"{name}/{leaf}"]
                found = getattr(batch, name) if leaf is None else getattr(batch, name)[leaf]
                if self.wide:
                    expected = np.broadcast_to(given[row].reshape(-1, *[1] * (found.ndim - 1)), found.shape)
                else:
                    expected = given[row] if envs == 1 else given[row, env]
                np.testing.assert_array_equal(found, expected, err_msg=f"{name} {leaf}")


def kept(name: str) -> tuple[tuple[int, int], list[int]]:
    """Rows of the window, and the ids given up of them."""
    log = Log(name)
    return (log.begin, log.end), GIVEN_UP.get(name, [])


def copied(name: str, folder: pathlib.Path) -> pathlib.Path:
    shutil.copytree(HERE / f"{name}.replay", folder / f"{name}.replay")
    return folder / f"{name}.replay"


def contents(path: pathlib.Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_every_store_is_tested() -> None:
    assert {path.stem for path in HERE.glob("*.replay")} == {*BROKEN, "wide-vectors"}
    assert {path.stem for path in HERE.glob("*.npz")} == {*BROKEN, "wide-vectors"}


@pytest.mark.parametrize("name", sorted(READABLE))
def test_what_can_be_read_is_right(name: str) -> None:
    log = Log(name)
    with dr.ReplayBuffer.open(HERE / f"{name}.replay", mode="r") as rb:
        log.compare(rb, *kept(name))
    if name.startswith("window"):
        spec(HERE / f"{name}.replay", log, *kept(name))


@pytest.mark.parametrize("name", sorted({*BROKEN} - READABLE - WRONG))
def test_what_cannot_be_read_is_refused_and_left_as_it_is(name: str, tmp_path: pathlib.Path) -> None:
    """Regression: opening to write cut the shards down to tails that were wrong, before it looked at them."""
    path = copied(name, tmp_path)
    before = contents(path)
    for mode in ("r", "r+"):
        with pytest.raises(CorruptionError):
            dr.ReplayBuffer.open(path, mode=mode)
    assert not verify(path).ok
    assert contents(path) == before


@pytest.mark.parametrize("name", sorted(WRONG))
def test_what_is_read_wrong_is_found(name: str) -> None:
    """Regression: nothing looked whether a patch has the frame of the row that continues its own (I25)."""
    log = Log(name)
    assert not verify(HERE / f"{name}.replay").ok
    with dr.ReplayBuffer.open(HERE / f"{name}.replay", mode="r") as rb, pytest.raises(AssertionError, match="next_obs"):
        log.compare(rb, (log.begin, log.end))


def spec(
    path: pathlib.Path, log: Log, rows: tuple[int, int], given_up: Sequence[int] = (), checkpoint: str | None = None
) -> None:  # fmt: skip
    """The reader that knows the format's page alone sees the same rows."""
    (stream,) = SpecStore(path, checkpoint).streams.values()
    ids = stream.ids()
    assert ids == sorted(set(range(rows[0] * stream.envs, rows[1] * stream.envs)) - set(given_up))
    for number in ids:
        found = stream.transition(number)
        row, env = stream.locate(number)
        for name in ("obs", "next_obs"):
            for leaf in log.leaves(name):
                given = log.arrays[name if leaf is None else f"{name}/{leaf}"][row]
                np.testing.assert_array_equal(
                    found[name]["obs" if leaf is None else f"obs/{leaf}"], given[env] if stream.envs > 1 else given
                )
        assert found["reward"] == row


def write_on(path: pathlib.Path, log: Log, rows: tuple[int, int], given_up: Sequence[int]) -> None:
    """Rows come after those that are there, until the window holds no other, and all are what they should be."""
    with dr.ReplayBuffer.open(path) as rb:
        part = rb._streams.written
        assert part is not None
        ids, window = {}, part.log.rows
        for again in range(log.end + 3):
            ids[part.log.end] = again % log.end
            rb.add(*log.step(again % log.end))
            if again % 5 == 4:
                rb.commit()
        begin, end = part.log.begin, part.log.end
    assert verify(path).ok
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        assert (begin, end) == (max(rows[0], end - window), log.end + len(ids))
        old = np.setdiff1d(np.arange(begin * rb.num_envs, rows[1] * rb.num_envs), given_up)
        if len(old):
            log.compare_batch(rb.get(old), old, rb.num_envs)
        new = [row for row in ids if row >= begin]
        found = rb.get(np.concatenate([np.arange(row * rb.num_envs, (row + 1) * rb.num_envs) for row in new]))
        given = np.concatenate([np.arange(ids[row] * rb.num_envs, (ids[row] + 1) * rb.num_envs) for row in new])
        log.compare_batch(found, given, rb.num_envs)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", BROKEN)
def test_repair_keeps_every_row(name: str, tmp_path: pathlib.Path) -> None:
    path, log = copied(name, tmp_path), Log(name)
    result = repair(path)
    assert result.ok, result.after.problems
    assert not result.before.ok
    assert result.checkpoints == ()
    assert sum(loss.transitions for loss in result.streams) == len(GIVEN_UP.get(name, []))
    assert not any(loss.whole or loss.went_back_to is not None for loss in result.streams)
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        log.compare(rb, *kept(name))
        assert rb.checkpoints == list(CHECKPOINTS.get(name, {}))
    spec(path, log, *kept(name))
    for checkpoint, rows in CHECKPOINTS.get(name, {}).items():
        with dr.ReplayBuffer.open(path, mode="r", checkpoint=checkpoint) as rb:
            log.compare(rb, rows)
        spec(path, log, rows, checkpoint=checkpoint)
    assert not repair(path).changed
    write_on(path, log, *kept(name))
    for checkpoint, rows in CHECKPOINTS.get(name, {}).items():
        with dr.ReplayBuffer.open(path, mode="r", checkpoint=checkpoint) as rb:
            log.compare(rb, rows)


@pytest.mark.parametrize("name", sorted(name for name in CHECKPOINTS))
def test_a_repaired_checkpoint_can_be_gone_back_to(name: str, tmp_path: pathlib.Path) -> None:
    path, log = copied(name, tmp_path), Log(name)
    assert repair(path).ok
    newest = list(CHECKPOINTS[name])[-1]
    with dr.ReplayBuffer.open(path, checkpoint=newest) as rb:
        log.compare(rb, CHECKPOINTS[name][newest])
    assert verify(path).ok


@pytest.mark.parametrize("name", sorted(READABLE - {"wide-vectors"}))
def test_what_can_be_read_is_written_on_without_a_repair(name: str, tmp_path: pathlib.Path) -> None:
    path, log = copied(name, tmp_path), Log(name)
    with dr.ReplayBuffer.open(path) as rb:
        log.compare(rb, *kept(name))
        for row in range(log.end):
            rb.add(*log.step(row))
        rb.checkpoint("anew")
        envs = rb.num_envs
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        ids = np.arange(max(log.end, 2 * log.end - next(iter(rb._streams)).log.rows) * envs, 2 * log.end * envs)
        log.compare_batch(rb.get(ids), ids - log.end * envs, envs)


def test_wide_vectors_are_written_on(tmp_path: pathlib.Path) -> None:
    """Nothing in it is broken: a reader and a writer of that version found other rows' observations in it."""
    path, log = copied("wide-vectors", tmp_path), Log("wide-vectors")
    assert verify(path).ok
    with dr.ReplayBuffer.open(path) as rb:
        log.compare(rb, *kept("wide-vectors"))


def on_a_simulated_disk(name: str) -> SimulatedDisk:
    disk = SimulatedDisk()
    root = HERE / f"{name}.replay"
    for directory in (root, *sorted(path for path in root.rglob("*") if path.is_dir())):
        place = f"/{pathlib.Path('a.replay', directory.relative_to(root))}"
        disk.mkdir(place)
        disk.sync_dir(os.path.dirname(place))  # noqa: PTH120
        for path in directory.iterdir():
            if path.is_file():
                file = disk.open(f"{place}/{path.name}", write=True)
                file.pwrite([path.read_bytes()], 0)
                file.sync()
        disk.sync_dir(place)
    return disk


DYING = [
    "patches-overwritten", "patches-short-and-on", "patches-short-of-frames", "patches-with-a-hole",
    "tails-of-a-checkpoint", "tails-of-all-rows", "tails-opened", "window-checkpoint", "window-extend",
]  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", DYING)
def test_repair_may_die_at_any_operation(name: str) -> None:
    disk, log = on_a_simulated_disk(name), Log(name)
    counting = FaultyFiles(disk.after_kill())
    assert repair("/a.replay", files=counting).ok
    operations = counting.count()
    rng = random.Random(name)
    for at in sorted(rng.sample(range(operations), places(operations, "deaths within a repair", least=3))):
        dying = disk.after_kill()
        files = FaultyFiles(dying)
        files.crash_at(at)
        with pytest.raises(Crash):
            repair("/a.replay", files=files)
        for after in (dying.after_kill(), dying.after_power_loss(), dying.after_power_loss(rng)):
            result = repair("/a.replay", files=after)
            assert result.ok, (at, result.after.problems)
            assert result.checkpoints == ()
            with dr.ReplayBuffer.open("/a.replay", mode="r", files=after) as rb:
                log.compare(rb, *kept(name))
                assert rb.checkpoints == list(CHECKPOINTS.get(name, {}))
