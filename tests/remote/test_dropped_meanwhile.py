"""A reader of a URL at a checkpoint that the writer drops meanwhile, at each request."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
from helpers.few_files import few_files
from helpers.testing import FaultyObjects, SimulatedObjects
from remote.world import Life, reader, rows_of

import diskreplay as dr
from diskreplay.errors import CheckpointError
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.place import open_remote

pytestmark = pytest.mark.usefixtures(few_files.__name__)


class Trainer:
    """A writer that pushes a checkpoint of each round, and drops the one before, whose shards `gc` removes at once."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.life, self.objects = Life(folder / "a", capacity=20), SimulatedObjects()
        self.round = 0
        self.go_on()

    def go_on(self) -> None:
        self.round += 1
        self.life.add(30)
        name = f"round-{self.round}"
        self.life.buffer.checkpoint(name, {"round": self.round}, attachments={"w": bytes(200_000)}, keep=1)
        self.life.buffer.commit()
        self.life.push(self.objects)
        collect_garbage(open_remote(self.objects, self.life.path + "-gc"), older_than=0)

    def at(self, number: int) -> FaultyObjects:
        """Objects before whose request of this number another round goes on, once."""
        faulty, done = FaultyObjects(self.objects), [False]

        def decide(index: int, request: object) -> None:
            if index == number and not done[0]:
                done[0] = True
                self.go_on()

        faulty.decide = decide
        return faulty


@pytest.mark.long
def test_the_newest_is_opened_whatever_is_dropped_meanwhile(tmp_path: pathlib.Path) -> None:
    trainer = Trainer(tmp_path)
    for number in range(1000):
        before = trainer.round
        with reader(trainer.at(number), tmp_path / f"m{number}", checkpoint="latest") as buffer:
            if trainer.round == before:
                break
            assert buffer.restored is not None
            if buffer.restored.name == f"round-{trainer.round}":
                assert rows_of(buffer) == trainer.life.window()
    assert number > 4


CALLS: dict[str, Callable[[dr.ReplayBuffer], object]] = {
    "get": rows_of,
    "attachment": lambda buffer: buffer.attachment("w").read(),
}


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
def test_what_is_read_is_right_or_said_to_be_dropped(call: str, tmp_path: pathlib.Path) -> None:
    trainer = Trainer(tmp_path)
    said: list[bool] = []
    for number in range(1000):
        before, faulty = trainer.round, FaultyObjects(trainer.objects)
        with reader(faulty, tmp_path / f"m{number}", checkpoint="latest") as buffer:
            faulty.heal()
            faulty.decide = trainer.at(number).decide
            try:
                CALLS[call](buffer)
            except CheckpointError as error:
                said.append(f"round-{before}" in str(error))
        if trainer.round == before:
            break
    assert all(said)
    assert said or call == "get", "nothing was read while the checkpoint went"  # what is in the mirror stays
