"""What an install brings along: top-level names, type markers, the compiled module, the script, the requirements."""

from __future__ import annotations

import configparser
import email
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from helpers.programs import printed

ROOT = pathlib.Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
DIST_INFO = f"diskreplay-{VERSION}.dist-info"
MODULE = "diskreplay/native/core.abi3.so"


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


def test_one_module_is_for_all_versions_of_python(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if name.endswith((".so", ".pyd"))] == [MODULE]
    described = email.message_from_bytes(wheel.read(f"{DIST_INFO}/WHEEL"))
    assert described["Root-Is-Purelib"] == "false"
    assert described["Tag"].startswith("cp311-abi3-")


def audit(name: str, *arguments: object) -> str:
    """What a program of this environment prints that finds nothing wrong."""
    command = [sys.executable, "-m", name, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_module_takes_only_what_is_stable_in_python(wheel: zipfile.ZipFile) -> None:
    audit("abi3audit", "--strict", wheel.filename)


@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel knows wheels of Linux alone")
def test_the_module_takes_only_what_every_linux_has(wheel: zipfile.ZipFile) -> None:
    said = audit("auditwheel", "show", wheel.filename)
    assert re.search(r'following\s+platform\s+tag:\s+"(many|musl)linux_', said)
    assert set(re.findall(r"(\S+)\s+with\s+versions", said)) <= {"libc.so.6", "libm.so.6"}


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("objdump") is None, reason="of this processor, by objdump"
)
def test_the_module_runs_on_processors_without_avx(wheel: zipfile.ZipFile, tmp_path: pathlib.Path) -> None:
    code = ["objdump", "--disassemble", "--no-show-raw-insn", wheel.extract(MODULE, tmp_path)]
    said = subprocess.run(code, check=True, capture_output=True, text=True).stdout
    assert "%xmm" in said
    assert not re.findall(r".*%[yz]mm.*|.*\tv\w+ .*%xmm.*", said)


def test_what_is_in_it_is_imported(wheel: zipfile.ZipFile, tmp_path: pathlib.Path) -> None:
    wheel.extractall(tmp_path)
    code = "import diskreplay.native as native; print(native.core.checksum_method(), native.core.__file__)"
    method, file = printed(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}").split()
    assert (method, file) == (method, str(tmp_path / MODULE))
    assert method in ("instruction", "table")


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The Python of a new environment with the wheel, which imports what this environment has but for the package."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(wheel.filename)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # What a path file names comes after the packages beside it; path files there, as the editable package has, are not
    # read. Processes that tests spawn import the tests from the checkout.
    others = [path for path in sys.path if "site-packages" in path]
    (site / "dependencies.pth").write_text("\n".join([*others, str(ROOT)]))
    return python


@pytest.mark.long("test_what_is_in_it_is_imported")
@pytest.mark.parametrize("folder", ["engine", "golden", "index", "reading", "sampling"])
def test_tests_pass_with_the_wheel(installed: pathlib.Path, tmp_path: pathlib.Path, folder: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CI", "PY"))}
    environment |= {"DISKREPLAY_TEST_EFFORT": "0.1", "TMPDIR": str(tmp_path)}
    # -P: else the package of the folder in which this runs would be imported.
    begin, rest = [str(installed), "-P"], {"env": environment, "capture_output": True, "text": True, "cwd": ROOT}
    where = subprocess.run([*begin, "-c", "import diskreplay; print(diskreplay.__file__)"], **rest)
    assert installed.parents[1] in pathlib.Path(where.stdout).parents, where.stderr
    done = subprocess.run([*begin, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/{folder}"], **rest)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr


@pytest.mark.long
def test_a_source_distribution_has_sources_and_nothing_compiled(tmp_path: pathlib.Path) -> None:
    (path,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", *(f"native/{file.name}" for file in (ROOT / "native").glob("*.*"))} <= names
    assert not [name for name in names if name.endswith(".so")]


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
