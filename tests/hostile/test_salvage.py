"""Salvage of stores that are damaged at random: each whole transition comes out bit for bit, and no other does."""

from __future__ import annotations

import pathlib
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
from format import specreader
from helpers import effort
from hostile import mutations, salvage_bases
from hostile.mutations import Rng, pick
from hostile.salvage_bases import NAMES, Base, digest
from hostile.salvage_oracle import LostError, whole

import diskreplay as dr
from diskreplay.errors import DiskReplayError
from diskreplay.ops.salvage import Salvaged
from diskreplay.ops.verify import verify

CASES = 5000
BLOCKS = 10
"""The parts of the cases of each base, each a test of its own."""
SEED = 44
FILES = [
    "zarr.json", "streams/*/start/root.json", "**/zarr.json", *["streams/*/zarr.json"] * 3, "checkpoints/*/zarr.json",
    *["streams/*/start/tail.*"] * 4, *["streams/**/c.*"] * 11, "streams/*/patches/**/c.*", "checkpoints/**/c.*",
]  # fmt: skip
"""What is damaged: shards mostly, and what leads to them."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    known: dict[str, Base] = {}

    def base(name: str) -> Base:
        if name not in known:
            known[name] = salvage_bases.make(name, tmp_path_factory.mktemp(name.replace(" ", "-")))
        return known[name]

    return base


def damage(base: Base, store: pathlib.Path, rng: Rng) -> list[str]:
    """Changes one file of a store, or a few; what was done."""
    done = []
    for _ in range(pick([1, 1, 1, 2, 3, 5], rng)):
        if files := sorted(store.glob(pick(FILES, rng))):
            kind = pick(list(KINDS), rng)
            file = pick(files, rng)
            done.append(f"{kind} {file.relative_to(store)} {KINDS[kind](base, store, file, rng)}")
    return done


def _removed(base: Base, store: pathlib.Path, file: pathlib.Path, rng: Rng) -> str:
    file.unlink()
    return ""


def _swapped(base: Base, store: pathlib.Path, file: pathlib.Path, rng: Rng) -> str:
    pattern = file.name if rng.random() < 0.5 else f"{file.name[:2]}*"
    other = pick(sorted(other for other in store.rglob(pattern) if other.is_file()), rng)
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)
    return f"with {other.relative_to(store)}"


def _foreign(base: Base, store: pathlib.Path, file: pathlib.Path, rng: Rng) -> str:
    theirs = base.other / file.relative_to(store)
    if theirs.exists():
        shutil.copyfile(theirs, file)
    return ""


KINDS: dict[str, Any] = {
    "flip": lambda base, store, file, rng: mutations.flip(file, rng),
    "overwrite": lambda base, store, file, rng: mutations.overwrite(file, rng),
    "cut": lambda base, store, file, rng: mutations.truncate(file, rng),
    "remove": _removed, "swap": _swapped, "of another store": _foreign,
}  # fmt: skip


def judge(base: Base, store: pathlib.Path, out: pathlib.Path) -> Salvaged | None:
    """Salvages, and compares with the oracle; None where both say that the root is lost."""
    before = {file: file.read_bytes() for file in store.rglob("*") if file.is_file()}
    try:
        expected = whole(store)
    except LostError:
        with pytest.raises(DiskReplayError):
            dr.salvage(store, out)
        assert not out.exists()
        return None
    found = dr.salvage(store, out)
    assert {file: file.read_bytes() for file in store.rglob("*") if file.is_file()} == before
    assert found.transitions == len(expected) == sum(one.kept for one in found.streams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stream = specreader.Store(out).streams["0"]
    ids = stream.ids()
    assert len(ids) == len(expected)
    records = {one.name: one for one in found.streams}
    run = 0
    for number, (name, place, goes_on) in zip(ids, expected, strict=True):
        row, _ = stream.locate(number)
        run = run + 1 if goes_on else 0
        assert digest(stream, number, full=run >= stream.context) in base.transitions[place], place
        assert (stream.value("start", row, 0) == 0) == goes_on, place
        if records[name].record == "stream":
            check_beside(base, stream, records[name].logs, row, place)
    return found


def check_beside(base: Base, stream: Any, lost: tuple[str, ...], row: int, place: Any) -> None:
    """Facts and values written later are those of the step, or none where some were lost."""
    first = row
    while stream.value("start", first, 0) == 0:
        first -= 1
    facts = stream.facts_of(first, 0)
    assert facts == base.facts[place] or (not facts and "info" in lost), place
    for column, values in stream.later.items():
        expected, value = base.later.get((column, place)), values.get((row, 0))
        assert expected == (None if value is None else value.tobytes()) or (value is None and "later/values" in lost)


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_store(made: Any, name: str, tmp_path: pathlib.Path) -> None:
    base = made(name)
    found = judge(base, base.path, tmp_path / "out.replay")
    assert found is not None
    assert found.lossless
    assert verify(tmp_path / "out.replay").ok


def cases(made: Any, name: str, folder: pathlib.Path, numbers: range) -> None:
    base = made(name)
    for number in numbers:
        store, out = folder / "a.replay", folder / "out.replay"
        shutil.copytree(base.path, store)
        done = damage(base, store, np.random.default_rng([SEED, NAMES.index(name), number]))
        try:
            judge(base, store, out)
        except Exception as error:
            raise AssertionError(f"case {number} of {name!r}: {done}") from error
        for left in folder.iterdir():
            shutil.rmtree(left)


@pytest.mark.long(quick=3)
@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("name", NAMES)
def test_damage(made: Any, name: str, block: int, tmp_path: pathlib.Path) -> None:
    each = -(-CASES // len(NAMES) // BLOCKS)
    count = effort.examples(each, "damaged stores to salvage", least=2)
    cases(made, name, tmp_path, range(block * each * 20, block * each * 20 + count))
