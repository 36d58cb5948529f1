"""The hook that compiles native/, and what an import says of a module that is not there or not of today."""

from __future__ import annotations

import pathlib
import shutil
import sys
import sysconfig
from typing import Any

import pytest
from helpers import programs, recipes

ROOT = pathlib.Path(__file__).parents[2]
MODULE = "diskreplay/native/core.abi3.so"


@pytest.fixture
def hook() -> Any:
    """hatch_build.py as a module."""
    return recipes.load_from(ROOT / "hatch_build.py")


@pytest.fixture
def no_compiler(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC", raising=False)


def asked_for(hook: Any, root: pathlib.Path) -> list[str]:
    """What the hook wants to have installed."""
    made = hook.NativeHook(str(root), {}, None, None, "", "wheel")
    return [requirement.partition(">")[0] for requirement in made.dependencies()]


@pytest.mark.usefixtures("no_compiler")
def test_zig_is_asked_for_where_there_is_no_compiler(hook: Any, tmp_path: pathlib.Path) -> None:
    assert hook.compiler() is None
    assert asked_for(hook, tmp_path) == ["cython", "numpy", "ziglang"]


def test_the_compiler_that_is_named_is_taken(
    hook: Any, no_compiler: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.touch(0o755)
    monkeypatch.setenv("CC", f"{mine} --quickly")
    assert hook.compiler() == [str(mine)]
    assert asked_for(hook, tmp_path) == ["cython", "numpy"]


def test_headers_that_are_missing_are_named(hook: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(SystemExit, match=r"Python\.h is not there: apt install python3-dev$"):
        hook.build(ROOT, tmp_path / "core.so")
    assert not list(tmp_path.iterdir())


def imported(folder: pathlib.Path) -> str:
    """The last line that an import of the package in a folder leaves."""
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import diskreplay.native as it; print(it.core.sources)"
    done = programs.run(code)
    return str((done.stderr or done.stdout).splitlines()[-1])


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkout that has only what is compiled."""
    for name in ("diskreplay/native/__init__.py", MODULE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "diskreplay" / "__init__.py").touch()
    shutil.copytree(ROOT / "native", tmp_path / "native")
    return tmp_path


def test_a_module_of_these_sources_is_imported(hook: Any, checkout: pathlib.Path) -> None:
    assert imported(checkout) == hook.checksum(ROOT / "native")


@pytest.mark.parametrize("name", ["core.pyx", "read.c", "plan.h"])
def test_a_module_of_other_sources_is_refused(checkout: pathlib.Path, name: str) -> None:
    with (checkout / "native" / name).open("a") as source:
        source.write(" ")
    assert imported(checkout).endswith(f"built from other sources than those in {checkout / 'native'}: run 'make'")


@pytest.mark.parametrize("version", ["standard", "editable"])
def test_a_module_of_these_sources_is_not_compiled_again(
    hook: Any, checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """So a clone compiles once for all its environments."""
    compiled: list[pathlib.Path] = []
    monkeypatch.setattr(hook, "build", lambda root, target: compiled.append(target))
    made = hook.NativeHook(str(checkout), {}, None, None, "", "wheel")
    assert asked_for(hook, checkout) == []
    made.initialize(version, {"artifacts": []})
    assert not compiled
    with (checkout / "native" / "row.c").open("a") as source:
        source.write(" ")
    assert asked_for(hook, checkout) == ["cython", "numpy"]
    made.initialize(version, {"artifacts": []})
    assert compiled == [checkout / MODULE]


def test_a_module_of_another_kind_of_machine_is_not_taken(
    hook: Any, checkout: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "another")
    assert asked_for(hook, checkout) == ["cython", "numpy"]


def test_an_installation_has_no_sources_to_ask(checkout: pathlib.Path) -> None:
    shutil.rmtree(checkout / "native")
    assert len(imported(checkout)) == 16


def test_a_module_that_is_missing_is_named(checkout: pathlib.Path) -> None:
    (checkout / MODULE).unlink()
    said = imported(checkout)
    assert "diskreplay's compiled part is not there" in said
    assert said.endswith("run 'pip install .', or 'make' in a clone")
