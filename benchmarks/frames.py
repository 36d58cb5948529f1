"""Real Atari frames for the benchmarks: recorded once, kept in an ignored folder, read as memory maps.

``python benchmarks/frames.py`` records 2**18 steps of each of four games (Pong, Breakout, MsPacman,
SpaceInvaders) with a seeded random policy, through ``gymnasium.wrappers.AtariPreprocessing``: 84x84
greyscale uint8, frame skip 4, as in Mnih et al. 2015. About 2,000 steps a second and core; 1.9 GB a game.

Every game is a folder of plain ``.npy`` files with one row a step: ``frame`` is the observation that the
step started from, ``final`` the observations that ended an episode, ``final_step`` the steps they belong to.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import pathlib
import shutil

import numpy as np
from numpy.lib.format import open_memmap

GAMES = ("Pong", "Breakout", "MsPacman", "SpaceInvaders")
FOLDER = pathlib.Path(__file__).parent / ".frames"
STEPS = 1 << 18


@dataclasses.dataclass(frozen=True)
class Game:
    """One recorded game; arrays lead with the step, all memory maps of the files on disk."""

    name: str
    frame: np.ndarray  # (steps, 84, 84) uint8
    action: np.ndarray  # (steps,) int64
    reward: np.ndarray  # (steps,) float64
    terminated: np.ndarray  # (steps,) bool
    truncated: np.ndarray  # (steps,) bool
    final: np.ndarray  # (cuts, 84, 84) uint8
    final_step: np.ndarray  # (cuts,) int64


def make_env(name: str):
    import ale_py
    import gymnasium

    gymnasium.register_envs(ale_py)
    env = gymnasium.make(f"ALE/{name}-v5", frameskip=1)
    return gymnasium.wrappers.AtariPreprocessing(env, frame_skip=4, screen_size=84)


def record(name: str, steps: int, folder: pathlib.Path) -> None:
    """Records one game into ``folder/name``; an interrupted recording leaves nothing under that name."""
    target, partial = folder / name, folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    env = make_env(name)
    frame = open_memmap(partial / "frame.npy", "w+", np.uint8, (steps, 84, 84))
    action = np.random.default_rng(0).integers(env.action_space.n, size=steps)
    reward, terminated, truncated = np.zeros(steps), np.zeros(steps, bool), np.zeros(steps, bool)
    final, final_step = [], []
    obs, _ = env.reset(seed=0)
    for step in range(steps):
        frame[step] = obs
        obs, reward[step], terminated[step], truncated[step], _ = env.step(int(action[step]))
        if terminated[step] or truncated[step] or step == steps - 1:
            final.append(obs)
            final_step.append(step)
            obs, _ = env.reset()
    frame.flush()
    for key, value in (
        ("action", action), ("reward", reward), ("terminated", terminated), ("truncated", truncated),
        ("final", np.array(final)), ("final_step", np.array(final_step)),
    ):  # fmt: skip
        np.save(partial / f"{key}.npy", value)
    (partial / "info.json").write_text(json.dumps({"game": name, "steps": steps, "seed": 0}))
    partial.rename(target)


def ensure(games: tuple[str, ...] = GAMES, steps: int = STEPS, folder: pathlib.Path = FOLDER) -> None:
    """Records what is not there yet, two games at a time."""

    def has(name: str) -> bool:
        info = folder / name / "info.json"
        return info.exists() and json.loads(info.read_text())["steps"] >= steps

    missing = [name for name in games if not has(name)]
    for name in missing:
        shutil.rmtree(folder / name, ignore_errors=True)
    if missing:
        print(f"recording {steps:,} steps of {', '.join(missing)} into {folder} (about {steps / 120_000:.0f} min each)")
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            pool.starmap(record, [(name, steps, folder) for name in missing], chunksize=1)


def load(name: str, folder: pathlib.Path = FOLDER) -> Game:
    keys = [field.name for field in dataclasses.fields(Game)][1:]
    return Game(name, *(np.load(folder / name / f"{key}.npy", mmap_mode="r") for key in keys))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps a game (default: 2**18)")
    parser.add_argument("--games", default=",".join(GAMES))
    arguments = parser.parse_args()
    ensure(tuple(arguments.games.split(",")), arguments.steps)
