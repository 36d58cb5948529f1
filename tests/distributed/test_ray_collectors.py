"""Collectors: rows that are a function of their place, killed, raising and paced collectors, and misuse."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray
from helpers import counting
from helpers.effort import examples
from helpers.line import rows_in
from helpers.own_samplers import Newest
from helpers.testing import SimulatedObjects
from remote.world import SPACES, URL, lived, reader, under

import diskreplay as dr
from diskreplay.buffers.options import DEFAULTS
from diskreplay.errors import (
    ClosedError,
    CollectorError,
    InputError,
    LockedError,
    RateLimitError,
    SamplerWarning,
    StoreNotFoundError,
)
from diskreplay.ops.verify import verify
from diskreplay.ray import Collector, Collectors
from diskreplay.ray.collectors import _reader

ROOT = pathlib.Path(__file__).parents[2]
KILLS = examples(20, "kills of collectors", least=6)
MODES = {"next_step": counting.make_envs, "same_step": counting.same_step, "disabled": counting.disabled}
PATIENCE = 120
"""Seconds after which a wait for another process is a failure."""


@pytest.fixture(autouse=True, scope="module")
def _ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # actors import what the tests share
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
        yield
        ray.shutdown()


def create(path: str, **options: Any) -> None:
    options = {"capacity": 10_000, "stream": "learner"} | options
    dr.ReplayBuffer.create(path, counting.OBSERVATIONS, counting.ACTIONS, **options).close()


def collectors(path: str, n: int = 2, make_envs: Any = counting.make_envs, **options: Any) -> Collectors:
    options = {"capacity": 100_000, "steps_per_commit": 20, "seed": 0} | options
    return Collectors(n, path, make_envs, counting.policy, **options)


# One collector, without Ray


@pytest.mark.parametrize("mode", MODES)
def test_a_collector_writes_true_steps_in_each_autoreset_mode(path: str, mode: str) -> None:
    create(path)
    collector = Collector(path, MODES[mode], counting.policy, version=3, seed=0)
    done = [collector.collect(17), collector.collect(0), collector.collect(23, version=4)]
    assert [one.transitions for one in done] == [51, 51, 120]
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        found = counting.check_all(reader)
        assert list(found) == [collector.stream]
        assert found[collector.stream] == (120 if mode != "next_step" else 120 - sum(len(one.returns) for one in done))
        ended = [episode for episode in reader.episodes if episode.ended]
        assert sorted(sum((one.returns for one in done), ())) == sorted(one.total_reward for one in ended)
        assert sorted(sum((one.lengths for one in done), ())) == sorted(one.length for one in ended)
        versions = [episode.facts["policy"] for episode in ended]
        assert versions.count(3) == len(done[0].returns)
        assert versions.count(4) == len(done[2].returns)
    collector.close()
    collector.close()
    with pytest.raises(ClosedError, match=collector.stream):
        collector.collect(1)


def test_the_same_seed_collects_the_same(path: str) -> None:
    create(path, capacity=100)
    seen = []
    for _ in range(2):
        drawn: list[float] = []

        def policy(weights: Any, rng: np.random.Generator, drawn: list[float] = drawn) -> Any:
            drawn.append(rng.random())
            return counting.policy(weights, rng)

        collector = Collector(path, counting.make_envs, policy, seed=5)
        collector.collect(3)
        collector.close()
        seen.append((drawn, [env.np_random_seed for env in collector._envs.env.envs]))
    assert seen[0] == seen[1]


def test_a_full_collector_empties_streams_that_nobody_writes(
    path: str,
) -> None:
    create(path)
    dead = Collector(path, counting.make_envs, counting.policy, capacity=60, name="a")
    other = Collector(path, counting.make_envs, counting.policy, capacity=60, name="ab")
    zombie = Collector(path, counting.make_envs, counting.policy, capacity=60, name="a")
    for one in (dead, other, zombie):
        one.collect(10)
    dead.close()
    other.close()
    heir = Collector(path, counting.make_envs, counting.policy, capacity=60, name="a")
    for steps, left in ((20, {dead, other, zombie, heir}), (1, {other, zombie, heir})):
        heir.collect(steps)
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            assert set(counting.check_all(reader)) == {one.stream for one in left}
    zombie.collect(5)  # goes on, into its own stream
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert reader.stats()["streams"][zombie.stream]["end"] == 15
        counting.check_all(reader)
    zombie.close()
    heir.collect(1)
    heir.close()
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert set(counting.check_all(reader)) == {other.stream, heir.stream}
    assert verify(path).ok


def test_steps_before_an_environments_error_are_committed(path: str) -> None:
    create(path)
    collector = Collector(path, counting.raising, counting.policy)
    with pytest.raises(RuntimeError, match="simulator"):
        collector.collect(100)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert reader.stats()["streams"][collector.stream]["end"] > 20
        counting.check_all(reader)
    collector.close()


def test_a_collector_takes_what_it_is_given_as_it_is(path: str) -> None:
    with pytest.raises(InputError, match=r"must make a gymnasium\.vector\.VectorEnv, got Counting"):
        Collector(path, lambda: counting.Counting(0), counting.policy)
    with pytest.raises(StoreNotFoundError):
        Collector(path, counting.make_envs, counting.policy)
    create(path)
    with pytest.raises(InputError, match=r"policy\(weights, rng\) must give a function"):
        Collector(path, counting.make_envs, lambda weights, rng: 3)
    for wrong in (lambda obs: [0], lambda obs: [[0], [0, 1], 2], lambda obs: np.zeros((3, 1), int)):
        collector = Collector(path, counting.make_envs, lambda weights, rng, wrong=wrong: wrong)
        with pytest.raises(InputError, match=r"actions must be of shape \(3,\), got"):
            collector.collect(1)
        collector.close()
    assert rows_in(path) == 0


# Several, as actors


def test_the_program_of_the_page_runs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", _section("Collectors"), re.DOTALL)
    for first in (0, 200):  # the second goes on from the first one's checkpoint
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(program, "docs/ray.md", "exec"), names)
        assert (names["first"], names["step"]) == (first, first + 200)


def _section(title: str) -> str:
    text = (ROOT / "docs" / "ray.md").read_text()
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def test_collectors_that_are_killed_while_a_trainer_samples(path: str) -> None:
    """What a collector had committed before it was killed is there, row by row; its successor has another stream."""
    committed: dict[str, int] = {}
    batches = 0
    with collectors(path, n=2, max_restarts=3) as collecting:
        for kill in range(KILLS):
            victim = kill % 2
            _until(lambda v=victim: collecting.stats()["collectors"][v]["transitions"] >= 60 * counting.ENVS)
            facts = collecting.stats()
            committed |= {one["stream"]: one["transitions"] for one in facts["collectors"] if one["stream"]}
            os.kill(facts["collectors"][victim]["process"], signal.SIGKILL)
            for _ in range(5):
                collecting.wait_to_sample(32, timeout=PATIENCE)
                counting.check(collecting.buffer.sample(32))
                batches += 1
            collecting.buffer.refresh()
            _until(lambda done=kill: collecting.stats()["restarts"] > done)
        _until(lambda: all(one["transitions"] for one in collecting.stats()["collectors"]))
        facts = collecting.stats()
        assert facts["restarts"] == KILLS
        assert all("Actor" in one["reason"] for one in facts["collectors"])
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        found = counting.check_all(reader)
        streams = reader.stats()["streams"]
        assert len(found) == KILLS + 2
        for stream, transitions in committed.items():
            assert streams[stream]["end"] * counting.ENVS >= transitions
        total = sum(one["end"] for one in streams.values()) * counting.ENVS
        assert total >= facts["inserts"]
    assert verify(path).ok
    assert batches == 5 * KILLS


def _until(holds: Any) -> None:
    """Returns once it holds; what other processes do takes its time."""
    start = time.monotonic()
    while not holds():
        assert time.monotonic() - start < PATIENCE, "it has not come"
        time.sleep(0.01)


def test_samples_per_insert_of_all_collectors_together(path: str) -> None:
    with collectors(path, samples_per_insert=4, min_size=200, error_buffer=200) as collecting:
        for _ in range(40):
            collecting.wait_to_sample(50, timeout=PATIENCE)
            counting.check(collecting.buffer.sample(50))
            facts = collecting.stats()
            surplus = facts["inserts"] * 4 - facts["samples"]
            assert surplus <= 200 * 4 + 200
        collecting.buffer.refresh()
        limiter = collecting._limiter
        assert limiter is not None
        assert limiter.samples == 2_000
        assert 4 * limiter.inserts - 2_000 >= 200 * 4 - 200
        _until(lambda: {one["state"] for one in collecting.stats()["collectors"]} == {"waiting"})
        assert collecting.stats()["inserts"] <= limiter.most_inserts
        collecting._supervisor._leave = lambda inserts, waiting: 0  # nobody collects any more
        with pytest.raises(RateLimitError, match="2 waiting"):
            _until(lambda: collecting.wait_to_sample(50, timeout=0))


@pytest.mark.parametrize("sampler", [None, dr.Proportional()])
def test_a_trainer_resumes_where_its_checkpoint_is(path: str, sampler: Any) -> None:
    """Regression: with the sampler of the same settings, as in the page's program, it began without priorities."""
    options: dict[str, Any] = {"samples_per_insert": 2, "min_size": 100, "checkpoint": "latest"}
    with collectors(path, sampler=dr.Proportional(), **options) as collecting:
        for _ in range(5):
            collecting.wait_to_sample(32, timeout=PATIENCE)
            batch = collecting.buffer.sample(32)
            collecting.buffer.update_priorities(batch.index, batch.reward)
        collecting.buffer.checkpoint("here")
        expected = collecting.buffer.sample(32)
        before = set(collecting.buffer.stats()["streams"])
    with collectors(path, sampler=sampler, **options) as collecting:
        again = collecting.buffer.sample(32)
        np.testing.assert_array_equal(again.index, expected.index)
        assert collecting.stats()["samples"] == 160
        collecting.wait_to_sample(32, timeout=PATIENCE)
        _until(lambda: all(one["stream"] for one in collecting.stats()["collectors"]))
        assert not before & {one["stream"] for one in collecting.stats()["collectors"]}


def test_a_trainer_that_asks_for_another_sampler_or_view_gets_it(path: str) -> None:
    with collectors(path, sampler=dr.Proportional(), min_size=50) as collecting:
        collecting.wait_to_sample(32, timeout=PATIENCE)
        batch = collecting.buffer.sample(32)
        collecting.buffer.update_priorities(batch.index, batch.reward + 1)
        collecting.buffer.checkpoint("here")
    asked: list[dict[str, Any]] = [
        {"sampler": dr.Proportional(alpha=0.9)}, {"sampler": dr.Proportional(), "view": dr.Sequence(4)},
    ]  # fmt: skip
    for options in asked:
        # Priorities of another alpha are converted; those of other items begin anew.
        saying = pytest.warns(SamplerWarning) if "view" in options else contextlib.nullcontext()
        with saying, collectors(path, checkpoint="latest", **options) as collecting:
            assert collecting.buffer.sampler is options["sampler"]
            assert collecting.buffer.sampler.is_new == ("view" in options)
            assert collecting.buffer.view is options.get("view", collecting.buffer.view)


def test_a_remote_trainer_gets_another_view_or_sampler(
    tmp_path: pathlib.Path,
) -> None:
    """Regression: it was told to give a sampler, which it had given."""
    objects = SimulatedObjects()
    life = lived(tmp_path / "a", 20, sampler=dr.Proportional())
    life.push(objects)
    life.buffer.close()

    def opened(**options: Any) -> dr.ReplayBuffer:
        more: Any = {**DEFAULTS, "checkpoint": "latest"}
        view, sampler = options.get("view"), options["sampler"]
        return _reader(URL, *SPACES, 60, view, sampler, tmp_path / "mirror", None, more)

    with under(objects):
        with reader(objects, tmp_path / "mirror", sampler=dr.Proportional()) as buffer:
            batch = buffer.sample(8)
            buffer.update_priorities(batch.index, batch.reward + 1)
            buffer.checkpoint("here")
            expected = buffer.sample(8).index
        with opened(sampler=dr.Proportional()) as buffer:
            np.testing.assert_array_equal(buffer.sample(8).index, expected)
        with (
            pytest.warns(SamplerWarning, match="items of"),
            opened(sampler=dr.Proportional(), view=dr.Sequence(4)) as buffer,
        ):
            assert buffer.view == dr.Sequence(4)
        with reader(objects, tmp_path / "mirror", sampler=Newest(8)) as buffer:
            buffer.checkpoint("of another class")
        with (
            pytest.warns(SamplerWarning, match="it holds the state of Newest"),
            opened(sampler=dr.Proportional()) as buffer,
        ):
            assert isinstance(buffer.sampler, dr.Proportional)


def test_a_close_that_is_interrupted_is_ended_by_the_next(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the next did nothing, and the actors stayed."""
    collecting = collectors(path)
    collecting.wait_to_sample(1, timeout=PATIENCE)
    supervisor = collecting._supervisor

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(supervisor._thread, "join", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collecting.close()
    collecting.close()
    assert not any(place.actor for place in supervisor._places)
    with pytest.raises(ClosedError):
        collecting.wait_to_sample(1)


def test_a_collector_whose_close_is_interrupted_can_be_closed(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the next close did nothing, and the stream stayed locked."""
    create(path)
    collector = Collector(path, counting.make_envs, counting.policy)

    def interrupted(self: dr.ReplayBuffer) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(dr.ReplayBuffer, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            collector.close()
    collector.close()
    dr.ReplayBuffer.open(path, stream=collector.stream).close()


def test_new_weights_reach_all_collectors_and_the_facts(path: str) -> None:
    with collectors(path) as collecting:
        for version in (1, 2, 3):
            assert collecting.set_weights(np.ones(3)) == version
        _until(lambda: all(one["version"] == 3 for one in collecting.stats()["collectors"]))
        streams = {one["stream"]: one["transitions"] for one in collecting.stats()["collectors"]}
        _until(
            lambda: all(
                one["transitions"] >= streams.get(one["stream"], 0) + 300 for one in collecting.stats()["collectors"]
            )
        )
        assert collecting.stats()["return_mean"] > 0
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        chosen = reader.select("policy == 3")
        assert len({episode.stream for episode in chosen.episodes}) == 2


def test_an_environment_that_raises_is_made_anew(path: str) -> None:
    """It commits something each time: that goes on for ever."""
    once = pytest.raises(CollectorError, match=r"collector 0 failed 1 times in a row .*RuntimeError: the simulator")
    with collectors(path, n=1, make_envs=counting.raising, steps_per_commit=10, max_restarts=0) as collecting, once:
        _until(lambda: collecting.wait_to_sample(1, timeout=PATIENCE))
    with collectors(path, n=1, make_envs=counting.raising, steps_per_commit=10, max_restarts=1) as collecting:
        _until(lambda: collecting.stats()["restarts"] >= 3)
        (facts,) = collecting.stats()["collectors"]
        assert facts["reason"] == "RuntimeError: the simulator is gone"
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert len(counting.check_all(reader)) >= 4


def test_a_collector_that_never_commits_ends_all_with_the_reason(path: str) -> None:
    def policy(weights: Any, rng: Any) -> Any:
        raise OSError("no weights\nand more")

    collecting = Collectors(2, path, counting.make_envs, policy, capacity=100, max_restarts=1)
    with pytest.raises(CollectorError, match=r"collector \d failed 2 times in a row .*by OSError: no weights$"):
        collecting.wait_to_sample(1, timeout=PATIENCE)
    with pytest.raises(CollectorError):
        collecting.set_weights(None)
    assert {one["state"] for one in collecting.stats()["collectors"]} == {"ended"}
    collecting.close()
    collecting.close()
    collecting = Collectors(1, path, counting.make_envs, policy, capacity=100, max_restarts=0)
    _until(lambda: collecting.stats()["collectors"][0]["state"] == "ended")
    with pytest.raises(CollectorError, match="no weights"):
        collecting.close()  # nobody was told


def test_wrong_actions_end_all_at_once(path: str) -> None:
    def policy(weights: Any, rng: Any) -> Any:
        return lambda obs: np.zeros((3, 2))

    with (
        pytest.raises(InputError, match=r"^collector 0: the policy's actions must be of shape \(3,\), got \(3, 2\)$"),
        Collectors(1, path, counting.make_envs, policy, capacity=100) as collecting,
    ):
        collecting.wait_to_sample(1, timeout=PATIENCE)


def test_arguments_are_checked_before_a_store_is_made(path: str) -> None:
    given, lock = (counting.make_envs, counting.policy), threading.Lock()
    for message, arguments, options in (
        ("n must be 1 to", (0, path, *given), {}),
        ("n must be an integer", (1.5, path, *given), {}),
        ("make_envs must be callable", (1, path, None, counting.policy), {}),
        ("policy must be callable", (1, path, counting.make_envs, 3), {}),
        ("samples_per_insert must be a finite number above 0", (1, path, *given), {"samples_per_insert": 0}),
        ("capacity must be", (1, path, *given), {"capacity": 0}),
        ("steps_per_commit must be", (1, path, *given), {"steps_per_commit": 0}),
        ("max_restarts must be", (1, path, *given), {"max_restarts": -1}),
        ("what Ray can send", (1, path, lambda: lock, counting.policy), {}),
        (r"VectorEnv, got Counting", (1, path, lambda: counting.Counting(0), counting.policy), {}),
    ):
        with pytest.raises(InputError, match=message):
            Collectors(*arguments, **options)
    with pytest.raises(CollectorError, match="make_envs failed in a collector's process by ZeroDivisionError"):
        Collectors(1, path, lambda: 1 // 0, counting.policy)
    with pytest.raises(TypeError, match="did you mean 'capacity'"):
        Collectors(1, path, *given, capacty=3)
    assert not pathlib.Path(path).exists()


def test_a_store_of_other_environments_is_refused(path: str) -> None:
    dr.ReplayBuffer.create(path, gymnasium.spaces.Box(0, 1, (2,)), counting.ACTIONS, capacity=10).close()
    with pytest.raises(InputError, match="observation_space is Box"):
        collectors(path)


def test_a_band_that_is_too_narrow_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="error_buffer must be at least 12 for a step of 3 environments"):
        collectors(path, samples_per_insert=8, min_size=10, error_buffer=11)


def test_one_trainer_a_store_and_none_after_close(path: str) -> None:
    collecting = collectors(path, n=1)
    with pytest.raises(LockedError, match="learner"):
        collectors(path, n=1)
    collecting.close()
    collecting.close()
    with pytest.raises(ClosedError, match="collectors of"):
        collecting.wait_to_sample(1)
    with pytest.raises(ClosedError):
        collecting.set_weights(None)
    assert {one["state"] for one in collecting.stats()["collectors"]} == {"ended"}
    with dr.ReplayBuffer.open(path) as buffer:
        counting.check_all(buffer)


PROGRAM = """
import sys, ray
from helpers import counting
from diskreplay.ray import Collectors
ray.init(address=sys.argv[2], logging_level="error", log_to_driver=False)
given = counting.make_envs, counting.policy
with Collectors(2, sys.argv[1], *given, capacity=100_000, steps_per_commit=20) as collecting:
    while True:
        collecting.wait_to_sample(32)
        if len(collecting.buffer) > 500:
            print("going", flush=True)
        counting.check(collecting.buffer.sample(32))
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_collectors_end_with_their_driver(path: str, how: signal.Signals) -> None:
    """After Ctrl-C, and after a kill of the driver, nobody writes any more; all that was committed is right."""
    address = ray.get_runtime_context().gcs_address
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path, address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    ) as driver:  # fmt: skip
        assert driver.stdout is not None
        assert driver.stderr is not None
        assert driver.stdout.readline() == "going\n", driver.stderr.read()
        driver.send_signal(how)
        _, errors = driver.communicate()
    assert ("KeyboardInterrupt" in errors) == (how == signal.SIGINT)

    def free() -> bool:
        with dr.ReplayBuffer.open(path, mode="r") as reader:
            streams = list(reader.stats()["streams"])
        try:
            for stream in streams:
                dr.ReplayBuffer.open(path, mode="a", stream=stream).close()
        except LockedError:
            return False
        return True

    _until(free)
    with dr.ReplayBuffer.open(path, mode="r") as reader:
        assert sum(counting.check_all(reader).values()) > 400


# Under a URL


def test_a_remote_collector_pushes_its_rest_and_empties_it_later(server: int, tmp_path: pathlib.Path) -> None:
    url, place = "s3://bucket/one.replay", tmp_path / "node"
    create(str(tmp_path / "first"), remote=url)

    def collector(**options: Any) -> Collector:
        made = {"capacity": 60, "name": "a", "directory": place, "push_seconds": 0}
        return Collector(url, counting.make_envs, counting.policy, **made | options)

    def read() -> dict[str, int]:
        with dr.ReplayBuffer.open(url, mode="r", mirror=tmp_path / "m") as reader:
            return counting.check_all(reader)

    dead = collector(push_seconds=1000)
    dead.collect(10)
    envs = dead._envs
    envs.buffer.engine.pushes.pushing = None  # as a kill would: committed here, and not pushed
    dead.close()
    assert dead.stream not in read()
    other = collector(name="ab")
    other.collect(10)
    heir = collector()
    assert read()[dead.stream] > 20
    heir.collect(20)
    assert (place / dead.stream).exists()
    heir.collect(1)
    assert not (place / dead.stream).exists()
    for one in (other, heir):
        one.close()
    assert set(read()) == {other.stream, heir.stream}
    assert verify(url).ok


def test_what_was_taken_before_an_environment_raised_is_pushed(server: int, tmp_path: pathlib.Path) -> None:
    url = "s3://bucket/raising.replay"
    create(str(tmp_path / "first"), remote=url)
    collector = Collector(url, counting.raising, counting.policy, directory=tmp_path / "node", push_seconds=1000)
    with pytest.raises(RuntimeError, match="simulator"):
        collector.collect(100)
    with dr.ReplayBuffer.open(url, mode="r", mirror=tmp_path / "m") as reader:
        assert reader.stats()["streams"][collector.stream]["end"] > 20
        counting.check_all(reader)
    collector.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples_per_insert": 2.0}, "share by its path"),
        ({"remote": "s3://bucket/other.replay"}, "leave remote= out"),
    ],
)
def test_what_does_not_go_with_a_url(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        collectors("s3://bucket/refused.replay", **options)


@pytest.mark.parametrize("name", ["directory", "mirror", "mirror_bytes"])
def test_what_goes_with_a_url_alone(path: str, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is for stores under a URL"):
        collectors(path, **{name: 5 if name == "mirror_bytes" else "here"})
