"""The examples of the READMEs run as they stand: each by itself, or one after another, in an empty directory."""

import itertools
import os
import pathlib
import re
import runpy
import shlex
import signal
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.commands import said
from helpers.odds import chances_of

import diskreplay as dr

ROOT = pathlib.Path(__file__).parent.parent


ALONE = (
    "README.md", "docs/guide.md", "docs/recording.md", "docs/report.md", "docs/compat/frames.md",
    "docs/compat/notebook.md", "docs/compat/pearl.md", "docs/compat/xuance.md", "docs/compat/xuance_marl.md",
    "docs/rollouts.md",
)  # fmt: skip
"""Pages whose examples run here, each by itself."""
IN_ORDER = ("datasets/README.md", "docs/formats.md", "docs/samplers.md")
"""Pages whose examples run here, one after another."""
ELSEWHERE = {
    "docs/tutorial.md": "interop/test_tutorial.py", "docs/torch.md": "interop/test_torch_dataset.py",
    "docs/compat/torchrl.md": "interop/test_compat_torchrl.py", "docs/ray.md": "distributed/test_ray_collectors.py",
    "docs/remote.md": "distributed/test_remote_page.py", "docs/robots.md": "robots/test_page.py",
    "docs/slurm.md": "test_preemption.py",
}  # fmt: skip
"""Pages whose examples need more, and the tests that run them."""
EXPLAINED = ("docs/cli.md", "docs/formats.md")
"""Pages on which one sentence says of all blocks why they do not run here."""


def blocks(readme: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", readme.read_text(), re.DOTALL)


def pages() -> list[str]:
    """Of the repository and of its folders that the site shows."""
    folders = ("", "benchmarks/", "datasets/", "docs/", "docs/compat/", "docs/design/", "examples/", "tests/")
    return sorted(str(page.relative_to(ROOT)) for folder in folders for page in ROOT.glob(f"{folder}*.md"))


@pytest.mark.parametrize("name", pages())
def test_each_block_of_a_page_runs_or_says_why_not(name):
    """A `python` block runs; one in `py` or `text` has a comment before it."""
    text = (ROOT / name).read_text()
    if blocks(ROOT / name, "python"):
        assert name in (*ALONE, *IN_ORDER, *ELSEWHERE)
    if name in ELSEWHERE:
        assert name.rpartition("/")[2] in (ROOT / "tests" / ELSEWHERE[name]).read_text()
    if name not in EXPLAINED:
        assert re.findall(r"^.*\n```(?:py|text)$", text, re.M) == re.findall(
            r"^<!-- .* -->\n```(?:py|text)$", text, re.M
        )


@pytest.mark.long(quick=20)
@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name in ALONE for number in range(len(blocks(ROOT / name, "python")))]
)
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_each_example_runs_by_itself(name, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGUSR1)
    try:
        exec(compile(blocks(ROOT / name, "python")[number], name, "exec"), {})
    finally:
        signal.signal(signal.SIGUSR1, before)


def resumed_program() -> str:
    """README's program that goes on from its last checkpoint."""
    (program,) = [block for block in blocks(ROOT / "README.md", "python") if 'checkpoint="latest"' in block]
    return program


def held(rb):
    """All that a buffer holds: rows, and the probability of each."""
    ids = rb.items()
    batch = rb.get(ids)
    probability = chances_of(rb, ids)
    return {"obs": batch.obs, "action": batch.action, "reward": batch.reward, "probability": probability}


def run_and_die() -> None:
    """The program, killed 300 steps after its first checkpoint; writes down what the buffer held at that."""
    os.fsync = lambda fd: None
    add, checkpoint, steps = dr.ReplayBuffer.add, dr.ReplayBuffer.checkpoint, itertools.count()

    def told(rb, *arguments, **options):
        checkpoint(rb, *arguments, **options)
        np.savez("then.npz", **held(rb))

    def dying(rb, *arguments):
        if next(steps) == 1_300:
            rb.commit()
            os.kill(os.getpid(), signal.SIGKILL)
        add(rb, *arguments)

    dr.ReplayBuffer.add, dr.ReplayBuffer.checkpoint = dying, told
    exec(resumed_program(), {})


@pytest.mark.long
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_the_program_that_resumes_goes_on_after_a_kill(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [str(ROOT), str(ROOT / "cli"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    killed = subprocess.run(
        [sys.executable, "-c", "import test_readme; test_readme.run_and_die()"], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    opened = []
    open_or_create = dr.ReplayBuffer.open_or_create

    def seen(*arguments, **options):
        rb = open_or_create(*arguments, **options)
        opened.append(held(rb))
        return rb

    monkeypatch.setattr(dr.ReplayBuffer, "open_or_create", seen)
    program = compile(resumed_program(), "README.md", "exec")
    for first, last in ((1_000, 3_000), (3_000, 5_000)):
        names: dict[str, object] = {}
        exec(program, names)
        assert (names["first"], names["step"]) == (first, last - 1)
    with np.load("then.npz") as then:
        assert len(then["reward"]) >= 990
        assert len(np.unique(then["probability"])) > 1
        for name, values in opened[0].items():
            np.testing.assert_array_equal(values, then[name])
    assert len(opened[1]["reward"]) >= 2_990


@pytest.mark.parametrize(
    "used",
    [("dr.RateLimiter(",), ("dr.Mixture.open(",), ("dr.Recent(",), ("rb.begin_episode(", "rb.select("),
     ("later=", "rb.write(")],
    ids=["a limiter", "Mixture", "Recent", "facts", "later"],
)  # fmt: skip
def test_the_guide_shows_what_users_wished_for_in_thirty_lines(used):
    """Programs that :func:`test_each_example_runs_by_itself` runs; empty lines do not count."""
    shown = [block for block in blocks(ROOT / "docs/guide.md", "python") if all(name in block for name in used)]
    assert shown
    for block in shown:
        assert len([line for line in block.splitlines() if line.strip()]) <= 30


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_cast_shows_what_its_script_runs():
    cast = runpy.run_path(str(ROOT / "docs" / "make_cast.py"))
    picture = ElementTree.parse(ROOT / "docs" / "pictures" / "cast.svg")
    shown = [text.text or "" for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert [line.removeprefix("$ ") for line in shown if line.startswith("$ ")] == list(cast["COMMANDS"])
    again = ElementTree.fromstring(cast["drawn"]([(line, 0.0) for line in shown]))
    assert [text.text for text in again.iter("{http://www.w3.org/2000/svg}text")] == shown


@pytest.mark.parametrize("name", IN_ORDER)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("datasets").symlink_to(ROOT / "datasets")
    examples = blocks(ROOT / name, "python")
    assert examples
    names: dict[str, object] = {}
    for block in examples:
        exec(compile(block, name, "exec"), names)


def test_commands_over_the_samples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("datasets").symlink_to(ROOT / "datasets")
    (block,) = blocks(ROOT / "datasets" / "README.md", "sh")
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "diskreplay"
        said(*arguments)
