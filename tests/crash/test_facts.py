"""A crash at every operation that writes facts of episodes: those of a commit are there with it, or it is not."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from helpers import tale as tales
from helpers.effort import examples, stride
from helpers.testing import small_thresholds

import diskreplay as dr


class Tale(tales.Tale):
    """Episodes with facts."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, stride(1200, "crash points"))
        self.said = 0

    @staticmethod
    def seen(buffer: dr.ReplayBuffer) -> tales.Seen:
        """The episodes with their rows and facts."""
        return [(episode.start, episode.stop, episode.facts) for episode in buffer.episodes]

    def tell(self, **facts: Any) -> None:
        self.buffer.annotate_episode(**facts)

    def touch(self, buffer: dr.ReplayBuffer) -> None:
        buffer.begin_episode(seed=77)
        buffer.add([1e6], 0, 1.0, [1e6 + 1], False, False)
        buffer.annotate_episode(success=True)
        assert self.seen(buffer)[-1][2] == {"seed": 77, "success": True}

    def episode(self, length: int = 4, ends: bool = True, tell: str = "both") -> None:
        """An episode whose facts are given at its start, at its end, both or never."""
        self.said += 1
        if tell in ("start", "both"):
            self.buffer.begin_episode(seed=self.said, tags=["expert"] * (self.said % 2))
        for at in range(length):
            self.step += 1
            self.buffer.add([self.step], 0, 1.0, [self.step + 1], ends and at == length - 1, False)
        self.step += 10
        if tell in ("end", "both"):
            self.buffer.annotate_episode(success=bool(self.said % 3), note=f"episode {self.said} " * (self.said % 4))


TWICE = "episode, episode tell=never, commit, episode, episode tell=start, commit,"
WORKLOADS: dict[str, str] = {
    # Facts at the start, at the end, in the middle of an episode that a commit cuts; episodes without any.
    "a_life": "create, episode tell=never, commit,"  # there is no array of facts yet
    "episode tell=start, episode tell=end, episode tell=both, episode tell=never, commit,"
    "episode ends=False tell=start, commit, tell success=True, commit,"  # of no new row
    "episode tell=end, checkpoint one, episode, reopen, episode, close",
    # The log of facts grows over shards, is written again, and its shards go; a checkpoint keeps some.
    "evictions": f"create, {TWICE * 2} checkpoint middle, {TWICE} drop middle, {'episode, commit,' * 3} close",
    # The facts of one episode that goes on change again and again.
    "many_words": "create, episode ends=False,"
    + "".join(f"tell progress={number / 10}, commit," for number in range(10)) + "close",
    # A checkpoint with facts, one with more of the same rows, and back to the first.
    "going_back": "create, episode ends=False, checkpoint first, tell success=False, checkpoint second, episode,"
    "reopen, drop second, reopen first, episode, close",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("small", [False, True], ids=["", "small thresholds"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_facts_after_a_crash_at_every_operation(workload: str, small: bool) -> None:
    with small_thresholds() if small else contextlib.nullcontext():
        tale = Tale(12 if workload == "evictions" else 1000)
        tales.scripted(WORKLOADS[workload])(tale)
        assert tale.points > 50


@pytest.mark.parametrize("seed", range(examples(20, least=2)))
def test_facts_through_crash_after_crash(seed: int) -> None:
    with small_thresholds():
        told = Tale(20)
        told.through_crashes(
            seed, lambda rng: told.episode(rng.randrange(1, 6), tell=rng.choice(["start", "end", "both", "never"]))
        )
