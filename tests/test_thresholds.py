"""The engine's thresholds: none is forgotten, and each can be made small."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.testing.thresholds import THRESHOLDS, small_thresholds

import diskreplay

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = pathlib.Path(diskreplay.__file__).parent
PAGE = ROOT / "tests/README.md"
ENGINE = [
    PACKAGE / "process" / "background.py",
    PACKAGE / "process" / "lifecycle.py",
    *(
        file
        for folder in ("schema", "storage", "index", "reading", "engine", "buffers", "sampling", "views")
        for file in PACKAGE.glob(f"{folder}/*.py")
    ),
]
NO_THRESHOLD = {
    "a limit: more is refused, see the tests of bad arguments": (
        "buffers.mixture.MAX_PARTS buffers.mixture.MAX_STREAMS buffers.multi_agent_layout.MAX_AGENTS "
        "engine.facts.MAX_BYTES engine.facts.MAX_DEPTH index.facts.MAX_LINE index.facts.MAX_NAME "
        "index.facts.MAX_SEED index.later_values.MOST_BYTES index.where.LARGEST_BITS index.where.MAX_DEPTH "
        "index.where.MAX_LENGTH schema.columns.MAX_CHUNK_BYTES "
        "schema.columns.MAX_ROW_BYTES schema.columns.MAX_SET_ROWS schema.spaces.MAX_DEPTH "
        "schema.spaces.MAX_ELEMENTS schema.spaces.MAX_VALUE_BYTES "
        "storage.commit.MAX_ENVS storage.commit.MAX_IDS storage.commit.MAX_ITEMS storage.commit.MAX_SAMPLED "
        "storage.commit.MAX_SHARD_CHUNKS storage.commit.MAX_STREAMS storage.metadata.MAX_BYTES "
        "storage.metadata.MAX_DEPTH storage.metadata.MAX_INTEGER_BITS "
        "sampling.counting.MOST_TIMES"
    ),
    "a number of the format": (
        "index.cuts.INVALID index.episodes.ROW_BITS index.later_values.HEADER_BYTES index.later_values.PLACE_BYTES "
        "schema.columns.CONTINUES "
        "schema.columns.CUT_START schema.columns.FORMAT_VERSION schema.columns.PATCHES "
        "schema.columns.REPEAT schema.columns.ZEROS "
        "schema.ids.STREAM_SHIFT schema.spaces.TYPED_DISCRETE "
        "storage.attachments.SHARD_BYTES storage.blosc.COPIED storage.blosc.HEADER_BYTES "
        "storage.chunks.CRC_BYTES storage.chunks.ENTRY_BYTES storage.chunks.MISSING storage.chunks.OVERHEAD_BYTES "
        "storage.chunks.RESIDUE storage.root.COPIES"
    ),
    "a mark": (
        "index.facts.NOWHERE index.log.LATER index.log.NEVER index.log.NOW "
        "index.slots.EVICTED index.slots.UNKNOWN index.spans.OPEN schema.ring.NO_LIMIT"
    ),
    "a bound on numbers, whatever their count": (
        "buffers.on_policy.EPSILON sampling.proportional.LEAST_MASS sampling.proportional.MOST_MASS "
        "sampling.recent.LEAST_HALF_LIFE sampling.recent.MOST_HALF_LIFE"
    ),
    "the default of an argument, which the machines set": (
        "buffers.limiter.TOLERANCE buffers.shuffle.POOL_BYTES engine.run.APPENDING_BYTES engine.run.BUDGET_SHARE "
        "engine.run.COMMIT_ROWS engine.run.COMMIT_SECONDS engine.run.WORKER_BYTES"
    ),
    "compiled in; tests/sampling/test_integers.py has ranges on both sides of it": "sampling.in_core.MOST",
    "the system's": (
        "reading.compiled.NOWAIT reading.compiled.WILL_NEED storage.local_files.READ storage.local_files.WRITE"
    ),
    "shared by what comes after it, see tests/buffers/test_latest.py": "storage.commit.MAX_NUMBER",
    "what a system that allows next to nothing is asked for all the same": "storage.handles.LEAST_FILES",
    "what a message says": "index.selecting.LIKENESS",
    "how much a message says": "index.selecting.MOST_NAMES",
    "when something is said; what is stored does not depend on it": (
        "buffers.limiter.TOLD_SECONDS engine.misuse.MOST_CUTS engine.misuse.WATCHED_ENDS engine.misuse.WATCHED_STEPS"
    ),
    "how a picture is laid out": (
        "views.notebooks.SIDE views.notebooks.THUMBNAILS views.notebooks.WIDTH views.pictures.LEAST_STACKED "
        "views.pictures.MOST_STACKED"
    ),
    "how much is written at once": "storage.checkpoint_arrays.WRITTEN_BYTES",
    "how much is read at once": "storage.attachments.READ_BYTES",
    "how long is waited for another process": "storage.store.LOCK_SECONDS",
    "the index of no node": "index.ranks.NOTHING",
    "what numpy does": "sampling.in_core.SAME",
    "the bits of an id that are not the stream's": "index.slots.LOCAL sampling.counting.LOCAL",
    "the tree's shape, compiled in; its tests have trees of one leaf to seven levels": "index.sum_tree.FANOUT",
    "how long a fork waits for other threads": "process.lifecycle.FORK_SECONDS",
    "how long the end of the interpreter waits for other threads": "engine.lifetime.EXIT_SECONDS",
    "how often a thread looks whether it is to end": "process.background.POLL_SECONDS",
    "how many threads work at once; no result depends on it": (
        "process.background.MOST_HELPERS process.background.THREADS"
    ),
    "how many rooms are kept; no result depends on it": "reading.scratch.MOST_ROOMS",
    "how much of the log is looked through at once; no result depends on it": "reading.bytelog.LOOK_SHARE",
    "when a value that comes again is stored again; no result depends on it": "engine.ragged_rows.NEAR_SHARE",
    "how many records are remembered; no result depends on it": "storage.stream.MOST_KNOWN",
    "an estimate, see tests/crash/test_fail_stop.py": "storage.stream.RECORD_BYTES",
    "of how many facts the values are remembered; no result depends on it": "index.episodes.MOST_VALUES",
    "what a float holds exactly": "index.fact_values.MOST_EXACT",
    "which texts in RAM are one object; no result depends on it": "index.facts.SHARED_LENGTH",
    "how often is looked at what another process has done": "buffers.limiter.POLL_SECONDS",
    "how often is looked whether a thread is over": "engine.commits.POLL_SECONDS",
    "when the other process is told; what each may do does not depend on it": "buffers.limiter.PUBLISHED_SHARE",
    "how many batches of a remote store are downloaded at once": "buffers.loader.MOST_BEGUN",
    "the bits of an index that are its part's": "buffers.mixture.PART_SHIFT",
    "an option of the user's": "engine.run.PUSH_SECONDS",
    "how long is waited for what other machines do": "engine.pushes.CLOSE_SECONDS",
    "how often is tried again what other processes are in the way of": (
        "buffers.opening.OPEN_ATTEMPTS engine.checkpointing.PIN_ATTEMPTS"
    ),
    "tests/buffers/test_at_once.py goes beyond it": "reading.in_core.MOST_ARRAYS",
    "the blocks of a codec": "reading.decoding.ALIGNED",
    "how work is divided among threads; no result depends on it": "reading.decoding.PARTS",
    "what an argument may be; no path depends on it": (
        "views.delta_timestamps.MOST_ROWS views.delta_timestamps.MOST_TIMES"
    ),
    "how long a stream is read anew that others change meanwhile": "reading.open_stream.OUTRUN_SECONDS",
}
"""Why the engine takes no other path there, and the constants of which this holds."""


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
def test_every_constant_is_a_threshold_or_has_a_reason() -> None:
    found = {name for file in ENGINE for name in constants(file)}
    others = [name for names in NO_THRESHOLD.values() for name in names.split()]
    assert sorted(found) == sorted([*TABLE, *others]), "name it in tests/helpers/testing/thresholds.py, or here"


def value_of(name: str) -> object:
    module, _, constant = name.rpartition(".")
    return getattr(importlib.import_module(f"diskreplay.{module}"), constant)


def test_all_are_small_while_it_lasts_and_their_own_after_it() -> None:
    before = {name: value_of(name) for name in TABLE}
    with small_thresholds():
        assert {name: value_of(name) for name in TABLE} == {name: each.small for name, each in TABLE.items()}
        with small_thresholds():
            pass
        assert value_of("schema.ring.FIRST_LENGTH") == TABLE["schema.ring.FIRST_LENGTH"].small
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


@pytest.mark.long
def test_a_threshold_is_read_when_it_is_used() -> None:
    """Neither copied by an import, nor kept as a default: then it could not be set."""
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        for name in TABLE:
            if name.rpartition(".")[2] in text:
                check_is_read(file, parsed(file), name)


def check_is_read(file: pathlib.Path, tree: ast.Module, name: str) -> None:
    module, _, constant = name.rpartition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == f"diskreplay.{module}":
            assert constant not in {alias.name for alias in node.names}, f"{file} copies {name}"
    if module_of(file) != module:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            defaults = [each for each in (*node.args.defaults, *node.args.kw_defaults) if each]
            assert constant not in names_in(*defaults), f"{file}: {node.name} keeps {name} as a default"
    assert constant not in names_in(*(getattr(each, "value", None) for each in tree.body)), f"{file} copies {name}"


def names_in(*nodes: ast.AST | None) -> set[str]:
    return {each.id for node in nodes if node for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_the_map_names_every_folder_of_tests() -> None:
    text = PAGE.read_text().partition("## The map")[2].partition("\n## ")[0]
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.glob("test_*.py"))}
    assert folders <= set(re.findall(r"`(\w+)/", text))
