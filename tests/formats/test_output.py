"""Datasets take their names when they are whole."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from diskreplay.errors import InputError
from diskreplay.formats.core.output import final_path, replacing


def names(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_it_takes_the_name_and_leaves_nothing_beside(kind: str, tmp_path: pathlib.Path) -> None:
    for text in ("one", "two"):
        with replacing(tmp_path / "a", kind, overwrite=True, recognise=lambda _: True) as temporary:
            assert final_path(temporary) == tmp_path / "a"
            if kind == "directory":
                temporary.mkdir()
            (temporary / "b" if kind == "directory" else temporary).write_text(text)
        assert names(tmp_path) == ["a"]
        assert (tmp_path / "a" / "b" if kind == "directory" else tmp_path / "a").read_text() == text


@pytest.mark.parametrize("kind", ["file", "directory"])
@pytest.mark.parametrize("absolute", [False, True])
def test_a_symbolic_link_stays_and_what_it_leads_to_is_replaced(
    kind: str, absolute: bool, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "there").mkdir()
    link, real = tmp_path / "link", tmp_path / "there" / "a"
    (tmp_path / "second").symlink_to(real if absolute else pathlib.Path("there", "a"))
    link.symlink_to("second")
    real.mkdir() if kind == "directory" else real.write_text("old")
    for text in ("one", "two"):
        with replacing(link, kind, overwrite=True, recognise=lambda _: True) as temporary:
            if kind == "directory":
                temporary.mkdir()
            (temporary / "b" if kind == "directory" else temporary).write_text(text)
        assert (real / "b" if kind == "directory" else real).read_text() == text
        assert link.readlink() == pathlib.Path("second")
        assert (names(tmp_path), names(real.parent)) == (["link", "second", "there"], ["a"])


def test_a_symbolic_link_to_what_is_not_there_yet_stays(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to("a")
    with replacing(tmp_path / "link", "file", overwrite=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text() == "new"


def test_symbolic_links_that_cannot_be_written_through(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "nowhere").symlink_to("missing/a")
    for name, overwrite, message in (
        ("link", False, "exists; choose another name"), ("circle", True, "leads in a circle"),
        ("nowhere", True, "there is no directory"), ("nowhere", False, "exists; choose another name"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message), replacing(tmp_path / name, "file", overwrite=overwrite):
            raise AssertionError("nothing is written")
    assert names(tmp_path) == ["a", "circle", "link", "nowhere"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_directory_that_may_not_be_written_to(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error named a temporary directory, and did not say what to do."""
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK))
    with pytest.raises(InputError, match="choose another directory for 'a'"), replacing(tmp_path / "a", "file"):
        raise AssertionError("nothing is written")


def test_an_error_leaves_what_was_there(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("old")

    def write() -> None:
        with replacing(tmp_path / "a", "file", overwrite=True) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_directory_that_cannot_be_replaced_comes_back(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("old")
    replace = pathlib.Path.replace

    def interrupted(self: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
        if self.name == "a" and target.name == "a":
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(pathlib.Path, "replace", interrupted)
    with (
        pytest.raises(KeyboardInterrupt),
        replacing(tmp_path / "a", "directory", overwrite=True, recognise=lambda _: True) as temporary,
    ):
        temporary.mkdir()
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a" / "b").read_text() == "old"


@pytest.mark.long
def test_a_killed_process_s_files_go_and_a_living_one_s_stay(tmp_path: pathlib.Path) -> None:
    script = """
import pathlib, sys, time
from diskreplay.formats.core.output import replacing
with replacing(pathlib.Path(sys.argv[1]), "file") as temporary:
    temporary.write_text("half")
    print("there", flush=True)
    time.sleep(60)
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "a")], stdout=subprocess.PIPE) for _ in range(2)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"there\n"
    assert len(names(tmp_path)) == 2
    os.kill(writers[0].pid, signal.SIGKILL)
    writers[0].wait()
    with replacing(tmp_path / "a", "file") as temporary:
        temporary.write_text("whole")
    assert len(names(tmp_path)) == 2, "the other one is alive"
    os.kill(writers[1].pid, signal.SIGKILL)
    writers[1].wait()
    with replacing(tmp_path / "a", "file", overwrite=True) as temporary:
        temporary.write_text("again")
    assert names(tmp_path) == ["a"]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.close()
