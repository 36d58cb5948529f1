"""What an install brings along: top-level names, type markers, the console script and the requirements."""

from __future__ import annotations

import configparser
import email
import pathlib
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = pathlib.Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
DIST_INFO = f"diskreplay-{VERSION}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_top_level_names_are_the_two_packages(wheel: zipfile.ZipFile) -> None:
    assert {name.partition("/")[0] for name in wheel.namelist()} == {"diskreplay", "diskreplay_cli", DIST_INFO}


@pytest.mark.parametrize("package", ["diskreplay", "diskreplay_cli"])
def test_packages_are_marked_as_typed(wheel: zipfile.ZipFile, package: str) -> None:
    assert {f"{package}/__init__.py", f"{package}/py.typed"} <= set(wheel.namelist())


def test_the_page_is_included(wheel: zipfile.ZipFile) -> None:
    held = {name.rpartition("/")[2] for name in wheel.namelist() if name.startswith("diskreplay/report/page/")}
    assert held == {file.name for file in (ROOT / "diskreplay" / "report" / "page").iterdir()}
    assert {"page.html", "page.css", "page.js"} <= held


def test_console_script_is_declared(wheel: zipfile.ZipFile) -> None:
    entry_points = configparser.ConfigParser()
    entry_points.read_string(wheel.read(f"{DIST_INFO}/entry_points.txt").decode())
    assert dict(entry_points["console_scripts"]) == {"diskreplay": "diskreplay_cli.start:main"}


def test_license_is_included(wheel: zipfile.ZipFile) -> None:
    assert wheel.read(f"{DIST_INFO}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_a_plain_install_brings_no_optional_library(wheel: zipfile.ZipFile) -> None:
    metadata = email.message_from_bytes(wheel.read(f"{DIST_INFO}/METADATA"))
    required = {line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert required, "the wheel declares no requirements at all"
    assert not [line for line in required if line.startswith(("torch", "ale-py", "opencv", "stable-baselines3"))]


@pytest.mark.long
def test_the_editable_install_keeps_the_repository_off_the_path(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-I", "-c", "import diskreplay, diskreplay_cli, sys; print(*sys.path, sep='\\n')"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    assert not {str(ROOT), str(ROOT / "cli")} & set(done.stdout.splitlines())
