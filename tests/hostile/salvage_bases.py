"""Stores of every kind to be damaged and salvaged: closed ones, and ones that a writer left when it was killed."""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from format import specreader
from gymnasium import spaces
from helpers import residency
from hostile import bases
from hostile.salvage_oracle import Place

import diskreplay as dr
from diskreplay import video
from diskreplay.errors import MisuseWarning

Digests = dict[Place, set[bytes]]
"""Of each transition, as it was added and as it is shown."""
ODD = ("start",)
"""The columns that a copy may have other values in."""


@dataclasses.dataclass(frozen=True)
class Base:
    """A whole store.

    Attributes:
        path: of it; never changed.
        other: another store of the same steps.
        transitions: of its newest commits, of those before, which a tail still has, and of all checkpoints.
        facts: of episodes, by every row of them.
        later: values that were written later.
    """

    name: str
    path: pathlib.Path
    other: pathlib.Path
    transitions: Digests
    facts: dict[Place, dict[str, Any]]
    later: dict[tuple[str, Place], bytes]


def digest(stream: specreader.Stream, number: int, *, full: bool = False) -> bytes:
    """Of a transition as the page's reader has it, with the observations that were added or, ``full``, as shown."""
    found = hashlib.blake2b(digest_size=12)
    for name, value in sorted(flat(stream.transition(number)).items()):
        stack = stream.stacks.get(name.partition(" ")[2])
        if name not in ODD:
            newest = not full and stack and stack["axis"] is None and stack["frames"] > 1
            array = np.ascontiguousarray(value[-1] if newest else value)
            found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.digest()


def flat(one: dict[str, Any]) -> dict[str, Any]:
    return {
        (f"{name} {leaf}" if isinstance(value, dict) else name): part
        for name, value in one.items()
        for leaf, part in (value.items() if isinstance(value, dict) else [("", value)])
    }


def read(store: specreader.Store, found: Digests) -> None:
    for stream in store.streams.values():
        of = stream.record["stream"]
        for number in stream.ids():
            row, env = stream.locate(number)
            found.setdefault((of, row, env), set()).update(digest(stream, number, full=full) for full in (False, True))


def make(name: str, folder: pathlib.Path) -> Base:
    """The base of that name; with ``killed`` behind it that of the last commit before closing."""
    kind, _, killed = name.partition(" ")
    residency.hold_up_to(8)
    transitions: Digests = {}
    for store in ("base", "other"):
        copies: list[pathlib.Path] = []
        path = folder / f"{store}.replay"

        def noted(path: pathlib.Path = path, copies: list[pathlib.Path] = copies) -> None:
            copies.append(shutil.copytree(path, path.with_name(f"{path.stem}-{len(copies)}.replay")))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MisuseWarning)
            MAKERS[kind](path, noted)
        if killed:
            shutil.rmtree(path)
            copies[-2].rename(path)
        for copy in copies:
            if store == "base" and copy.exists():
                read(specreader.Store(copy), transitions)
            shutil.rmtree(copy, ignore_errors=True)
    path = folder / "base.replay"
    stores = [specreader.Store(path)]
    stores += [specreader.Store(path, one.name) for one in (path / "checkpoints").glob("*/")]
    facts: dict[Place, dict[str, Any]] = {}
    later: dict[tuple[str, Place], bytes] = {}
    for store in stores:
        read(store, transitions)
    for stream in stores[0].streams.values():
        of = stream.record["stream"]
        for row in range(stream.begin, stream.end):
            for env in range(stream.envs):
                facts[of, row, env] = stream.facts_of(row, env)
        for column, values in stream.later.items():
            later |= {(column, (of, *place)): value.tobytes() for place, value in values.items()}
    return Base(name, path, folder / "other.replay", transitions, facts, later)


def _video(path: pathlib.Path, noted: Callable[[], None]) -> None:
    """Packets that nobody decodes, in groups of five, and a second stream."""
    rng = np.random.default_rng(6)
    facts = dr.Video("h264", 16, 8, "yuv420p", 30, (b"", b"x"))
    sizes = {"chunk_rows": {"obs": 64, "action": 4}, "shard_rows": {"obs": 256, "action": 16}}
    packets = [video.record(rng.bytes(int(rng.integers(5, 30))), not at % 5, at // 5 % 2) for at in range(53)]
    values = [np.frombuffer(b"".join(packets[at // 5 * 5 : at + 1]), np.uint8) for at in range(53)]
    dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, facts.shape, np.uint8), spaces.Discrete(3), capacity=40, video={"obs": facts}, **sizes
    ).close()  # fmt: skip
    for name in ("0", "two"):
        with dr.ReplayBuffer.open(path, stream=name, commit_seconds=1e9) as buffer:
            for row in range(52):
                buffer.add(values[row], row % 3, rng.normal(), values[row + 1], False, row % 10 == 9)
                if row % 9 == 8:
                    buffer.commit()
                    noted()
            if name == "0":
                buffer.checkpoint("first", {"row": 51}, attachments={"weights": rng.bytes(3000), "none": b"0"})
    noted()


def _facts(path: pathlib.Path, noted: Callable[[], None]) -> None:
    """A store of continuity "flags" with facts, values written later, attachments, and two environments."""
    rng = np.random.default_rng(7)
    with dr.ReplayBuffer.create(
        path, spaces.Box(-9, 9, (3,), np.float32), spaces.Discrete(5), num_envs=2, capacity=60, continuity="flags",
        later={"value": np.float32, "latent": ((40,), np.float16)}, commit_seconds=1e9,
        chunk_rows={"obs": 4, "reward": 8}, shard_rows={"obs": 8, "reward": 16},
    ) as buffer:  # fmt: skip
        obs = rng.normal(size=(2, 3)).astype(np.float32)
        for row in range(44):
            following, done = rng.normal(size=(2, 3)).astype(np.float32), rng.random(2) < 0.15
            buffer.begin_episode(env=int(row % 2), seed=row, note="x" * 40) if row == 0 or done.any() else None
            buffer.add(obs, rng.integers(5, size=2), rng.normal(size=2), following, done, np.zeros(2, bool))
            obs = following if rng.random() < 0.7 else rng.normal(size=(2, 3)).astype(np.float32)
            if row % 6 == 5:
                ids = buffer.items()[-7:]
                buffer.write("value", ids, rng.normal(size=7).astype(np.float32))
                buffer.write("latent", ids[:3], rng.normal(size=(3, 40)).astype(np.float16))
                buffer.commit()
                noted()
            if row in (20, 35):
                buffer.checkpoint(f"at-{row}", {"row": row}, attachments={"learner": rng.bytes(70_000)})
    noted()


MAKERS: dict[str, Callable[[pathlib.Path, Any], None]] = {**bases.MAKERS, "video": _video, "facts": _facts}
NAMES = (*MAKERS, *(f"{name} killed" for name in MAKERS))
