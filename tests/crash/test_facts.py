"""A crash at every operation that writes facts of episodes: those of a commit are there with it, or it is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from helpers import tale as tales
from helpers.effort import examples, stride
from helpers.testing import small_thresholds

import diskreplay as dr


class Tale(tales.Tale):
    """Episodes with facts."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, stride(600, "crash points"))
        self.said = 0

    @staticmethod
    def seen(buffer: dr.ReplayBuffer) -> tales.Seen:
        """The episodes with their rows and facts."""
        return [(episode.start, episode.stop, episode.facts) for episode in buffer.episodes]

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


def a_life(tale: Tale) -> None:
    """Facts at the start, at the end, in the middle of an episode that a commit cuts; episodes without any."""
    tale.create()
    tale.episode(tell="never")
    tale.commit()  # there is no array of facts yet
    for tell in ("start", "end", "both", "never"):
        tale.episode(tell=tell)
    tale.commit()
    tale.episode(ends=False, tell="start")
    tale.commit()
    tale.buffer.annotate_episode(success=True)
    tale.commit()  # of no new row
    tale.episode(tell="end")
    tale.checkpoint("one")
    tale.episode()
    tale.reopen()
    tale.episode()
    tale.close()


def evictions(tale: Tale) -> None:
    """The log of facts grows over shards, is written again, and its shards go; a checkpoint keeps some."""
    tale.create()
    for number in range(6):
        tale.episode()
        tale.episode(tell=("never", "start")[number % 2])
        tale.commit()
        if number == 3:
            tale.checkpoint("middle")
    tale.drop("middle")
    for _ in range(3):
        tale.episode()
        tale.commit()
    tale.close()


def many_words(tale: Tale) -> None:
    """The facts of one episode that goes on change again and again."""
    tale.create()
    tale.episode(ends=False)
    for number in range(10):
        tale.buffer.annotate_episode(progress=number / 10)
        tale.commit()
    tale.close()


def going_back(tale: Tale) -> None:
    """A checkpoint with facts, one with more of the same rows, and back to the first."""
    tale.create()
    tale.episode(ends=False)
    tale.checkpoint("first")
    tale.buffer.annotate_episode(success=False)
    tale.checkpoint("second")
    tale.episode()
    tale.reopen()
    tale.drop("second")
    tale.reopen("first")
    tale.episode()
    tale.close()


@pytest.mark.long
@pytest.mark.parametrize("small", [False, True], ids=["", "small thresholds"])
@pytest.mark.parametrize(
    ("workload", "capacity"),
    [(a_life, 1000), (evictions, 12), (many_words, 1000), (going_back, 1000)],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_facts_after_a_crash_at_every_operation(workload: Callable[[Tale], None], capacity: int, small: bool) -> None:
    with small_thresholds() if small else contextlib.nullcontext():
        tale = Tale(capacity)
        workload(tale)
        assert tale.points > 50


@pytest.mark.parametrize("seed", range(examples(20, least=3)))
def test_facts_through_crash_after_crash(seed: int) -> None:
    with small_thresholds():
        told = Tale(20)
        told.through_crashes(
            seed, lambda rng: told.episode(rng.randrange(1, 6), tell=rng.choice(["start", "end", "both", "never"]))
        )
