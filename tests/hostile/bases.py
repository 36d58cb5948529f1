"""Small stores of several kinds, and what each of their transitions must be."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import pickle
from typing import Any
from unittest import mock

import numpy as np
from gymnasium import spaces
from helpers import residency

import diskreplay as dr
from diskreplay.errors import EvictedError, InputError
from diskreplay.schema.ragged import Padded

IMAGE = spaces.Box(0, 255, (3, 4), np.uint8)
LAYOUT = {"chunk_rows": 4, "shard_rows": 8}
SAMPLED = 12
"""Transitions that are sampled from a checkpoint as soon as it is open."""

Digests = dict[int, bytes]
"""Of each transition, by its id."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    transitions: Digests
    metadata: dict[str, Any]
    sampled: tuple[list[int], list[float]]
    """The first sample's indexes and weights: they depend on priorities and on the random state."""


@dataclasses.dataclass(frozen=True)
class Base:
    """A store that is not damaged.

    Attributes:
        path: of it; never changed.
        transitions: of its newest commits.
        lengths: of each shard's file, below ``path``, after every commit.
    """

    name: str
    path: pathlib.Path
    transitions: Digests
    checkpoints: dict[str, Checkpoint]
    lengths: dict[str, list[int]]

    def save(self, file: pathlib.Path) -> None:
        file.write_bytes(pickle.dumps(self))


def digests(batch: Any) -> Digests:
    """One digest a sample, over everything but its weight."""
    parts = [batch.reward, batch.terminated, batch.truncated, batch.discount]
    for tree in (batch.obs, batch.action, batch.next_obs, batch.extra):
        parts += _leaves(tree)
    rows = [list(part.lists()) if isinstance(part, Padded) else np.ascontiguousarray(part) for part in parts]
    found = {}
    for at, number in enumerate(batch.index.tolist()):
        digest = hashlib.blake2b(digest_size=12)
        for part in rows:
            row = np.asarray(part[at])
            digest.update(f"{row.dtype}{row.shape}".encode() + row.tobytes())
        found[number] = digest.digest()
    return found


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in _leaves(tree[key])]
    if isinstance(tree, tuple) and not isinstance(tree, Padded):
        return [leaf for part in tree for leaf in _leaves(part)]
    return [tree]


def read_all(buffer: dr.ReplayBuffer, known: Digests) -> Digests:
    """Every transition of a buffer, by ``shuffled`` and, of those known, by ``get`` too."""
    found: Digests = {}
    for batch in buffer.shuffled(32, pool_bytes=1 << 14):
        found |= digests(batch)
    ids = [one for one in known if one in found]
    if ids:
        assert digests(buffer.get(np.array(ids))) == {one: found[one] for one in ids}, "get and shuffled differ"
    for one in [one for one in known if one not in found][:3]:
        try:
            buffer.get(np.array([one]))
        except (EvictedError, InputError):
            continue
        raise AssertionError(f"get finds transition {one:#x}, and shuffled does not")
    return found


def make(name: str, folder: pathlib.Path) -> Base:
    """The store of that name, made in ``folder``."""
    path = folder / "base.replay"
    lengths: dict[str, list[int]] = {}

    def noted() -> None:
        for file in path.rglob("c.*"):
            lengths.setdefault(str(file.relative_to(path)), []).append(file.stat().st_size)

    identity = mock.patch("secrets.token_hex", return_value="0123456789abcdef")
    residency.hold_up_to(8)
    with identity:
        MAKERS[name](path, noted)
    with dr.ReplayBuffer.open(path, mode="r", seed=0) as buffer:
        names = buffer.checkpoints
        transitions = read_all(buffer, {})
        read_all(buffer, transitions)
    checkpoints = {}
    for one in names:
        with dr.ReplayBuffer.open(path, mode="r", checkpoint=one) as buffer:
            batch = buffer.sample(SAMPLED)
            checkpoints[one] = Checkpoint(
                read_all(buffer, {}), buffer.checkpoint_metadata(one), (batch.index.tolist(), batch.weight.tolist())
            )
    sizes = {name: sorted(set(known)) for name, known in lengths.items()}
    return Base(name, path, transitions, checkpoints, sizes)


def _frames(path: pathlib.Path, noted: Any) -> None:
    """Stacked single frames of two environments, evicted shards, checkpoints that pin some, a second stream."""
    rng = np.random.default_rng(1)
    with dr.ReplayBuffer.create(
        path, IMAGE, spaces.Discrete(5), num_envs=2, capacity=40, frame_stack=3, stack_axis=None, commit_rows=1 << 20,
        commit_seconds=1e9, seed=3, **LAYOUT,
    ) as buffer:  # fmt: skip
        _steps(buffer, rng, 30, noted)
        buffer.checkpoint("early", {"step": 30})
        _steps(buffer, rng, 21, noted)
        buffer.checkpoint("late", {"step": 51})
        _steps(buffer, rng, 6, noted)
    with dr.ReplayBuffer.open(path, stream="other", num_envs=2, commit_rows=1 << 20, commit_seconds=1e9) as buffer:
        _steps(buffer, rng, 19, noted)
    noted()


def _steps(buffer: dr.ReplayBuffer, rng: Any, rows: int, noted: Any, commit_every: int = 7) -> None:
    envs = buffer.num_envs
    obs = rng.integers(0, 256, (envs, 3, 4), np.uint8)
    for row in range(rows):
        following = rng.integers(0, 256, obs.shape, np.uint8)
        done = rng.random(envs) < 0.15
        arguments = (obs, rng.integers(5, size=envs), rng.normal(size=envs), following, done, np.zeros(envs, bool))
        buffer.add(*(value[0] if envs == 1 else value for value in arguments))
        obs = np.where(done[:, None, None], rng.integers(0, 256, obs.shape, np.uint8), following)
        if row % commit_every == commit_every - 1:
            buffer.commit()
            noted()


def _dict(path: pathlib.Path, noted: Any) -> None:
    """Nested observations, some in RAM, user columns, three-step returns, rank-based priorities."""
    rng = np.random.default_rng(2)
    space = spaces.Dict(
        {"camera": IMAGE, "joints": spaces.Tuple([spaces.Box(-9, 9, (2,), np.float64), spaces.Discrete(7)])}
    )
    with dr.ReplayBuffer.create(
        path, space, spaces.Box(-1, 1, (2,), np.float32), capacity=60, frame_stack={"camera": 2}, stack_axis=None,
        columns={"logp": np.float32, "extra": ((3, 3), np.int16)}, view=dr.Transition(3, 0.9), seed=5,
        sampler=dr.RankBased(), commit_rows=1 << 20, commit_seconds=1e9,
        chunk_rows={"obs/camera": 4, "extra": 2, "reward": 4}, shard_rows={"obs/camera": 8, "extra": 8, "reward": 16},
    ) as buffer:  # fmt: skip

        def observe() -> dict[str, Any]:
            return {
                "camera": rng.integers(0, 256, (3, 4), np.uint8),
                "joints": (rng.uniform(-9, 9, 2), rng.integers(7)),
            }

        obs = observe()
        for row in range(70):
            following, done = observe(), bool(rng.random() < 0.1)
            buffer.add(
                obs, rng.uniform(-1, 1, 2).astype(np.float32), rng.normal(), following, done, False,
                logp=np.float32(rng.normal()), extra=rng.integers(0, 99, (3, 3), np.int16),
            )  # fmt: skip
            obs = observe() if done or rng.random() < 0.05 else following
            if row % 11 == 10:
                buffer.update_priorities(buffer.sample(8).index, rng.random(8))
                buffer.commit()
                noted()
            if row == 50:
                buffer.checkpoint("ranked", {"row": row, "name": "naïve"})
        buffer.checkpoint("last")
    noted()


def _stacks(path: pathlib.Path, noted: Any) -> None:
    """Given stacks with odd beginnings and ends, steps that are no transitions, proportional priorities."""
    rng = np.random.default_rng(3)
    space = spaces.Box(0, 255, (3, 3, 4), np.uint8)
    with dr.ReplayBuffer.create(
        path, space, spaces.Discrete(3), capacity=64, frame_stack=3, seed=1, sampler=dr.Proportional(),
        commit_rows=1 << 20, commit_seconds=1e9, codec="zstd:1", **LAYOUT,
    ) as buffer:  # fmt: skip
        obs = rng.integers(0, 256, (3, 3, 4), np.uint8)
        for row in range(60):
            if rng.random() < 0.15:
                obs = rng.integers(0, 256, (3, 3, 4), np.uint8)
            newest = rng.integers(0, 256, (1, 3, 4), np.uint8)
            following = np.concatenate([obs[1:] if rng.random() < 0.85 else newest.repeat(2, 0), newest])
            buffer.add(obs, 1, rng.normal(), following, bool(rng.random() < 0.1), False, valid=bool(rng.random() < 0.9))
            obs = following
            if row % 9 == 8:
                buffer.update_priorities(buffer.sample(4).index, rng.random(4))
                buffer.commit()
                noted()
            if row in (25, 45):
                buffer.checkpoint(f"row-{row}", {"row": row})
    noted()


def _plain(path: pathlib.Path, noted: Any) -> None:
    """Chunks that are not compressed, so that all shards look alike; two streams of one layout."""
    rng = np.random.default_rng(4)
    with dr.ReplayBuffer.create(
        path, IMAGE, spaces.Discrete(5), capacity=100, commit_rows=1 << 20, commit_seconds=1e9, seed=1,
        codec={"obs": "none", "reward": "none", "action": "none"},
        chunk_rows={"obs": 4, "reward": 8, "action": 8, "terminated": 8},
        shard_rows={"obs": 8, "reward": 16, "action": 16, "terminated": 16},
    ) as buffer:  # fmt: skip
        _steps(buffer, rng, 48, noted, commit_every=16)
        buffer.checkpoint("a", {"which": 1})
        _steps(buffer, rng, 8, noted, commit_every=4)
        buffer.checkpoint("b", {"which": 2})
    with dr.ReplayBuffer.open(path, stream="twin", commit_rows=1 << 20, commit_seconds=1e9) as buffer:
        _steps(buffer, rng, 56, noted, commit_every=16)
    noted()


def _ragged(path: pathlib.Path, noted: Any) -> None:
    """Ragged observations, actions and columns of two environments, evicted items, a checkpoint that pins some."""
    rng = np.random.default_rng(5)
    space = spaces.Dict(
        {"text": spaces.Text(9, min_length=0, charset="abc"), "at": spaces.Box(-9, 9, (2,), np.float32)}
    )
    names = ("obs/text", "action", "tokens")
    with dr.ReplayBuffer.create(
        path, space, spaces.Sequence(spaces.Discrete(5)), num_envs=2, capacity=40, seed=1, commit_rows=1 << 20,
        commit_seconds=1e9, columns={"tokens": ((None,), np.int32)}, codec={"action": "none"},
        chunk_rows=dict.fromkeys(names, 8), shard_rows=dict.fromkeys(names, 32),
    ) as buffer:  # fmt: skip

        def observe() -> dict[str, Any]:
            texts = ["".join(rng.choice(list("abc"), rng.integers(0, 9))) for _ in range(2)]
            return {"text": texts, "at": rng.normal(size=(2, 2)).astype(np.float32)}

        obs = observe()
        for row in range(48):
            following, done = observe(), rng.random(2) < 0.15
            tokens, actions = ([rng.integers(0, 5, rng.integers(0, 7)) for _ in range(2)] for _ in range(2))
            buffer.add(obs, actions, rng.normal(size=2), following, done, np.zeros(2, bool), tokens=tokens)
            obs = following if row % 6 else observe()
            if row % 7 == 6:
                buffer.commit()
                noted()
            if row == 30:
                buffer.checkpoint("early", {"row": row})
    noted()


MAKERS = {"frames": _frames, "dict": _dict, "stacks": _stacks, "plain": _plain, "ragged": _ragged}
