"""The public names: sorted, complete, documented; and the examples in their docstrings run."""

from __future__ import annotations

import doctest
import inspect
import sys
import types

import pytest

import diskreplay
from diskreplay import errors


def test_all_is_sorted_and_complete() -> None:
    assert diskreplay.__all__ == sorted(diskreplay.__all__)
    for name in diskreplay.__all__:
        getattr(diskreplay, name)
    public = {
        name
        for name, value in vars(diskreplay).items()
        if not (name.startswith("_") or name in ("TYPE_CHECKING", "Any", "annotations"))
        and not (isinstance(value, types.ModuleType) and name != "errors")
    }
    assert set(diskreplay.__all__) == public == set(diskreplay._HOMES)
    assert set(diskreplay.__all__) <= set(dir(diskreplay))


def members() -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name in diskreplay.__all__:
        value = getattr(diskreplay, name)
        found.append((name, value))
        if inspect.isclass(value):
            found += [
                (f"{name}.{member}", getattr(value, member))
                for member, where in vars(value).items()
                if not member.startswith("_") and (callable(where) or isinstance(where, property | classmethod))
            ]
    return found


@pytest.mark.parametrize(("name", "value"), members(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_public_name_has_a_docstring(name: str, value: object) -> None:
    document = inspect.getdoc(value)
    if name.endswith((".to_json", ".from_json", ".parse")):
        return  # inside: for the format
    assert document
    assert len(document) > 10


def test_every_exception_is_listed_with_a_code_of_its_own() -> None:
    found = [
        value for value in vars(errors).values()
        if inspect.isclass(value) and issubclass(value, Exception) and not issubclass(value, Warning)
    ]  # fmt: skip
    assert all(issubclass(value, errors.DiskReplayError) for value in found)
    codes = [value.code for value in found]
    assert len(set(codes)) == len(codes) > 15
    assert all(value.__doc__ for value in found)


def test_the_example_of_the_package_runs() -> None:
    outcome = doctest.testmod(diskreplay, raise_on_error=True)
    assert outcome.attempted > 3
    assert outcome.failed == 0


def test_the_examples_of_public_names_run() -> None:
    modules = {sys.modules[value.__module__] for _, value in members() if hasattr(value, "__module__")}
    outcomes = [doctest.testmod(module, raise_on_error=True) for module in modules]
    assert sum(outcome.attempted for outcome in outcomes) > 3
