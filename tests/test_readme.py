"""The examples of the READMEs run as they stand: each by itself, or one after another, in an empty directory."""

import pathlib
import re
import shlex

import pytest
from click.testing import CliRunner
from diskreplay_cli.main import main

ROOT = pathlib.Path(__file__).parent.parent


def blocks(readme: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", readme.read_text(), re.DOTALL)


@pytest.mark.long(quick=20)
@pytest.mark.parametrize(
    ("name", "number"),
    [
        (name, number)
        for name in ("README.md", "docs/guide.md", "docs/recording.md", "docs/report.md")
        for number in range(len(blocks(ROOT / name, "python")))
    ],
)
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_each_example_runs_by_itself(name, number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(ROOT / name, "python")[number], name, "exec"), {})


@pytest.mark.long
@pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")
def test_the_first_program_goes_on_when_it_is_started_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = compile(blocks(ROOT / "README.md", "python")[0], "README.md", "exec")
    for started in (1, 2):
        names: dict[str, object] = {}
        exec(program, names)
        assert names["first"] == 2_000 * (started - 1)


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
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("name", ["datasets/README.md", "docs/samplers.md"])
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
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
