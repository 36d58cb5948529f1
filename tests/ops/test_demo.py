"""The demo in small: its story, its files, and what it leaves alone."""

from __future__ import annotations

import pathlib
import shlex

import pytest

from diskreplay.errors import InputError
from diskreplay.ops.demo import demo
from diskreplay.ops.verify import verify


@pytest.mark.long("cli/test_commands.py::test_demo")
def test_demo(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "out"
    for _ in range(2):  # the second replaces the first
        lines: list[str] = []
        seen: list[object] = []
        assert demo(folder, steps=300, say=lines.append, show_facts=seen.append)
        story = "\n".join(lines)
        assert "bit-identical" in story
        assert "no problem" in story
        assert len(seen) == 1
        assert lines[-1].endswith(f": diskreplay report {shlex.quote(str(folder / 'pong.replay'))} -o pong.html")
        assert sorted(entry.name for entry in folder.iterdir() if entry.name != "mine.txt") == [
            "pong.hdf5", "pong.png", "pong.replay",
        ]  # fmt: skip
        (folder / "mine.txt").write_text("stays")
    assert (folder / "mine.txt").read_text() == "stays"
    assert verify(folder / "pong.replay").ok


def test_something_else_in_its_place_stays(tmp_path: pathlib.Path) -> None:
    (tmp_path / "pong.replay").mkdir()
    (tmp_path / "pong.replay" / "thesis.txt").write_text("stays")
    with pytest.raises(InputError, match="not written by the demo"):
        demo(tmp_path, steps=10, say=lambda line: None)
    assert (tmp_path / "pong.replay" / "thesis.txt").exists()
