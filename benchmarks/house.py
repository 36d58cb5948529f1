"""The shape of the code in figures: what one must know to change it, counted by a program.

    python benchmarks/house.py            # this checkout
    python benchmarks/house.py --list     # with the places
    python benchmarks/house.py --check    # fails where imports go in a circle, or a room uses another's private names

Read from the source: circles of imports, uses of another object's private names, names that stand twice, the largest
class, the longest signature, lines. Traced in a run: the modules and calls of one warm ``sample(32)``, of ``open`` and
of ``checkpoint``, each of a store of 3,000 rows of 17 floats, with a uniform sampler.

A private name counts where it is written as ``x._name`` and ``x`` is not ``self``, ``cls`` or ``super()``, unless no
class or module of the package has that name: then it is another library's, as those of OTHERS are. It is between rooms
where no module of the same room defines it; a room is a directory of the package.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import gc
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping

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


def lines(folder: str) -> int:
    """Of all Python files below a folder."""
    return sum(path.read_text().count("\n") for path in (ROOT / folder).rglob("*.py"))


# Calls


def traced(call: Callable[[], object]) -> tuple[set[str], int]:
    """The package's modules that a call passes through, and how many of its functions are called."""
    found: collections.Counter[str] = collections.Counter()
    folder = str(ROOT / PACKAGE)

    def note(frame: object, event: str, argument: object) -> None:
        if event == "call" and (name := frame.f_code.co_filename).startswith(folder):  # type: ignore[attr-defined]
            found[name] += 1

    gc.disable()  # what a collection calls is not the call's
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return set(found), found.total()


def walks() -> dict[str, tuple[int, int]]:
    """Modules and calls of what users call most."""
    import numpy as np
    from gymnasium import spaces

    import diskreplay as dr

    assert pathlib.Path(dr.__file__).is_relative_to(ROOT), f"{dr.__file__} is another checkout's"
    rows = np.random.default_rng(0).normal(size=(3_001, 17)).astype(np.float32)
    found: dict[str, tuple[set[str], int]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
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
        found["open"] = traced(lambda: stack.enter_context(dr.ReplayBuffer.open(path)))
    return {name: (len(names), calls) for name, (names, calls) in found.items()}


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
    called = walks()
    facts = {
        "circles of imports": str(len(rings)),
        "private access across objects; between rooms": f"{len(uses)}; {sum(use[3] for use in uses)}",
        "class names; module names that stand twice": f"{len(class_names)}; {len(module_names)}",
        **{f"{name}: modules; calls": f"{found[0]}; {found[1]:,}" for name, found in called.items()},
        "methods of the largest class": f"{largest[0]} ({largest[1]})",
        "parameters of the longest signature": f"{longest[0]} ({longest[1]})",
        "lines of the package; of tests": f"{lines(PACKAGE):,}; {lines('tests'):,}",
    }
    for name, fact in facts.items():
        print(f"{name:48} {fact}")
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
