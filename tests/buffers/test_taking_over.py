"""A stream that this very process writes already, as when a notebook's cell is run again."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import types
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.line import rows_in

import diskreplay as dr
from diskreplay.compat import notebook
from diskreplay.errors import ClosedError, InputError, LockedError

BOX, ACTIONS = spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4)
HERE = pathlib.Path(__file__)


def line_of(text: str) -> int:
    """The number of this file's first line with a text."""
    return next(number for number, line in enumerate(HERE.read_text().splitlines(), 1) if text in line)


def create(path: Any, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path, BOX, ACTIONS, capacity=50, **options)  # opened in this line


def either(path: Any, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.open_or_create(path, BOX, ACTIONS, capacity=50, **options)


def add(rb: dr.ReplayBuffer, count: int = 1) -> None:
    for step in range(count):
        rb.add([0, 0, step / 32], 0, step, [0, 0, (step + 1) / 32], False, False)


def test_the_message_names_the_line_that_opened_it(path: str) -> None:
    line = line_of("# opened in " + "this line")
    where = f"by this very process, which opened it in {HERE}, line {line} (with take_over=True that is committed"
    with create(path) as rb:
        for again in (lambda: dr.ReplayBuffer.open(path), lambda: either(path), lambda: dr.open(path, "a")):
            with pytest.raises(LockedError) as caught:
                again()
            assert where in str(caught.value)
            assert "and closed first); close that writer, open another stream" in str(caught.value)
        add(rb)  # nothing has happened to it


@pytest.mark.long
def test_another_process_is_none_to_take_over_from(path: str) -> None:
    create(path).close()
    code = f"import diskreplay as dr\nrb = dr.ReplayBuffer.open({path!r})\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LockedError) as caught:
            dr.ReplayBuffer.open(path, take_over=True)
        assert "this very process" not in str(caught.value)
        assert "take_over" not in str(caught.value)
        other.communicate(b"\n")
    dr.ReplayBuffer.open(path, take_over=True).close()


@pytest.mark.parametrize("again", [either, lambda path, **more: dr.open(path, "a", **more), dr.ReplayBuffer.open])
def test_it_commits_and_closes_the_one_before(path: str, again: Any) -> None:
    before = create(path)
    add(before, 7)
    with again(path, take_over=True) as rb:
        assert len(rb) == 7
        add(rb)
        with pytest.raises(ClosedError):
            add(before)
    assert len(dr.open(path)) == 8


def test_through_a_link(path: str, tmp_path: pathlib.Path) -> None:
    before = create(path)
    add(before, 3)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(LockedError, match="this very process"):
        dr.ReplayBuffer.open(link)
    assert rows_in(link, mode="r+", take_over=True) == 3


def test_others_stay_open(path: str, tmp_path: pathlib.Path) -> None:
    before, elsewhere = create(path), create(tmp_path / "b")
    with (
        dr.ReplayBuffer.open(path, mode="a", stream="second") as second,
        dr.open(path, take_over=True) as reader,
        dr.ReplayBuffer.open(path, take_over=True) as rb,
    ):
        for open_still in (elsewhere, second, rb):
            add(open_still)
        assert len(reader) == 0
        with pytest.raises(ClosedError):
            len(before)
    elsewhere.close()


def test_bad_arguments_leave_the_one_before_open(path: str) -> None:
    with create(path) as rb:
        for options in (
            {"take_over": "yes"}, {"view": "none"}, {"num_envs": 3}, {"checkpoint": "none"}, {"commit_rows": 0},
            {"sampler": 3},
        ):  # fmt: skip
            with pytest.raises((InputError, dr.errors.OpenError)):
                dr.ReplayBuffer.open(path, **{"take_over": True, **options})  # type: ignore[arg-type]
            add(rb)


def test_a_sampler_goes_with_its_store(path: str, tmp_path: pathlib.Path) -> None:
    sampler = dr.Proportional()
    before = create(path, sampler=sampler)
    add(before, 4)
    with dr.ReplayBuffer.open(path, take_over=True, sampler=sampler) as rb:
        assert rb.sampler is sampler
        with pytest.raises(InputError, match="one of its own"):
            dr.ReplayBuffer.open(path, take_over=True, sampler=sampler, mode="a", stream="second", capacity=50)
        create(tmp_path / "b").close()
        with pytest.raises(InputError, match="one of its own"):
            dr.ReplayBuffer.open(tmp_path / "b", take_over=True, sampler=sampler)
        add(rb)


def test_a_thread_ends_its_call_before_the_buffer_is_closed(path: str) -> None:
    """Nothing of a batch of rows that another thread adds is lost or halved; its next call finds the buffer closed."""
    before = create(path)
    added, begun = [0], threading.Event()

    def collect() -> None:
        obs = np.zeros((25, 3), np.float32)
        try:
            while True:
                before.extend(obs, np.zeros(25, int), np.zeros(25), obs, np.zeros(25, bool), np.zeros(25, bool))
                added[0] += 25
                begun.set()
        except ClosedError:
            pass

    thread = threading.Thread(target=collect)
    thread.start()
    begun.wait()
    with dr.ReplayBuffer.open(path, take_over=True) as rb:
        thread.join()
        (stream,) = rb.stats()["streams"].values()
        assert stream["end"] == stream["committed"] == added[0]


def test_a_failed_last_commit_is_said_and_frees_the_stream(path: str) -> None:
    before = create(path)
    add(before, 3)
    pathlib.Path(path).rename(f"{path}.moved")
    create(path).close()
    with dr.ReplayBuffer.open(path, take_over=True):  # another store: nothing is taken from the one that was moved
        pass
    with pytest.raises(dr.errors.StateError, match="moved"):
        dr.ReplayBuffer.open(f"{path}.moved", take_over=True)
    assert rows_in(f"{path}.moved", mode="r+") == 0


def test_a_buffer_of_another_library(path: str) -> None:
    before = notebook.Replay_Buffer(20, 4, path=path)
    before.remember(np.zeros(3), 1, 0.5, np.ones(3), False)
    with pytest.raises(LockedError, match="this very process"):
        notebook.Replay_Buffer(20, 4, path=path)
    after = notebook.Replay_Buffer(20, 4, path=path, take_over=True)
    assert len(after) == 1
    with pytest.raises(ClosedError):
        before.remember(np.zeros(3), 1, 0.5, np.ones(3), False)
    after.close()


def test_a_cell_of_a_notebook_is_named_as_its_tracebacks_name_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(
        compile=types.SimpleNamespace(format_code_name=lambda file: ("Cell", "In[3]") if file == str(HERE) else None)
    )
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    with create(path), pytest.raises(LockedError, match=r"which opened it in Cell In\[3\], line \d+ \(with take_over"):
        dr.ReplayBuffer.open(path)
