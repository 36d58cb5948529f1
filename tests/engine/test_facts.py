"""Facts of episodes: beside a model driven by the same random operations, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import driver
from helpers.crashes import kill
from helpers.effort import examples
from helpers.line import LINE, OPEN, TURN, create, play
from helpers.testing import small_thresholds

import diskreplay as dr
from diskreplay.errors import InputError, MisuseWarning, NotEnoughDataError, ReadOnlyError
from diskreplay.index.facts import EpisodeFacts
from diskreplay.index.log import StreamLog
from diskreplay.ops.verify import verify


def facts(buffer: dr.ReplayBuffer) -> list[dict[str, Any]]:
    return [episode.facts for episode in buffer.episodes]


def facts_in(path: Any, **options: Any) -> list[dict[str, Any]]:
    """As a reader sees them."""
    with dr.ReplayBuffer.open(path, mode="r", **options) as reader:
        return facts(reader)


# The model


@dataclasses.dataclass
class Run:
    """One episode of the model: its rows, and what was said of it."""

    env: int
    start: int
    stop: int
    facts: dict[str, Any]


@dataclasses.dataclass
class Model:
    """What a naive store of the same steps and facts would hold."""

    envs: int
    rows: int
    runs: list[Run] = dataclasses.field(default_factory=list)
    end: int = 0
    waiting: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict)

    def newest(self, env: int) -> Run | None:
        return next((run for run in reversed(self.runs) if run.env == env), None)

    def window(self) -> list[tuple[int, int, int, dict[str, Any]]]:
        begin = max(0, self.end - self.rows)
        held = [(max(run.start, begin), run.env, run.stop, run.facts) for run in self.runs if run.stop > begin]
        return sorted(held, key=lambda one: one[:2])

    def copy(self) -> Model:
        runs = [dataclasses.replace(run, facts=dict(run.facts)) for run in self.runs]
        return Model(self.envs, self.rows, runs, self.end, {})


def seen(buffer: dr.ReplayBuffer) -> list[tuple[int, int, int, dict[str, Any]]]:
    return [(episode.start, episode.env, episode.stop, episode.facts) for episode in buffer.episodes]


def check_fresh(buffer: dr.ReplayBuffer, model: Model) -> None:
    """What a sampler by a fact can draw are the rows of the model's episodes in which it is large enough."""
    versions = [one[3].get("version", -math.inf) for one in model.window()]
    sampler, draws, windows = dr.Recent(by="version", within=2), buffer.draws, buffer.engine.streams.windows()
    items = buffer.items()
    if max(versions, default=-math.inf) == -math.inf:
        with pytest.raises(InputError if model.window() else NotEnoughDataError):
            sampler.sample(np.random.default_rng(0), windows, draws.standing, 8)
        return
    wanted = {
        row * model.envs + env
        for (start, env, stop, _), version in zip(model.window(), versions, strict=True)
        if version >= max(versions) - 2
        for row in range(start, stop)
    }
    chances = sampler.probability(items, windows, draws.standing)
    assert set(items[chances > 0].tolist()) == wanted
    np.testing.assert_allclose(chances[chances > 0], 1 / len(wanted))
    assert set(sampler.sample(np.random.default_rng(0), windows, draws.standing, 8)[0].tolist()) <= wanted


CONDITIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "seed >= 500000000000": lambda facts: facts.get("seed", -1) >= 500_000_000_000,
    "not success and scene.floor < 0.5": lambda facts: (
        not facts.get("success") and facts.get("scene", {"floor": 1})["floor"] < 0.5
    ),
    "tag == 'human' or success == null": lambda facts: "human" in facts.get("tags", []) or "success" not in facts,
}
"""Conditions, and what each asks of the facts of an episode."""


class Driver(driver.Driver):
    """Facts of episodes, given before, at the end of, and long after them."""

    def __init__(self, path: pathlib.Path, seed: int) -> None:
        super().__init__(path, seed, [7, 40, 1000])
        self.at = [0.0] * self.envs
        self.fresh = [True] * self.envs

    def create(self, rows: int) -> tuple[dr.ReplayBuffer, Model]:
        return create(self.path, rows * self.envs, self.envs), Model(self.envs, rows)

    def check(self, buffer: dr.ReplayBuffer, model: Model) -> None:
        assert seen(buffer) == model.window()
        for where, wanted in CONDITIONS.items():
            found = [(one.start, one.env) for one in buffer.select(where).episodes]
            assert found == [(start, env) for start, env, _, facts in model.window() if wanted(facts)], where
        check_fresh(buffer, model)

    def weights(self) -> dict[Callable[[], None], float]:
        return {
            self.add: 8, self.begin: 4, self.annotate: 3, self.annotate_old: 2, self.commit: 3, self.reopen: 1,
            self.checkpoint: 1, self.go_back: 1, self.read: 2,
        }  # fmt: skip

    def jump(self) -> None:
        self.at = [float(self.rng.integers(1 << 20)) + 0.5 for _ in range(self.envs)]
        self.fresh = [True] * self.envs

    def draw(self) -> dict[str, Any]:
        every = {
            "seed": int(self.rng.integers(1 << 40)),
            "tags": list(self.rng.choice(["expert", "human", "x"], self.rng.integers(3), replace=False)),
            "success": bool(self.rng.integers(2)),
            "version": int(self.rng.integers(9)),
            "scene": {"name": "k\n\u00e9" * int(self.rng.integers(4)), "floor": float(self.rng.random())},
        }
        names = [name for name in every if self.rng.random() < 0.6]
        return {name: [str(tag) for tag in every[name]] if name == "tags" else every[name] for name in names}

    def add(self) -> None:
        for _ in range(int(self.rng.integers(1, 12))):
            before = self.sequence()
            now = np.array(self.at, np.float32)
            invalid = self.rng.random(self.envs) < 0.05 if self.envs > 1 else np.zeros(1, bool)
            ended = self.rng.random(self.envs) < 0.2
            for env in range(self.envs):
                run = self.model.newest(env)
                if invalid[env]:
                    self.fresh[env] = True
                    continue
                if self.fresh[env] or run is None:
                    self.model.runs.append(
                        Run(env, self.model.end, self.model.end + 1, self.model.waiting.pop(env, {}))
                    )
                else:
                    run.stop = self.model.end + 1
                self.fresh[env] = bool(ended[env])
            shaped = (lambda a: a) if self.envs > 1 else (lambda a: a[0])
            self.buffer.add(
                shaped(now[:, None]), shaped(np.zeros(self.envs, int)), shaped(np.ones(self.envs)),
                shaped(now[:, None] + 1), shaped(ended & ~invalid), shaped(np.zeros(self.envs, bool)),
                valid=shaped(~invalid),
            )  # fmt: skip
            self.at = (now + 1 + 100 * (ended | invalid)).tolist()
            self.model.end += 1
            self.settle(before)

    def begin(self) -> None:
        env = int(self.rng.integers(self.envs)) if self.rng.random() < 0.7 else None
        told = self.draw() if self.rng.random() < 0.7 else {}
        self.buffer.begin_episode(env, **told)
        for each in range(self.envs) if env is None else [env]:
            self.model.waiting[each] = dict(told)
            self.fresh[each] = True

    def annotate(self) -> None:
        env, told = int(self.rng.integers(self.envs)), self.draw()
        waiting, run = self.model.waiting.get(env), self.model.newest(env)
        if waiting is None and (run is None or run.stop <= max(0, self.model.end - self.model.rows)):
            with pytest.raises(InputError, match="has no episode yet"):
                self.buffer.annotate_episode(env=env, **told)
            return
        self.buffer.annotate_episode(env=env, **told)
        (waiting if waiting is not None else run.facts).update(told)  # type: ignore[union-attr]

    def annotate_old(self) -> None:
        every = self.buffer.episodes
        if every:
            episode = every[int(self.rng.integers(len(every)))]
            told = self.draw()
            self.buffer.annotate_episode(episode, **told)
            begin = max(0, self.model.end - self.model.rows)
            (run,) = [
                run for run in self.model.runs
                if run.env == episode.env and max(run.start, begin) == episode.start and run.stop > begin
            ]  # fmt: skip
            run.facts.update(told)


@pytest.mark.long(quick=3)
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("seed", range(examples(40, least=6)))
def test_facts_are_those_of_the_model(tmp_path: pathlib.Path, seed: int) -> None:
    Driver(tmp_path / "a.replay", seed).run(60)


# One thing at a time


@pytest.mark.parametrize("small", [False, pytest.param(True, marks=pytest.mark.long)])
def test_draws_within_a_selection_are_uniform(tmp_path: pathlib.Path, small: bool) -> None:
    """Each transition of the chosen episodes that stands in the window, with the same frequency, and no other one."""
    with contextlib.ExitStack() as stack:
        if small:
            stack.enter_context(small_thresholds())
        buffer = stack.enter_context(create(tmp_path / "a.replay", 40, view=dr.Transition(n_step=2)))
        for number in range(8):
            buffer.begin_episode(seed=number)
            play(buffer, 6, 100.0 * number, ends=number != 7)
        chosen = buffer.select("seed in (1, 4, 7)")
        assert (len(chosen), chosen.transitions) == (3, 16)  # four of the episode 1 are left
        play(buffer, 2, 900.0)
        walked = np.concatenate([part.obs[:, 0] for part in buffer.shuffled(4, within=chosen)])
        drawn = [buffer.sample(300, within=chosen) for _ in range(10)]
        assert all((batch.weight == 1).all() for batch in drawn)
        values, counts = np.unique([batch.obs[:, 0] for batch in drawn], return_counts=True)
        expected = [104, 105, *range(400, 406), *range(700, 706)]  # two rows have left the window since
        assert values.tolist() == sorted(walked.tolist()) == expected
        assert ((counts - 3000 / 14) ** 2 / (3000 / 14)).sum() < 34.5  # chi-square, 13 degrees: one in a thousand


def test_a_checkpoint_gives_the_same_draws_within_a_selection(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay") as buffer:
        for number in range(9):
            buffer.begin_episode(seed=number)
            play(buffer, 6, 100.0 * number)
        buffer.checkpoint("here")
        buffer.annotate_episode(seed=77)
        wanted = [buffer.sample(9, within=buffer.select("seed < 8")).index.tolist() for _ in range(3)]
    with dr.ReplayBuffer.open(tmp_path / "a.replay", checkpoint="here") as back:
        assert [episode.facts["seed"] for episode in back.episodes] == list(range(9))
        assert [back.sample(9, within=back.select("seed < 8")).index.tolist() for _ in range(3)] == wanted


def test_selections_of_another_buffer_or_time_are_refused(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay") as one, create(tmp_path / "b.replay") as other:
        for buffer in (one, other):
            play(buffer, 3, 0.0)
        chosen = one.select("length == 3")
        assert len(one.sample(2, within=chosen)) == 2
        with pytest.raises(InputError, match="of another buffer"):
            other.sample(2, within=chosen)
        with pytest.raises(InputError, match="of another buffer"):
            other.shuffled(2, within=chosen)
        with pytest.raises(InputError, match="must be a selection"):
            one.sample(2, within="length == 3")  # type: ignore[arg-type]
        with pytest.raises(NotEnoughDataError, match="no transition is selected"):
            one.sample(1, within=one.select("length == 4"))
        assert list(one.shuffled(2, within=one.select("length == 4"))) == []
        one.checkpoint("here")
        play(one, 4, 50.0)
        later = one.select("length == 4")
    with (
        dr.ReplayBuffer.open(tmp_path / "a.replay", checkpoint="here") as back,
        pytest.raises(InputError, match="older than a return to a checkpoint"),
    ):
        back.sample(1, within=later)


def test_a_pass_over_a_selection_ends_where_its_rows_were_taken_back(tmp_path: pathlib.Path) -> None:
    """The ids of the selection are those of other steps then, which nobody has selected."""
    with create(tmp_path / "a.replay") as writer:
        play(writer, 3, 0.0)
        writer.checkpoint("here")
        play(writer, 4, 50.0)
    with dr.ReplayBuffer.open(tmp_path / "a.replay", mode="r") as reader:
        batches = reader.shuffled(2, epochs=2, within=reader.select("length == 4"))
        assert set(next(batches).obs[:, 0].tolist()) < {50.0, 51.0, 52.0, 53.0}
        with dr.ReplayBuffer.open(tmp_path / "a.replay", checkpoint="here") as back:
            play(back, 9, 100.0)
        reader.refresh()
        with pytest.raises(InputError, match="older than a return to a checkpoint"):
            next(batches)


def test_what_was_selected_and_has_left_the_window(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay", 10) as buffer:
        buffer.begin_episode(seed=1)
        play(buffer, 5, 0.0)
        chosen = buffer.select("seed == 1")
        play(buffer, 8, 100.0)
        assert set(buffer.sample(30, within=chosen).obs[:, 0].tolist()) == {3.0, 4.0}
        play(buffer, 8, 200.0)
        with pytest.raises(NotEnoughDataError, match="left the window"):
            buffer.sample(1, within=chosen)
        assert facts(buffer) == [{}, {}]


@pytest.mark.parametrize("given", [{"episode": 0}, {"episode": None}, {"episode": 7, "success": True, "env": 0}])
def test_an_episode_that_is_named_as_a_fact_is_refused(tmp_path: pathlib.Path, given: dict[str, Any]) -> None:
    with create(tmp_path / "a.replay") as buffer:
        buffer.begin_episode(episode=7)
        with pytest.raises(InputError, match=r"annotate_episode\(episode=.*give the episode first"):  # not begun yet
            buffer.annotate_episode(**given)
        play(buffer, 2, 0.0)
        play(buffer, 2, 50.0)
        with pytest.raises(InputError, match=r"annotate_episode\(episode=.*give the episode first"):
            buffer.annotate_episode(**given)
        assert facts(buffer) == [{"episode": 7}, {}]
        with pytest.raises(InputError, match=r"must be one of rb\.episodes, got 0"):
            buffer.annotate_episode(0, success=True)  # type: ignore[arg-type]
        buffer.annotate_episode(buffer.episodes[0], episode=8)  # a fact of that name, of the episode that comes first
        buffer.annotate_episode(buffer.episodes[0], success=True)
        assert facts(buffer) == [{"episode": 8, "success": True}, {}]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("retrun > 100", ["'retrun'; did you mean 'return'?"]),
        ("not sucess", ["'sucess'; did you mean 'success'?"]),
        ("lenght == 3 or scene.floor == 3", ["'lenght'; did you mean 'length'?", "'scene'; there are 'level', 'note'"]),
        ("noet == 'x'", ["'noet'; did you mean 'note'?"]),
        ("level == 3 and note == 'x'", []),  # each of one episode alone
        ("success or seed == 1 or tag == 'x' or note.deep == 1", []),
        ("return > 1 and length == 2 and end != 'cut' and env == 0 and stream == '0'", []),
    ],
)
def test_words_that_no_episode_has_are_told(tmp_path: pathlib.Path, where: str, said: list[str]) -> None:
    """As the commands tell of them; the line is the caller's."""
    with create(tmp_path / "a.replay") as buffer:
        assert len(told(buffer, where, [])) == 0  # no episode, no word
        for number in range(2):
            buffer.begin_episode(**([{"note": "x"}, {"level": 3}][number]))
            play(buffer, 2, 50.0 * number)
        told(buffer, where, said)
        buffer.commit()
        with dr.ReplayBuffer.open(tmp_path / "a.replay", mode="r") as reader:
            told(reader, where, said)
        (part,) = dr.Mixture([buffer]).parts
        told(part, where, said)


def told(buffer: Any, where: str, said: list[str]) -> Any:
    """What a condition selects, after a look at what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = buffer.select(where)
    assert [str(one.message) for one in caught] == [f"no episode has a fact {each}" for each in said]
    assert all(one.category is MisuseWarning and one.filename == __file__ for one in caught)
    return found


def test_a_reader_follows_facts_without_new_rows(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay") as buffer:
        play(buffer, 3, 0.0)
        buffer.commit()
        with dr.ReplayBuffer.open(tmp_path / "a.replay", mode="r") as reader:
            buffer.annotate_episode(success=True)
            assert not reader.refresh()
            buffer.commit()
            assert reader.refresh()
            assert facts(reader) == [{"success": True}]
            with pytest.raises(ReadOnlyError):
                reader.annotate_episode(success=False)
            with pytest.raises(ReadOnlyError):
                reader.begin_episode()


def test_a_reader_follows_equal_facts_of_another_type(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a") as buffer, dr.ReplayBuffer.open(tmp_path / "a", mode="r") as reader:
        buffer.begin_episode(x=1)
        play(buffer, 3, 0)
        for value, condition in ((1, "x == 1"), (True, "x == true"), (1.0, "x == 1"), (True, "x == true")):
            buffer.annotate_episode(x=value)
            buffer.commit()
            reader.refresh()
            assert repr(facts(reader)) == repr([{"x": value}])
            found = [len(one.select(each)) for one in (buffer, reader) for each in ("x == 1", "x == true")]
            assert found == [condition == "x == 1", condition == "x == true"] * 2


def test_facts_without_a_step_are_lost_with_the_process(tmp_path: pathlib.Path) -> None:
    buffer = create(tmp_path / "a.replay")
    buffer.begin_episode(seed=1)
    buffer.annotate_episode(tags=["x"])
    buffer.commit()
    assert buffer.episodes == []
    kill(buffer)
    with dr.ReplayBuffer.open(tmp_path / "a.replay", **OPEN) as again:
        play(again, 2, 0.0)
        assert facts(again) == [{}]
        again.begin_episode(seed=2)
        again.begin_episode()  # begun anew: what waited is of no episode
        play(again, 2, 50.0)
        assert facts(again) == [{}, {}]


@pytest.mark.long
def test_facts_of_a_long_episode(path: str) -> None:
    """The first row is thousands of rows back, then has left the window; another episode without facts follows."""
    with create(path, 5000) as buffer:
        play(buffer, 3, -50.0)
        buffer.begin_episode(seed=1)
        play(buffer, 4000, 0.0, ends=False)
        buffer.annotate_episode(success=True)
        assert facts(buffer) == [{}, {"seed": 1, "success": True}]
        buffer.commit()
        play(buffer, 3000, 4000.0)
        buffer.annotate_episode(note="late")
        assert facts(buffer) == [{"seed": 1, "success": True, "note": "late"}]
        buffer.commit()
        play(buffer, 10, 9000.0)
        buffer.commit()
    with dr.ReplayBuffer.open(path, **OPEN) as again:
        assert facts(again) == [{"seed": 1, "success": True, "note": "late"}, {}]
        play(again, 4995, 20000.0)  # what is left begins in the episode that has no facts
        assert facts(again) == [{}, {}]
        again.commit()
    assert facts_in(path) == [{}, {}]


@pytest.mark.long("test_facts_that_died_before_a_commit_are_forgotten")
def test_the_log_of_facts_stays_small(path: str) -> None:
    """Facts that change with each commit, of an episode that never ends, while others come and go."""
    with create(path, 64, num_envs=2) as buffer:
        obs = np.zeros((2, 1), np.float32)
        buffer.begin_episode(seed=1)
        for step in range(600):
            done = np.array([False, step % 3 == 2])
            buffer.add(obs + step, np.zeros(2, int), np.ones(2), obs + step + 1, done, np.zeros(2, bool))
            buffer.annotate_episode(env=0, step=step, words="long " * 200)
            buffer.annotate_episode(env=1, step=step, words="short " * 40)
            buffer.commit()
        record = buffer.engine.streams.writer.commit_record  # type: ignore[union-attr]
        begin, end, _ = record.of("info")
        assert end > 600 * 1000
        assert end - begin < 250_000
        held = buffer.engine.streams.written.facts  # type: ignore[union-attr]
        assert len(held) < 400
        newest = {episode.env: episode.facts["step"] for episode in buffer.episodes}
        assert newest == {0: 599, 1: 599}
    assert verify(path).problems == ()


def test_a_store_without_facts_has_no_trace_of_them(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.replay"
    with create(path) as buffer:
        buffer.begin_episode()
        play(buffer, 3, 0.0)
        buffer.annotate_episode()
    assert not (path / "streams/0/info").exists()
    assert "info" not in (path / "streams/0/zarr.json").read_text()


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"seed": -1}, "seed must be 0 to"),
        ({"seed": 1 << 64}, "seed must be 0 to"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"seed": True}, "seed must be an integer"),
        ({"success": 1}, "success must be True or False"),
        ({"success": "yes"}, "success must be True or False"),
        ({"tags": "expert"}, "tags must be a list of texts"),
        ({"tags": [1]}, "tags must be a list of texts"),
        ({"return": 3}, "name of the store's own"),
        ({"tag": "a"}, "name of the store's own"),
        ({"and": 1}, "name of the store's own"),
        ({"a.b": 1}, "name of a fact"),
        ({"": 1}, "name of a fact"),
        ({"x" * 65: 1}, "name of a fact"),
        ({"a\nb": 1}, "name of a fact"),
        ({"x": math.nan}, "must be JSON"),
        ({"x": math.inf}, "must be JSON"),
        ({"x": np.float32("nan")}, "must be JSON"),
        ({"x": object()}, "must be JSON"),
        ({"x": {1, 2}}, "must be JSON"),
        ({"x": b"bytes"}, "must be JSON"),
        ({"x": np.array([object()])}, "must be JSON"),
        ({"x": np.zeros(5000)}, "too large"),
        ({"x": "y" * 5000}, "too large"),
        ({"x": ["y" * 100] * 50}, "bytes as JSON"),
        ({"x": [0] * 5000}, "too large"),
        ({"x": {f"k{i}": i for i in range(2000)}}, "bytes as JSON"),
        ({"x": nested(17)}, "nested"),
        ({"x": nested(5000)}, "nested"),
        ({"x": LOOP}, "nested"),
        ({"x": {1: 2}}, "names in a fact"),
        ({"x": "a\x00b"}, "control characters"),
        ({"x": "\x1b[2J"}, "control characters"),
        ({"x": "\ud800"}, "control characters"),
        ({"x": 10**5000}, "integer"),
    ],
)
def test_hostile_facts_are_refused_before_anything_changes(path: str, given: dict[str, Any], what: str) -> None:
    with create(path) as buffer:
        play(buffer, 2, 0.0, ends=False)
        buffer.annotate_episode(note="kept")
        for call in (buffer.begin_episode, buffer.annotate_episode):
            with pytest.raises(InputError, match=what):
                call(good=1, **given)
        buffer.add([2], 0, 1.0, [3], False, False)  # the episode goes on: nothing was cut
        assert [(episode.length, episode.facts) for episode in buffer.episodes] == [(3, {"note": "kept"})]
    assert facts_in(path) == [{"note": "kept"}]


def test_facts_add_up_to_the_bound_and_no_further(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay") as buffer:
        play(buffer, 2, 0.0)
        buffer.annotate_episode(a="x" * 2000)
        with pytest.raises(InputError, match="bytes as JSON, and may have 4,096"):
            buffer.annotate_episode(b="x" * 2100)
        assert facts(buffer) == [{"a": "x" * 2000}]


def test_episodes_that_cannot_be_annotated(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay", 10) as buffer:
        with pytest.raises(InputError, match="has no episode yet"):
            buffer.annotate_episode(x=1)
        for env in (1, -1, "0", 0.0):
            with pytest.raises(InputError, match="env must be"):
                buffer.begin_episode(env=env)  # type: ignore[arg-type]
        play(buffer, 3, 0.0)
        old = buffer.episodes[0]
        play(buffer, 9, 50.0)
        with pytest.raises(InputError, match="not in the window"):
            buffer.annotate_episode(dataclasses.replace(old, stop=2), x=1)
        with pytest.raises(InputError, match="stream number 4"):
            buffer.annotate_episode(dataclasses.replace(old, stream=4), x=1)
        with pytest.raises(InputError, match="must be one of"):
            buffer.annotate_episode(3, x=1)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="not 0"):
            buffer.annotate_episode(dataclasses.replace(old, env=1), env=0, x=1)
        assert all(not episode.facts for episode in buffer.episodes)


def test_what_is_handed_out_is_a_copy(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "a.replay") as buffer:
        given = ["expert"]
        buffer.begin_episode(tags=given, scene={"floor": [1]})
        given.append("later")
        play(buffer, 2, 0.0)
        (episode,) = buffer.episodes
        episode.facts["tags"].append("mine")
        episode.facts["scene"]["floor"].append(2)
        assert facts(buffer) == [{"tags": ["expert"], "scene": {"floor": [1]}}]
        (episode,) = buffer.select("tag == 'expert'").episodes
        episode.facts["scene"].clear()
        assert facts(buffer) == [{"tags": ["expert"], "scene": {"floor": [1]}}]


def test_an_episode_of_another_store_or_time_cannot_be_annotated(tmp_path: pathlib.Path) -> None:
    """Regression: facts went to the episode that stands in those rows."""
    with create(tmp_path / "other") as other, create(tmp_path / "store") as buffer:
        for start, length in enumerate((6, 4)):
            play(other, length, 100 * start)
        play(buffer, 8, 0)
        play(buffer, 3, 100, ends=False)
        running = buffer.episodes[1]
        with pytest.raises(InputError, match="of another store, or out of date"):
            buffer.annotate_episode(other.episodes[1], success=True)
        play(buffer, 2, 103)
        buffer.annotate_episode(running, success=True)  # it went on since
        assert facts(buffer) == [{}, {"success": True}]
        buffer.annotate_episode(buffer.episodes[0], success=False)
        assert facts(buffer) == [{"success": False}, {"success": True}]


@pytest.mark.long
def test_facts_that_died_before_a_commit_are_forgotten(tmp_path: pathlib.Path) -> None:
    """Regression: only what had been written counted for looking what is dead."""
    with small_thresholds(in_format=False), create(tmp_path / "store", capacity=8) as buffer:
        for number in range(200):
            buffer.begin_episode(number=number)
            play(buffer, 2, 10 * number)
            if number % 20 == 19:
                buffer.commit()
        assert [one["number"] for one in facts(buffer)] == [196, 197, 198, 199]
        assert len(buffer.engine.appender.facts) <= 30


@pytest.mark.parametrize(
    "line",
    [
        b'[0,null,0,{"a":NaN}]', b'[0,null,0,{"a":1e999}]', b'[0,null,0,{"tags":[1]}]', b'[0,null,0,{"tags":"one"}]',
        b'[0,null,0,{"a":"' + b"x" * 9000 + b'"}]',
    ],
    ids=["NaN", "infinity", "tags of numbers", "tags as text", "a line that is too long"],
)  # fmt: skip
def test_forged_facts_are_damage(line: bytes) -> None:
    facts, data = EpisodeFacts(StreamLog(0, (), (), 1, 10, 0)), np.frombuffer(line + b"\n", np.uint8)
    with pytest.raises(ValueError, match=r"number|tags|more than"):
        list(facts.records(data, 0))


def test_integers_that_no_float_holds_are_refused(tmp_path: pathlib.Path) -> None:
    with create(tmp_path / "store") as buffer:
        play(buffer, 2, 0)
        assert not len(buffer.select(f"return > 1{'0' * 300}"))
        for name in ("return", "length", "seed"):
            with pytest.raises(InputError, match="is too large"):
                buffer.select(f"{name} > {'9' * 400}")
        for name in ("\ud800", "\x9b31m", "\u202e"):
            with pytest.raises(InputError, match="printable"):
                buffer.begin_episode(a={name: 1})


@pytest.mark.parametrize("name", ["reward", "obs", "action", "mine", "note"])
def test_a_selection_by_a_column_is_refused_by_its_name(tmp_path: pathlib.Path, name: str) -> None:
    """It found nothing, without a word."""
    more = {"columns": {"mine": ((), np.float32)}, "later": {"note": ((), np.float32)}}
    with dr.ReplayBuffer.create(tmp_path / "a", LINE, TURN, capacity=50, **more) as buffer:  # type: ignore[arg-type]
        wanted = rf"'{name}' is a column of the rows, .* by return, length, .*'seed'.*annotate_episode\({name}=\.\.\.\)"
        for _ in range(2):  # with no episode, and with one
            with pytest.raises(InputError, match=wanted):
                buffer.select(f"return > 1 or {name} > 1")
            buffer.add([0.0], 0, 2.0, [1.0], True, False, mine=1.0)
        buffer.annotate_episode(**{name: 3})
        assert len(buffer.select(f"{name} > 1")) == 1, "a fact may have the name of a column"
        assert len(buffer.select("version > 1")) == 0
