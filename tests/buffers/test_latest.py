"""Which checkpoint is the newest, and which one "latest" is: by numbers and makers, whatever the clock says."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any

import pytest
from helpers import line
from helpers.clocks import DAY, Clock
from helpers.line import LINE, OPEN, TURN
from helpers.testing import WRITES, FaultyFiles, Operation, SimulatedDisk

import diskreplay as dr
from diskreplay.errors import CheckpointError, CorruptionError, LockedError
from diskreplay.ops.checkpoints import checkpoints as listed
from diskreplay.storage import metadata
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def writer(path: str | pathlib.Path, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open_or_create(path, LINE, TURN, **{"capacity": 500, **OPEN, **options})


def add(buffer: dr.ReplayBuffer, rows: int) -> None:
    line.add(buffer, rows)
    buffer.commit()


def pair(folder: pathlib.Path, rows: int) -> list[pathlib.Path]:
    """Two stores for a mixture."""
    paths = [folder / "a.replay", folder / "b.replay"]
    for path in paths:
        with writer(path) as buffer:
            add(buffer, rows)
    return paths


def ends(buffer: dr.ReplayBuffer) -> dict[str, int]:
    return {name: facts["end"] for name, facts in buffer.stats()["streams"].items()}


def numbers(path: str) -> dict[str, int]:
    return {one.name: one.number for one in listed(path)}


def test_a_clock_set_back_leads_to_no_older_checkpoint(path: str, clock: Clock) -> None:
    with writer(path) as buffer:
        for step in range(6):
            add(buffer, 10)
            buffer.checkpoint(f"step-{step}")
            clock.now -= DAY if step == 2 else -60.0
            for older in buffer.checkpoints[:-2]:
                buffer.drop_checkpoint(older)
        assert buffer.checkpoints == ["step-4", "step-5"]
        add(buffer, 3)
    with writer(path, checkpoint="latest") as buffer:
        assert len(buffer) == 60


def test_checkpoints_of_one_commit_keep_their_order(path: str, clock: Clock) -> None:
    clock.jump(0)
    with writer(path) as buffer:
        add(buffer, 10)
        for name in ("c", "a", "d", "b"):
            buffer.checkpoint(name)
        assert buffer.checkpoints == ["c", "a", "d", "b"]
        buffer.drop_checkpoint("b")
        buffer.checkpoint("a-new")
        assert numbers(path) == {"c": 1, "a": 2, "d": 3, "a-new": 5}, "the number of 'b' was given twice"
    with writer(path, checkpoint="latest") as buffer:
        buffer.checkpoint("e")
        assert buffer.checkpoints == ["c", "a", "d", "a-new", "e"]


def test_each_writer_goes_on_from_its_own_checkpoints(path: str) -> None:
    with writer(path) as first:
        add(first, 10)
        first.checkpoint("of first")
        with writer(path, stream="second", checkpoint="latest") as second:  # the newest one knows no such stream
            add(second, 100)
    with writer(path, stream="second", checkpoint="latest") as second:
        assert ends(second) == {"0": 10, "second": 100}, "the stream has no checkpoint of its own"
        second.checkpoint("of second")
        add(second, 7)
    with writer(path, checkpoint="latest") as first:
        add(first, 5)
    with writer(path, stream="second", checkpoint="latest") as second:
        assert ends(second) == {"0": 10, "second": 100}
    assert [(one.name, one.number, one.maker) for one in listed(path)] == [
        ("of first", 1, "0"), ("of second", 2, "second"),
    ]  # fmt: skip
    with dr.ReplayBuffer.open(path, mode="r", checkpoint="latest") as reader:
        assert ends(reader) == {"0": 10, "second": 100}, "a reader takes the newest of all"


def test_the_error_names_the_newest_of_another(path: str) -> None:
    with writer(path) as first:
        add(first, 10)
        first.checkpoint("of first")
    for stream in ("new", "new"):
        with pytest.raises(
            CheckpointError, match="of the writer of the stream 'new' yet; the newest, 'of first', is of the writer of "
            "the stream '0'",
        ):  # fmt: skip
            dr.ReplayBuffer.open(path, stream=stream, checkpoint="latest")
    with pytest.raises(CheckpointError, match="checkpoint 'of first' has no stream 'new'"):
        dr.ReplayBuffer.open(path, stream="new", checkpoint="of first", or_last_commit=True)
    assert Store(path, LocalFiles()).stream_names() == ["0"]


def test_a_mixture_goes_on_from_its_newest_checkpoint(tmp_path: pathlib.Path, clock: Clock) -> None:
    paths = pair(tmp_path, 30)
    clock.jump(1)
    given = [0, 0]
    for turn in range(2):
        with dr.Mixture.open(paths, (1, 1), checkpoint="latest", or_last_commit=True) as mixture:
            assert mixture._given == given
            for name in "dba":
                mixture.sample(2)
                mixture.checkpoint(f"{name}{turn}")
            assert mixture.checkpoints[-3:] == [f"{name}{turn}" for name in "dba"]
            given = list(mixture._given)
            mixture.sample(20)
            for older in mixture.checkpoints[:-2]:
                mixture.drop_checkpoint(older)


def test_checkpoints_of_another_keeper_are_not_a_mixtures_latest(tmp_path: pathlib.Path) -> None:
    paths = pair(tmp_path, 30)
    with dr.Mixture.open([(paths[0], {"stream": "other"}), (paths[1], {"mode": "r"})]) as mixture:
        mixture.sample(4)
        mixture.checkpoint("of another")
    parts = [paths[0], (paths[1], {"mode": "r"})]
    with pytest.raises(CheckpointError, match="the newest, 'of another', is of the writer of the stream 'other'"):
        dr.Mixture.open(parts, checkpoint="latest")
    with dr.Mixture.open(parts, checkpoint="latest", or_last_commit=True) as mixture:
        assert mixture._given == [0, 0]


def test_a_mixture_keeps_all_rows_where_one_part_cannot_go_back(tmp_path: pathlib.Path) -> None:
    paths = pair(tmp_path, 10)
    with dr.Mixture.open(paths) as mixture:
        mixture.checkpoint("both")
        for part in mixture.parts:
            add(part, 5)  # type: ignore[arg-type]
    with writer(paths[1]) as buffer:
        buffer.checkpoint("later")
        with pytest.raises(LockedError):
            dr.Mixture.open(paths, checkpoint="latest")
    with pytest.raises(CheckpointError, match=r"'later'.* still need"):
        dr.Mixture.open(paths, checkpoint="latest")
    with writer(paths[0]) as first, writer(paths[1]) as second:
        assert (len(first), len(second)) == (15, 15)
        second.drop_checkpoint("both")
        second.drop_checkpoint("later")
    with pytest.raises(CheckpointError, match="there is no checkpoint 'both'"):
        dr.Mixture.open(paths, checkpoint="latest")
    with writer(paths[0]) as first:
        assert len(first) == 15


def change_checkpoint(path: str, name: str, **changes: Any) -> None:
    """Changes fields of a checkpoint's document; one that becomes None goes."""
    file = pathlib.Path(path, "checkpoints", name, "zarr.json")
    ours = json.loads(file.read_bytes())["attributes"]["diskreplay"]
    changed = {key: value for key, value in {**ours, **changes}.items() if value is not None}
    file.write_bytes(metadata.dump(metadata.group_document(changed, f"checkpoints/{name}")))


@pytest.mark.parametrize(
    "wrong",
    [{"number": None}, {"id": None}, {"number": -1}, {"number": "7"}, {"number": 1 << 60}, {"id": 3}, {"maker": 3}],
)
def test_what_is_no_number_id_or_maker_is_damage(path: str, wrong: dict[str, Any]) -> None:
    with writer(path) as buffer:
        buffer.checkpoint("a")
    change_checkpoint(path, "a", **wrong)
    with pytest.raises(CorruptionError, match=r"the checkpoint .* cannot be read"):
        listed(path)


def test_numbers_end_and_names_go_on(path: str) -> None:
    with writer(path) as buffer:
        buffer.checkpoint("a")
    change_checkpoint(path, "a", number=1 << 48)
    with writer(path) as buffer:
        buffer.checkpoint("c")
        buffer.checkpoint("b")
        assert buffer.checkpoints == ["a", "b", "c"]
    assert set(numbers(path).values()) == {1 << 48}


def test_writers_of_one_store_see_each_others_numbers(tmp_path: pathlib.Path, clock: Clock) -> None:
    """Whatever each has read of the other, a number is above all that were there."""
    path, random_ = tmp_path / "a.replay", random.Random(3)
    clock.jump(2)
    with writer(path) as first, writer(path, stream="second") as second:
        made: list[str] = []
        for turn in range(20):
            buffer = random_.choice([first, second])
            if len(made) > 2 and random_.random() < 0.4:
                gone = random_.choice(made)
                buffer.drop_checkpoint(gone)
                made.remove(gone)
            else:
                made.append(f"{random_.random()}-{turn}")
                buffer.checkpoint(made[-1])
            assert first.checkpoints == made == second.checkpoints


@pytest.mark.parametrize("every", [40, pytest.param(1, marks=pytest.mark.long)])
def test_no_crash_gives_a_number_again(every: int) -> None:
    """At every operation of making checkpoints and of dropping the newest one."""
    disk = SimulatedDisk()
    files = FaultyFiles(disk)
    path = pathlib.Path("/shelf/a")
    images: list[tuple[SimulatedDisk, int]] = []
    begun = 0

    def look(operation: Operation) -> None:
        if operation.name in WRITES and len(files.operations) % every == 0:
            images.extend([(disk.after_kill(), begun), (disk.after_power_loss(random.Random(0)), begun)])

    with writer(path, files=files) as buffer:
        add(buffer, 5)
        files.decide = look  # type: ignore[assignment]
        buffer.checkpoint("b")
        begun = 1
        buffer.drop_checkpoint("b")  # the next one must come after it, wherever it is still known
        buffer.checkpoint("a")
        begun = 2
        add(buffer, 5)
        buffer.checkpoint("0")
        begun = 3
    for image, made in images:
        with writer(path, files=image, checkpoint="latest") as buffer:
            there = [one.number for one in buffer.engine.store.checkpoints()]
            buffer.checkpoint("-")
            assert buffer.checkpoints[-1] == "-"
            assert buffer.engine.store.checkpoint("-").number > max([made, *there])
    assert len(images) > 100 // every
