"""``python -m helpers.stream_model`` in ``tests`` runs as many schedules as wanted, up to the first violation."""

from __future__ import annotations

import argparse
import collections
import itertools
import sys

from helpers.stream_model import bugs
from helpers.stream_model.disk import Damage, Violation
from helpers.stream_model.runs import random_run
from helpers.stream_model.scenarios import RACE, SCENARIOS, Explorer
from helpers.stream_model.world import World


def explore(name: str, bug: str | None, preemptions: int, crashes: bool, most: int | None) -> bool:
    """Whether a scenario has no violation in all its schedules, or the first ``most``."""
    explorer = Explorer(name, bug, crashes=crashes)
    try:
        for _ in itertools.islice(explorer.every(preemptions), most):
            pass
    except (Violation, Damage) as error:
        print(*explorer.world.disk.trace, f"{name}: {error}", sep="\n")
        return False
    print(f"{name}: {explorer.schedules:,} schedules, {explorer.crashes:,} losses of power, no violation", flush=True)
    return True


def draw(count: int, bug: str | None) -> bool:
    """Whether random programs have no violation."""
    counts: collections.Counter[str] = collections.Counter()
    for seed in range(count):
        world = World(bug)
        try:
            random_run(seed, world)
        except (Violation, Damage) as error:
            print(*world.disk.trace, f"seed {seed}: {error}", sep="\n")
            return False
        counts += world.counts
    print(
        f"{count:,} random programs, no violation; {', '.join(f'{what} {n:,}' for what, n in sorted(counts.items()))}"
    )
    return True


def main() -> bool:
    parser = argparse.ArgumentParser(prog="python -m helpers.stream_model", description=__doc__)
    parser.add_argument(
        "--race", type=int, metavar="N", help=f"N schedules of {RACE!r}, those of few preemptions first"
    )
    parser.add_argument("--random", type=int, metavar="N", help="N random programs with kills and losses of power")
    parser.add_argument("--only", choices=SCENARIOS, help="one scenario; all if not given")
    parser.add_argument("--preemptions", type=int, default=2, help="of a schedule, at the most")
    parser.add_argument("--crashes", action="store_true", help="lose power after every step")
    parser.add_argument("--bug", choices=bugs.BUGS, help="with this mistake")
    given = parser.parse_args()
    if given.random:
        return draw(given.random, given.bug)
    if given.race:
        return explore(RACE, given.bug, 99, given.crashes, given.race)
    names = [given.only] if given.only else list(SCENARIOS)
    return all([explore(name, given.bug, given.preemptions, given.crashes, None) for name in names])


if __name__ == "__main__":
    sys.exit(not main())
