"""Nothing that the package reads can run code: no module of it unpickles, evaluates or imports what a file names."""

from __future__ import annotations

import ast
import pathlib

import pytest

import diskreplay

PACKAGE = pathlib.Path(diskreplay.__file__).parent
CLI = PACKAGE.parent / "cli" / "diskreplay_cli"
MODULES = [*sorted(PACKAGE.rglob("*.py")), *sorted(CLI.rglob("*.py"))]
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "fromstring"}
CODECS_THAT_UNPICKLE = {"Pickle", "pickle", "object_codec", "get_codec"}


def test_all_modules_are_looked_at() -> None:
    assert len(MODULES) > 50


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_nothing_unpickles(module: pathlib.Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0], *(alias.name for alias in node.names)]
            assert not {alias.name for alias in node.names} & CODECS_THAT_UNPICKLE
        assert not set(names) & FORBIDDEN_MODULES, names
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            owner = getattr(called.value, "id", "") if isinstance(called, ast.Attribute) else ""
            assert not (name in FORBIDDEN_CALLS and owner in ("", "np", "numpy")), ast.unparse(node)
            assert not (name == "load" and owner in ("np", "numpy", "torch")), ast.unparse(node)
            for keyword in node.keywords:
                if keyword.arg == "allow_pickle":
                    assert isinstance(keyword.value, ast.Constant), ast.unparse(node)
                    assert keyword.value.value is False, ast.unparse(node)
