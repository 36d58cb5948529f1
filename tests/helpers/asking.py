"""Which tests ask how much to do: those that read differently with another effort, found in their module's text."""

from __future__ import annotations

import ast
import functools
import inspect
import types

from helpers import effort

ASKED = {id(one) for one in (effort, effort.examples, effort.places, effort.stride)}


@functools.cache
def asking(module: types.ModuleType) -> frozenset[str]:
    """The names at the top of a module that depend on the effort, its tests among them.

    What a statement mentions is taken for what it depends on, fixtures by the names of arguments, and rather too much
    than too little: a test that is named here without need is run once more by ``make exhaustive``.
    """
    names = {name for name, value in vars(module).items() if id(value) in ASKED}
    if not names:
        return frozenset()
    body = ast.parse(inspect.getsource(module)).body
    left = [(_bound(each), _mentioned(each)) for each in body if not isinstance(each, ast.Import | ast.ImportFrom)]
    every = set().union(*(bound for bound, _ in left))
    left = [(every if "autouse" in mentioned else bound, mentioned) for bound, mentioned in left]
    while more := [bound - names for bound, mentioned in left if mentioned & names and bound - names]:
        names.update(*more)
    return frozenset(names)


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning to, or another one."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return set().union(*map(_mentioned, targets))
    return _mentioned(statement)


def _mentioned(statement: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg | ast.keyword):
            found.add(node.arg or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)  # `usefixtures` and `getfixturevalue` name them so
    return found
