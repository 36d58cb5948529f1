"""Export and import as operations: selections, what is refused, what stays after an error."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from formats.roundtrip import NESTED, USUAL, several_envs, store
from formats.roundtrip import read as episodes_of
from gymnasium import spaces
from helpers.line import rows_in
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import DiskFullError, InputError, StoreNotFoundError
from diskreplay.formats.arrays import from_arrays
from diskreplay.formats.core import recorder
from diskreplay.formats.core.recorder import Added, add_steps
from diskreplay.formats.core.transitions import Source, Transitions, with_next_obs
from diskreplay.formats.selection import Selection
from diskreplay.ops import convert
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFile


def exported(path: str, tmp_path: pathlib.Path, **options: Any) -> list[Any]:
    """The episodes of a selection, by way of a store."""
    export(path, tmp_path / "part", "store", selection=Selection(**options), overwrite=True, allow_loss=True)
    return episodes_of(tmp_path / "part")


def same(one: list[Any], other: list[Any]) -> bool:
    return [e.obs["obs"].tobytes() for e in one] == [e.obs["obs"].tobytes() for e in other]


def test_selections(path: str, tmp_path: pathlib.Path) -> None:
    store(spaces.Box(-9, 9, (3,)))(path)
    every = episodes_of(path)
    returns = [float(episode.reward.astype(float).sum()) for episode in every]
    assert same(exported(path, tmp_path, episodes=slice(2, 4)), every[2:4])
    assert same(exported(path, tmp_path, episodes=slice(-2, None)), every[-2:])
    assert same(exported(path, tmp_path, episodes=(5, 0)), [every[0], every[5]])
    least = sorted(returns)[3]
    assert same(
        exported(path, tmp_path, min_return=least), [e for e, r in zip(every, returns, strict=True) if r >= least]
    )


def test_selections_of_environments(path: str, tmp_path: pathlib.Path) -> None:
    several_envs(path)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        envs = [episode.env for episode in sorted(buffer.episodes, key=lambda e: (e.env, e.start))]
        numbers = [number for number, episode in enumerate(buffer.episodes) if episode.env != 1]
    every = episodes_of(path)
    wanted = [episode for episode, env in zip(every, envs, strict=True) if env in (0, 2)]
    assert same(exported(path, tmp_path, envs=(0, 2)), wanted)
    assert same(exported(path, tmp_path, episodes=tuple(numbers)), wanted)
    with pytest.raises(InputError, match="no environment 7"):
        exported(path, tmp_path, envs=(7,))
    with pytest.raises(InputError, match="no episode 99"):
        exported(path, tmp_path, episodes=(99,))


def test_columns(path: str, tmp_path: pathlib.Path) -> None:
    store(NESTED, columns={"value": np.float32, "log_prob": np.float32})(path)
    before = episodes_of(path)
    found = exported(path, tmp_path, columns=("obs/arm", "log_prob"))
    assert (found[0].obs.keys(), found[0].extra.keys()) == ({"obs/arm/joints", "obs/arm/grip"}, {"log_prob"})
    for one, other in zip(found, before, strict=True):
        np.testing.assert_array_equal(one.obs["obs/arm/joints"], other.obs["obs/arm/joints"])
        np.testing.assert_array_equal(one.extra["log_prob"], other.extra["log_prob"])
    assert exported(path, tmp_path, columns=("obs",))[0].extra == {}
    for columns, said in ((("camera",), "no column 'camera'"), (("value",), "no observation is left")):
        with pytest.raises(InputError, match=said):
            exported(path, tmp_path, columns=columns)


@pytest.mark.parametrize("name", ["npz", "npz-episodes"])
def test_what_is_there_stays(name: str, path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    out = tmp_path / "out"
    export(path, out, name)
    with pytest.raises(InputError, match="exists"):
        export(path, out, name)
    export(path, out, name, overwrite=True)
    assert formats.guess(out).name == name
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match=r"is a directory|no dataset of this format"):
        export(path, mine, name, overwrite=True)
    assert (mine / "thesis.txt").read_text() == "precious"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.replay", "mine", "out"]


def interrupt(done: int, total: int) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", [each.name for each in formats.every() if each.write])
def test_an_interrupt_leaves_nothing(name: str, path: str, tmp_path: pathlib.Path) -> None:
    format = formats.get(name)
    store()(path)
    with pytest.raises(KeyboardInterrupt):
        export(path, tmp_path / "out", name, allow_loss=True, progress=interrupt)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]
    if format.read is not None:
        export(path, tmp_path / "out", name, allow_loss=True)
        with pytest.raises(KeyboardInterrupt):
            import_dataset(tmp_path / "out", tmp_path / "back", progress=interrupt)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.replay", "out"]


ENDING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_waits_for_the_end_of_a_block(
    number: signal.Signals, path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store()(path)
    written = []

    def write(source: Source, target: pathlib.Path, compression: str) -> None:
        for steps in source.blocks():
            signal.raise_signal(number)
            target.write_bytes(b"half")
            written.append(len(steps))

    format = dataclasses.replace(formats.get("npz"), write=write)
    monkeypatch.setattr(formats, "get", lambda name: format)
    heard = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    kept = signal.signal(number, heard)  # under nohup it is ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            export(path, tmp_path / "out", "npz")
        assert signal.getsignal(number) == heard
    finally:
        signal.signal(number, kept)
    assert len(written) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"), OSError("Error writing bytes to file. Detail: [errno 28] No"),
        RuntimeError("Can't close (file write failed: time = now\n, errno = 28, error message = 'No space left')"),
    ],
)  # fmt: skip
def test_a_full_disk(error: Exception, path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a library says it."""
    store()(path)

    def write(source: Source, target: pathlib.Path, compression: str) -> None:
        target.write_bytes(b"half")
        try:
            raise error
        finally:
            if isinstance(error, OSError) and error.errno:
                raise RuntimeError("closing failed, too")

    format = dataclasses.replace(formats.get("npz"), write=write)
    monkeypatch.setattr(formats, "get", lambda name: format)
    with pytest.raises(DiskFullError, match=r"no room for .*/out'; nothing was written"):
        export(path, tmp_path / "out", "npz")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_is_ignored_stays_so(number: signal.Signals, path: str, tmp_path: pathlib.Path) -> None:
    """As SIGHUP under nohup, or SIGINT in the background of a script: whoever started the process said so."""
    store()(path)
    kept = signal.signal(number, signal.SIG_IGN)
    try:
        come = lambda done, total: signal.raise_signal(number)  # noqa: E731
        assert export(path, tmp_path / "out", progress=come).transitions == 27
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, kept)


@pytest.mark.long
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_to_the_command_leaves_nothing(number: signal.Signals, path: str, tmp_path: pathlib.Path) -> None:
    """Ctrl-C while the process writes, at whatever it is."""
    frame = np.random.default_rng(0).integers(0, 256, (84, 84), np.uint8)
    with dr.ReplayBuffer.create(
        path, spaces.Box(0, 255, (84, 84), np.uint8), spaces.Discrete(2), capacity=6000
    ) as buffer:
        for _ in range(6000):
            buffer.add(frame, 0, 0.0, frame, False, False)
    command = [sys.executable, "-m", "diskreplay_cli", "export", path, str(tmp_path / "out.hdf5")]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )  # fmt: skip
    while process.poll() is None and not any(entry.name.startswith(".out") for entry in tmp_path.iterdir()):
        time.sleep(0.005)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    if process.returncode == 0:  # it was quicker: then the file is whole
        assert import_dataset(tmp_path / "out.hdf5", tmp_path / "back").transitions == 6000
    else:
        assert (process.returncode, err.strip()) == (130, "diskreplay: interrupted; nothing was written")
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]


# Appending


def piece(length: int = 6, value: float = 0.0) -> Source:
    obs = np.full((length, 3), value, np.float32)
    return from_arrays(
        obs, np.zeros((length, 2), np.float32), np.arange(length, dtype=np.float32), obs, last=np.arange(length) == 5
    )


@pytest.fixture
def small(path: str) -> str:
    """A store with room for few steps; its newest episode goes on, from zeros to zeros."""
    zero = np.zeros(3, np.float32)
    box = spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-np.inf, np.inf, (2,))
    with dr.ReplayBuffer.create(path, *box, capacity=20) as buffer:
        for _ in range(4):
            buffer.add(zero, zero[:2], 1.0, zero, False, False)
    return path


def test_appending_where_there_is_room(small: str) -> None:
    result = import_dataset(piece(), small, append=True)
    assert (result.stream, result.transitions) == ("0", 6)
    with dr.ReplayBuffer.open(small, mode="r") as buffer:
        # Though the observations are the same, the steps do not go on in the episode that was there.
        assert [(e.stream, e.length) for e in buffer.episodes] == [(0, 4), (0, 6)]
        assert buffer.checkpoints == []
    assert verify(small).ok


def test_appending_evicts_nothing(small: str) -> None:
    before = episodes_of(small)
    result = import_dataset(piece(18), small, append=True)
    assert (result.stream, result.evicted) == ("1", 0)
    assert same(episodes_of(small)[:1], before)
    result = import_dataset(piece(5), small, append=True, capacity=3)
    assert (result.stream, result.evicted) == ("2", 2)
    assert rows_in(small) == 4 + 18 + 3
    assert verify(small).ok


@pytest.mark.parametrize("length", [12, 200])
def test_a_failed_append_leaves_the_store_as_it_was(small: str, length: int) -> None:
    before = episodes_of(small)
    good = piece(length)

    def blocks() -> Iterator[Any]:
        for steps in good.blocks():
            yield steps.span(0, length - 1)
            raise InputError("the source ends too early")

    bad = Source(good.layout, good.steps, blocks)
    with pytest.raises(InputError, match="too early"):
        import_dataset(bad, small, append=True)
    assert same(episodes_of(small), before)
    with dr.ReplayBuffer.open(small, mode="r") as buffer:
        assert (len(buffer), buffer.checkpoints) == (4, [])
    assert verify(small).ok
    assert import_dataset(piece(), small, append=True).transitions == 6


@pytest.mark.parametrize("length", [6, 18])
def test_an_interrupt_before_the_first_step_is_appended(
    small: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint to go back to is there already: it goes, too."""
    before, make = episodes_of(small), dr.ReplayBuffer.checkpoint

    def checkpoint(buffer: dr.ReplayBuffer, *args: Any, **kwargs: Any) -> None:
        make(buffer, *args, **kwargs)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(dr.ReplayBuffer, "checkpoint", checkpoint)
    with pytest.raises(KeyboardInterrupt):
        import_dataset(piece(length), small, append=True)
    with dr.ReplayBuffer.open(small, mode="r") as buffer:
        assert (len(buffer), buffer.checkpoints) == (4, [])
    assert same(episodes_of(small), before)
    assert verify(small).ok


@pytest.mark.usefixtures("commits_at_once")
@pytest.mark.parametrize("length", [6, 18])
def test_a_full_disk_while_appending(small: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where going back fails as well, it is said how to do it later."""
    before, good, write = episodes_of(small), piece(length), LocalFile.pwrite

    def pwrite(file: LocalFile, parts: Sequence[bytes], offset: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def blocks() -> Iterator[Any]:
        yield from good.blocks()
        monkeypatch.setattr(LocalFile, "pwrite", pwrite)
        yield from good.blocks()

    monkeypatch.setattr(recorder, "Prefetcher", lambda blocks, *_: contextlib.nullcontext(blocks()))
    monkeypatch.setitem(convert.PLAIN, "commit_rows", 1)
    with pytest.raises(DiskFullError, match="takes it back") as raised:
        import_dataset(dataclasses.replace(good, blocks=blocks), small, append=True)
    monkeypatch.setattr(LocalFile, "pwrite", write)
    with dr.ReplayBuffer.open(small, mode="r") as buffer:
        (name,) = buffer.checkpoints
    assert repr(name) in str(raised.value)
    stream = "0" if length == 6 else "1"
    with dr.ReplayBuffer.open(
        small, stream=stream, checkpoint=name, view=dr.Transition(), sampler=dr.Uniform()
    ) as buffer:
        buffer.drop_checkpoint(name)
    assert same(episodes_of(small), before)
    assert verify(small).ok


def test_what_does_not_fit_is_not_appended(small: str, tmp_path: pathlib.Path) -> None:
    other = from_arrays(np.zeros((3, 4)), np.zeros(3, np.int64), lengths=np.array([3]))
    with pytest.raises(InputError, match="observations"):
        import_dataset(other, small, append=True)
    with pytest.raises(InputError, match="frame_stack"):
        import_dataset(piece(), small, append=True, frame_stack=2)
    with pytest.raises(StoreNotFoundError):
        import_dataset(piece(), tmp_path / "none", append=True)
    with pytest.raises(InputError, match="exists"):
        import_dataset(piece(), small)
    assert not (tmp_path / "none").exists()


def test_capacity(path: str) -> None:
    result = import_dataset(piece(), path, capacity=4)
    assert (result.transitions, result.evicted) == (6, 2)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        assert buffer.get(np.arange(2, 6)).reward.tolist() == [2, 3, 4, 5]
        assert len(buffer) == buffer.schema.capacity == 4


@pytest.mark.long
@pytest.mark.parametrize("finals", [True, False])
def test_capacity_far_below_the_source(path: str, monkeypatch: pytest.MonkeyPatch, finals: bool) -> None:
    """All steps went through the store, in shards of a few rows: 60,000 into 100 took minutes.

    Without final observations half of the steps are no transitions, and nobody knows before they are read.
    """
    added: list[int] = []

    def counted(buffer: dr.ReplayBuffer, blocks: Any, **options: Any) -> Added:
        found = add_steps(buffer, blocks, **options)
        added.append(found.steps)
        return found

    monkeypatch.setattr(recorder, "add_steps", counted)
    total = 9_000
    obs, last = np.arange(total * 3, dtype=np.float32).reshape(-1, 3), np.arange(total) % 2 == 1
    source = from_arrays(
        obs, np.zeros((total, 2), np.float32), np.arange(total, dtype=np.float32), obs + 3 if finals else None,
        last=last,
    )  # fmt: skip
    result = import_dataset(source, path, capacity=100)
    transitions = total if finals else total // 2
    assert added == [2 * 100 + recorder.MAX_FRAME_STACK]
    assert (result.transitions, result.episodes, result.dropped) == (transitions, total // 2, total - transitions)
    with dr.ReplayBuffer.open(path, mode="r") as buffer:
        kept = np.concatenate([buffer.get(np.arange(e.start, e.stop)).reward for e in buffer.episodes])
        assert result.evicted == transitions - len(kept) < transitions
    np.testing.assert_array_equal(kept, np.arange(total)[~last if not finals else slice(None)][-len(kept) :])
    assert len(kept) > 60
    assert verify(path).ok


def test_the_newest_of_more_than_memory_is_to_hold(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "WAITING_BYTES", 1000)
    assert import_dataset(piece(60), path, capacity=4).evicted == 56


@pytest.mark.parametrize("name", ["minari", "minari-arrow"])
def test_a_group_of_minari_datasets_is_made(name: str, path: str, tmp_path: pathlib.Path) -> None:
    """Minari's names are group/name-v0: the group's directory was missing, and that was refused."""
    store()(path)
    out = tmp_path / "group" / "small-v0"
    assert export(path, out, name, allow_loss=True).transitions == 27
    assert formats.guess(out).name == name
    with pytest.raises(InputError, match="no directory"):
        export(path, tmp_path / "one" / "two" / "small-v0", name, allow_loss=True)
    with pytest.raises(InputError, match="no directory"):
        export(path, tmp_path / "other" / "small.npz", "npz")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["a.replay", "group"]


def test_a_group_that_was_made_for_nothing_goes(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    with pytest.raises(KeyboardInterrupt):
        export(path, tmp_path / "group" / "small-v0", "minari", allow_loss=True, progress=interrupt)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.replay"]


# Joining


def pieces(flags: list[tuple[bool, bool, bool]], size: int, finals: bool) -> Iterator[tuple[Transitions, Any]]:
    """Steps 0, 1, 2, ... with (terminated, truncated, last), a few at a time; final observations are negative."""
    numbers = np.arange(len(flags))
    table = np.array(flags, bool).reshape(-1, 3)
    for start in range(0, len(flags), size):
        at, ends = numbers[start : start + size], table[start : start + size]
        final = {"obs": -at[ends[:, 2]]} if finals else None
        steps = Transitions({"obs": at}, {}, {"action": at}, {}, at.astype(float), ends[:, 0], ends[:, 1], ends[:, 2])
        yield steps, final


def naive(flags: list[tuple[bool, bool, bool]], finals: bool) -> list[tuple[int, int, bool, bool, bool]]:
    """The rules of the module, episode by episode."""
    episodes: list[list[int]] = [[]]
    for at, (_, _, last) in enumerate(flags):
        episodes[-1].append(at)
        if last:
            episodes.append([])
    found = []
    for episode in filter(None, episodes):
        terminated, truncated, ended = flags[episode[-1]]
        following = [*episode[1:], -episode[-1] if finals and ended else episode[-1]]
        if not terminated and not (finals and ended):
            episode, following = episode[:-1], following[: len(episode) - 1]
        for at, after in zip(episode, following, strict=True):
            newest = at == episode[-1]
            found.append((at, after, newest and terminated, newest and truncated, newest))
    return found


@pytest.mark.parametrize("finals", [True, False])
@pytest.mark.parametrize("seed", range(30))
def test_joining(seed: int, finals: bool) -> None:
    rng = np.random.default_rng(seed)
    flags = []
    for _ in range(rng.integers(0, 30)):
        last = rng.random() < 0.35
        flags.append((bool(last and rng.random() < 0.4), bool(last and rng.random() < 0.4), bool(last)))
    for size in (1, 2, 3, 7, 50):
        found = []
        for steps in with_next_obs(pieces(flags, size, finals)):
            assert len(steps)
            columns = steps.obs["obs"], steps.next_obs["obs"], steps.terminated, steps.truncated, steps.last
            found += list(zip(*(values.tolist() for values in columns), strict=True))
            np.testing.assert_array_equal(steps.reward, steps.obs["obs"])
        assert found == naive(flags, finals)


def test_usual_ends() -> None:
    """The round trips mean something: all kinds of ends are among them."""
    assert {end for _, end in USUAL} == {(False, False), (True, False), (False, True)}
