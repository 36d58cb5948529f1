"""Files and locks of the local file system, interrupted while they are opened."""

from __future__ import annotations

import itertools
import pathlib
import sys
from types import TracebackType

import pytest

from diskreplay.storage.files import LocalFile, LocalFiles, Lock
from diskreplay.testing import Interrupts


def test_a_file_that_was_interrupted_before_it_was_opened_goes_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    file = LocalFile.__new__(LocalFile)
    del file
    assert said == []


def test_a_lock_that_was_interrupted_is_free_though_its_traceback_is_kept(tmp_path: pathlib.Path) -> None:
    files, tool = LocalFiles(), Interrupts(within=["diskreplay.storage"])
    kept: list[TracebackType | None] = []  # as a notebook does, for its debugger
    taken: list[Lock | None] = []

    def take() -> None:
        try:
            taken.append(files.lock(str(tmp_path)))
        except KeyboardInterrupt as error:
            kept.append(error.__traceback__)
            raise

    for number in itertools.count():
        place = tool.interrupt(number, take)
        if place is None:
            break
        again = files.lock(str(tmp_path))
        assert again is not None, f"interrupted at {place}"
        again.release()
    assert len(kept) > 5
    assert taken[0] is not None
    taken[0].release()
