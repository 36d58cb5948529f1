"""The engine's thresholds: none is forgotten, each can be made small, and the page about them says what is so."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import SMALL

from diskreplay.testing.thresholds import THRESHOLDS, small_thresholds

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "diskreplay"
PAGE = ROOT / "tests/README.md"
ENGINE = [
    PACKAGE / "prefetch.py",
    PACKAGE / "ring.py",
    PACKAGE / "schema.py",
    *(
        file
        for folder in ("storage", "index", "reading", "buffers", "sampling", "views")
        for file in PACKAGE.glob(f"{folder}/*.py")
    ),
]
LIMIT = "a limit: more is refused, see the tests of bad arguments"
SETTING = "the default of an argument, which the machines set"
FORMAT = "a number of the format"
PRECISION = "a bound on numbers, whatever their count"

NO_THRESHOLD = {
    "ring.NO_LIMIT": "a mark",
    "schema.FORMAT_VERSION": FORMAT,
    "schema.LARGE_PATCH_CHUNK_ROWS": "1 already, and the format fixes it",
    "schema.MAX_SET_ROWS": LIMIT,
    "storage.chunks.CRC_BYTES": FORMAT,
    "storage.chunks.ENTRY_BYTES": FORMAT,
    "storage.chunks.OVERHEAD_BYTES": FORMAT,
    "storage.chunks.MISSING": FORMAT,
    "storage.chunks.RESIDUE": FORMAT,
    "storage.column.MAX_CHUNK_BYTES": LIMIT,
    "storage.commit.MAX_ENVS": LIMIT,
    "storage.commit.MAX_IDS": LIMIT,
    "storage.commit.MAX_SAMPLED": LIMIT,
    "storage.commit.MAX_STREAMS": LIMIT,
    "storage.handles.LEAST_FILES": "what a system that allows next to nothing is asked for all the same",
    "storage.metadata.MAX_BYTES": LIMIT,
    "storage.metadata.MAX_CHECKPOINT_BYTES": LIMIT,
    "storage.metadata.MAX_DEPTH": LIMIT,
    "storage.metadata.MAX_INTEGER_BITS": LIMIT,
    "storage.encoders.THREADS": "as many as the machine has processors; results do not depend on it",
    "reading.threads.MOST_HELPERS": "likewise",
    "reading.threads.FORK_SECONDS": "how often a waiting thread looks whether it was forked",
    "reading.stream.FACTS_BYTES": "how much is read at once",
    "index.facts.MAX_LINE": LIMIT,
    "index.where.LARGEST_BITS": LIMIT,
    "index.selecting.LIKENESS": "what a message says",
    "index.selecting.MOST_NAMES": "how much a message says",
    "storage.encoders.WAIT_SECONDS": "how often a waiting thread looks whether it was interrupted",
    "buffers.misuse.MOST_CUTS": "when something is said; what is stored does not depend on it",
    "buffers.misuse.WATCHED_ENDS": "likewise",
    "buffers.misuse.WATCHED_STEPS": "likewise",
    "storage.store.LOCK_SECONDS": "how long is waited for another process",
    **dict.fromkeys((f"schema.{code}" for code in ("CONTINUES", "ZEROS", "REPEAT", "PATCHES")), FORMAT),
    **dict.fromkeys((f"index.log.{standing}" for standing in ("NEVER", "NOW", "LATER")), "a mark"),
    "index.ranks.NOTHING": "the index of no node",
    "index.slots.LOCAL": "the bits of an id that are not the stream's",
    "index.slots.EVICTED": "a mark",
    "index.slots.UNKNOWN": "a mark",
    "index.spans.OPEN": "a mark",
    "index.sum_tree.FANOUT": "the tree's shape, compiled in; its tests have trees of one leaf to seven levels",
    "index.sum_tree.SHIFT": "the tree's shape, as FANOUT",
    "buffers.forks.FORK_SECONDS": "how long a fork waits for other threads",
    "buffers.unclosed.EXIT_SECONDS": "how long the end of the interpreter waits for other threads",
    "prefetch.POLL_SECONDS": "how often a thread looks whether it is to end",
    "buffers.multi_agent_layout.MAX_AGENTS": LIMIT,
    "buffers.facts.MAX_BYTES": LIMIT,
    "buffers.facts.MAX_DEPTH": LIMIT,
    "index.facts.MAX_NAME": LIMIT,
    "index.facts.MAX_SEED": LIMIT,
    "index.where.MAX_LENGTH": LIMIT,
    "index.where.MAX_DEPTH": LIMIT,
    "index.facts.NOWHERE": "a mark",
    "index.later.LOOK_SHARE": "how much of the log is looked through at once; no result depends on it",
    "index.later.MOST_BYTES": LIMIT,
    "index.later.PLACE_BYTES": FORMAT,
    "index.facts.SHARED_LENGTH": "which texts in RAM are one object; no result depends on it",
    "index.episodes.ROW_BITS": FORMAT,
    "buffers.on_policy.EPSILON": PRECISION,
    "buffers.limiter.POLL_SECONDS": "how often is looked at what another process has done",
    "buffers.limiter.PUBLISHED_SHARE": "when the other process is told; what each may do does not depend on it",
    "buffers.limiter.TOLERANCE": SETTING,
    "buffers.loader.MOST_BEGUN": "how many batches of a remote store are downloaded at once",
    "buffers.mixture.MAX_PARTS": LIMIT,
    "buffers.mixture.MAX_STREAMS": LIMIT,
    "buffers.mixture.PART_SHIFT": "the bits of an index that are its part's",
    "buffers.shuffle.POOL_BYTES": SETTING,
    "buffers.options.CACHE_BYTES": SETTING,
    "buffers.options.PUSH_SECONDS": "an option of the user's",
    "buffers.pushes.CLOSE_SECONDS": "how long is waited for what other machines do",
    "buffers.checkpointing.PIN_ATTEMPTS": "how often is tried again what other processes are in the way of",
    "buffers.options.COMMIT_ROWS": SETTING,
    "buffers.options.COMMIT_SECONDS": SETTING,
    "reading.kernel.BLOSC_BYTES": FORMAT,
    "reading.kernel.FRAME_BYTES": FORMAT,
    "reading.kernel.POLYNOMIAL": FORMAT,
    "reading.kernel.NOWAIT": "the system's",
    "reading.kernel.WILL_NEED": "the system's",
    "reading.resident.ALIGNED": "where arrays stand in a block of memory",
    "reading.opening.OUTRUN_SECONDS": "how long a stream is read anew that others change meanwhile",
    "sampling.proportional.LEAST_MASS": PRECISION,
    "sampling.proportional.MOST_MASS": PRECISION,
    "sampling.recent.LEAST_HALF_LIFE": PRECISION,
    "sampling.recent.MOST_HALF_LIFE": PRECISION,
}


@functools.cache
def parsed(file: pathlib.Path) -> ast.Module:
    return ast.parse(file.read_text())


def module_of(file: pathlib.Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts)


def constants(file: pathlib.Path) -> Iterator[str]:
    """Upper-case names of a module's own that hold numbers, as ``module.NAME``; but for those that number others."""
    for statement in parsed(file).body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or "range" in names_in(statement.value):
            continue
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            for name in (f"{module_of(file)}.{each}" for each in names_in(target) if each.isupper()):
                if isinstance(value_of(name), int | float | np.number):
                    yield name


TABLE = {f"{threshold.module}.{threshold.name}": threshold for threshold in THRESHOLDS}


@pytest.mark.long
def test_every_constant_of_the_engine_is_a_threshold_or_has_a_reason() -> None:
    found = {name for file in ENGINE for name in constants(file)}
    assert found == set(TABLE) | set(NO_THRESHOLD), "name it in diskreplay/testing/thresholds.py, or here"
    assert not set(TABLE) & set(NO_THRESHOLD)


def value_of(name: str) -> object:
    module, _, constant = name.rpartition(".")
    return getattr(importlib.import_module(f"diskreplay.{module}"), constant)


def test_all_are_small_while_it_lasts_and_their_own_after_it() -> None:
    before = {name: value_of(name) for name in TABLE}
    with small_thresholds():
        assert {name: value_of(name) for name in TABLE} == {name: each.small for name, each in TABLE.items()}
        with small_thresholds():
            pass
        assert value_of("ring.FIRST_LENGTH") == TABLE["ring.FIRST_LENGTH"].small
    assert {name: value_of(name) for name in TABLE} == before
    with small_thresholds(in_format=False):
        changed = {name for name in TABLE if value_of(name) != before[name]}
    assert changed <= {name for name, each in TABLE.items() if not each.in_format}
    with pytest.raises(ZeroDivisionError), small_thresholds():
        raise ZeroDivisionError
    assert {name: value_of(name) for name in TABLE} == before


@pytest.mark.own_thresholds
def test_small_is_smaller() -> None:
    assert all(each.small < value_of(name) for name, each in TABLE.items())


@pytest.mark.long(quick=42)
@pytest.mark.parametrize("name", TABLE)
def test_a_threshold_is_read_when_it_is_used(name: str) -> None:
    """Neither copied by an import, nor kept as a default, nor compiled into a kernel: then it could not be set."""
    module, _, constant = name.rpartition(".")
    for file in PACKAGE.rglob("*.py"):
        if constant not in file.read_text():
            continue
        tree = parsed(file)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == f"diskreplay.{module}":
                assert constant not in {alias.name for alias in node.names}, f"{file} copies {name}"
        if module_of(file) != module:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each]
                assert constant not in names_in(*defaults), f"{file}: {node.name} keeps {name} as a default"
                if any("kernel" in names_in(decorator) for decorator in node.decorator_list):
                    assert constant not in names_in(*node.body), f"{file}: {node.name} has {name} compiled in"
        assert constant not in names_in(*(getattr(each, "value", None) for each in tree.body)), f"{file} copies {name}"


def names_in(*nodes: ast.AST | None) -> set[str]:
    return {each.id for node in nodes if node for each in ast.walk(node) if isinstance(each, ast.Name)}


def rows_of_page() -> list[list[str]]:
    """The table of thresholds in tests/README.md: its cells."""
    section = PAGE.read_text().partition("## Thresholds")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return rows[2:]


@pytest.mark.skipif(SMALL, reason="the page gives the engine's own values")
def test_the_page_lists_the_thresholds() -> None:
    given = [(f"`{name}`", number(value_of(name)), number(each.small), each.what) for name, each in TABLE.items()]
    assert [tuple(row[:4]) for row in rows_of_page()] == given


def number(value: object) -> str:
    return f"{value:,}"


@pytest.mark.parametrize("row", rows_of_page(), ids=lambda row: row[0].strip("`"))
def test_the_tests_of_a_threshold_are_there(row: list[str]) -> None:
    """Those of the page: some with the engine's own value, and some with the small one."""
    constant = row[0].strip("`").rpartition(".")[2]
    own, small = (re.findall(r"`([^`]+)`", cell) for cell in row[4:6])
    assert own
    assert small
    for path in own:
        assert '"small_thresholds"' not in setting_of(path), f"{path} never sees the engine's own value"
    for path in small:
        setting = setting_of(path)
        assert re.search(rf"(small|both)_thresholds|SMALL|(setattr|object)\(.*{constant}", setting), path


def setting_of(path: str) -> str:
    """The source of a test, with its decorators; empty for a whole module."""
    file, _, name = path.partition("::")
    tree = parsed(ROOT / "tests" / file)
    if not name:
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return ast.unparse(node).replace("'", '"')
        if isinstance(node, ast.Assign) and name in names_in(*node.targets):
            return ast.unparse(node)
    raise AssertionError(f"there is no {path}")


def test_the_map_names_every_folder_of_tests() -> None:
    text = PAGE.read_text().partition("## The map")[2].partition("\n## ")[0]
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("test_*.py"))}
    assert folders <= set(re.findall(r"`(\w+)/", text))
