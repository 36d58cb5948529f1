"""Starts workers that try mutations, and notices when one dies or hangs."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys
from collections import Counter

TESTS = pathlib.Path(__file__).parent.parent


@dataclasses.dataclass
class Outcome:
    """How many cases of each kind ended how, and each violation."""

    ended: Counter[tuple[str, str]] = dataclasses.field(default_factory=Counter)
    violations: list[str] = dataclasses.field(default_factory=list)

    def add(self, line: str) -> None:
        """Take a case as a worker tells it: its number and kind, what was done, and how it ended."""
        done, _, ended = line.partition(" -> ")
        word = ended.partition(" ")[0]
        self.ended[done.split(" ", 2)[1], word] += 1
        if word == "VIOLATION":
            self.violations.append(line)

    def said(self) -> dict[str, int]:
        return {f"{kind} {word}": count for (kind, word), count in sorted(self.ended.items())}


def run(worker: str, given: pathlib.Path, folder: pathlib.Path, seed: int, cases: int) -> Outcome:
    """Tries the mutations ``0`` to ``cases``; a worker that dies or hangs is followed by another behind the case.

    Args:
        worker: its module; it knows what is ``given``.
        folder: of its own.
    """
    outcome, first = Outcome(), 0
    folder.mkdir(exist_ok=True)
    errors = folder / "stderr"
    while first < cases:
        command = [sys.executable, "-X", "faulthandler", "-m", worker, given, folder, seed, first, cases]
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                list(map(str, command)), stdout=subprocess.PIPE, stderr=stderr, text=True, errors="replace", cwd=TESTS
            )
        assert process.stdout is not None
        for line in process.stdout:
            outcome.add(line.rstrip("\n"))
            first += 1
        process.stdout.close()
        process.wait()
        if first < cases:
            said = errors.read_bytes()[-2500:].decode(errors="replace")
            outcome.add(f"{first} ? | ? -> VIOLATION it died with {process.returncode}: {said!r}")
            first += 1
    return outcome
