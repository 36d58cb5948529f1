"""Adds rows that say which they are, and pushes them; a process of its own, which may be killed."""

import sys

from remote.world import LAYOUT, SPACES, observation

import diskreplay as dr


def main(path: str, url: str, writer: str) -> None:
    options = {"commit_rows": 7, "capacity": 10_000, "remote": url, **LAYOUT}
    with dr.ReplayBuffer.open_or_create(path, *SPACES, **options) as buffer:
        number = buffer.stats()["streams"][buffer.stream]["end"]
        print("begun", flush=True)
        while True:
            row, after = (observation(int(writer), 0, number + step) for step in (0, 1))
            reward = float(number % 1000 + 10_000 * int(writer))
            buffer.add(row, number % 1000 % 5, reward, after, False, number % 10 == 9)
            number += 1
            if number % 20 == 0:
                buffer.push(60)
                print("pushed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
