"""Imports into new stores that die at any operation: nothing has the store's name, and the same import makes it."""

from __future__ import annotations

import functools
import itertools
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.diff import diff
from helpers.effort import stride
from helpers.forking import fork

import diskreplay as dr
from diskreplay.formats.core import flat, transitions
from diskreplay.ops.convert import import_dataset
from diskreplay.ops.verify import verify
from diskreplay.storage import local_files

WRITES = {
    local_files.LocalFile: ("pwrite", "truncate", "sync"),
    local_files.LocalFiles: ("mkdir", "rename", "unlink", "rmdir", "sync_dir"),
}
"""The operations by which a store is written."""


def dies(work: Callable[[], Any], at: int) -> bool:
    """Does the work in a child that ends at its operation ``at``, as if it were killed; False if there are fewer."""
    numbers = itertools.count()

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **named: method(*given, **named) if next(numbers) < at else os._exit(9)

    if child := fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    try:
        for kind, name in ((kind, name) for kind, names in WRITES.items() for name in names):
            setattr(kind, name, counted(getattr(kind, name)))
        work()
    finally:
        os._exit(0)


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    """Episodes of several lengths, each of which ends in a flag."""
    rng = np.random.default_rng(0)
    terminated = np.isin(np.arange(40), np.cumsum([9, 1, 18, 12]) - 1)
    np.savez(
        tmp_path / "set.npz", observations=rng.normal(size=(40, 3)).astype(np.float32), rewards=rng.normal(size=40),
        actions=rng.integers(4, size=40), terminals=terminated, timeouts=np.zeros(40, bool),
    )  # fmt: skip
    return tmp_path / "set.npz"


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch, commits_at_once: None) -> None:
    """A commit every few rows, as a large dataset has them."""
    for name in ("create", "open"):
        method = functools.partial(getattr(dr.ReplayBuffer, name), commit_rows=8)
        monkeypatch.setattr(dr.ReplayBuffer, name, method)
    monkeypatch.setattr(transitions, "BLOCK_BYTES", 100)
    monkeypatch.setattr(flat, "BLOCK_BYTES", 100)


@pytest.mark.long
def test_an_import_that_dies_anywhere_is_begun_again(dataset: pathlib.Path) -> None:
    path, whole = dataset.parent / "a.replay", dataset.parent / "whole.replay"
    import_dataset(dataset, whole)
    there, at = sorted([path.name, dataset.name, whole.name]), 0
    while dies(lambda: import_dataset(dataset, path), at):
        if path.exists():  # it had its name already
            assert diff(path, whole) is None
            shutil.rmtree(path)
        found = import_dataset(dataset, path)
        assert (found.transitions, found.episodes) == (40, 4)
        assert sorted(entry.name for entry in dataset.parent.iterdir()) == there
        assert verify(path).ok
        assert diff(path, whole) is None
        shutil.rmtree(path)
        at += stride(61, "places of a kill")
    assert at > 100
