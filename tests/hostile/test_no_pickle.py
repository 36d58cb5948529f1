"""Nothing that the package reads can run code: no module of it unpickles, evaluates or imports what a file names."""

from __future__ import annotations

import ast
import pathlib

import pytest

import diskreplay

PACKAGE = pathlib.Path(diskreplay.__file__).parent
CLI = PACKAGE.parent / "cli" / "diskreplay_cli"
MODULES = [*sorted(PACKAGE.rglob("*.py")), *sorted(CLI.rglob("*.py"))]
FORBIDDEN_MODULES = {"cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "fromstring"}
CODECS_THAT_UNPICKLE = {"Pickle", "pickle", "object_codec", "get_codec"}


def test_all_modules_are_looked_at() -> None:
    assert len(MODULES) > 50


@pytest.mark.long(quick=50)
@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(PACKAGE.parent)))
def test_nothing_unpickles(module: pathlib.Path) -> None:
    check(module.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle\npickle.loads(b'')", "from pickle import loads", "import pickle as harmless", "import dill",
        "import pickle\nload = pickle.load", "eval('1')", "np.load('a.npy')", "numpy.load(f, allow_pickle=True)",
        "np.lib.format.read_array(f, allow_pickle=some)", "torch.load('a.pt')", "from numcodecs import Pickle",
    ],
)  # fmt: skip
def test_what_unpickles_is_found(source: str) -> None:
    with pytest.raises(AssertionError):
        check(source)


def check(source: str) -> None:
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
            assert not any(alias.asname for alias in node.names if alias.name == "pickle")
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0], *(alias.name for alias in node.names)]
            assert not {alias.name for alias in node.names} & CODECS_THAT_UNPICKLE
            assert node.module != "pickle"
        assert not set(names) & FORBIDDEN_MODULES, names
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "pickle":
            assert node.attr == "dumps", ast.unparse(node)  # other libraries' files may need to be written
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
