"""Makes the sample data of this folder anew: ``python datasets/make.py [FOLDER]``, and its checksums.

``pong-v1.replay`` is a golden store of format version 1: 400 steps of real Pong (ALE/Pong-v5, 84x84 greyscale, frame
skip 4) by a seeded random policy, in two commits, with a checkpoint in between. Later versions must read it as it is,
so it is made again only to show how it was made.
"""

from __future__ import annotations

import hashlib
import pathlib
import sys

import numpy as np

import diskreplay as dr

HERE = pathlib.Path(__file__).parent
STEPS = 400


def pong(folder: pathlib.Path) -> None:
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    raw = gymnasium.make("ALE/Pong-v5", frameskip=1)
    env = gymnasium.wrappers.AtariPreprocessing(raw, frame_skip=4, screen_size=84)
    actions = np.random.default_rng(0).integers(6, size=STEPS)
    with dr.ReplayBuffer.create(
        folder / "pong-v1.replay", env.observation_space, env.action_space, capacity=1000, frame_stack=4, seed=0,
        commit_rows=10**6, commit_seconds=1e9,
    ) as rb:  # fmt: skip
        obs, _ = env.reset(seed=0)
        for step, action in enumerate(actions.tolist()):
            next_obs, reward, terminated, _, _ = env.step(action)
            truncated = step % 150 == 149  # short episodes, so that there are several
            rb.add(obs, action, reward, next_obs, terminated, truncated)
            obs = env.reset()[0] if terminated or truncated else next_obs
            if step == STEPS // 2:
                rb.checkpoint("half-way", metadata={"step": step})


def checksums(folder: pathlib.Path) -> str:
    files = sorted(path for path in folder.glob("*.replay/**/*") if path.is_file())
    lines = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}" for path in files
    )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    pong(target)
    (target / "SHA256SUMS").write_text(checksums(target))
