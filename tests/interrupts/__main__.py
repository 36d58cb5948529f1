"""``python -m interrupts`` in ``tests`` interrupts all operations and prints a table, summed in docs/durability.md."""

from __future__ import annotations

import argparse
import collections
import os

from interrupts.table import MODES, USUAL, operations, run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m interrupts", description=__doc__)
    parser.add_argument("--tries", type=int, help="interrupts of each operation; all if not given")
    parser.add_argument("--only", default="", help="operations whose names contain this")
    parser.add_argument("--modes", default=";".join(USUAL), help=f"of {'; '.join(MODES)}")
    given = parser.parse_args()
    os.fsync = lambda fd: None  # no power is cut here
    groups: dict[str, collections.Counter[str]] = {}
    for each in operations():
        if given.only not in str(each):
            continue
        result = run(each, given.tries, given.modes.split(";"))
        tried = ", ".join(f"{mode} {result.tried[mode]} of {count}" for mode, count in result.places.items())
        print(f"{each}: {tried}; wrong {len(result.wrong)}", *result.wrong, sep="\n    ", flush=True)
        counts = groups.setdefault(each.group, collections.Counter())
        counts.update(places=sum(result.places.values()), tried=result.tried.total(), wrong=len(result.wrong))
    print("| operation | places | interrupts | afterwards wrong |\n|---|---|---|---|")
    for group, counts in groups.items():
        print(f"| `{group}` | {counts['places']:,} | {counts['tried']:,} | {counts['wrong']:,} |")


if __name__ == "__main__":
    main()
