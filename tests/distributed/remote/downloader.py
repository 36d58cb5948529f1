"""Reads a store under a URL through a mirror that others share; a process of its own, which may be killed."""

import sys
import time

import numpy as np

import diskreplay as dr


def main(url: str, mirror: str, most: str, rounds: str) -> None:
    print("begun", flush=True)
    for _ in range(int(rounds)):
        with dr.ReplayBuffer.open(url, mode="r", mirror=mirror, mirror_bytes=int(most), cache_bytes=0) as buffer:
            ids = buffer.items()
            order = np.random.default_rng(time.time_ns()).permutation(ids)
            for part in np.array_split(order, 8):
                batch = buffer.get(part)
                assert (batch.obs[:, 2] == batch.reward % 1000 % 200).all()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
