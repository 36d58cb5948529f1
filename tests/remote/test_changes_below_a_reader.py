"""What a reader finds changed: its mirror, the store under its URL."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from helpers.testing import SimulatedObjects
from remote.world import URL, Life, pushed, reader, rows_of

from diskreplay.errors import RemoteConflictError, StoreNotFoundError, WriteFailedError


@pytest.mark.parametrize("mirror_bytes", [1 << 30, 30_000])
def test_a_mirror_that_was_removed_is_made_anew(mirror_bytes: int, tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 37)
    with reader(objects, tmp_path / "m", mirror_bytes=mirror_bytes) as buffer:
        rows_of(buffer, buffer.items()[:3])
        shutil.rmtree(tmp_path / "m")
        assert sorted(rows_of(buffer)) == sorted(life.window())
        assert list((tmp_path / "m").iterdir())


def test_a_mirror_that_cannot_be_made_anew_is_named(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 37)
    with reader(objects, tmp_path / "m") as buffer:
        shutil.rmtree(tmp_path / "m")
        (tmp_path / "m").write_text("a file")
        with pytest.raises(WriteFailedError, match=r"the mirror '.*/m' takes no copy of .*; mend the cause"):
            rows_of(buffer)
        (tmp_path / "m").unlink()
        assert sorted(rows_of(buffer)) == sorted(life.window())


def test_a_refresh_notices_another_store_in_its_place(tmp_path: pathlib.Path) -> None:
    life, other, objects = Life(tmp_path / "a"), Life(tmp_path / "b", 1), SimulatedObjects()
    life.add(37, to=objects)
    other.add(30)
    with reader(objects, tmp_path / "m") as buffer:
        before = rows_of(buffer)
        objects.delete(list(objects.data))
        with pytest.raises(StoreNotFoundError, match=f"no store at '{URL}' any more"):
            buffer.refresh()
        other.push(objects)
        for _ in range(2):
            with pytest.raises(RemoteConflictError, match=f"at '{URL}' is another store .*: open it anew"):
                buffer.refresh()
        assert rows_of(buffer) == before  # of what it has copies
    with reader(objects, tmp_path / "m") as buffer:
        assert sorted(rows_of(buffer)) == sorted(other.window())
    life.buffer.close()
    other.buffer.close()


def test_rows_of_a_removed_store_are_no_fault_of_the_disk(tmp_path: pathlib.Path) -> None:
    _, objects = pushed(tmp_path / "a", 37)
    with reader(objects, tmp_path / "m") as buffer:
        objects.delete(list(objects.data))
        with pytest.raises(StoreNotFoundError, match=f"no store at '{URL}' any more"):
            rows_of(buffer)


@pytest.mark.parametrize("how", ["its document is written otherwise", "it was removed and pushed anew"])
def test_a_store_is_the_same_though(how: str, tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 20)
    with reader(objects, tmp_path / "m") as buffer:
        if "removed" in how:
            objects.delete(list(objects.data))
        else:
            objects.data["zarr.json"] += b"\n"
        life.add(7, to=objects)
        buffer.refresh()
        assert sorted(rows_of(buffer)) == sorted(life.window())


def test_a_refresh_survives_a_document_that_is_being_read(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 20)
    with reader(objects, tmp_path / "m") as buffer:
        catalog = buffer.engine.store.files.catalog  # type: ignore[attr-defined]

        class Key(str):
            """Is looked up while another thread reads a document."""

            def __hash__(self) -> int:
                documents = catalog._documents
                documents[f"checkpoints/{len(documents)}/zarr.json"] = "tag", b"{}"
                return super().__hash__()

        catalog._documents[Key("streams")] = "tag", b"{}"
        life.add(5, to=objects)
        buffer.refresh()
        assert sorted(rows_of(buffer)) == sorted(life.window())
