"""Imports into new stores that die at any operation: the same import again goes on, and the store is whole."""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.diff import diff
from helpers.effort import SAMPLED, stride
from helpers.forking import dies

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.formats.arrays import from_arrays
from diskreplay.formats.core import flat, transitions
from diskreplay.ops.convert import Imported, export, import_dataset
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    """Episodes of several lengths, each of which ends in a flag."""
    rng = np.random.default_rng(0)
    ends = np.cumsum([9, 1, 18, 12]) - 1
    terminated = np.isin(np.arange(40), ends)
    np.savez(
        tmp_path / "set.npz", observations=rng.normal(size=(40, 3)).astype(np.float32), rewards=rng.normal(size=40),
        actions=rng.integers(4, size=40), terminals=terminated, timeouts=np.zeros(40, bool),
    )  # fmt: skip
    return tmp_path / "set.npz"


@pytest.fixture(autouse=True)
def _commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit every few rows, as a large dataset has them."""
    for name in ("create", "open"):
        method = functools.partial(getattr(dr.ReplayBuffer, name), commit_rows=8)
        monkeypatch.setattr(dr.ReplayBuffer, name, method)
    monkeypatch.setattr(transitions, "BLOCK_BYTES", 100)
    monkeypatch.setattr(flat, "BLOCK_BYTES", 100)


def check(dataset: pathlib.Path, whole: pathlib.Path) -> Imported:
    """The import once more: it is whole, and nothing lies beside it."""
    path = dataset.parent / "a.replay"
    found = import_dataset(dataset, path)
    assert verify(path).ok
    assert diff(path, whole) is None
    assert (found.transitions, found.episodes) == (40, 4)
    assert sorted(entry.name for entry in dataset.parent.iterdir()) == sorted(
        [dataset.name, "a.replay", "whole.replay"]
    )
    shutil.rmtree(path)
    return found


@pytest.mark.long
def test_an_import_that_dies_anywhere_goes_on(dataset: pathlib.Path) -> None:
    path, whole = dataset.parent / "a.replay", dataset.parent / "whole.replay"
    import_dataset(dataset, whole)
    resumed, at = set(), 0
    while dies(lambda: import_dataset(dataset, path), at):
        if path.exists():  # it had its name; what was left is to tell so
            shutil.rmtree(path)
        resumed.add(check(dataset, whole).resumed)
        at += stride(29, "places of a kill")
    assert max(resumed) > 30
    assert len(resumed) > 2


def test_an_import_that_dies_again_goes_on(dataset: pathlib.Path) -> None:
    path, whole = dataset.parent / "a.replay", dataset.parent / "whole.replay"
    import_dataset(dataset, whole)
    for at in (150, 60, 60):
        assert dies(lambda: import_dataset(dataset, path), at)
    assert check(dataset, whole).resumed > 8


def test_stacks_and_other_dtypes_of_the_store_go_on(dataset: pathlib.Path) -> None:
    path, whole = dataset.parent / "a.replay", dataset.parent / "whole.replay"
    options: dict[str, Any] = {"frame_stack": 2, "observation_space": spaces.Box(-9, 9, (3,), np.float64)}
    import_dataset(dataset, whole, **options)
    assert dies(lambda: import_dataset(dataset, path, **options), 150)
    assert import_dataset(dataset, path, **options).resumed >= 8
    assert diff(path, whole) is None


@pytest.mark.long
@pytest.mark.parametrize("equal", [True, False])
def test_episodes_go_on_after_a_kill(equal: bool, tmp_path: pathlib.Path) -> None:
    """Ends without a flag, next observations that differ, and some that nothing but their episode tells from others."""
    file, path, whole = tmp_path / "a.hdf5", tmp_path / "a.replay", tmp_path / "whole.replay"
    lengths, zero = [9, 1, 18, 12, 5], np.zeros((45, 3), np.float32)
    last, flags = np.isin(np.arange(45), np.cumsum(lengths) - 1), np.zeros(45, bool)
    following = zero if equal else zero + np.random.default_rng(0).integers(0, 2, (45, 1)).astype(np.float32)
    arrays = from_arrays(
        zero, zero[:, :2], np.arange(45.0), following, terminated=flags, truncated=flags, last=last
    )  # fmt: skip
    import_dataset(arrays, tmp_path / "arrays.replay")
    export(tmp_path / "arrays.replay", file, "d4rl")  # which says that episodes end in no flag
    wanted = import_dataset(file, whole)
    assert (wanted.episodes, wanted.differing) == (5, 0 if equal else int((following[:, 0] * ~last).sum()))
    resumed, at = set(), 1
    while dies(lambda: import_dataset(file, path), at):
        if path.exists():
            shutil.rmtree(path)
        found = import_dataset(file, path)
        resumed.add(found.resumed)
        assert (found.episodes, found.differing, found.transitions) == (5, wanted.differing, 45)
        assert inspect(path).continuity == inspect(whole).continuity == ("observations" if equal else "flags")
        assert verify(path).ok
        assert diff(path, whole) is None
        shutil.rmtree(path)
        at += stride(17, "places of a kill")
    assert len(resumed) > 2
    assert max(resumed) >= (40 if SAMPLED else 45)  # all was there, and had no name


def test_another_dataset_begins_anew(dataset: pathlib.Path) -> None:
    path, whole = dataset.parent / "a.replay", dataset.parent / "whole.replay"
    assert dies(lambda: import_dataset(dataset, path), 150)
    with np.load(dataset) as arrays:
        np.savez(dataset, **{**arrays, "rewards": arrays["rewards"] + 1})
    import_dataset(dataset, whole)
    assert check(dataset, whole).resumed == 0


def left(dataset: pathlib.Path) -> pathlib.Path:
    """The store of an import that was killed."""
    assert dies(lambda: import_dataset(dataset, dataset.parent / "a.replay"), 150)
    (found,) = dataset.parent.glob(".a.replay.tmp-*/a.replay")
    return found


def test_what_others_wrote_to_it_is_not_taken_for_the_datasets(dataset: pathlib.Path) -> None:
    store, path, whole = left(dataset), dataset.parent / "a.replay", dataset.parent / "whole.replay"
    with dr.ReplayBuffer.open(store) as rb:
        before = len(rb)
        rb.add(np.ones(3, np.float32), 1, 7.0, np.zeros(3, np.float32), True, False)
    for _ in range(2):  # the lock is free again
        with pytest.raises(InputError, match=f"{store.parent.name}.*other steps than the dataset"):
            import_dataset(dataset, path)
    with dr.ReplayBuffer.open(store, mode="r") as rb:
        assert len(rb) == before + 1
    assert not path.exists()
    store.parent.rename(dataset.parent / "elsewhere")
    import_dataset(dataset, whole)
    import_dataset(dataset, path)
    assert diff(path, whole) is None


@pytest.mark.parametrize("others", [False, True])
def test_facts_that_others_wrote_to_it_are_not_taken_for_the_datasets(others: bool, dataset: pathlib.Path) -> None:
    path, source = dataset.parent / "a.replay", dataset.parent / "source.replay"
    import_dataset(dataset, source)
    with dr.ReplayBuffer.open(source) as rb:
        rb.annotate_episode(rb.episodes[0], seed=3, tags=("some",))
    assert dies(lambda: import_dataset(source, path), 150)
    (store,) = dataset.parent.glob(".a.replay.tmp-*/a.replay")
    with dr.ReplayBuffer.open(store) as rb:  # the import itself would write the seed
        rb.annotate_episode(rb.episodes[0], seed=3, **({"success": True} if others else {}))
    if others:
        with pytest.raises(InputError, match=f"{store.parent.name}.*other facts of episode 0 than the dataset"):
            import_dataset(source, path)
        assert store.exists()
    else:
        assert import_dataset(source, path).resumed
        assert diff(path, source) is None


def test_a_dataset_that_was_changed_without_a_trace_is_refused(dataset: pathlib.Path) -> None:
    store, before = left(dataset), dataset.stat()
    with np.load(dataset) as arrays:
        np.savez(dataset, **{**arrays, "rewards": arrays["rewards"] + 1})
    assert dataset.stat().st_size == before.st_size
    os.utime(dataset, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="other steps than the dataset, not before step 0"):
        import_dataset(dataset, dataset.parent / "a.replay")
    assert store.exists()
