"""Writers that make, or drop, checkpoints of one name at the same moment: one has it, and all go on."""

from __future__ import annotations

import functools
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers.line import add, create
from helpers.testing import FaultyFiles, Operation
from helpers.threads import together

import diskreplay as dr
from diskreplay.errors import CheckpointError
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles


class Beside:
    """A writer, and others of the same store that do something right before its next rename of a checkpoint."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path, self.files = path, FaultyFiles(LocalFiles())
        self.own = create(path, stream="own", files=self.files)
        self.others = [dr.ReplayBuffer.open(path, stream=name) for name in ("b", "c")]
        self.acts: list[Callable[[], object]] = []
        add(self.own, 5)
        self.files.decide = self._decide

    def _decide(self, operation: Operation) -> None:
        if operation.name == "rename" and "checkpoints/" in operation.path + operation.target:
            while self.acts:
                self.acts.pop()()

    def goes_on(self) -> None:
        """Everybody can add and make checkpoints, and nothing is left of what was refused."""
        for buffer in (self.own, *self.others):
            add(buffer)
            buffer.commit()
            buffer.checkpoint(f"of-{buffer.stream}", attachments={"w": b"x"}, keep=1)
            assert buffer.attachment("w", f"of-{buffer.stream}").read() == b"x"
            buffer.close()
        assert verify(self.path).ok
        left = [path for path in self.path.rglob(".tmp*") if not path.name.startswith(".tmp-stream-")]
        assert not left


@pytest.fixture
def beside(tmp_path: pathlib.Path) -> Iterator[Beside]:
    made = Beside(tmp_path / "a.replay")
    yield made
    for buffer in (made.own, *made.others):
        buffer.close()


@pytest.mark.parametrize("options", [{}, {"keep": 1}, {"attachments": {"w": b"own"}}, {"attachments": {}, "keep": 2}])
def test_the_second_is_told_and_goes_on(beside: Beside, options: dict[str, Any]) -> None:
    beside.own.checkpoint("before", keep=1)
    beside.acts = [lambda: beside.others[0].checkpoint("one", {"of": "b"}, attachments={"w": b"b"})]
    with pytest.raises(CheckpointError, match="'one' already"):
        beside.own.checkpoint("one", {"of": "own"}, **options)
    assert not beside.acts
    assert beside.own.checkpoints == ["before", "one"]
    assert beside.own.checkpoint_metadata("one") == {"of": "b"}
    assert beside.own.attachment("w", "one").read() == b"b"
    beside.goes_on()


def test_of_three_one_has_it(beside: Beside) -> None:
    def third() -> None:
        beside.others[1].checkpoint("one", {"of": "c"})
        with pytest.raises(CheckpointError, match="already"):
            beside.others[0].checkpoint("one", {"of": "b"})

    beside.acts = [third]
    with pytest.raises(CheckpointError, match="already"):
        beside.own.checkpoint("one", {"of": "own"})
    assert beside.own.checkpoint_metadata("one") == {"of": "c"}
    beside.goes_on()


def test_what_a_killed_one_left_half_made_is_in_nobodys_way(beside: Beside) -> None:
    beside.own.checkpoint("model", attachments={"w": b"x" * 1000})
    for stream in ("own", "b"):
        scratch = beside.path / "streams" / stream / "start"
        shutil.copytree(beside.path / "checkpoints" / "model", scratch / ".tmp-checkpoint-one")
        (scratch / ".tmp-checkpoint-one" / "zarr.json").unlink()
    beside.acts = [lambda: beside.others[0].checkpoint("one", {"of": "b"})]
    with pytest.raises(CheckpointError, match="already"):
        beside.own.checkpoint("one")
    beside.goes_on()


def test_one_that_both_drop_is_dropped_once(beside: Beside) -> None:
    beside.own.checkpoint("one")
    beside.acts = [lambda: beside.others[0].drop_checkpoint("one")]
    with pytest.raises(CheckpointError, match="no checkpoint 'one'"):
        beside.own.drop_checkpoint("one")
    assert beside.own.checkpoints == []
    beside.goes_on()


def test_one_that_keep_drops_while_another_does(beside: Beside) -> None:
    beside.own.checkpoint("one", keep=1)

    def drop() -> None:  # right before it drops the first, when the second has its name
        beside.acts = [lambda: beside.others[0].drop_checkpoint("one")]

    beside.acts = [drop]
    beside.own.checkpoint("two", keep=1)
    assert beside.own.checkpoints == ["two"]
    beside.goes_on()


def test_one_is_made_while_another_drops_its_name(beside: Beside) -> None:
    beside.others[0].checkpoint("one", {"of": "b"})
    beside.acts = [
        lambda: beside.others[1].checkpoint("one", {"of": "c"}), lambda: beside.others[0].drop_checkpoint("one")
    ]  # fmt: skip
    with pytest.raises(CheckpointError, match="already"):
        beside.own.checkpoint("one")  # refused before anything is written
    beside.others[0].drop_checkpoint("one")
    beside.acts = beside.acts[:1]
    with pytest.raises(CheckpointError, match="already"):
        beside.own.checkpoint("one")
    assert beside.own.checkpoint_metadata("one") == {"of": "c"}
    beside.goes_on()


def test_threads_that_meet_at_each_name(tmp_path: pathlib.Path) -> None:
    path, names = tmp_path / "a.replay", [f"step-{number}" for number in range(40)]
    buffers = [create(path, stream="0")]
    buffers += [dr.ReplayBuffer.open(path, stream=name) for name in ("1", "2")]
    meet, made = threading.Barrier(len(buffers), timeout=60), dict.fromkeys(names, 0)

    def work(buffer: dr.ReplayBuffer) -> None:
        for name in names:
            add(buffer)
            meet.wait()
            try:
                buffer.checkpoint(name, attachments={"w": b"x" * 100}, keep=2)
                made[name] += 1
            except CheckpointError as error:
                if name not in str(error):
                    raise

    together(*(functools.partial(work, buffer) for buffer in buffers))
    assert all(made.values()), "nobody has it"
    for buffer in buffers:
        add(buffer)
        buffer.close()
    assert verify(path).ok
