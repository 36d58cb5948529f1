"""Starts workers, and notices when one dies, hangs, or asks for too much memory."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import queue
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import IO

from helpers.patience import PATIENCE
from helpers.threads import together
from hostile.bases import Base

TESTS = pathlib.Path(__file__).parent.parent
ADDRESS_BYTES = 6 << 30
"""Of the whole process, libraries and threads included: about 2.5 GiB of it are taken before the first case."""


@dataclasses.dataclass
class Outcome:
    """How many cases ended how, and each violation."""

    ended: Counter[str] = dataclasses.field(default_factory=Counter)
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    violations: list[str] = dataclasses.field(default_factory=list)


def run(base: Base, folder: pathlib.Path, seed: int, cases: int, workers: int = 1) -> Outcome:
    """Tries the mutations ``0`` to ``cases`` of a base."""
    outcome = Outcome()
    pickled = folder / "base.pickle"
    base.save(pickled)
    bounds = [cases * i // workers for i in range(workers + 1)]
    lock = threading.Lock()

    def share(which: int) -> None:
        own = folder / f"worker-{which}"
        own.mkdir()
        for line in _lines(pickled, own, seed, bounds[which], bounds[which + 1]):
            done, _, ended = line.partition(" -> ")
            with lock:
                outcome.kinds[done.partition(" ")[2].partition(":")[0]] += 1
                if ended in ("right", "refused"):
                    outcome.ended[ended] += 1
                else:
                    outcome.ended["violation"] += 1
                    outcome.violations.append(f"{base.name} seed {seed} case {line}")

    together(*(functools.partial(share, which) for which in range(workers)))
    return outcome


def _pass_on(output: IO[str], lines: queue.Queue[str]) -> None:
    """Lines as they come, and an empty one at the end."""
    for line in output:
        lines.put(line)
    lines.put("")


def _lines(pickled: pathlib.Path, folder: pathlib.Path, seed: int, first: int, stop: int) -> Iterator[str]:
    """A line for each case; a worker that dies or hangs is followed by another one behind the case."""
    while first < stop:
        process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-W", "ignore", "-m", "hostile.worker", str(pickled), str(folder),
             str(ADDRESS_BYTES), str(seed), str(first), str(stop)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=TESTS, errors="replace",
        )  # fmt: skip
        lines: queue.Queue[str] = queue.Queue()
        errors: list[str] = []
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            threading.Thread(target=_pass_on, args=(process.stdout, lines)),
            threading.Thread(target=errors.extend, args=(process.stderr,)),
        ]
        for reader in readers:
            reader.start()
        while True:
            try:
                line = lines.get(timeout=PATIENCE)
            except queue.Empty:
                process.kill()
                yield f"{first} ? -> VIOLATION it hangs"
                first += 1
                break
            if not line:
                process.wait()
                if first < stop:
                    for reader in readers:
                        reader.join()
                    said = "".join(errors)[-2000:]
                    yield f"{first} ? -> VIOLATION the process died with {process.returncode}: {said!r}"
                    first += 1
                break
            yield line.rstrip("\n")
            first += 1
        for reader in readers:
            reader.join()
        process.stdout.close()
        process.stderr.close()
        process.wait()
