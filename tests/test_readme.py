"""The examples of the READMEs run as they stand, one after another, in an empty directory."""

import pathlib
import re
import shlex

import pytest
from click.testing import CliRunner
from diskreplay_cli.main import main

ROOT = pathlib.Path(__file__).parent.parent


def blocks(readme: pathlib.Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", readme.read_text(), re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "datasets/README.md", "docs/samplers.md"])
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
