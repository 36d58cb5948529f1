"""Any one file of a store is lost or damaged: right rows, fewer of them with a warning, or an error that names it."""

from __future__ import annotations

import pathlib
import shutil
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from helpers.crashes import die
from helpers.damage import flip
from helpers.effort import stride
from hostile.bases import Digests, digests

import diskreplay as dr
from diskreplay.errors import CheckpointError, CorruptionError, DamageWarning, DiskReplayError
from diskreplay.ops.verify import verify
from diskreplay.storage import tail

SPACE = spaces.Dict({"text": spaces.Text(9, min_length=0, charset="abc"), "at": spaces.Box(-9, 9, (2,), np.float32)})
NAMES = "obs/text", "obs/at", "action", "reward", "tokens"
CHECKPOINT = "early"


class Answer(NamedTuple):
    """What reading a store gave: rows by id, what came later, what was warned of, and the error.

    Attributes:
        beside: values written later by id, and facts by the episode.
    """

    rows: Digests
    beside: dict[Any, Any]
    told: list[str]
    error: DiskReplayError | None


def play(buffer: dr.ReplayBuffer, rng: Any, rows: int) -> None:
    """Steps of two environments, with facts, values written later, and next observations that nothing continues."""

    def observe() -> dict[str, Any]:
        texts = ["".join(rng.choice(list("abc"), rng.integers(0, 9))) for _ in range(2)]
        return {"text": texts, "at": rng.normal(size=(2, 2)).astype(np.float32)}

    obs = observe()
    for row in range(rows):
        following, done = observe(), rng.random(2) < 0.2
        tokens = [rng.integers(0, 5, rng.integers(0, 7)) for _ in range(2)]
        buffer.add(obs, rng.integers(0, 5, 2), rng.normal(size=2), following, done, np.zeros(2, bool), tokens=tokens)
        obs = observe() if row % 6 == 5 else following
        if row % 4 == 3:
            buffer.annotate_episode(env=0, **{f"seen_{row}": row})
            buffer.write("value", buffer.items()[-3:], rng.normal(size=3).astype(np.float32))
            buffer.commit()


def make(path: pathlib.Path, closed: bool) -> None:
    """Two streams, whose windows have lost rows, a checkpoint that keeps some of those, more than one tail."""
    rng = np.random.default_rng(closed)
    sizes = {"chunk_rows": dict.fromkeys(NAMES, 4), "shard_rows": dict.fromkeys(NAMES, 8)}
    options: dict[str, Any] = {"commit_rows": 1 << 20, "commit_seconds": 1e9, "cache_bytes": 0}
    first = dr.ReplayBuffer.create(
        path, SPACE, spaces.Discrete(5), num_envs=2, capacity=48, seed=1, columns={"tokens": ((None,), np.int32)},
        later={"value": np.float32}, **sizes, **options,
    )  # fmt: skip
    play(first, rng, 18)
    first.checkpoint(CHECKPOINT)
    play(first, rng, 17)
    second = dr.ReplayBuffer.open(path, stream="1", num_envs=2, **options)
    play(second, rng, 13)
    for buffer in (first, second):
        if closed:
            buffer.close()
        else:
            buffer.commit()
            die(buffer)


def read(path: pathlib.Path, mode: Any, checkpoint: str | None = None) -> Answer:
    rows: Digests = {}
    beside: dict[Any, Any] = {}
    error = None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", DamageWarning)
        try:
            with dr.ReplayBuffer.open(path, mode=mode, checkpoint=checkpoint, cache_bytes=0) as buffer:
                for one in buffer.episodes:
                    beside |= {(one.stream, one.env, one.start, name): value for name, value in one.facts.items()}
                if len(ids := buffer.items()):
                    batch = buffer.get(ids)
                    values, known = batch.extra.pop("value"), batch.extra.pop("value_known")
                    beside |= dict(zip(ids[known].tolist(), values[known].tolist(), strict=True))
                    rows = digests(batch)
        except DiskReplayError as raised:
            error = raised
    return Answer(rows, beside, [str(one.message) for one in told if one.category is DamageWarning], error)


def check(answer: Answer, right: Answer, file: pathlib.Path, store: pathlib.Path) -> None:
    """Of all rows none is another one; if some are missing, that is said, and of what."""
    if answer.error is not None:
        assert isinstance(answer.error, CorruptionError), repr(answer.error)
        named = str(answer.error)
        assert str(file) in named or str(file.parent) in named, named
        return
    assert answer.rows.items() <= right.rows.items()
    assert answer.beside.items() <= right.beside.items()
    if answer.told:
        stream = file.relative_to(store).parts[:2]
        assert any(str(file) in said or str(store.joinpath(*stream)) in said or repr(stream[-1]) in said
                   for said in answer.told), answer.told  # fmt: skip
    else:
        assert (answer.rows, answer.beside) == (right.rows, right.beside)


DAMAGES = {
    "deleted": lambda file, at: file.unlink(),
    "flipped": lambda file, at: flip(file, at % file.stat().st_size, 1 << at % 8),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::diskreplay.errors.DamageWarning")  # of verify
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("damage", DAMAGES)
def test_any_one_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, damage: str, closed: bool) -> None:
    monkeypatch.setattr(tail, "DEAD_BYTES", 2000)
    store, copy = tmp_path / "a.replay", tmp_path / "b.replay"
    make(store, closed)
    newest, early = read(store, "r"), read(store, "r", CHECKPOINT)
    assert newest[2:] == early[2:] == ([], None)
    assert newest.rows.keys() != early.rows.keys()
    files = sorted(file for file in store.rglob("*") if file.is_file() and (file.stat().st_size or damage == "deleted"))
    assert len([file for file in files if file.name.startswith(tail.NAME)]) > 3
    rng = np.random.default_rng(len(files))
    for file in files[int(rng.integers(16)) :: stride(32, "files of a store")]:
        kept, at = file.read_bytes(), int(rng.integers(1 << 32))
        DAMAGES[damage](file, at)
        answers = read(store, "r"), read(store, "r", CHECKPOINT)
        check(answers[0], newest, file, store)
        if file.name == "zarr.json" and file.parent.name == CHECKPOINT and damage == "deleted":
            assert isinstance(answers[1].error, CheckpointError), "it is gone as one that was dropped"
        else:
            check(answers[1], early, file, store)
            assert not any(one.told or one.error for one in answers) or not verify(store).ok, file
        shutil.copytree(store, copy)
        damaged = copy / file.relative_to(store)
        writing = read(copy, "r+")
        check(writing, newest, damaged, copy)
        if writing.error is None:
            again = read(copy, "r")
            assert (again.rows, again.beside, again.error) == (writing.rows, writing.beside, None), file
            if "/streams/1/" not in str(file):  # what this stream's writer reads from a copy it puts back
                assert not again.told
                assert again.rows == newest.rows
        shutil.rmtree(copy)
        file.write_bytes(kept)
    assert verify(store).ok
