"""The files for those who join agree with the project."""

from __future__ import annotations

import pathlib
import re
import tomllib

import pytest
import yaml

import diskreplay as dr

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_file_that_names_the_version_names_the_same() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert PROJECT["version"] == dr.__version__ == cited["version"] == newest[1]
    assert cited["abstract"] == PROJECT["description"] + "."
    assert cited["license"] == PROJECT["license"]


def test_the_public_workflow_runs_all_parts_of_the_ci() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if not line.startswith("#")]
    parts = re.findall(r"\brun make (\w+)", "\n".join(commands))
    assert sorted(["test", *jobs["part"]["strategy"]["matrix"]["part"]]) == sorted(parts)
    pythons = jobs["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["requires-python"] == f">={pythons[0]}"


def test_the_hook_before_a_commit_fetches_nothing() -> None:
    (one,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert one["repo"] == "local"
    assert [hook["entry"] for hook in one["hooks"]] == ["make lint"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md"])
def test_the_files_that_a_page_names_are_there(page: str) -> None:
    named = re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", (ROOT / page).read_text())
    assert named
    for name in named:
        below = [ROOT / folder for folder in (".", "docs", "diskreplay")]
        assert any((folder / name).exists() for folder in below), f"{page} names {name}, which is not there"
