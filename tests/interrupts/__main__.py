"""``python -m interrupts`` in ``tests`` interrupts all operations and prints a table, summed in docs/durability.md."""

from __future__ import annotations

import argparse
import collections
import sys
from collections.abc import Sequence

from interrupts.table import MODES, USUAL, Result, operations, run


def print_table(results: Sequence[Result], modes: Sequence[str]) -> None:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.operation.group, []).append(result)
    print("| operation | places | interrupts | afterwards wrong |\n|---|---|---|---|")
    for group, members in groups.items():
        places = sum(sum(member.places.values()) for member in members)
        tried = sum(sum(member.tried.values()) for member in members)
        wrong = sum(len(member.failures) for member in members)
        print(f"| `{group}` | {places:,} | {tried:,} | {wrong:,} |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m interrupts", description=__doc__)
    parser.add_argument("--tries", type=int, help="interrupts of each operation; all if not given")
    parser.add_argument("--only", default="", help="operations whose names contain this")
    parser.add_argument("--modes", default=";".join(USUAL), help=f"of {'; '.join(MODES)}")
    parser.add_argument("--verbose", action="store_true", help="print every failure")
    given = parser.parse_args()
    modes = given.modes.split(";")
    results = []
    for each in operations():
        if given.only not in str(each):
            continue
        result = run(each, given.tries, modes)
        results.append(result)
        tried = ", ".join(f"{mode} {result.tried[mode]} of {result.places.get(mode)}" for mode in modes)
        print(f"{each}: {tried}; wrong {len(result.failures)}", flush=True)
        kinds = collections.Counter((f.mode, f.what[:90]) for f in result.failures)
        seen = set()
        for failure in result.failures:
            key = failure.mode, failure.what[:90]
            if given.verbose or key not in seen:
                print(f"    {kinds[key]} x {failure.mode}, {failure.ending}: {failure.place}\n        {failure.what}")
            seen.add(key)
        sys.stdout.flush()
    print_table(results, modes)


if __name__ == "__main__":
    main()
