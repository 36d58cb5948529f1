"""What docs/format.md says of commits, checkpoints, recovery and readers loses nothing: a model of it, step by step.

``python -m helpers.stream_model --race 1000000`` in ``tests`` runs a million schedules of a maker of checkpoints beside
a writer that leaves tails.
"""

from __future__ import annotations

import itertools

import pytest
from helpers import effort
from helpers.stream_model.bugs import BUGS
from helpers.stream_model.disk import Damage, Violation
from helpers.stream_model.runs import random_run
from helpers.stream_model.scenarios import RACE, SCENARIOS, Explorer
from helpers.stream_model.world import World

BACK, READER = "maker beside going back", "reader beside going back"
FOUND_BY = {
    "unlink_early": (RACE, 0, False),
    "no_tail_sync": (RACE, 0, True),
    "no_shard_sync": ("maker beside evictions", 0, True),
    "record_first": (RACE, 0, False),
    "no_listing_sync": ("drop beside eviction", 1, True),
    "no_second_look": (RACE, 0, False),
    "look_by_file": (RACE, 1, False),
    "look_at_begin": ("maker beside a floor", 0, False),
    "no_record_sync": ("maker beside a commit", 1, True),
    "cut_marked": (BACK, 1, False),
    "no_pending": (RACE, 0, True),
    "cut_pinned": ("equal ends", 0, False),
    "append_pinned": ("equal ends", 0, False),
    "no_announcement": (BACK, 1, False),
    "own_entries": ("equal ends", 0, False),
    "absent_table": ("absent table", 0, False),
    "stale_tail": (RACE, 0, True),
    "shards_first": ("maker beside evictions", 0, True),
    "reader_timeline": (READER, 1, False),
    "reader_keeps": (READER, 2, False),
}
"""The scenario that finds a bug, in how many preemptions, and whether only by a loss of power."""
SLOW = ("no_listing_sync", "no_record_sync", "reader_timeline", "reader_keeps")


@pytest.mark.long
def test_random_programs_lose_nothing() -> None:
    counts = World().counts
    for seed in range(effort.examples(400, "random programs of the model", least=20)):
        world = World()
        random_run(seed, world)
        counts += world.counts
    assert all(counts[what] for what in ("backs", "checkpoints", "evicted", "kills", "losses of power", "moves"))
    assert all(counts[what] for what in ("reads", "tails cut", "tails unlinked"))


@pytest.mark.long
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_schedule_of_two_preemptions_loses_nothing(name: str) -> None:
    """With every outcome of a loss of power after each step."""
    explorer = Explorer(name, crashes=True)
    for _ in explorer.every(0 if effort.SAMPLED else 2):
        pass
    assert explorer.crashes > 0


@pytest.mark.long
def test_a_maker_beside_a_writer_that_leaves_tails_loses_no_checkpoint() -> None:
    wanted = effort.examples(5000, "schedules of the race for a tail")
    explorer = Explorer(RACE)
    for _ in itertools.islice(explorer.every(9), wanted):
        pass
    assert explorer.schedules >= wanted


@pytest.mark.parametrize("bug", [pytest.param(bug, marks=[pytest.mark.long] * (bug in SLOW)) for bug in BUGS])
def test_each_bug_is_found(bug: str) -> None:
    """A model that finds nothing would say nothing."""
    name, preemptions, crashes = FOUND_BY[bug]
    explorer = Explorer(name, bug, crashes=crashes)
    with pytest.raises((Violation, Damage)):
        for _ in explorer.every(preemptions):
            pass


def test_a_bug_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        World("none")
