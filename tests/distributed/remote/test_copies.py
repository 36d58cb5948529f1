"""Live copies of one directory, in processes, that push to real storage at the same time and are killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import pathlib
import random
import shutil
from typing import Any

import pytest
from helpers import copies
from helpers.effort import examples
from remote.world import LAYOUT, RUN, SPACES, rows_of

import diskreplay as dr
from diskreplay.ops.remote import push
from diskreplay.ops.verify import verify

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'diskreplay[remote]'")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

SEED = 1
PATIENCE = 300
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["diskreplay.buffers.replay", "helpers.copies"])


def _round(folder: pathlib.Path, url: str, rng: random.Random) -> tuple[int, int]:
    """Pushes copies at the same time, until each is through or refused; who goes on, and how many were killed."""
    base = folder / "base"
    first = rng.randrange(1, 40)
    with dr.ReplayBuffer.create(base, *SPACES, capacity=2000, **LAYOUT, **RUN) as buffer:
        for number in range(first):
            copies.add(buffer, 0, number, first)
    push(base, url)
    paths = [base, *(folder / str(number) for number in range(1, rng.randrange(2, 5)))]
    for path in paths[1:]:
        shutil.copytree(base, path)
    confirmed: dict[int, int] = {}
    refused: dict[int, str] = {}
    killed = 0
    waiting = list(range(len(paths)))
    while waiting:  # those that were killed start again
        begun = []
        for number in waiting:
            here, there = PROCESSES.Pipe()
            arguments = str(paths[number]), url, number, first, rng.randrange(1 << 30), there
            process = PROCESSES.Process(target=copies.push_copy, args=arguments, daemon=True)
            process.start()
            there.close()
            begun.append((number, process, here))
        waiting = []
        for number, process, pipe in begun:
            process.join(PATIENCE)
            assert process.exitcode in (0, -9), (number, process.exitcode)
            with contextlib.suppress(EOFError):
                while pipe.poll():
                    what, fact = pipe.recv()
                    if what == "confirmed":
                        confirmed[number] = fact
                    else:
                        refused[number] = fact
            if process.exitcode:
                killed += 1
                waiting.append(number)
    assert len(confirmed) == 1, (confirmed, refused)
    (winner,) = confirmed
    assert set(refused) == set(range(len(paths))) - {winner}
    assert all("same origin" in said for said in refused.values()), refused
    with dr.ReplayBuffer.open(paths[winner], mode="r") as buffer:
        local = rows_of(buffer)
    with dr.ReplayBuffer.open(url, mode="r", mirror=folder / "mirror") as buffer:
        assert rows_of(buffer) == local
    assert len(local) == confirmed[winner]
    assert verify(url).problems == ()
    return winner, killed


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_of_live_copies_one_goes_on(
    scheme: str, server: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
    record_property: pytest.RecordProperty,
) -> None:  # fmt: skip
    monkeypatch.setenv("DISKREPLAY_MIRROR", str(tmp_path / "mirrors"))
    rng, rounds, kills = random.Random(SEED), examples(200, f"rounds of live copies ({scheme})", least=10), 0
    winners: set[Any] = set()
    for number in range(rounds):
        folder = tmp_path / str(number)
        folder.mkdir()
        url = f"s3://bucket/copies-{number}.replay" if scheme == "s3" else f"file://{folder}/remote.replay"
        winner, killed = _round(folder, url, rng)
        winners.add(winner > 0)
        kills += killed
        shutil.rmtree(folder)
    assert winners == {True, False}
    assert kills
    record_property("figures", f"{rounds} rounds of live copies ({scheme}), {kills} kills")
