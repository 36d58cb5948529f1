"""A store that dies again and again, by kills and by losses of power, in its work and in its recovery."""

from __future__ import annotations

import random

import pytest
from helpers.configs import Config
from helpers.crashing import PATH, Story, check_shards, leftovers
from helpers.effort import examples
from helpers.model import Leaf

CONFIG = Config("frames", Leaf((2, 9)), frame_stack=3, capacity=15, chunk_rows=2, shard_rows=4)
CRASHES = examples(150, "crashes in a row", least=12)
OWN, SMALL = "own thresholds", "small thresholds"


@pytest.mark.long
@pytest.mark.parametrize(("seed", "both_thresholds"), [(0, OWN), (1, OWN), (2, SMALL)], indirect=["both_thresholds"])
def test_crash_after_crash(seed: int, both_thresholds: None) -> None:
    rng = random.Random(seed)
    story = Story(CONFIG, seed, random_losses=None)
    story.create()
    crashes, sizes = 0, []
    while crashes < CRASHES:
        name = f"at-{crashes}"

        def life(name: str = name) -> None:
            """What a process does before it dies; all of it may be cut short, the opening too."""
            if rng.random() < 0.2 and story.account.checkpoints and "0" not in story.buffers:
                story.back(next(reversed(story.account.checkpoints)))
            elif "0" not in story.buffers:
                story.open()
            while True:
                story.add(rng.randrange(1, 7))
                deed = rng.random()
                if deed < 0.6 or name in story.account.checkpoints:
                    story.commit()
                elif deed < 0.8 or not story.account.checkpoints:
                    story.checkpoint(name)
                else:
                    story.drop(rng.choice(list(story.account.checkpoints)))

        crashed = story.die(life, rng.randrange(160), rng.choice(["kill", "kill", None, random.Random(rng.random())]))
        assert crashed
        crashes += 1
        if rng.random() < 0.3:
            story.open()
            story.add(4)
            story.commit()
            while len(story.account.checkpoints) > 1:
                story.drop(next(iter(story.account.checkpoints)))
            story.commit()
            assert leftovers(story.disk) == []
            check_shards(story.disk, story.buffers["0"], "0", story.actors["0"].log, story.account)
            sizes.append(len(story.disk.list(f"{PATH}/streams/0/obs")))
    assert len(sizes) > CRASHES // 15
    assert max(sizes) < 20
