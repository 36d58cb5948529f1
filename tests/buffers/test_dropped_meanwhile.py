"""A reader at a checkpoint that its writer drops meanwhile, at each operation of the file system."""

from __future__ import annotations

import contextlib
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.effort import stride
from helpers.few_files import few_files
from helpers.testing import FaultyFiles, Operation

import diskreplay as dr
from diskreplay.errors import CheckpointError
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Store

WIDTH = 1100
"""Of an observation: above what is kept in RAM, so that batches are read from disk."""
SPACES = gymnasium.spaces.Box(0, 255, (WIDTH,), np.uint8), gymnasium.spaces.Discrete(2)
LAYOUT: dict[str, Any] = {"chunk_rows": {"obs": 4, "action": 4}, "shard_rows": {"obs": 4, "action": 4}}
WEIGHTS = np.random.default_rng(0).bytes(200_000)


pytestmark = pytest.mark.usefixtures(few_files.__name__)


class Writer:
    """A writer that makes a checkpoint of each round and drops the one before, whose rows it has evicted by then."""

    def __init__(self, path: pathlib.Path, **options: Any) -> None:
        self.path, self.round = path, 0
        self.buffer = dr.ReplayBuffer.create(path, *SPACES, capacity=8, sampler=dr.Proportional(), **LAYOUT, **options)
        self.go_on()

    def go_on(self) -> None:
        """Add another window, and make a checkpoint of it."""
        self.round += 1
        for _ in range(12):
            self.buffer.add(*self.step())
        self.buffer.sample(4)
        self.buffer.checkpoint(f"round-{self.round}", {"round": self.round}, attachments={"w": WEIGHTS}, keep=1)
        self.buffer.commit()  # gives back what the dropped one needed

    def step(self) -> tuple[Any, ...]:
        return np.full(WIDTH, self.round, np.uint8), 0, float(self.round), np.full(WIDTH, self.round, np.uint8), 0, 0


@pytest.fixture
def writer(tmp_path: pathlib.Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "a.replay")
    yield made
    made.buffer.close()


def at(number: int, act: Callable[[], object]) -> FaultyFiles:
    """Files before whose operation of this number something else happens, once."""
    files, count = FaultyFiles(LocalFiles()), [0]

    def decide(operation: Operation) -> None:
        count[0] += 1
        if count[0] == number + 1:
            act()

    files.decide = decide
    return files


@contextlib.contextmanager
def told(name: str) -> Iterator[list[str]]:
    """Yield what a block is told, which may be that the checkpoint of this name was dropped, and nothing else."""
    said: list[str] = []
    try:
        yield said
    except CheckpointError as error:
        said.append(str(error))
    assert all(name in one for one in said)


def right(reader: dr.ReplayBuffer) -> int:
    """Return the round of the checkpoint that a reader is at, whose rows and files must be those of that round."""
    assert reader.restored is not None
    number = reader.restored.metadata["round"]
    assert isinstance(number, int)
    batch = reader.get(reader.items())
    assert len(batch.obs) == 8
    assert (batch.obs == number).all()
    assert (reader.sample(4).reward == number).all()
    return number


@pytest.mark.long
@pytest.mark.parametrize("sampler", [None, dr.Uniform()])
def test_the_newest_is_opened_whatever_is_dropped_meanwhile(writer: Writer, sampler: Any) -> None:
    """At each operation of the opening."""
    for number in range(0, 10_000, stride(5, "operations of an opening")):
        before = writer.round
        files = at(number, writer.go_on)
        with dr.ReplayBuffer.open(writer.path, mode="r", checkpoint="latest", sampler=sampler, files=files) as reader:
            files.decide = lambda operation: None
            if writer.round == before:
                break
            assert reader.restored is not None
            if reader.restored.name in reader.checkpoints:
                assert right(reader) == writer.round
    assert number > 40


@pytest.mark.long
def test_one_that_is_named_is_whole_or_said_to_be_dropped(writer: Writer) -> None:
    step, refused = stride(3, "operations of an opening"), 0
    for number in range(0, 10_000, step):
        name, before = f"round-{writer.round}", writer.round
        files = at(number, writer.go_on)
        with told(name) as said, dr.ReplayBuffer.open(writer.path, mode="r", checkpoint=name, files=files) as reader:
            files.decide = lambda operation: None
            assert reader.restored is not None
            assert reader.restored.name == name
        refused += len(said)
        if writer.round == before:
            break
    assert 3 < refused * step < number


def drops(writer: Writer, call: Callable[[dr.ReplayBuffer], object]) -> None:
    """Call at a checkpoint that is dropped at each operation of the call: it is right, or says so, and later, too."""
    for number in range(10_000):
        before = writer.round
        files = FaultyFiles(LocalFiles())
        with dr.ReplayBuffer.open(writer.path, mode="r", checkpoint="latest", files=files) as reader:
            files.decide = at(number, writer.go_on).decide
            with told(f"round-{before}"):
                call(reader)
            if writer.round == before:
                break
            files.decide = lambda operation: None
            with told(f"round-{before}"):
                call(reader)
    assert number > 1


CALLS: dict[str, Callable[[dr.ReplayBuffer], object]] = {
    "get": lambda reader: reader.get(reader.items()),
    "sample": lambda reader: reader.sample(8),
    "attachment": lambda reader: reader.attachment("w").read(),
    "named attachment": lambda reader: reader.attachment("w", reader.restored.name).read(),
    "metadata": lambda reader: reader.checkpoint_metadata(reader.restored.name),
    "loader": lambda reader: next(iter(reader.loader(8))),
    "shuffled": lambda reader: list(reader.shuffled(4)),
    "refresh": lambda reader: reader.refresh(),
    "mixture": lambda reader: dr.Mixture([reader]).sample(8),
}


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_read_is_right_or_said_to_be_dropped(writer: Writer, call: str) -> None:
    drops(writer, CALLS[call])


def test_an_open_file_of_a_checkpoint_says_so_too(writer: Writer) -> None:
    with dr.ReplayBuffer.open(writer.path, mode="r", checkpoint="latest") as reader:
        file = reader.attachment("w")
        assert file.read(10) == WEIGHTS[:10]
        writer.go_on()
        with pytest.raises(CheckpointError, match=r"'round-1' .* was dropped while it was read"):
            file.read()
        assert reader.refresh()
        assert (reader.get(reader.items()).obs == writer.round).all()


def test_the_newest_is_listed_whatever_is_dropped_meanwhile(writer: Writer) -> None:
    """Where only one is kept, a listing held that one, which went, and not yet the next."""
    for number in range(100):
        before, files = writer.round, at(number, writer.go_on)
        store = Store(str(writer.path), files)
        assert store.checkpoints()
        assert store.checkpoint_names()
        if writer.round == before:
            break
    assert number > 4


@pytest.mark.long
def test_a_check_beside_it_finds_no_damage(writer: Writer) -> None:
    step, number = 7 * stride(3, "operations of a check"), 0
    while True:
        before = writer.round
        assert not verify(writer.path, files=at(number, writer.go_on)).problems
        if writer.round == before:
            break
        number += step
    assert number > 50


@pytest.mark.long
def test_a_dataset_says_so_and_so_do_its_copies(writer: Writer) -> None:
    pytest.importorskip("torch")
    from diskreplay.torch import DiskDataset

    with DiskDataset(writer.path, checkpoint="latest") as dataset:
        copy = pickle.dumps(dataset)
        assert len(dataset[np.arange(2)].obs) == 2
        writer.go_on()
        with pytest.raises(CheckpointError, match="'round-1'"):
            dataset[np.arange(4, 8)]  # of another shard: what is open, or cached, can be read still
        with pytest.raises(CheckpointError, match="'round-1'"):
            pickle.loads(copy)  # as a worker of a DataLoader opens it
