"""The shape of the code in figures: what one must know to change it, counted by a program.

    python benchmarks/house.py            # this checkout
    python benchmarks/house.py --list     # with the places
    python benchmarks/house.py --check    # fails where imports go in a circle, or a room uses another's private names

Read from the source: circles of imports, uses of another object's private names, names that stand twice, the largest
class, the longest signature, lines, statements (``ast.stmt`` without imports and docstrings), modules directly below
the package, imports of ``remote``'s modules by other rooms. Traced in a run: the modules, the calls and the different
source lines of one warm ``sample(32)``, of ``add``, of ``checkpoint`` and of ``open`` and ``close`` together, each of a
store of 3,000 rows of 17 floats, with a uniform sampler.

A private name counts where it is written as ``x._name`` and ``x`` is not ``self``, ``cls`` or ``super()``, unless no
class or module of the package has that name: then it is another library's, as those of OTHERS are. It is between rooms
where no module of the same room defines it; a room is a directory of the package.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import gc
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = "diskreplay"
OTHERS = {
    "_replace": "of named tuples", "_asdict": "of named tuples", "_bound": "of Tianshou's segment trees",
    "_value": "of Tianshou's segment trees",
}  # fmt: skip
"""Other libraries' names that modules of the package have, too."""


@dataclasses.dataclass(frozen=True)
class Module:
    """A module of the package."""

    name: str
    path: pathlib.Path
    tree: ast.Module

    @property
    def room(self) -> str:
        """The directory directly below the package, or nothing for the package's own modules."""
        parts = self.path.relative_to(ROOT / PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""

    def nodes(self) -> Iterator[ast.AST]:
        return ast.walk(self.tree)


def modules() -> list[Module]:
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(path.read_text())))
    return found


# Imports


def circles(all_modules: Iterable[Module]) -> list[list[str]]:
    """Groups of modules that import each other, at the top or within functions; imports for types alone count, too."""
    by_name = {module.name: module for module in all_modules}
    edges = {name: imported(module, by_name) for name, module in by_name.items()}
    return [sorted(group) for group in strongly_connected(edges) if len(group) > 1]


def imported(module: Module, known: Mapping[str, Module]) -> set[str]:
    """The package's modules that a module names in its imports."""
    found = set()
    for node in module.nodes():
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                found.add(below if below in known else node.module)
    return {name for name in found if name in known and name != module.name}


def strongly_connected(edges: Mapping[str, set[str]]) -> list[set[str]]:
    """The strongly connected components of a graph: Kosaraju's two passes."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(start: str, edges: Mapping[str, Iterable[str]], out: list[str]) -> None:
        stack = [(start, iter(edges[start]))]
        seen.add(start)
        while stack:
            _, rest = stack[-1]
            if (follower := next((one for one in rest if one not in seen), None)) is not None:
                seen.add(follower)
                stack.append((follower, iter(edges[follower])))
            else:
                out.append(stack.pop()[0])

    for node in edges:
        if node not in seen:
            visit(node, edges, order)
    reverse: dict[str, list[str]] = {node: [] for node in edges}
    for node, followers in edges.items():
        for follower in followers:
            reverse[follower].append(node)
    seen.clear()
    groups = []
    for node in reversed(order):
        if node not in seen:
            group: list[str] = []
            visit(node, reverse, group)
            groups.append(set(group))
    return groups


# Names


def private_names(module: Module) -> set[str]:
    """The private names that the module's classes and functions define."""
    found = set()
    for node in module.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if is_private(name)}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_own(node: ast.expr) -> bool:
    """Whether it is ``self``, ``cls`` or ``super()``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_uses(all_modules: list[Module]) -> list[tuple[Module, int, str, bool]]:
    """Uses of another object's private names: module, line, name, and whether between rooms."""
    defined: dict[str, set[str]] = collections.defaultdict(set)
    for module in all_modules:
        for name in private_names(module):
            defined[name].add(module.room)
    found = []
    for module in all_modules:
        for node in module.nodes():
            if (
                isinstance(node, ast.Attribute)
                and is_private(node.attr)
                and not is_own(node.value)
                and node.attr not in OTHERS
            ):
                rooms = defined.get(node.attr)
                if rooms:
                    found.append((module, node.lineno, node.attr, module.room not in rooms))
    return found


def twice(names: Iterable[str]) -> dict[str, int]:
    """The names that stand more than once."""
    return {name: count for name, count in collections.Counter(names).items() if count > 1}


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in module.nodes() if isinstance(node, ast.ClassDef))


def methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of a signature, without ``self`` and ``cls``."""
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    own = bool(every) and every[0].arg in ("self", "cls")
    return len(every) - own + (arguments.vararg is not None) + (arguments.kwarg is not None)


# Sizes


def sources(*folders: str) -> list[str]:
    """The texts of all Python files below folders."""
    return [path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def statements(source: str) -> int:
    """Statements without imports and docstrings; longer lines do not make them fewer."""
    return sum(
        isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom) and not is_text(node)
        for node in ast.walk(ast.parse(source))
    )


def is_text(node: ast.stmt) -> bool:
    """Whether it is a docstring, of a constant too."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imports_into(room: str, all_modules: list[Module]) -> tuple[int, int]:
    """How many modules of a room are imported by other rooms, and how many modules do it."""
    by_name = {module.name: module for module in all_modules}
    pairs = {
        (name, module.name)
        for module in all_modules
        for name in imported(module, by_name)
        if by_name[name].room == room != module.room
    }
    return len({name for name, _ in pairs}), len({importer for _, importer in pairs})


# Calls


@dataclasses.dataclass(frozen=True)
class Walk:
    """What a call passes through of the package: modules, calls of functions, different source lines."""

    modules: int
    calls: int
    lines: int


def traced(call: Callable[[], object]) -> Walk:
    calls: collections.Counter[str] = collections.Counter()
    lines: set[tuple[str, int]] = set()
    folder = str(ROOT / PACKAGE)

    def note(frame: types.FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if not name.startswith(folder):
            return None
        if event == "call":
            calls[name] += 1
        elif event == "line":
            lines.add((name, frame.f_lineno))
        return note

    gc.disable()  # what a collection calls is not the call's
    sys.settrace(note)
    try:
        call()
    finally:
        sys.settrace(None)
        gc.enable()
    return Walk(len(calls), calls.total(), len(lines))


def walks() -> dict[str, Walk]:
    """What users call most."""
    import numpy as np
    from gymnasium import spaces

    import diskreplay as dr

    assert pathlib.Path(dr.__file__).is_relative_to(ROOT), f"{dr.__file__} is another checkout's"
    rows = np.random.default_rng(0).normal(size=(3_001, 17)).astype(np.float32)
    found: dict[str, Walk] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "walked.replay")
        rb = dr.ReplayBuffer.create(path, spaces.Box(-np.inf, np.inf, (17,)), spaces.Discrete(4), capacity=2_000)
        with rb:
            for step in range(3_000):
                end = step % 100 == 99
                rb.add(rows[step], 0, 0.0, -rows[step] if end else rows[step + 1], end, False)
            for _ in range(300):
                rb.sample(32)
            found["sample(32)"] = traced(lambda: rb.sample(32))
            found["add"] = traced(lambda: rb.add(rows[0], 0, 0.0, rows[1], False, False))
            rb.checkpoint("first")
            rb.add(rows[1], 0, 0.0, rows[2], False, False)
            found["checkpoint"] = traced(lambda: rb.checkpoint("second"))
        found["open and close"] = traced(lambda: dr.ReplayBuffer.open(path).close())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the places, too")
    parser.add_argument("--check", action="store_true", help="only look at circles and private names")
    arguments = parser.parse_args()
    all_modules = modules()
    rings, uses = circles(all_modules), private_uses(all_modules)
    if arguments.check:
        wrong = [f"imports go in a circle: {', '.join(ring)}" for ring in rings]
        wrong += [f"{module.path}:{line}: {name} is private to another room" for module, line, name, out in uses if out]
        sys.exit("\n".join(wrong) or None)
    class_names = twice(each.name for module in all_modules for each in classes(module))
    module_names = twice(module.path.name for module in all_modules if module.path.name != "__init__.py")
    largest = max((methods(each), each.name) for module in all_modules for each in classes(module))
    longest = max(
        (parameters(node), f"{module.name}.{node.name}")
        for module in all_modules
        for node in module.nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    package, tests = sources(PACKAGE, "cli"), sources("tests")
    facts = {
        "circles of imports": str(len(rings)),
        "private access across objects; between rooms": f"{len(uses)}; {sum(use[3] for use in uses)}",
        "class names; module names that stand twice": f"{len(class_names)}; {len(module_names)}",
        **{
            f"{name}: modules; calls; lines": f"{walk.modules}; {walk.calls:,}; {walk.lines:,}"
            for name, walk in walks().items()
        },
        "methods of the largest class": f"{largest[0]} ({largest[1]})",
        "parameters of the longest signature": f"{longest[0]} ({longest[1]})",
        "modules directly below the package": str(sum(not module.room for module in all_modules)),
        "modules of remote that others import; by how many": "{}; {}".format(*imports_into("remote", all_modules)),
        "lines of package and command line; of tests": "{:,}; {:,}".format(
            *(sum(source.count("\n") for source in each) for each in (package, tests))
        ),
        "statements of package and command line; of tests": "{:,}; {:,}".format(
            *(sum(map(statements, each)) for each in (package, tests))
        ),
        "fmt: skip, of package and command line": str(sum(source.count("# fmt: skip") for source in package)),
    }
    for name, fact in facts.items():
        print(f"{name:52} {fact}")
    if arguments.list:
        for ring in rings:
            print("circle:", ", ".join(ring))
        by_place: collections.Counter[str] = collections.Counter(
            f"{module.name}{' (between rooms)' if between else ''}" for module, _, _, between in uses
        )
        for place, count in by_place.most_common():
            print(f"private: {count:4} in {place}")
        for name, count in sorted({**class_names, **module_names}.items()):
            print(f"twice: {name} {count}")


if __name__ == "__main__":
    main()
