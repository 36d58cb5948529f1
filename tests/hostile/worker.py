"""A process that tries mutations, one line for each on its standard output; whoever started it watches it.

Arguments: a pickled base, a folder of its own, the seed, the first case, and one past the last.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pathlib
import pickle
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from helpers import residency
from helpers.patience import PATIENCE
from hostile.bases import SAMPLED, Base, Digests, digests, read_all
from hostile.mutations import mutate

import diskreplay as dr
from diskreplay.errors import (
    CorruptionError,
    DamageWarning,
    DiskReplayError,
    NotEnoughDataError,
    ReadFailedError,
)
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import Verified, verify

ADDRESS_BYTES = 6 << 30
"""Of the whole process, libraries and threads included: about 2.5 GiB of it are taken before the first case."""
CASE_SECONDS = 60.0
OUTSIDE = {"text": b"not of the store\n" * 9}


class Violation(Exception):
    """What must not happen happened."""


class Case:
    """One mutated copy of a base, and what reading it gave."""

    def __init__(self, base: Base, store: pathlib.Path, damage: bool) -> None:
        self.base = base
        self.store = store
        self.strict = damage
        self.cache_bytes = 0
        self.complaints: list[DiskReplayError] = []
        self.told: list[warnings.WarningMessage] = []
        self.streams = {folder.name for folder in (base.path / "streams").glob("*/")}
        self.written: Digests = dict(base.transitions)
        for one in base.checkpoints.values():
            self.written |= one.transitions

    def run(self, number: int) -> str:
        """How it ended, in a word; of three cases one only reads, two write.

        Every other one keeps decoded chunks, so that they are decoded whole.
        """
        self.cache_bytes = (0, 1 << 14)[number % 2]
        with self.complaining():
            inspect(self.store)
        found = self.verified()
        self.read(None)
        for name in self.base.checkpoints:
            before = len(self.complaints)
            self.read(name)
            if found and found.checkpoint == name and len(self.complaints) > before:
                raise Violation(f"verify says to go back to {name!r}, but reading raised {self.complaints[-1]!r}")
        refused = [c for c in self.complaints if isinstance(c, CorruptionError | ReadFailedError)]
        if refused and found and found.ok:
            raise Violation(f"verify found nothing, but reading raised {refused[0]!r}")
        if self.told and found and found.ok:
            raise Violation(f"verify found nothing, but reading warned of {self.told[0].message}")
        ended = "refused" if self.complaints else "warned" if self.told else "right"
        if number % 3:
            with self.complaining():
                self.write()
        return ended

    @contextlib.contextmanager
    def complaining(self) -> Any:
        try:
            yield
        except DiskReplayError as error:
            self.complaints.append(error)

    def verified(self) -> Verified | None:
        with self.complaining():
            return verify(self.store)

    def read(self, checkpoint: str | None) -> None:
        """Reads all that can be read as of the newest commit, or of a checkpoint."""
        with (
            self.complaining(),
            _warnings() as told,
            dr.ReplayBuffer.open(
                self.store, mode="r", checkpoint=checkpoint, seed=0, cache_bytes=self.cache_bytes
            ) as buffer,
        ):
            known = self.base.checkpoints.get(checkpoint) if checkpoint else None
            with self.complaining():
                self.sampled(buffer, known)
            with self.complaining():
                expected = known.transitions if known else self.base.transitions
                found = read_all(buffer, expected)
                self.compare(found, expected)
                self.told += [one for one in told if one.category is DamageWarning]
                there = {folder.name for folder in (self.store / "streams").glob("*/")}
                if self.strict and there == self.streams and not told and found.keys() != expected.keys():
                    raise Violation(f"{len(expected) - len(found)} transitions are not shown, and nothing is said")
            strict = self.strict and checkpoint is not None and known is not None
            if strict and buffer.checkpoint_metadata(checkpoint) != known.metadata:
                raise Violation("the checkpoint's metadata are other ones")

    def sampled(self, buffer: dr.ReplayBuffer, known: Any) -> None:
        if len(buffer) < SAMPLED:
            return
        batch = buffer.sample(SAMPLED)
        self.compare(digests(batch), known.transitions if known else self.written)
        if known is not None and self.strict and (batch.index.tolist(), batch.weight.tolist()) != known.sampled:
            raise Violation("the checkpoint samples differently")

    def compare(self, found: Digests, expected: Digests) -> None:
        if self.strict:
            for number, digest in found.items():
                if expected.get(number) != digest:
                    what = "was never written" if number not in expected else "is wrong"
                    raise Violation(f"transition {number:#x} {what}")

    def write(self) -> None:
        """Opens to write, reads, adds a row, and reads again."""
        with dr.ReplayBuffer.open(self.store, seed=0, cache_bytes=self.cache_bytes) as buffer:
            before = read_all(buffer, self.base.transitions)
            self.compare(before, self.base.transitions)
            with contextlib.suppress(NotEnoughDataError):
                buffer.sample(1)
            extra = {c.name: np.zeros((*_envs(buffer), *c.shape), c.dtype) for c in buffer.schema.extra_columns}
            buffer.add(*step(buffer), **extra)
            buffer.commit()
        with dr.ReplayBuffer.open(self.store, mode="r", cache_bytes=self.cache_bytes) as buffer:
            after = read_all(buffer, before)
            if self.strict:
                self.compare({number: after[number] for number in after.keys() & before.keys()}, before)


@contextlib.contextmanager
def _warnings() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", DamageWarning)
        yield told


def step(buffer: dr.ReplayBuffer) -> tuple[Any, ...]:
    """Arguments of ``add`` but the user's columns."""
    envs = buffer.num_envs
    parts = [_one(space) for space in (buffer.schema.observation_space, buffer.schema.action_space)]
    if envs > 1:
        parts = [_several(part, envs) for part in parts]
    flag = np.zeros(envs, bool) if envs > 1 else False
    reward = np.zeros(envs) if envs > 1 else 0.0
    return parts[0], parts[1], reward, parts[0], flag, flag


def _envs(buffer: dr.ReplayBuffer) -> tuple[int, ...]:
    return (buffer.num_envs,) if buffer.num_envs > 1 else ()


def _one(space: Any) -> Any:
    space.seed(0)
    return space.sample()


def _several(value: Any, envs: int) -> Any:
    if isinstance(value, dict):
        return {key: _several(part, envs) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_several(part, envs) for part in value)
    return np.stack([value] * envs)


def outside_of(folder: pathlib.Path) -> pathlib.Path:
    """A folder beside the store that nobody may touch."""
    outside = folder / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    for name, data in OUTSIDE.items():
        (outside / name).write_bytes(data)
    return outside


def snapshot(folder: pathlib.Path) -> dict[str, tuple[int, bytes]]:
    """Time of change and content of everything below a folder."""
    return {
        str(file): (file.stat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in sorted(folder.rglob("*"))
    }


def attempt(base: Base, folder: pathlib.Path, seed: int, number: int) -> tuple[str, str]:
    """One case: what was done, and how it ended."""
    store = folder / "a.replay"
    for left in folder.glob("a.replay*"):
        shutil.rmtree(left)
    shutil.copytree(base.path, store)
    outside = outside_of(folder)
    rng = np.random.default_rng([seed, number])
    done, damage = mutate(base, store, outside, rng)
    before = snapshot(outside)
    try:
        with watched(CASE_SECONDS):
            ended = Case(base, store, damage).run(number)
    except Exception as error:
        where = traceback.format_exc().strip().replace("\n", "\\n")
        return done, f"VIOLATION {type(error).__name__}: {str(error)[:300]!r} {where[-2500:]}"
    if snapshot(outside) != before:
        return done, "VIOLATION a file outside of the store was changed"
    return done, ended


@contextlib.contextmanager
def watched(seconds: float) -> Iterator[None]:
    """Ends the process with a trace where the block takes more processor time: a machine may stand still meanwhile.

    What waits for ever takes none: it ends after :data:`PATIENCE`.
    """
    faulthandler.register(signal.SIGPROF, chain=True)
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        faulthandler.cancel_dump_traceback_later()


def serve(cases: Iterator[tuple[str, str, str]], address_bytes: int) -> None:
    """Prints a line for each case: its number and kind, what was done, and how it ended."""
    os.fsync = lambda fd: None  # type: ignore[assignment]  # nobody cuts the power here
    resource.setrlimit(resource.RLIMIT_AS, (address_bytes, address_bytes))
    for name, done, ended in cases:
        line = f"{name} | {done} -> {ended}"
        print(line.replace("\n", " ").encode("ascii", "backslashreplace").decode(), flush=True)


def main() -> None:
    pickled, folder, seed, first, stop = sys.argv[1:]
    base = pickle.loads(pathlib.Path(pickled).read_bytes())
    warnings.simplefilter("ignore")
    residency.hold_up_to(8)
    numbers = range(int(first), int(stop))
    serve(((f"{at} {base.name}", *attempt(base, pathlib.Path(folder), int(seed), at)) for at in numbers), ADDRESS_BYTES)


if __name__ == "__main__":
    main()
