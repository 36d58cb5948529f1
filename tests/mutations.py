"""Changes the engine in small ways, one at a time, and says which of the changes the quick form of the tests finds.

``.venv/bin/python tests/mutations.py --count 30 --seed 0`` draws thirty places by a seed, from the engine's modules by
their size. At each it does one of three things: a comparison or a number becomes off by one, a condition is turned
round, or a call is left out. The changed package lies in a folder of its own; tests of the room run first, then all, as
``make test`` runs them, until one fails. ``--list`` only prints the changes, ``--only 7`` tries one.
"""

from __future__ import annotations

import argparse
import ast
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
ROOMS = "buffers", "engine", "index", "reading", "remote", "sampling", "storage", "views"
MINUTES = 20
"""A change after which tests take longer than that is found: something hangs."""
NEXT = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
}  # fmt: skip


class Mutation(NamedTuple):
    """A change of one piece of a module's text, which stands in one line or several."""

    file: pathlib.Path
    node: ast.expr | ast.stmt
    new: str

    def __str__(self) -> str:
        old = " ".join(ast.unparse(self.node).split())
        return f"{self.file.relative_to(ROOT)}:{self.node.lineno}: {old[:80]}  ->  {self.new[:80]}"

    def applied(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        begin, end = self.node.lineno - 1, (self.node.end_lineno or 0) - 1
        first, last = lines[begin].encode(), lines[end].encode()  # columns count bytes
        before, after = first[: self.node.col_offset].decode(), last[self.node.end_col_offset :].decode()
        return "".join([*lines[:begin], before + self.new + after, *lines[end + 1 :]])


def mutations(file: pathlib.Path) -> Iterator[Mutation]:
    """All changes of a module, but of what is not run: imports for types, annotations, defaults of settings."""
    tree = ast.parse(file.read_text())
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        for node in (inner for statement in function.body for inner in ast.walk(statement)):
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in NEXT:
                left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
                yield Mutation(file, node, f"({left} {NEXT[type(node.ops[0])]} {right})")
            elif isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and type(node.right.value) is int:
                yield Mutation(file, node.right, str(node.right.value + 1))
            elif isinstance(node, ast.If | ast.While | ast.IfExp):
                yield Mutation(file, node.test, f"(not ({ast.unparse(node.test)}))")
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                yield Mutation(file, node, "pass")


def drawn(count: int, seed: int) -> list[Mutation]:
    """Each of another place; a module's chance grows with its text."""
    rng = random.Random(seed)
    files = sorted(file for room in ROOMS for file in (ROOT / "diskreplay" / room).rglob("*.py"))
    sizes = [file.stat().st_size for file in files]
    found: dict[str, Mutation] = {}
    while len(found) < count:
        (file,) = rng.choices(files, sizes)
        if choices := list(mutations(file)):
            mutation = rng.choice(choices)
            found.setdefault(f"{file}:{mutation.node.lineno}:{mutation.node.col_offset}", mutation)
    return list(found.values())


def finds(mutation: Mutation, processes: str) -> str:
    """The first test that fails with the change; empty if none does."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in ("cli", "datasets", "diskreplay", "docs", "examples", "tests"):
            shutil.copytree(ROOT / name, f"{folder}/{name}")  # with what is compiled
        for file in (path for path in ROOT.iterdir() if path.is_file()):
            shutil.copy(file, folder)
        changed = pathlib.Path(folder, mutation.file.relative_to(ROOT))
        changed.write_text(mutation.applied(changed.read_text()))
        room = changed.parent.relative_to(f"{folder}/diskreplay").parts[0]
        environment = {
            **os.environ, "DISKREPLAY_TEST_EFFORT": "0.1", "PYTHONPATH": f"{folder}:{folder}/cli",
        }  # fmt: skip
        for what in ([f"tests/{room}"], ["tests"]):
            command = [
                sys.executable, "-m", "pytest", "-q", "-x", "-n", processes, "--dist", "worksteal", *what,
                *(f"--ignore=tests/{other}" for other in ("interop", "browser", "distributed", "robots")),
            ]  # fmt: skip
            try:
                done = subprocess.run(
                    command, cwd=folder, env=environment, capture_output=True, text=True, timeout=MINUTES * 60,
                    check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return "a test that hangs"
            if done.returncode:
                lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return (lines or [done.stdout[-200:] or done.stderr[-200:]])[0]
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the list")
    parser.add_argument("--list", action="store_true", help="prints the changes and tries none")
    parser.add_argument("--processes", default="auto", help="of pytest-xdist")
    arguments = parser.parse_args()
    chosen = [
        (number, mutation)
        for number, mutation in enumerate(drawn(arguments.count, arguments.seed))
        if not arguments.only or number in arguments.only
    ]
    found = 0
    for number, mutation in chosen:
        if arguments.list:
            print(f"{number:3} {mutation}")
            continue
        begun = time.monotonic()
        by = finds(mutation, arguments.processes)
        found += bool(by)
        print(f"{number:3} {mutation}\n    {by or 'NOT FOUND'} ({time.monotonic() - begun:.0f} s)", flush=True)
    if not arguments.list:
        print(f"{found} of {len(chosen)} were found")


if __name__ == "__main__":
    main()
