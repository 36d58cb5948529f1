"""The programs of ``examples/``, killed in the middle and started again by the same command.

Each is run on a small budget: too few steps to learn anything, enough for two checkpoints.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.effort import examples

import diskreplay

torch = pytest.importorskip("torch", reason="torch is in the interop extra")

from diskreplay.ops.verify import verify  # noqa: E402
from diskreplay.remote.place import open_store  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
LONGEST_LINES = 150


@dataclasses.dataclass(frozen=True)
class Small:
    """A small budget of one program.

    Attributes:
        arguments: of the command, beside ``--path`` and ``--seed``.
        stores: the store, or where there are several the pattern of their folders, below ``--path`` or the repository.
        learner: the file of the learner at the end, or the checkpoint that it is attached to, where a run that was
            killed ends with that of one that never was; None where the library begins new episodes when it is started
            again, and only then.
        checkpoints: that it prints before it is killed; the first is of the beginning in most of them.
        needs: a package beside torch.
    """

    arguments: str
    stores: str = "replay"
    learner: str | None = None
    checkpoints: int = 2
    needs: str = "gymnasium"


PROGRAMS = {
    "sac_vector": Small("--steps 720 --warmup 160 --save-every 240 --report-every 40", learner="step-720"),
    "dqn_atari": Small(
        "--steps 240 --warmup 90 --save-every 100 --report-every 20", learner="step-240", needs="ale_py"
    ),
    "rainbow": Small("--steps 240 --warmup 90 --save-every 100 --report-every 20", learner="step-240", needs="ale_py"),
    "r2d2": Small("--steps 600 --warmup 200 --save-every 250 --report-every 50", learner="step-600"),
    "her": Small("--steps 600 --warmup 200 --save-every 250 --report-every 50", learner="step-600"),
    "ppo": Small("--steps 3072 --save-every 1024 --report-every 512", stores="rollout", learner="step-3072"),
    "cql_offline": Small(
        "--steps 180 --save-every 60 --report-every 20",
        stores="datasets/cartpole-v1.replay",
        learner="checkpoint.pt",
        checkpoints=1,
    ),
    "qmix": Small("--steps 600 --save-every 200 --report-every 40", learner="step-600"),
    "sb3_resume": Small(
        "--steps 600 --warmup 400 --save-every 200 --report-every 50", checkpoints=1, needs="stable_baselines3"
    ),
    "torchrl_dqn": Small(
        "--steps 600 --warmup 200 --save-every 200 --report-every 40",
        learner="step-600",
        checkpoints=1,
        needs="torchrl",
    ),
    "tianshou_dqn": Small(
        "--steps 600 --warmup 200 --save-every 200 --report-every 40",
        stores="replay/env-*",
        learner="step-600",
        checkpoints=1,
        needs="tianshou",
    ),
    "grpo_rollouts": Small("--steps 5 --actors 1 --within 0", learner="step-5"),
    "cleanrl_dqn": Small("--steps 600 --warmup 200 --save-every 250 --report-every 50", learner="step-600"),
}


class Run:
    """A program in a process of its own."""

    def __init__(self, name: str, folder: pathlib.Path, arguments: str | None = None) -> None:
        command = [sys.executable, "-u", str(EXAMPLES / f"{name}.py"), "--path", str(folder), "--seed", "3"]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [*command, *(arguments or PROGRAMS[name].arguments).split()], cwd=ROOT, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.printed: list[str] = []

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed.append(line.rstrip())
            yield self.printed[-1]

    def printed_after(self, lines: int) -> str:
        """All that it has printed, once it has printed so many further lines."""
        assert len(list(itertools.islice(self.lines(), lines))) == lines, self.printed
        return "\n".join(self.printed)

    def kill_after(self, checkpoint: int, reports: int) -> None:
        """Kills it once it has printed so many checkpoints, and then so many further lines."""
        made = further = 0
        for line in self.lines():
            made, further = (made + 1, 0) if line.startswith("checkpoint ") else (made, further + 1)
            if made == checkpoint and further == reports:
                break
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        assert self._end() == -signal.SIGKILL, self.printed

    def finish(self) -> None:
        assert self._end() == 0, self.printed

    def _end(self) -> int:
        """Reads what is left, and gives the exit status."""
        list(self.lines())
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.process.wait()

    @property
    def saved(self) -> int:
        """The step of the newest checkpoint that it printed."""
        return max(self._steps(r"checkpoint \S+-(\d+)$"))

    @property
    def reported(self) -> int:
        """The newest step of which it printed an average return; nan before the first episode has ended."""
        return max(self._steps(r"step (\d+): (?:average return|goals reached) (?:-?\d|nan)"))

    @property
    def resumed(self) -> tuple[int, int]:
        """The step of the checkpoint that it says it went on from, and how many steps it says were lost."""
        (step,) = self._steps(r"resumed at checkpoint \S+-(\d+);")
        (lost,) = self._steps(r"resumed .* at least (\d+) ") or ([0] if "no finished step" in self.printed[0] else [])
        return step, lost

    def _steps(self, pattern: str) -> list[int]:
        return [int(match[1]) for match in (re.match(pattern, line) for line in self.printed) if match]


@dataclasses.dataclass(frozen=True)
class Killed:
    """What a program that was killed and started again left behind."""

    name: str
    folder: pathlib.Path
    before: Run
    again: Run


@pytest.fixture(scope="module", params=PROGRAMS)
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    name = request.param
    needs = PROGRAMS[name].needs
    pytest.importorskip(needs, reason=f"{needs} is in the interop extra")
    folder = tmp_path_factory.mktemp(name) / "run"
    before = Run(name, folder)
    before.kill_after(checkpoint=PROGRAMS[name].checkpoints, reports=2)
    again = Run(name, folder)
    again.finish()
    return Killed(name, folder, before, again)


def test_goes_on_from_its_newest_checkpoint(killed: Killed) -> None:
    assert_went_on(killed.before, killed.again)
    assert killed.again.reported > killed.before.saved
    assert killed.again.printed[-1].startswith("checkpoint ")
    stores = [*killed.folder.glob(PROGRAMS[killed.name].stores)] or [ROOT / PROGRAMS[killed.name].stores]
    for store in stores:
        found = verify(store)
        assert not found.problems, found.problems


@pytest.mark.parametrize("killed", [name for name, small in PROGRAMS.items() if small.learner], indirect=True)
def test_ends_with_the_weights_of_a_run_that_was_never_killed(killed: Killed, tmp_path: pathlib.Path) -> None:
    whole = Run(killed.name, tmp_path)
    whole.finish()
    assert_same(learner(killed.name, killed.folder), learner(killed.name, tmp_path))


@pytest.mark.parametrize("killed", ["her"], indirect=True)
def test_killed_before_its_first_checkpoint_and_again_after_it(killed: Killed, tmp_path: pathlib.Path) -> None:
    """At other places than the run of the other tests, and with the same weights at the end."""
    runs = []
    for reports in (2, 1, None):
        runs.append(Run(killed.name, tmp_path))
        if reports is None:
            runs[-1].finish()
        else:
            runs[-1].kill_after(checkpoint=1, reports=reports)
    assert_went_on(runs[0], runs[1])
    assert_went_on(runs[1], runs[2])
    assert runs[0].saved < runs[1].saved
    assert_same(learner(killed.name, tmp_path), learner(killed.name, killed.folder))


def test_a_job_that_is_preempted_loses_no_step(tmp_path: pathlib.Path) -> None:
    pytest.importorskip(PROGRAMS["dqn_atari"].needs)
    job = Run("dqn_atari", tmp_path)
    for line in job.lines():
        if line.startswith("step "):
            job.process.send_signal(signal.SIGTERM)
            break
    job.finish()
    assert job.saved >= job.reported
    again = Run("dqn_atari", tmp_path)
    again.finish()
    assert again.resumed == (job.saved, 0)
    assert again.saved == 240


@pytest.mark.parametrize(("actors", "within", "uses"), [(2, 1, 2), (1, 0, 1)], ids=["apart", "lockstep"])
def test_rollouts_when_actors_and_trainer_are_killed(
    actors: int, within: int, uses: int, tmp_path: pathlib.Path
) -> None:
    """In turn, at places that differ; the actor in lockstep with the trainer ends with the same weights."""
    kills = examples(10, "kills of grpo_rollouts", least=2)
    steps, chance, before = 4 * kills + 4, random.Random(actors), None
    arguments = f"--steps {steps} --actors {actors} --within {within} --uses {uses}"
    run = Run("grpo_rollouts", tmp_path, arguments)
    for kill in range(kills):
        processes: list[str] = []
        while not processes:  # where actors of the run before still hold their streams, others come first
            processes = re.findall(r"actor \d+ is process (\d+)", run.printed_after(chance.randint(4, 25)))
        if kill % 2 == 0:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.kill(int(chance.choice(processes[-actors:])), signal.SIGKILL)
        else:
            run.kill()
            before = Rollouts.of(tmp_path, actors, before, run.printed)
            run = Run("grpo_rollouts", tmp_path, arguments)
    run.finish()
    check_steps(Rollouts.of(tmp_path, actors, before, run.printed), steps, within, uses)
    with diskreplay.open(tmp_path / "replay", checkpoint=f"step-{steps}") as reader:
        index = np.array([episode.facts["used"] for episode in reader.episodes if "used" in episode.facts]).ravel()
        assert reader.times_sampled(index).tolist() == [int((index == each).sum()) for each in index]
    if within == 0:
        Run("grpo_rollouts", tmp_path / "whole", arguments).finish()
        ours, others = (learner("grpo_rollouts", folder, f"step-{steps}") for folder in (tmp_path, tmp_path / "whole"))
        assert_same(ours, others)


GROUP = 8
"""Answers to a prompt, prompts, and groups of a step, in grpo_rollouts."""


@dataclasses.dataclass
class Rollouts:
    """What the store of grpo_rollouts holds.

    Attributes:
        rollouts: by stream and row the version, and the bytes of tokens, log-probabilities and mask.
        used: of each finished step, of which there is a checkpoint, the first rollouts of its groups.
    """

    rollouts: dict[tuple[str, int], tuple[Any, ...]]
    used: list[list[tuple[str, int]]]

    @classmethod
    def of(cls, folder: pathlib.Path, actors: int, before: Rollouts | None, printed: list[str]) -> Rollouts:
        """Check that each rollout is there once: those that were there before, and those that actors said to finish."""
        found = cls({}, [])
        with diskreplay.open(folder / "replay", ragged="lists") as reader:
            streams = reader.stats()["streams"]
            names, episodes = list(streams), list(reader.episodes)
            finished = max((int(name.removeprefix("step-")) for name in reader.checkpoints), default=0)
            batch = reader.get([(episode.stream << 48) + episode.start for episode in episodes])
            for at, episode in enumerate(episodes):
                assert episode.length == 1
                assert episode.ended
                name, row = names[episode.stream], episode.start
                if name == "trainer":
                    assert episode.facts["version"] == row + 1 == len(found.used) + 1
                    found.used.append([(names[one >> 48], one & ((1 << 48) - 1)) for one in episode.facts["used"]])
                    continue
                turn, prompt = divmod(int(name.removeprefix("actor-")) + actors * (row // GROUP), GROUP)
                assert episode.facts["prompt"] == f"{turn}:{prompt}"
                tokens, log_prob, mask = (batch.extra[each][at] for each in ("tokens", "log_prob", "loss_mask"))
                assert len(tokens) == len(log_prob) == len(mask) == 1 + mask.sum()
                assert tokens[0] == 1 + prompt
                assert (name, row) not in found.rollouts
                parts = tokens.tobytes(), log_prob.tobytes(), mask.tobytes()
                found.rollouts[name, row] = episode.facts["version"], *parts
        del found.used[finished:]  # a kill may fall between the commit of a step's row and its checkpoint
        ends = {name: facts["end"] for name, facts in streams.items() if name != "trainer"}
        assert found.rollouts.keys() == {(name, row) for name, end in ends.items() for row in range(end)}
        for said in filter(None, (re.match(r"actor (\d+): (\d+) groups are finished", line) for line in printed)):
            assert ends[f"actor-{said[1]}"] >= GROUP * int(said[2])
        if before is not None:
            assert before.rollouts.items() <= found.rollouts.items()
            assert before.used == found.used[: len(before.used)]
        return found


def check_steps(found: Rollouts, steps: int, within: int, uses: int) -> None:
    """Each step has used whole groups, no rollout too old or too often."""
    assert len(found.used) == steps
    assert max(collections.Counter(itertools.chain(*found.used)).values()) <= uses
    for version, used in enumerate(found.used):  # the policy's before the step
        assert len(set(used)) == GROUP
        for name, first in used:
            assert first % GROUP == 0
            made = [found.rollouts[name, row][0] for row in range(first, first + GROUP)]
            assert version - within <= min(made) <= max(made) <= version


def learner(name: str, folder: pathlib.Path, checkpoint: str | None = None) -> Any:
    """What a program that has ended has saved of its learner."""
    small = PROGRAMS[name]
    checkpoint = checkpoint or small.learner
    assert checkpoint is not None
    if checkpoint.endswith(".pt"):
        return torch.load(folder / checkpoint)
    store = open_store(next(iter(sorted(folder.glob(small.stores)))))
    with store.open_attachment(store.checkpoint(checkpoint), "learner.pt") as file:
        return torch.load(file)


def assert_went_on(before: Run, again: Run) -> None:
    """From the newest checkpoint: one that was printed, or made just before the kill; it says what it lost."""
    step, lost = again.resumed
    assert step >= before.saved
    assert step + lost >= before.reported


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_is_short_tested_and_listed(program: pathlib.Path) -> None:
    assert len(program.read_text().splitlines()) <= LONGEST_LINES
    assert program.stem in PROGRAMS
    assert f"[{program.name}]({program.name})" in (EXAMPLES / "README.md").read_text()


def assert_same(one: Any, other: Any) -> None:
    """Equal to the last bit, in all tensors and numbers of nested dicts and lists."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
