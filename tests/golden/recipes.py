"""How the stores of this folder were made: one for each feature that the sample data of ``datasets/`` do not have.

``python tests/golden/recipes.py FOLDER`` makes them again. Values are random numbers of a seed, so that the same
transitions come out; identities and times differ. Every later version must read the stores of this folder as they are.
"""

from __future__ import annotations

import base64
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

import diskreplay as dr
from diskreplay.video import record

AT_THE_END: dict[str, Any] = {"commit_rows": 10**6, "commit_seconds": 1e9, "seed": 0}
"""Commits only where a recipe says so."""
FRAME = spaces.Box(0, 255, (8, 8), np.uint8)
NESTED = spaces.Dict({
    "camera": FRAME,
    "joints": spaces.Tuple([spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(7, start=-3)]),
    "keys": spaces.MultiBinary(5),
})  # fmt: skip

GROUP = 4
AV1 = [
    "EgAKCgAAAAKv94lfIAgyDxAAjwAIIAAAAAAA68cE8A==",
    "EgAyFSgCACSSSTE2AEECCAAAEAAYJbG5QDITMAIECSQAYsQAAAIAAwAAR2h5jA==", "EgAaAYg=",
    "EgAyEjAGAgAAAGLEAAACAAAAIa1UIA==", "EgAKCgAAAAKv94lfIAgyDxAQjwAIIAAAAAAA68ezwA==",
    "EgAyFSgGACSSSTE2AEECCAAAEAAYJbHEwDITMAoECSQAYsQAAAIAAwAAGFUSZA==", "EgAaAYg=",
    "EgAyEjAOAgAAAGLEAAACAAAAIa1UIA==",
]  # fmt: skip
H264 = [
    "AAAAAWWIhAn//uVF5lkOuSCf", "AAAAAUGaOxCfhBAGlpP/8fD/+anm", "AAAAAUGaTwhkymEJ/4T/iw///5+B8MVd",
    "AAAAAUGacnhDyZTAhP+E/4sP//+fN8MVcA==", "AAAAAWWIggL//vHc8Ck5nGgf", "AAAAAUGaOxCfhP+LD///m/DFXQ==",
    "AAAAAUGaTwhkymEJ/4XiHzTh", "AAAAAUGacnhDyZTAhP+E/4sP//+ZcMVd",
]  # fmt: skip
"""Clips as encoders wrote them, 64x48 and 32x16, a key frame every GROUP frames; frame n has the grey 10 + 20 n."""
H264_PARAMETERS = base64.b64decode("AAAAAWdkAAqsshdCAAADAAIAAAMAeB4kTJAAAAABaOvBEsiw")


def facts(path: pathlib.Path) -> None:
    """Facts of episodes, and values that were written later, of rows of which the window has left some."""
    rng = np.random.default_rng(1)
    with dr.ReplayBuffer.create(
        path, spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(4), capacity=40,
        later={"latent": ((2,), np.float32), "error": np.float64}, **AT_THE_END,
    ) as rb:  # fmt: skip
        for episode in range(7):
            rb.begin_episode(
                seed=episode, success=episode % 2 == 0, tags=["even"] * (episode % 2 == 0), floor=[episode]
            )
            obs = rng.normal(size=3).astype(np.float32)
            for step in range(8):
                following = rng.normal(size=3).astype(np.float32)
                rb.add(obs, int(rng.integers(4)), rng.normal(), following, step == 7, False)
                obs = following
            rb.commit()
        rb.write("latent", rb.items()[::3], rng.normal(size=(len(rb.items()[::3]), 2)).astype(np.float32))
        rb.write("error", rb.items()[5:20], rng.normal(size=15))
        rb.checkpoint("written", metadata={"note": "naïve"})


def nested(path: pathlib.Path) -> None:
    """Nested observations of all kinds of spaces, columns of a user's own, all codecs, returns of three steps."""
    rng = np.random.default_rng(2)
    columns = {"half": np.float16, "wave": ((2,), np.complex64), "big": np.uint64, "flag": np.bool_}
    with dr.ReplayBuffer.create(
        path, NESTED, spaces.MultiDiscrete([3, 4]), num_envs=2, capacity=60, columns=columns, finite=True,
        codec={"obs/camera": "lz4:3", "half": "none", "wave": "lz4hc:4", "big": "zstd:3"}, reward_dtype=np.float64,
        frame_stack={"camera": 2}, stack_axis=None, stack_padding="reset", view=dr.Transition(3, 0.9),
        provenance={"env_id": "None-v0", "note": [1, None]}, **AT_THE_END,
    ) as rb:  # fmt: skip

        def observation() -> dict[str, Any]:
            return {
                "camera": rng.integers(0, 256, (2, 8, 8), np.uint8),
                "joints": (rng.uniform(-9, 9, (2, 2)), rng.integers(-3, 4, 2)),
                "keys": rng.integers(0, 2, (2, 5), np.int8),
            }

        obs = observation()
        for row in range(45):
            following, ended = observation(), rng.random((2, 2)) < 0.1
            extra = {
                "half": rng.normal(size=2).astype(np.float16),
                "wave": (rng.normal(size=(2, 2)) + 1j * rng.normal(size=(2, 2))).astype(np.complex64),
                "big": rng.integers(0, 2**64, 2, np.uint64), "flag": rng.random(2) < 0.5,
            }  # fmt: skip
            rb.add(obs, rng.integers([3, 4], size=(2, 2)), rng.normal(size=2), following, *ended, **extra)
            obs = observation() if row % 10 == 9 or ended.any() else following
            if row % 7 == 6:
                rb.commit()


def stacks(path: pathlib.Path) -> None:
    """Stacks of channels as they are given, beginnings and ends that do not follow, steps that are no transitions."""
    rng = np.random.default_rng(3)
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (6, 6, 9), np.uint8), spaces.Box(-1, 1, (2,), np.float32), capacity=50, frame_stack=3,
        stack_axis=-1, sampler=dr.Proportional(), chunk_rows=4, shard_rows=16, **AT_THE_END,
    ) as rb:  # fmt: skip
        obs = rng.integers(0, 256, (6, 6, 9), np.uint8)
        for row in range(70):
            if rng.random() < 0.15:
                obs = rng.integers(0, 256, (6, 6, 9), np.uint8)
            newest = rng.integers(0, 256, (6, 6, 3), np.uint8)
            following = np.concatenate([obs[..., 3:] if rng.random() < 0.85 else newest.repeat(2, 2), newest], axis=2)
            action = rng.uniform(-1, 1, 2).astype(np.float32)
            rb.add(
                obs, action, rng.normal(), following, bool(rng.random() < 0.1), False, valid=bool(rng.random() < 0.9)
            )
            obs = following
            if row % 9 == 8:
                rb.commit()


def flags(path: pathlib.Path) -> None:
    """Continuity by flags alone: each row may have a next observation of its own."""
    rng = np.random.default_rng(4)
    with dr.ReplayBuffer.create(
        path, FRAME, spaces.Discrete(3), num_envs=2, capacity=80, continuity="flags", view=dr.Sequence(4, gamma=0.9),
        **AT_THE_END,
    ) as rb:  # fmt: skip
        for row in range(33):
            obs, following = rng.integers(0, 256, (2, 2, 8, 8), np.uint8)
            ended = np.full(2, row % 11 == 10)
            rb.add(obs, rng.integers(3, size=2), rng.normal(size=2), following, ended, ~ended & (row % 5 == 4))
            if row % 8 == 7:
                rb.commit()


def streams(path: pathlib.Path) -> None:
    """Two streams, one of which went back to a checkpoint; ranks of priorities in a checkpoint."""
    rng = np.random.default_rng(5)

    def play(rb: dr.ReplayBuffer, rows: int) -> None:
        obs = rng.integers(0, 256, (8, 8), np.uint8)
        for row in range(rows):
            following = rng.integers(0, 256, (8, 8), np.uint8)
            rb.add(obs, int(rng.integers(3)), rng.normal(), following, row % 6 == 5, False)
            obs = following if row % 6 < 5 else rng.integers(0, 256, (8, 8), np.uint8)

    with dr.ReplayBuffer.create(
        path, FRAME, spaces.Discrete(3), capacity=40, sampler=dr.RankBased(), **AT_THE_END
    ) as rb:  # fmt: skip
        play(rb, 30)
        rb.update_priorities(rb.sample(20).index, rng.random(20))
        rb.checkpoint("ranked", metadata={"step": 30})
        play(rb, 6)
    with dr.ReplayBuffer.open(path, stream="second", num_envs=1, **AT_THE_END) as rb:
        play(rb, 17)
    with dr.ReplayBuffer.open(path, stream="0", checkpoint="ranked", **AT_THE_END) as rb:
        play(rb, 12)


def ragged(path: pathlib.Path) -> None:
    """Ragged columns, texts, sequences and graphs, of which the window has left some."""
    rng = np.random.default_rng(6)
    space = spaces.Dict({
        "at": spaces.Box(-9, 9, (2,), np.float32), "graph": spaces.Graph(spaces.Box(0, 1, (3,)), spaces.Discrete(5)),
        "text": spaces.Text(12, min_length=0, charset="abcé"),
    })  # fmt: skip
    action = spaces.Sequence(spaces.MultiDiscrete([3, 4]))
    listed = [*(f"obs/{name}" for name in ("graph/nodes", "graph/edges", "graph/edge_links", "text")), "action"]
    listed += ["tokens", "half"]
    with dr.ReplayBuffer.create(
        path, space, action, num_envs=2, capacity=60, columns={"tokens": ((None,), "i4"), "half": ((None, 2), "f2")},
        codec={"half": "none"}, chunk_rows=dict.fromkeys(listed, 16), shard_rows=dict.fromkeys(listed, 256),
        **AT_THE_END,
    ) as rb:  # fmt: skip

        def lists(*shape: int) -> Any:
            sizes = rng.integers(0, 6, 2).tolist()
            return [rng.random((size, *shape)) for size in sizes]

        def observation() -> dict[str, Any]:
            nodes = lists(3)
            graph = {
                "nodes": [each.astype(np.float32) for each in nodes],
                "edges": [rng.integers(0, 5, len(each)) for each in nodes],
                "edge_links": [rng.integers(0, len(each), (len(each), 2), np.int32) for each in nodes],
            }  # fmt: skip
            text = ["".join(rng.choice(list("abcé"), rng.integers(0, 12))) for _ in range(2)]
            return {"at": rng.normal(size=(2, 2)).astype(np.float32), "graph": graph, "text": text}

        obs, prompt = observation(), rng.integers(0, 99, 20)
        for row in range(50):
            following, ended = observation(), rng.random((2, 2)) < 0.1
            rb.add(
                obs, [(9 * each).astype(np.int64) % 3 for each in lists(2)], rng.normal(size=2), following, *ended,
                tokens=[prompt, rng.integers(0, 99, rng.integers(0, 40))],
                half=[each.astype(np.float16) for each in lists(2)],
            )  # fmt: skip
            obs = observation() if ended.any() else following
            if row % 7 == 6:
                rb.commit()
                prompt = rng.integers(0, 99, 20)
            if row == 30:
                rb.checkpoint("early")


def video(path: pathlib.Path) -> None:
    """Two cameras' video, the groups of one with parameters in turns, of which the window has left some."""
    cameras = {"front": dr.Video("av1", 64, 48), "wrist": dr.Video("h264", 32, 16, parameters=(H264_PARAMETERS,) * 2)}
    space = spaces.Dict({name: spaces.Box(0, 255, each.shape, np.uint8) for name, each in cameras.items()})
    with dr.ReplayBuffer.create(
        path, space, spaces.Discrete(9), capacity=24, video=cameras, chunk_rows=8, shard_rows=128, **AT_THE_END
    ) as rb:  # fmt: skip

        def seen(frame: int) -> dict[str, bytes]:
            at = frame % len(AV1)
            shown = range(at - at % GROUP, at + 1)
            front, wrist = ([base64.b64decode(clip[each]) for each in shown] for clip in (AV1, H264))
            return {
                "front": b"".join(record(packet, not each) for each, packet in enumerate(front)),
                "wrist": b"".join(record(packet, not each, at // GROUP) for each, packet in enumerate(wrist)),
            }

        for row in range(36):
            rb.add(seen(row), row % 9, row / 2, seen(row + 1), row % 12 == 11, False)
            if row % 12 == 11:
                rb.annotate_episode(tasks=["push"])
            if row % 7 == 6:
                rb.commit()


RECIPES: dict[str, Callable[[pathlib.Path], None]] = {
    make.__name__: make for make in (facts, nested, stacks, flags, streams, ragged, video)
}

if __name__ == "__main__":
    for name, make in RECIPES.items():
        make(pathlib.Path(sys.argv[1]) / f"{name}.replay")
