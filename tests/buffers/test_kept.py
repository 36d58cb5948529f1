"""What closing keeps of a sampler: the next opening to write goes on with it, or a warning says why not."""

from __future__ import annotations

import errno
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from helpers.crashes import kill
from helpers.damage import files_below, flip
from helpers.line import LINE, TURN, add
from helpers.odds import chances_of
from helpers.own_samplers import STATEFUL, Rarest
from helpers.programs import printed
from helpers.testing import FaultyFiles
from helpers.threads import together

import diskreplay as dr
from diskreplay.compat import sampler_draws
from diskreplay.errors import ClosedError, InputError, SamplerWarning, WriteFailedError
from diskreplay.ops.verify import verify
from diskreplay.storage import metadata, saved_state


def make(path: Any, sampler: Any = None, **options: Any) -> dr.ReplayBuffer:
    """The line with which a program starts, and starts again."""
    return dr.ReplayBuffer.open_or_create(
        path, LINE, TURN, capacity=200, num_envs=2, sampler=sampler or dr.Proportional(), seed=0, **options
    )


def learn(buffer: Any) -> None:
    items = buffer.items()
    buffer.update_priorities(items, np.where(items % 7 == 0, 9.0, 1.0))


def filled(path: Any, sampler: Any = None, **options: Any) -> dr.ReplayBuffer:
    buffer = make(path, sampler, **options)
    add(buffer, 30)
    learn(buffer)
    return buffer


def chances_in(path: Any, **options: Any) -> list[float]:
    """With what probability a program that starts again draws each item."""
    with make(path, **options) as buffer:
        return list(chances_of(buffer).tolist())


def kept(path: Any) -> list[float]:
    """With what probability a buffer that was closed drew each item."""
    with filled(path) as buffer:
        return list(chances_of(buffer).tolist())


def anew(why: str) -> Any:
    return pytest.warns(SamplerWarning, match=f"begins anew, without the priorities that were there: .*{why}")


def folder(path: Any) -> pathlib.Path:
    return pathlib.Path(path, "streams", "0", "start", "kept")


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("kind", STATEFUL)
def test_priorities_are_equal_after_close_and_open(path: str, kind: str, given: bool) -> None:
    with filled(path, STATEFUL[kind]()) as buffer:
        buffer.sample(8)
        expected, state = chances_of(buffer).tolist(), buffer.sampler.state()
    for _ in range(2):
        again = make(path, STATEFUL[kind]()) if given or kind == "own" else dr.ReplayBuffer.open(path)
        assert (chances_of(again).tolist(), again.sampler.state()[0]) == (expected, state[0])
        again.close()


def test_priorities_of_several_views_and_buffers_come_back(tmp_path: pathlib.Path) -> None:
    for number, view in enumerate((dr.Transition(n_step=3), dr.Sequence(4), dr.PaddedEpisodes(50))):
        expected: list[float] = []
        for opening in range(2):
            with make(tmp_path / str(number), view=view) as buffer:
                if not opening:
                    add(buffer, 30)
                    learn(buffer)
                    expected = chances_of(buffer).tolist()
                assert chances_of(buffer).tolist() == expected
    agents: dict[str, Any] = {"n_agents": 2, "capacity": 20, "sampler": dr.Proportional()}
    with dr.MultiAgentReplayBuffer.open_or_create(tmp_path / "agents", LINE, TURN, **agents) as team:
        zeros = np.zeros((2, 1), np.float32)
        for _ in range(5):
            team.add(zeros, [0, 1], 1.0, zeros, False, False)
        learn(team)
        expected = chances_of(team).tolist()
    with dr.MultiAgentReplayBuffer.open(tmp_path / "agents") as team:
        assert chances_of(team).tolist() == expected


def test_the_seed_means_what_it_means_without_priorities(path: str) -> None:
    with filled(path) as buffer:
        buffer.sample(50)
    drawn = []
    for _ in range(2):
        with make(path) as again:
            drawn.append(again.sample(20).index.tolist())
    assert drawn[0] == drawn[1]


# Where there is nothing to keep, or to take


@pytest.mark.parametrize("sampler", [dr.Uniform(), dr.Proportional(), dr.SamplerMixture([dr.Uniform(), dr.Recent(5)])])
def test_nothing_is_written_where_no_priority_was_ever_updated(path: str, sampler: Any) -> None:
    with make(path, sampler) as buffer:
        add(buffer, 5)
        buffer.checkpoint("here")
    with dr.ReplayBuffer.open(path, checkpoint="here") as buffer:
        add(buffer, 5)
    assert not folder(path).exists()
    dr.ReplayBuffer.open(path).close()


@pytest.mark.parametrize("use", [lambda buffer: buffer.sample(8), lambda buffer: buffer.checkpoint("here")])
def test_nothing_is_written_where_nothing_was_updated_since(
    path: str, use: Callable[[dr.ReplayBuffer], object]
) -> None:
    filled(path).close()
    before = files_below(folder(path))
    assert len(before) > 3
    with make(path) as buffer:
        use(buffer)
    assert files_below(folder(path)) == before


def test_readers_take_and_keep_nothing(path: str) -> None:
    filled(path).close()
    before = files_below(folder(path))
    with dr.ReplayBuffer.open(path, mode="r", sampler=dr.Proportional()) as reader:
        assert len(set(chances_of(reader).tolist())) == 1
        learn(reader)
    assert (files_below(folder(path)), len(set(chances_in(path)))) == (before, 2)


def test_a_checkpoint_brings_its_own_priorities(path: str) -> None:
    with filled(path) as buffer:
        buffer.checkpoint("here")
        expected = chances_of(buffer).tolist()
        buffer.update_priorities([3], [50.0])
    assert chances_in(path, checkpoint="here") == expected
    assert chances_in(path) == expected  # and closing has kept these


def test_a_sampler_that_was_cleared_is_not_kept(path: str) -> None:
    filled(path).close()
    with make(path) as buffer:
        buffer.clear()
    assert not folder(path).exists()
    make(path).close()


# What is said


@pytest.mark.parametrize("update", [True, False])
def test_an_end_without_close_is_said(path: str, update: bool) -> None:
    with filled(path) as buffer:
        buffer.checkpoint("here")
        expected = chances_of(buffer).tolist()
    buffer = make(path)
    if update:
        buffer.update_priorities([3], [50.0])  # makes no commit
    kill(buffer)
    buffer = make(path, checkpoint="here")
    assert chances_of(buffer).tolist() == expected
    kill(buffer)
    with anew("ended without close"):
        buffer = make(path)
    assert len(set(chances_of(buffer).tolist())) == 1
    buffer.close()
    make(path).close()  # it was said


@pytest.mark.parametrize("run", [make, filled])
def test_a_first_run_that_was_killed_is_said(path: str, run: Callable[[str], dr.ReplayBuffer]) -> None:
    buffer = run(path)
    buffer.commit()
    kill(buffer)
    with anew("ended without close"):
        make(path).close()


def test_rows_of_another_stream_are_said(path: str) -> None:
    filled(path).close()
    with dr.ReplayBuffer.open(path, stream="other", sampler=dr.Uniform()) as other:
        make(path).close()  # it has no row
        add(other, 3)
    with anew("rows were committed since"):
        make(path).close()


@pytest.mark.long("test_rows_of_another_stream_are_said")
def test_rows_of_another_process_are_said(path: str) -> None:
    filled(path).close()
    printed(f"""
        import os
        import diskreplay as dr
        from helpers import line
        buffer = dr.ReplayBuffer.open({path!r}, sampler=dr.Uniform())
        line.add(buffer)
        buffer.commit()
        os._exit(0)
    """)
    with anew("rows were committed since"):
        make(path).close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"sampler": dr.RankBased()}, "it holds the state of Proportional"),
        ({"sampler": dr.SamplerMixture([dr.Uniform(), dr.Proportional()])}, "it holds the state of Proportional"),
        ({"sampler": dr.Proportional(by_env=True)}, "they are of all environments together"),
        ({"view": dr.Sequence(3)}, "its priorities are those of items of .*Transition"),
    ],
)
def test_what_cannot_be_taken_over_is_said_and_stays(path: str, options: dict[str, Any], why: str) -> None:
    expected = kept(path)
    with anew(why):
        dr.ReplayBuffer.open(path, **options).close()
    assert chances_in(path) == expected


def test_no_warning_for_a_sampler_without_priorities(path: str) -> None:
    kill(filled(path))
    make(path, dr.Uniform()).close()
    dr.ReplayBuffer.open(path, mode="r").close()


def test_a_sampler_that_knows_priorities_keeps_those(path: str) -> None:
    sampler = dr.Proportional()
    buffer = filled(path, sampler)
    expected = chances_of(buffer).tolist()
    kill(buffer)
    buffer.engine.gate.closed = True
    with make(path, sampler) as buffer:
        add(buffer, 30)
        assert chances_of(buffer).tolist() == expected
    assert chances_in(path) == expected


def test_a_warning_that_is_an_error_leaves_the_store_free(path: str) -> None:
    kill(filled(path))
    with pytest.raises(SamplerWarning):
        make(path)
    with anew("ended without close"):
        make(path).close()


# Streams, mixtures, recordings, ends of programs


def test_each_writer_keeps_its_own(path: str) -> None:
    filled(path).close()
    with (
        dr.ReplayBuffer.open(path, stream="0") as actor,
        dr.ReplayBuffer.open(path, stream="learner", sampler=dr.Proportional()) as learner,
    ):
        learner.update_priorities([3], [50.0])
        assert actor.sampler.maximum < 50
    with dr.ReplayBuffer.open(path, stream="learner", sampler=dr.Proportional()) as learner:
        assert learner.sampler.maximum == pytest.approx(50)
    assert len(set(chances_in(path))) == 2


def test_a_buffer_that_knows_its_own_stream_alone_keeps_that(path: str) -> None:
    filled(path).close()
    with dr.ReplayBuffer.open(path, stream="more", mode="a", sampler=dr.Proportional()) as buffer:
        add(buffer, 10)
        learn(buffer)
        expected = chances_of(buffer).tolist()
    with dr.ReplayBuffer.open(path, stream="more", mode="a", sampler=dr.Proportional()) as buffer:
        assert chances_of(buffer).tolist() == expected
    with anew("rows were committed since"), dr.ReplayBuffer.open(path, stream="more", sampler=dr.Proportional()):
        pass


def test_each_part_of_a_mixture_keeps_its_own(tmp_path: pathlib.Path) -> None:
    filled(tmp_path / "a").close()
    filled(tmp_path / "b").close()
    expected = []
    for opening in range(2):
        with dr.Mixture.open([tmp_path / "a", tmp_path / "b", (tmp_path / "b", {"mode": "r"})]) as mixture:
            if not opening:
                batch = mixture.sample(12)
                mixture.update_priorities(batch.index, np.arange(12.0) + 20)
                expected = [chances_of(part).tolist() for part in mixture.parts[:2]]
            assert [chances_of(part).tolist() for part in mixture.parts[:2]] == expected


@pytest.mark.long
@pytest.mark.parametrize("vector", [True, False])
def test_recordings_go_on_with_their_priorities(path: str, vector: bool) -> None:
    expected: list[float] = []
    for opening in range(2):
        env: Any = gymnasium.make_vec("CartPole-v1", 2) if vector else gymnasium.make("CartPole-v1")
        wrapped = (dr.VectorRecord if vector else dr.Record)(env, path, capacity=100, sampler=dr.Proportional())
        if not opening:
            wrapped.reset(seed=0)
            for _ in range(8):
                wrapped.step(wrapped.action_space.sample())
            learn(wrapped.buffer)
            expected = chances_of(wrapped.buffer).tolist()
        assert chances_of(wrapped.buffer).tolist() == expected
        wrapped.close()


@pytest.mark.long
@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "del buffer"])
def test_a_program_that_ends_without_close_keeps_them(path: str, end: str) -> None:
    printed(f"""
        import diskreplay as dr
        from helpers import line
        buffer = line.create({path!r}, 200, sampler=dr.Proportional())
        line.add(buffer, 9)
        buffer.update_priorities([3], [50.0])
        {end}
    """)
    with dr.ReplayBuffer.open(path) as buffer:
        assert np.argmax(chances_of(buffer).tolist()) == 3


def changes_of(buffer: dr.ReplayBuffer) -> dict[str, Callable[[], object]]:
    """Each way to change what the sampler knows."""
    mixture, everything = dr.Mixture([buffer]), buffer.select("length >= 1")
    return {
        "update": lambda: buffer.update_priorities([3], [50.0]),
        "sample": lambda: buffer.sample(5),
        "within": lambda: buffer.sample(5, within=everything),
        "mixture": lambda: mixture.sample(5),
        "adapter": lambda: sampler_draws.draw(buffer, 5),
    }


@pytest.mark.parametrize("ends", ["close", "keep"])
@pytest.mark.parametrize("way", ["update", "sample", "within", "mixture", "adapter"])
def test_a_change_while_the_state_is_kept_is_not_forgotten(
    path: str, monkeypatch: pytest.MonkeyPatch, way: str, ends: str
) -> None:
    """A thread's. Closing refuses it; the end of a program leaves the buffer open, to be closed later."""

    def known(buffer: dr.ReplayBuffer) -> tuple[list[float], list[int]]:
        return chances_of(buffer).tolist(), buffer.times_sampled(buffer.items()).tolist()

    def change() -> None:
        try:
            call()
        except ClosedError:
            refused.append(way)

    def replace(*arguments: Any) -> None:
        together(change)  # the state was asked for already
        whole(*arguments)

    buffer = filled(path, dr.Counting(dr.Proportional()))
    call, whole, refused = changes_of(buffer)[way], saved_state.replace, list[str]()
    expected = known(buffer)
    with monkeypatch.context() as patch:
        patch.setattr(saved_state, "replace", replace)
        if ends == "close":
            buffer.close()
        else:
            with buffer.engine.write_lock:
                buffer.commit()
                buffer.engine.save_sampler()
            before, expected = expected, known(buffer)
            assert expected != before
    buffer.close()
    assert refused == [way] * (ends == "close")
    with make(path, dr.Counting(dr.Proportional())) as buffer:
        assert known(buffer) == expected


# Errors, damage


def test_a_mark_that_cannot_be_written_ends_the_opening(path: str) -> None:
    expected = kept(path)
    files = FaultyFiles()
    files.fail_at(1, errno.ENOSPC, times=1)
    with pytest.raises(WriteFailedError):
        make(path, files=files)
    assert chances_in(path) == expected


def test_an_update_that_is_refused_loses_nothing(path: str) -> None:
    expected = kept(path)
    with make(path) as buffer, pytest.raises(InputError):
        buffer.update_priorities([3], [np.nan])
    assert chances_in(path) == expected


class Unkept(Rarest):
    def state(self) -> Any:
        raise RuntimeError("no state")


def test_a_sampler_whose_state_fails_lets_the_store_close(path: str) -> None:
    buffer = filled(path, Unkept())
    with pytest.warns(SamplerWarning, match=r"is not kept: RuntimeError\('no state'\)"):
        buffer.close()
    with anew("ended without close"):
        make(path, Unkept()).close()


@pytest.mark.parametrize("name", ["zarr.json", "c.0.0"])
def test_damage_is_said_and_found(path: str, name: str) -> None:
    filled(path).close()
    file = next(one for one in folder(path).rglob(name) if name != "zarr.json" or one.parent == folder(path))
    flip(file, file.stat().st_size // 2, 1)
    assert any("kept" in str(problem) for problem in verify(path).problems)
    with anew("kept"):
        buffer = make(path)
    assert len(set(chances_of(buffer).tolist())) == 1
    buffer.update_priorities([3], [50.0])  # which `close` keeps in its place
    buffer.close()
    assert verify(path).ok


def test_a_link_is_not_followed(path: str, tmp_path: pathlib.Path) -> None:
    filled(path).close()
    elsewhere = tmp_path / "elsewhere"
    shutil.move(folder(path), elsewhere)
    folder(path).symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with anew("is a link"):
        buffer = make(path)
    learn(buffer)
    buffer.close()
    assert sorted(elsewhere.rglob("*")) == before
    assert not folder(path).is_symlink()
    assert len(set(chances_in(path))) == 2


def test_an_id_leads_nowhere_else(path: str) -> None:
    filled(path).close()
    stored = json.loads((folder(path) / "zarr.json").read_text())["attributes"]["diskreplay"]
    del stored["checksum"]
    forged = metadata.group_document({**stored, "id": "../../reward"}, "start/kept")
    (folder(path) / "zarr.json").write_bytes(metadata.dump(forged))
    with anew("cannot name a Zarr array"):
        make(path).close()
