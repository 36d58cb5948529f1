"""The commands about datasets, in-process: what they print, as text and as JSON, and how they fail."""

from __future__ import annotations

import csv
import io
import pathlib

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
from diskreplay_cli import output, text
from formats.roundtrip import IMAGE, moved_window, several_envs, store
from formats.test_texts import make as make_texts
from gymnasium import spaces
from helpers.commands import command, facts, failure, said
from helpers.line import rows_in
from rich.console import Console

import diskreplay as dr
from diskreplay import formats


def test_export_of_a_selection(path: str, tmp_path: pathlib.Path) -> None:
    store(columns={"value": np.float32, "other": np.float32})(path)
    out = tmp_path / "a.hdf5"
    options = ("--episodes", "1:5", "--columns", "obs, value", "--envs", "0", "--min-return", "-1e9")
    assert facts("export", path, out, *options)["episodes"] == 4
    with h5py.File(out) as file:
        assert list(file["infos"]) == ["value"]
    assert facts("export", path, out, "--episodes", "-1", "--overwrite")["transitions"] == 6
    assert facts("export", path, out, "--episodes", "2", "--overwrite")["transitions"] == 7
    for wrong in ("x", "1:2:3:4", ""):
        assert "no range" in failure("export", path, out, "--episodes", wrong, "--overwrite")
    assert "no list" in failure("export", path, out, "--envs", "a", "--overwrite")
    line = failure("export", path, out, "--min-return", "1e9", "--overwrite")
    assert "nothing of the store" in line
    assert "episodes 0 to 6, with returns from " in line


def test_a_loss_is_refused_and_counted(path: str, tmp_path: pathlib.Path) -> None:
    moved_window(path)
    out = tmp_path / "a.zarr"
    line = failure("export", path, out, "--format", "diffusion-policy")
    assert "final observations (3)" in line
    assert "stacked frames that are no steps of the episode (2)" in line
    assert "--allow-loss" in line
    assert not out.exists()
    printed = said("export", path, out, "--format", "diffusion-policy", "--allow-loss")
    assert "lost: final observations (3)" in printed
    printed = said("import", out, tmp_path / "b.replay")
    assert "left out: 1 step without a next observation" in printed


@pytest.mark.parametrize(
    ("ending", "name"),
    [
        (".npz", "npz"), (".parquet", "parquet"), (".zarr", "diffusion-policy"), (".replay", "store"),
        (".hdf5", "d4rl"), (".h5", "d4rl"),
    ],
)  # fmt: skip
def test_the_format_of_an_export_is_what_its_name_ends_in(
    path: str, tmp_path: pathlib.Path, ending: str, name: str
) -> None:
    store()(path)
    out = tmp_path / f"out{ending}"
    assert facts("export", path, out, "--allow-loss")["format"] == name
    assert formats.guess(out).name == name
    other = tmp_path / f"b{ending}"
    found = facts("export", path, other, "--format", "robomimic")
    sizes = f"{text.size(found['stored_bytes'])} on disk, {text.size(found['raw_bytes'])} decoded, in "
    assert f" as robomimic, {sizes}" in said("export", path, other, "--format", "robomimic", "--overwrite")


@pytest.mark.parametrize(
    "name", ["out.csv", "out", "out.npz/", "out.replay/", "out.json", ".npz", "out.NPZ", "out.npz.gz"]
)
def test_a_name_that_says_no_format_is_refused(path: str, tmp_path: pathlib.Path, name: str) -> None:
    store()(path)
    line = failure("export", path, f"{tmp_path}/{name}")
    assert "ends in no format: name it by --format, or end it in .hdf5 (d4rl), .h5 (d4rl), .npz (npz), .parquet" in line
    assert [each.name for each in tmp_path.iterdir()] == ["a.replay"]
    assert facts("export", path, f"{tmp_path}/{name}", "--format", "d4rl")["format"] == "d4rl"


def test_sizes_are_those_of_what_was_decoded(path: str, tmp_path: pathlib.Path) -> None:
    """All items of ragged columns count, and of video the frames."""
    box, columns = spaces.Box(-1, 1, (2,), np.float32), {"tokens": ((None,), np.int16)}
    with dr.ReplayBuffer.create(path, box, spaces.Text(9), capacity=9, columns=columns) as rb:
        for at in range(4):
            rb.add([0, 0], "a" * (at + 1), 0.0, [0, 0], at == 3, False, tokens=np.arange(at, dtype=np.int16))
    assert facts("export", path, tmp_path / "b.replay")["raw_bytes"] == 4 * (8 + 4 + 1 + 1) + 4 * 10 + 2 * 6


def test_the_task_of_an_export(path: str, tmp_path: pathlib.Path) -> None:
    make_texts(path, columns=("task", "language_instruction"))
    assert "choose one (--task COLUMN)" in failure("export", path, tmp_path / "a", "--format", "lerobot")
    said("export", path, tmp_path / "a", "--format", "lerobot", "--task", "task")
    assert "pick up the cup" in pq.read_table(tmp_path / "a/meta/tasks.parquet")["task"].to_pylist()
    assert "d4rl datasets have no tasks" in failure("export", path, tmp_path / "b.h5", "--task", "task")


def test_environments_are_named_when_they_are_not_kept(path: str, tmp_path: pathlib.Path) -> None:
    several_envs(path)
    assert "not kept: which of 3 environments" in said("export", path, tmp_path / "a.hdf5")


@pytest.mark.long
def test_import(path: str, tmp_path: pathlib.Path) -> None:
    store(IMAGE, spaces.Discrete(3))(path)
    for name in ("d4rl", "npz"):
        said("export", path, tmp_path / name, "--format", name)
        document = facts("import", tmp_path / name, tmp_path / f"{name}.replay")
        assert (document["format"], document["transitions"], document["dropped"]) == (name, 27, 0)
    line = failure("import", tmp_path / "npz", path)
    assert "exists" in line
    assert "--append" in line
    assert "--overwrite" not in line
    printed = said("import", tmp_path / "npz", path, "--append", "--format", "npz")
    assert "27 transitions of 7 episodes from npz" in printed
    assert rows_in(path) == 54
    document = facts("import", tmp_path / "npz", tmp_path / "c.replay", "--capacity", 5, "--frame-stack", 2)
    with dr.ReplayBuffer.open(tmp_path / "c.replay", mode="r") as buffer:
        assert (len(buffer), buffer.schema.stacks[0].frames) == (5, 2)
    printed = said("import", tmp_path / "npz", tmp_path / "d.replay", "--capacity", 5)
    assert "evicted: the oldest 22 transitions, for which there is no room" in printed
    assert "no dataset at" in failure("import", tmp_path / "none", tmp_path / "e.replay")
    (tmp_path / "nothing").mkdir()
    assert "no format known" in failure("import", tmp_path / "nothing", tmp_path / "x" / "d.replay")


def test_spaces_of_an_environment(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (9, 4)).astype(np.float32)
    np.savez(tmp_path / "a.npz", obs=obs, action=rng.integers(0, 2, 9), terminated=np.arange(9) == 8)
    assert facts("import", tmp_path / "a.npz", tmp_path / "a.replay", "--env", "CartPole-v1")["transitions"] == 9
    with dr.ReplayBuffer.open(tmp_path / "a.replay", mode="r") as buffer:
        assert buffer.schema.observation_space.high[0] < 5
    assert "space given" in failure("import", tmp_path / "a.npz", tmp_path / "b", "--env", "MountainCar-v0")
    assert "cannot make" in failure("import", tmp_path / "a.npz", tmp_path / "b", "--env", "NoSuchEnv-v0")


def test_formats() -> None:
    printed = said("formats")
    assert [line.split()[0] for line in printed.splitlines() if not line.startswith(" ")] == list(formats.MODULES)
    assert "cannot hold: final observations" in printed
    assert "d4rl (in and out, a file)" in printed
    assert "compression: gzip, lzf, none" in printed
    documents = facts("formats")["formats"]
    assert [document["name"] for document in documents] == list(formats.MODULES)
    assert all(document["in"] or document["out"] for document in documents)


def test_merge_and_split(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    assert "a-2.replay" in said("split", path, "--fraction", 0.5)
    parts = [tmp_path / f"a-{number}.replay" for number in (1, 2)]
    document = facts("merge", *parts, tmp_path / "all")["stores"][0]
    assert (document["transitions"], document["episodes"]) == (27, 7)
    assert len(facts("split", path, tmp_path / "x", tmp_path / "y", "--fraction", 0.2, "--seed", 1)["stores"]) == 2
    assert "exists" in failure("split", path, "--fraction", 0.5)
    assert "add up" in failure("split", path, "--fraction", 0.7, "--fraction", 0.7)
    for line in (failure("merge", *parts, tmp_path / "all"), failure("split", path, "--fraction", 0.5)):
        assert "exists; choose another name" in line
        assert "--overwrite" not in line
    failure("merge", tmp_path / "none", tmp_path / "other")


def test_merge_refuses_the_order_of_before(path: str, tmp_path: pathlib.Path) -> None:
    store()(path)
    for given in ([path], [path, path], [path, path, path]):
        line = failure("merge", tmp_path / "new", *given)
        assert f"OUT comes last, as with cp: diskreplay merge {' '.join(given)} {tmp_path / 'new'}" in line
    assert "there is no store at" in failure("merge", tmp_path / "none", path, tmp_path / "new")
    assert "there is no store at" in failure("merge", tmp_path / "none", tmp_path / "nor")
    assert "Missing argument" in failure("merge", path)
    assert [each.name for each in tmp_path.iterdir()] == ["a.replay"]
    printed = said("merge", path, path, tmp_path / "new")
    assert printed.startswith(f"{tmp_path / 'new'}: 54 transitions of 14 episodes, ")
    assert printed.endswith(" on disk\n")


def test_episodes(path: str) -> None:
    store()(path)
    printed = said("episodes", path).splitlines()
    assert printed[0].split() == ["number", "stream", "env", "length", "return", "end"]
    assert [line.split()[3] for line in printed[1:]] == ["5", "1", "7", "1", "4", "3", "6"]
    printed = said("episodes", path, "--sort", "length", "--reverse").splitlines()
    assert printed[1].split()[3] == "7"
    rows = list(csv.DictReader(io.StringIO(said("episodes", path, "--csv"))))
    documents = facts("episodes", path)["episodes"]
    assert [row["end"] for row in rows] == [document["end"] for document in documents]
    assert float(rows[2]["total_reward"]) == documents[2]["total_reward"]


def test_a_part_of_the_episodes(path: str) -> None:
    store()(path)
    printed = said("episodes", path, "--sort", "length", "--reverse", "--limit", 2).splitlines()
    assert [line.split()[3] for line in printed[1:-1]] == ["7", "6"]
    assert printed[-1] == "2 of 7 episodes"
    assert [line["length"] for line in facts("episodes", path, "--limit", 3)["episodes"]] == [5, 1, 7]
    assert len(said("episodes", path, "--limit", 3, "--csv").splitlines()) == 4
    assert said("episodes", path, "--limit", 7) == said("episodes", path)
    assert "--limit" in failure("episodes", path, "--limit", 0)


def interrupted(*args: object) -> str:
    """What a command says that an interrupt ended."""
    result = command(*args)
    assert (result.exit_code, result.stdout) == (130, "")
    return result.stderr.strip().removeprefix("diskreplay: interrupted; ")


@pytest.mark.long
def test_an_interrupt_after_the_renaming(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was whole by then was said not to have been written."""
    store()(path)
    before = tmp_path / "before.replay"
    said("import", path, before)

    def interrupt(target: pathlib.Path) -> int:
        raise KeyboardInterrupt

    for module in ("convert", "combine"):
        monkeypatch.setattr(f"diskreplay.ops.{module}.bytes_of", interrupt)
    out = tmp_path / "out.hdf5"
    assert interrupted("export", path, out) == f"{out} is whole"
    assert interrupted("export", path, out, "--overwrite") == f"{out} is whole"
    assert interrupted("import", out, tmp_path / "new") == f"{tmp_path / 'new'} is whole"
    assert interrupted("import", out, before, "--append") == f"{before} has all of it"
    assert interrupted("merge", path, before, tmp_path / "both") == f"{tmp_path / 'both'} is whole"
    halves = [path.replace(".replay", f"-{part}.replay") for part in (1, 2)]
    assert interrupted("split", path, "--fraction", 0.5) == f"{halves[0]} and {halves[1]} are whole"
    assert rows_in(before) == 54


def test_an_interrupt_before_the_renaming(path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store()(path)
    out, before = tmp_path / "out.hdf5", tmp_path / "before.replay"
    said("export", path, out)
    said("import", path, before)

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("diskreplay.ops.convert.open_selected", interrupt)
    monkeypatch.setattr("diskreplay.ops.convert.opened", interrupt)
    assert interrupted("export", path, out, "--overwrite") == "nothing was written"
    assert interrupted("import", out, tmp_path / "new") == "nothing was written"
    assert interrupted("import", out, before, "--append") == f"nothing was added to {before}"


def test_checkpoints(path: str) -> None:
    store()(path)
    assert said("checkpoints", "list", path) == "no checkpoints\n"
    with dr.ReplayBuffer.open(path) as buffer:
        buffer.checkpoint("one", {"step": 27})
        obs = buffer.get([0]).obs[0]
        buffer.add(obs, np.zeros(2, np.float32), 0.0, obs, True, False)
        buffer.checkpoint("two")
        assert "being written" in failure("checkpoints", "drop", path, "one")
    printed = said("checkpoints", "list", path).splitlines()
    columns = ["name", "number", "maker", "made", "row", "of", "each", "stream", "attachments", "metadata"]
    assert printed[0].split() == columns
    assert [line.split()[0] for line in printed[1:]] == ["one", "two"]
    assert '{"step": 27}' in printed[1]
    (one, two) = facts("checkpoints", "list", path)["checkpoints"]
    assert (one["metadata"], two["metadata"]) == ({"step": 27}, {})
    assert "checkpoints drop" in failure("checkpoints", "restore", path, "one")
    assert said("checkpoints", "drop", path, "two") == "dropped two\n"
    assert "there is no checkpoint 'two'" in failure("checkpoints", "drop", path, "one", "two")
    assert said("checkpoints", "restore", path, "one").endswith("again, 1 row discarded\n")
    assert facts("checkpoints", "restore", path, "one")["discarded"] == 0
    said("checkpoints", "drop", path, "one")
    assert facts("checkpoints", "list", path) == {"checkpoints": []}
    assert rows_in(path) == 27


def test_episodes_without_their_begin_have_a_star(path: str) -> None:
    moved_window(path)
    assert said("episodes", path).splitlines()[1].split()[3] == "3*"


def test_head(path: str) -> None:
    store(IMAGE, spaces.Box(-1, 1, (2,)))(path)
    printed = said("head", path, "--rows", 3).splitlines()
    assert printed[0].split() == ["stream", "row", "env", "obs", "action", "reward", "terminated", "truncated"]
    assert len(printed) == 4
    assert "36x36x3 uint8" in printed[1]
    assert len(facts("head", path, "--episode", -1)["rows"]) == 6
    assert "episode must be" in failure("head", path, "--episode", 99)


def test_what_is_too_wide_for_the_terminal(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store(IMAGE, spaces.Box(-1, 1, (2,)))(path)
    wide = said("head", path, "--rows", 2).splitlines()
    monkeypatch.setattr(output, "console", lambda: Console(width=60, force_terminal=True, color_system=None))
    lines = said("head", path, "--rows", 2).splitlines()
    assert [line.split()[0] for line in lines if line] == [*wide[0].split()] * 2
    assert lines[3] == "obs         36x36x3 uint8 0..255"
    assert max(map(len, said("formats").splitlines())) <= 60
    assert len(said("episodes", path).splitlines()) == 8


def test_errors_of_arguments_have_one_full_stop_at_most() -> None:
    assert "Missing argument 'PATH' (see" in failure("export")


@pytest.mark.parametrize("width", [20, 80, 120])
def test_bars_leave_room_for_a_control_c(width: int) -> None:
    console = Console(width=width, force_terminal=True, color_system=None)
    bar = output.Bar(console=console, expand=True)
    bar.add_task("exporting", total=10)
    with console.capture() as captured:
        console.print(bar.get_renderable())
    assert max(map(len, captured.get().splitlines())) == width - 3
