"""constraints-oldest.txt has the lower ends of pyproject.toml's ranges."""

from __future__ import annotations

import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[2]


def test_the_oldest_versions_are_those_that_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)}
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert pinned
    for name, version in pinned:
        least = version.removesuffix(".0").removesuffix(".0")
        assert f"{name}>={least}" in allowed
