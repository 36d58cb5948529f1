"""A store that is moved, removed or replaced while a writer has it open: nothing is written into what stands there."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable

import pytest
from helpers import line
from helpers.damage import files_below
from helpers.line import add, rows_in
from helpers.testing import FaultyFiles

import diskreplay as dr
from diskreplay.errors import StateError
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles


def create(path: str | pathlib.Path, rows: int, **options: object) -> dr.ReplayBuffer:
    buffer = line.create(path, **options)
    add(buffer, rows)
    return buffer


def remove(path: str) -> None:
    shutil.rmtree(path)


def replace(path: str) -> None:
    shutil.rmtree(path)
    create(path, 5).close()


def move(path: str) -> None:
    pathlib.Path(path).rename(f"{path}.moved")


def move_and_replace(path: str) -> None:
    move(path)
    create(path, 5).close()


def replace_the_stream_alone(path: str) -> None:
    pathlib.Path(path, "streams", "0").rename(f"{path}.stream")
    shutil.copytree(f"{path}.stream", pathlib.Path(path, "streams", "0"))


DEEDS: list[Callable[[dr.ReplayBuffer], object]] = [
    lambda rb: rb.commit(),
    lambda rb: rb.checkpoint("new"),
    lambda rb: rb.drop_checkpoint("kept"),
    lambda rb: rb.close(),
]


@pytest.mark.long(quick=15)
@pytest.mark.parametrize("deed", DEEDS, ids=["commit", "checkpoint", "drop_checkpoint", "close"])
@pytest.mark.parametrize("change", [remove, replace, move, move_and_replace, replace_the_stream_alone])
def test_a_writer_whose_store_is_gone_writes_nothing(
    path: str, change: Callable[[str], None], deed: Callable[[dr.ReplayBuffer], object]
) -> None:
    """Regression: a store that was made anew took the old writer's commits, and was damaged by them."""
    buffer = create(path, 20)
    buffer.checkpoint("kept")
    add(buffer, 7)
    change(path)
    create_again = pathlib.Path(path).exists()
    if create_again and change is not replace_the_stream_alone:
        with dr.ReplayBuffer.open(path) as other:
            other.checkpoint("kept")
    before = files_below(path)
    for _ in range(1 if deed is DEEDS[3] else 2):
        with pytest.raises(StateError, match=r"moved, removed or replaced .* nothing was written"):
            deed(buffer)
    assert len(buffer) == 27 if deed is not DEEDS[3] else True
    assert files_below(path) == before
    if deed is not DEEDS[3]:
        with pytest.raises(StateError, match="7 rows are in no commit"):
            buffer.close()
    assert files_below(path) == before
    if create_again and change is not replace_the_stream_alone:
        assert verify(path).ok


def test_a_store_that_is_moved_back_goes_on(path: str) -> None:
    with create(path, 20) as buffer:
        move(path)
        with pytest.raises(StateError, match="20 rows are in no commit"):
            buffer.commit()
        add(buffer)
        pathlib.Path(f"{path}.moved").rename(path)
    assert rows_in(path) == 21


def test_a_link_to_the_store_may_be_changed_for_another_one(tmp_path: pathlib.Path) -> None:
    create(tmp_path / "real", 3).close()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with dr.ReplayBuffer.open(tmp_path / "link") as buffer:
        add(buffer)
        (tmp_path / "link").unlink()
        (tmp_path / "again").symlink_to(tmp_path / "real")
        (tmp_path / "link").symlink_to(tmp_path / "again")
    assert rows_in(tmp_path / "real") == 4


def test_a_path_that_cannot_be_looked_at_is_a_failed_write(path: str) -> None:
    files = FaultyFiles(LocalFiles())
    with create(path, 20, files=files) as buffer:
        files.fail_at(0, 5, names=["is_at"])
        with pytest.raises(dr.errors.WriteFailedError, match="Input/output"):
            buffer.commit()
        files.heal()
    assert rows_in(path) == 20
