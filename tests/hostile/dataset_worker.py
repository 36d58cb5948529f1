"""A process that imports mutated datasets, one line for each on its standard output.

Arguments: a folder of datasets by :func:`hostile.dataset_bases.make`, a folder of its own, the seed, the first case,
and one past the last.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import traceback
import warnings

import numpy as np
from hostile.dataset_mutations import mutate
from hostile.worker import Violation, outside_of, serve, snapshot, watched

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import DamageWarning, DiskReplayError
from diskreplay.ops.convert import import_dataset
from diskreplay.ops.verify import verify

ADDRESS_BYTES = 12 << 30
MEMORY_BYTES = 500 << 20
CASE_SECONDS = 20.0


def resident_bytes(what: str) -> int:
    """``VmRSS``, or ``VmHWM``: the most since :func:`forget_peak`."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(what))


def forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def check_store(target: pathlib.Path) -> None:
    """A store that was imported is whole, and every reward is finite."""
    found = verify(target)
    if not found.ok:
        raise Violation(f"the store has {found.problems[0]}")
    with dr.ReplayBuffer.open(target, mode="r", view=dr.Transition()) as buffer:
        for batch in buffer.shuffled(64):
            if not np.isfinite(batch.reward).all():
                raise Violation("a reward is not finite")


def imported(dataset: pathlib.Path, target: pathlib.Path, format: str | None) -> str:
    """Imports it; how that ended, in a word."""
    try:
        import_dataset(dataset, target, format)
    except DiskReplayError as error:
        text = str(error)
        if "\n" in text or not text or len(text) > 2000:
            raise Violation(f"not one line: {text[:3000]!r}") from error
        if dataset.name not in text:
            raise Violation(f"does not name the dataset: {type(error).__name__}: {text}") from error
        return "refused"
    check_store(target)
    return "imported"


def attempt(base: pathlib.Path, folder: pathlib.Path, seed: int, number: int) -> tuple[str, str]:
    """One case: what was done, and how it ended."""
    for left in folder.iterdir():
        shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
    outside = outside_of(folder)
    os.mkfifo(outside / "fifo")
    source = folder / "source"
    source.mkdir()
    dataset = source / base.name
    shutil.copytree(base, dataset) if base.is_dir() else shutil.copyfile(base, dataset)
    rng = np.random.default_rng([seed, number])
    done = mutate(dataset, outside, rng)
    before = snapshot(outside)
    target = folder / "target"
    target.mkdir()
    said: list[str] = []
    forget_peak()
    peak = resident_bytes("VmRSS")
    errors = os.fstat(sys.stderr.fileno()).st_size
    try:
        with watched(CASE_SECONDS), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", DamageWarning)  # of a store that is read from its copies
            warnings.showwarning = lambda message, *rest, **more: said.append(str(message))
            name = None if rng.random() < 0.15 else base.parent.name.partition(" ")[0]
            ended = imported(dataset, target / "a.replay", name)
    except Exception as error:
        where = traceback.format_exc().strip().replace("\n", "\\n")
        return done, f"VIOLATION {type(error).__name__}: {str(error)[:300]!r} {where[-3500:]}"
    sys.stderr.flush()
    if os.fstat(sys.stderr.fileno()).st_size != errors:
        return done, f"VIOLATION on stderr: {pathlib.Path('/proc/self/fd/2').read_bytes()[errors : errors + 300]!r}"
    if said:
        return done, f"VIOLATION a warning: {said[0][:300]!r}"
    if (grown := resident_bytes("VmHWM") - peak) > MEMORY_BYTES:
        return done, f"VIOLATION {grown >> 20} MiB of memory"
    if snapshot(outside) != before:
        return done, "VIOLATION a file outside of the dataset was changed"
    left = sorted(entry.name for entry in target.iterdir())
    if left != (["a.replay"] if ended == "imported" else []):
        return done, f"VIOLATION {ended}, and there is {left}"
    return done, ended


def main() -> None:
    bases, folder, seed, first, stop = sys.argv[1:]
    each = [next(kind.iterdir()) for kind in sorted(pathlib.Path(bases).iterdir())]
    formats.every()
    cases = pathlib.Path(folder) / "cases"
    cases.mkdir(exist_ok=True)
    numbers = [(number, each[number % len(each)]) for number in range(int(first), int(stop))]
    serve(((f"{at} {one.parent.name}", *attempt(one, cases, int(seed), at)) for at, one in numbers), ADDRESS_BYTES)


if __name__ == "__main__":
    main()
