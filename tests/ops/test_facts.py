"""Facts of episodes in what the commands do: list, select, export, import, split, merge, verify."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
import pytest
from helpers.commands import command
from helpers.damage import flip
from helpers.effort import stride
from helpers.line import create, play
from helpers.testing import small_thresholds

import diskreplay as dr
from diskreplay import formats
from diskreplay.errors import CorruptionError, DamageWarning, InputError, MisuseWarning, NotEnoughDataError
from diskreplay.formats.selection import Selection
from diskreplay.ops.checkpoints import restore
from diskreplay.ops.combine import merge, split
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.episodes import episodes
from diskreplay.ops.inspect import inspect
from diskreplay.ops.verify import verify
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.stream import read_commit, write_commit

WHERE = "return >= 4 and tag == 'expert'"


def make(path: pathlib.Path, count: int = 9, words: int = 0) -> pathlib.Path:
    """Episodes of four steps with returns 0 to ``4 * count``; each third is an expert's, and each fourth untold."""
    with create(path, 1000) as buffer:
        for number in range(count):
            if number % 4:
                tags = ["expert"] if number % 3 == 0 else []
                buffer.begin_episode(seed=2**63 + number, tags=tags, note="word " * words)
            play(buffer, 4, 100 * number, reward=number)
            if words:
                buffer.commit()
    return path


@pytest.fixture
def store(tmp_path: pathlib.Path) -> pathlib.Path:
    return make(tmp_path / "a.replay")


def told(path: Any, **options: Any) -> list[tuple[float, dict[str, Any]]]:
    with dr.ReplayBuffer.open(path, mode="r", **options) as buffer:
        return [(episode.total_reward, episode.facts) for episode in buffer.episodes]


def test_episodes_are_listed_by_a_condition(store: pathlib.Path) -> None:
    every = episodes(store)
    assert [line.facts.get("seed") for line in every[:3]] == [None, 2**63 + 1, 2**63 + 2]
    assert [line.number for line in episodes(store, where=WHERE)] == [3, 6]
    assert [line.number for line in episodes(store, where="seed == null", sort="return", reverse=True)] == [8, 4, 0]
    with pytest.raises(InputError, match="at character 8"):
        episodes(store, where="return ~ 3")


def test_inspect_counts_the_facts(store: pathlib.Path) -> None:
    found = inspect(store)
    assert found.episodes is not None
    assert (found.episodes.told, found.episodes.facts) == (6, {"seed": 6, "tags": 6, "note": 6})
    assert next(column for column in found.columns if column.name == "info").raw_bytes > 0
    assert found.health == ()


@pytest.mark.parametrize("format_name", ["store", "minari", "minari-arrow"])
def test_facts_go_out_and_come_in(store: pathlib.Path, tmp_path: pathlib.Path, format_name: str) -> None:
    out, back = tmp_path / "out-v0", tmp_path / "back.replay"
    assert export(store, out, format_name).lost == {}
    import_dataset(out, back)
    assert told(back) == told(store)
    export(store, out, format_name, selection=Selection(where=WHERE), overwrite=True)
    import_dataset(out, back, append=True)
    assert told(back) == [*told(store), told(store)[3], told(store)[6]]
    import_dataset(out, tmp_path / "short.replay", capacity=6)
    assert told(tmp_path / "short.replay")[-1] == told(store)[6]


def test_minari_has_the_seed_where_it_looks_for_it(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "a-v0"
    export(store, out, "minari")
    with h5py.File(out / "data/main_data.hdf5", "r+") as file:
        assert "seed" not in file["episode_0"].attrs
        assert int(file["episode_1"].attrs["seed"]) == 2**63 + 1
        del file["episode_1"].attrs["diskreplay"]  # as others write it
        file["episode_2"].attrs["diskreplay"] = json.dumps({"seed": -1})
    with pytest.raises(InputError, match="seed must be"):
        import_dataset(out, tmp_path / "b.replay")
    with h5py.File(out / "data/main_data.hdf5", "r+") as file:
        file["episode_2"].attrs["diskreplay"] = "[]"
    with pytest.raises(InputError, match="must hold the facts"):
        import_dataset(out, tmp_path / "b.replay")
    with h5py.File(out / "data/main_data.hdf5", "r+") as file:
        file["episode_2"].attrs["diskreplay"] = "{}"
    import_dataset(out, tmp_path / "b.replay")
    assert [facts for _, facts in told(tmp_path / "b.replay")][:3] == [{}, {"seed": 2**63 + 1}, {}]


@pytest.mark.parametrize("name", [each.name for each in formats.every() if each.write and not each.holds.facts])
def test_facts_are_a_loss_where_there_is_no_place_for_them(
    store: pathlib.Path, tmp_path: pathlib.Path, name: str
) -> None:
    with pytest.raises(InputError, match=r"facts of episodes \(6\)"):
        export(store, tmp_path / "out", name)
    assert export(store, tmp_path / "out", name, allow_loss=True).lost["facts of episodes"] == 6


def test_split_and_merge_keep_facts(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    parts = [tmp_path / "1.replay", tmp_path / "2.replay"]
    split(store, [0.5], parts)
    assert sorted(told(parts[0]) + told(parts[1]), key=lambda one: one[0]) == told(store)
    merge(tmp_path / "whole.replay", parts)
    assert told(tmp_path / "whole.replay") == told(parts[0]) + told(parts[1])
    experts = [tmp_path / "3.replay", tmp_path / "4.replay"]
    split(store, [0.5], experts, where=WHERE)
    assert sorted(number for part in experts for number, _ in told(part)) == [12.0, 24.0]
    with pytest.raises(NotEnoughDataError):
        split(store, [0.5], [tmp_path / "5.replay", tmp_path / "6.replay"], where="return > 31")


def tree(folder: pathlib.Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


# Damage


def shards(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted((path / "streams/0/info").glob("c.*"))


def cut(path: pathlib.Path) -> None:
    shards(path)[-1].write_bytes(shards(path)[-1].read_bytes()[:-9])


DAMAGE: dict[str, Callable[[pathlib.Path], object]] = {
    "a flipped bit": lambda path: flip(shards(path)[0], 20),
    "a cut file": cut,
    "a missing file": lambda path: shards(path)[0].unlink(),
    "a missing array": lambda path: shutil.rmtree(path / "streams/0/info"),
    "another document": lambda path: (path / "streams/0/info/zarr.json").write_text("{}"),
}


@pytest.mark.long(quick=7)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
@pytest.mark.parametrize("checkpoint", [False, True])
def test_damaged_facts_are_found(
    store: pathlib.Path, damage: Callable[[pathlib.Path], object], checkpoint: bool
) -> None:
    if checkpoint:
        with dr.ReplayBuffer.open(store) as buffer:
            buffer.checkpoint("here")
    damage(store)
    assert {problem.column for problem in verify(store).problems} == {"info"}


def test_a_checkpoints_whole_facts_outlive_newer_ones(tmp_path: pathlib.Path) -> None:
    with small_thresholds():
        path = make(tmp_path / "a.replay", 3, words=10)
        with dr.ReplayBuffer.open(path) as buffer:
            buffer.checkpoint("here")
            wanted = told(path)
            for _ in range(4):
                buffer.annotate_episode(note="other words " * 20)
                buffer.commit()
        shards(path)[-1].unlink()
        assert verify(path).checkpoint == "here"
        restore(path, "here")
        assert told(path) == wanted
        assert verify(path).problems == ()


LINES: dict[str, bytes] = {
    "no JSON": b"[0,4,0,{}\n",
    "no list": b"{}\n",
    "too short": b"[0,4,0]\n",
    "no object": b"[0,4,0,[]]\n",
    "no row": b'["0",4,0,{}]\n',
    "a fraction": b"[0.0,4,0,{}]\n",
    "a boolean": b"[true,4,0,{}]\n",
    "below zero": b"[-1,4,0,{}]\n",
    "an end before its start": b"[4,4,0,{}]\n",
    "another environment": b"[0,4,1,{}]\n",
    "no end of the line": b"[0,4,0,{}]",
    "two on one line": b"[0,4,0,{}],[4,8,0,{}]\n",
    "no text": b"\xff\xfe\n",
    "deep": b"[0,4,0,{}" + b"[" * 5000 + b"]" * 5000 + b"]\n",
}


def forge(buffer: dr.ReplayBuffer, line: bytes) -> None:
    """Commits a line behind the facts, of which the buffer itself knows nothing."""
    writer, log = buffer.engine.streams.writer, buffer.engine.appender.log
    assert writer is not None
    writer.logs["info"].append(np.frombuffer(line, np.uint8))
    writer.commit(log.begin, {}, buffer.engine.lock)


@pytest.mark.long(quick=9)
@pytest.mark.parametrize("line", LINES.values(), ids=list(LINES))
def test_lines_that_are_no_facts(tmp_path: pathlib.Path, line: bytes) -> None:
    """Checksums fit: whoever wrote this has written it so."""
    path = make(tmp_path / "a.replay", 3)
    with dr.ReplayBuffer.open(path) as buffer:
        forge(buffer, line)
    with pytest.raises(CorruptionError, match="facts of its episodes"):
        dr.ReplayBuffer.open(path, mode="r")
    with pytest.raises(CorruptionError, match="facts of its episodes"):
        dr.ReplayBuffer.open(path)
    assert {problem.column for problem in verify(path).problems} == {"info"}


def test_facts_that_overlap_are_a_problem(tmp_path: pathlib.Path) -> None:
    path = make(tmp_path / "a.replay", 3)
    with dr.ReplayBuffer.open(path) as buffer:
        forge(buffer, b'[5,7,0,{"seed":1}]\n')
    (problem,) = verify(path).problems
    assert "are of an episode that others are of" in problem.what


WRONG: dict[str, tuple[bytes, str]] = {
    "a space": (b'{"the seed":1}', "'the seed' is no name"),
    "a digit first": (b'{"7":1}', "'7' is no name"),
    "no letter of ASCII": (b'{"gr\\u00fcn":1}', "is no name"),
    "nothing": (b'{"":1}', "'' is no name"),
    "a long one": (b'{"' + b"a" * 65 + b'":1}', "is no name"),
    "a seed below zero": (b'{"seed":-1}', "seed cannot be -1"),
    "a large seed": (b'{"seed":18446744073709551616}', "seed cannot be"),
    "a success that is no boolean": (b'{"success":1}', "success cannot be 1"),
}


@pytest.mark.parametrize(("facts", "what"), WRONG.values(), ids=list(WRONG))
def test_names_and_meanings_of_facts_are_checked(tmp_path: pathlib.Path, facts: bytes, what: str) -> None:
    """A store with them can be read, as what they say breaks nothing."""
    path = make(tmp_path / "a.replay", 3)
    with dr.ReplayBuffer.open(path) as buffer:
        forge(buffer, b"[0,4,0,%s]\n" % facts)  # of the first episode, of which nothing was said
    (problem,) = verify(path).problems
    assert what in problem.what
    assert "row 0 of environment 0" in problem.what
    assert len(told(path)) == 3


def test_names_of_facts_as_writers_give_them_are_no_problem(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.replay"
    with create(path, 9) as buffer:
        buffer.begin_episode(seed=2**64 - 1, success=None, tags=None, _=1, **{"a" * 64: {"any name": [1, None]}})
        play(buffer, 1)
        buffer.begin_episode(seed=0, success=np.True_, tags=[])
        play(buffer, 1, 2)
    assert verify(path).ok


@pytest.mark.long
def test_every_byte_of_the_facts_is_watched(tmp_path: pathlib.Path) -> None:
    path = make(tmp_path / "a.replay", 6)
    wanted, data = told(path), shards(path)[0].read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.choice(len(data), len(data) // stride(60, "bytes flipped"), replace=False).tolist():
        flip(shards(path)[0], at)
        try:
            assert told(path) == wanted  # a byte that nothing names
        except CorruptionError:
            assert verify(path).problems
        shards(path)[0].write_bytes(data)


# The command line


def test_the_commands(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    listed = json.loads(command("episodes", store, "--where", WHERE, "--json").stdout)["episodes"]
    assert [(line["number"], line["facts"]["tags"]) for line in listed] == [(3, ["expert"]), (6, ["expert"])]
    text = command("episodes", store, "--where", WHERE).stdout
    assert "facts" in text
    assert "9223372036854775811" in text
    assert '"{""seed"": 9223372036854775811' in command("episodes", store, "--where", WHERE, "--csv").stdout
    assert "facts" not in command("episodes", store, "--where", "seed == null").stdout
    result = command("export", store, tmp_path / "b.replay", "--where", "tag == 'expert'", "--json")
    assert json.loads(result.stdout)["episodes"] == 2
    assert command("split", store, tmp_path / "c", tmp_path / "d", "--fraction", 0.5, "--where", WHERE).exit_code == 0
    assert "facts of 6" in command("inspect", store).stdout
    for words in (["episodes", store], ["export", store, tmp_path / "e.replay"], ["split", store, "--fraction", 0.5]):
        wrong = command(*words, "--where", "return > 1 and tag == expert")
        assert wrong.exit_code == 2
        assert "at character 23 a number, a text in quotes, true, false or null must come" in wrong.stderr
        assert len(wrong.stderr.splitlines()) == 1
    cut(store)
    assert "column 'info'" in command("verify", store).output


@pytest.mark.filterwarnings("default::diskreplay.errors.MisuseWarning")
def test_a_fact_that_no_episode_has_is_named(store: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.warns(MisuseWarning, match="no episode has a fact 'notes'; did you mean 'note'"):
        assert episodes(store, where="notes == 'a'") == []
    lines = []
    for words in (
        ["episodes", store],
        ["export", store, tmp_path / "e.replay"],
        ["split", store, tmp_path / "c", tmp_path / "d", "--fraction", 0.5],
    ):
        done = command(*words, "--where", "not (scene.floor == 3 or lenght == 3)")
        lines += done.stderr.splitlines()
        assert done.exit_code == 0
    assert lines == 3 * [
        "diskreplay: warning: no episode has a fact 'lenght'; did you mean 'length'?",
        "diskreplay: warning: no episode has a fact 'scene'; there are 'note', 'seed', 'tags'",
    ]
    for known in (
        "success",
        "not success == true",
        "seed == 1",
        "tag == 'x'",
        "note == null",
        "env == 0 and end == 'cut'",
    ):
        assert command("episodes", store, "--where", known).stderr == ""
    make(tmp_path / "untold", 0)
    assert command("episodes", tmp_path / "untold", "--where", "lenght").stderr == ""


def test_a_record_whose_facts_begin_after_their_end(store: pathlib.Path) -> None:
    files, path = LocalFiles(), str(store / "streams/0")
    record = read_commit(files, path)
    end = record.of("info").end
    write_commit(files, path, dataclasses.replace(record, tables={**record.tables, "info": (end + 1, end, end + 1)}))
    assert any("must not pass begin, nor begin end" in problem.what for problem in verify(store).problems)
    with pytest.warns(DamageWarning, match="the commit record of .* is missing or damaged"):
        dr.ReplayBuffer.open(store).close()
    assert verify(store).ok
