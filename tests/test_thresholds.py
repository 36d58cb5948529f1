"""The engine's thresholds: none is forgotten, each can be made small, and each has tests on both sides of it."""

from __future__ import annotations

import ast
import functools
import importlib
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import pytest

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
        for folder in ("storage", "index", "reading", "engine", "buffers", "sampling", "views")
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
    "storage.commit.MAX_NUMBER": "shared by what comes after it, see tests/buffers/test_latest.py",
    "storage.commit.MAX_SAMPLED": LIMIT,
    "storage.commit.MAX_STREAMS": LIMIT,
    "storage.handles.LEAST_FILES": "what a system that allows next to nothing is asked for all the same",
    "storage.metadata.MAX_BYTES": LIMIT,
    "storage.metadata.MAX_CHECKPOINT_BYTES": LIMIT,
    "storage.metadata.MAX_DEPTH": LIMIT,
    "storage.metadata.MAX_INTEGER_BITS": LIMIT,
    "index.facts.MAX_LINE": LIMIT,
    "index.where.LARGEST_BITS": LIMIT,
    "index.selecting.LIKENESS": "what a message says",
    "index.selecting.MOST_NAMES": "how much a message says",
    "index.row_writes.FACTS": "how many numbers a column has",
    "engine.row_buffers.NEVER": "a mark",
    "engine.misuse.MOST_CUTS": "when something is said; what is stored does not depend on it",
    "engine.misuse.WATCHED_ENDS": "likewise",
    "engine.misuse.WATCHED_STEPS": "likewise",
    "storage.checkpoint_arrays.WRITTEN_BYTES": "how much is written at once",
    "storage.attachments.READ_BYTES": "how much is read at once",
    "storage.attachments.SHARD_BYTES": FORMAT,
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
    "engine.forks.FORK_SECONDS": "how long a fork waits for other threads",
    "engine.unclosed.EXIT_SECONDS": "how long the end of the interpreter waits for other threads",
    "prefetch.POLL_SECONDS": "how often a thread looks whether it is to end",
    "buffers.multi_agent_layout.MAX_AGENTS": LIMIT,
    "engine.facts.MAX_BYTES": LIMIT,
    "engine.facts.MAX_DEPTH": LIMIT,
    "index.facts.MAX_NAME": LIMIT,
    "index.facts.MAX_SEED": LIMIT,
    "index.where.MAX_LENGTH": LIMIT,
    "index.where.MAX_DEPTH": LIMIT,
    "index.facts.NOWHERE": "a mark",
    "reading.bytelog.LOOK_SHARE": "how much of the log is looked through at once; no result depends on it",
    "index.later_values.MOST_BYTES": LIMIT,
    "index.later_values.HEADER_BYTES": FORMAT,
    "index.later_values.PLACE_BYTES": FORMAT,
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
    "engine.run.CACHE_BYTES": SETTING,
    "engine.run.APPENDING_CACHE_BYTES": SETTING,
    "engine.run.MEMORY_SHARE": SETTING,
    "engine.run.PUSH_SECONDS": "an option of the user's",
    "engine.pushes.CLOSE_SECONDS": "how long is waited for what other machines do",
    "engine.checkpointing.PIN_ATTEMPTS": "how often is tried again what other processes are in the way of",
    "engine.run.COMMIT_ROWS": SETTING,
    "engine.run.COMMIT_SECONDS": SETTING,
    "reading.kernel.BLOSC_BYTES": FORMAT,
    "reading.kernel.FRAME_BYTES": FORMAT,
    "reading.kernel.POLYNOMIAL": FORMAT,
    "reading.kernel.GAP": "compiled in; blocks of all gaps are read alike",
    "reading.kernel.LONGEST": "compiled in; the tests have values of more bytes",
    "reading.kernel.NOWAIT": "the system's",
    "reading.kernel.WILL_NEED": "the system's",
    "reading.tables.NONE_IN_RAM": "a mark",
    "reading.resident.ALIGNED": "where arrays stand in a block of memory",
    "reading.open_stream.OUTRUN_SECONDS": "how long a stream is read anew that others change meanwhile",
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


@pytest.mark.long
def test_a_threshold_is_read_when_it_is_used() -> None:
    """Neither copied by an import, nor kept as a default, nor compiled into a kernel: then it could not be set."""
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
            if any("kernel" in names_in(decorator) for decorator in node.decorator_list):
                assert constant not in names_in(*node.body), f"{file}: {node.name} has {name} compiled in"
    assert constant not in names_in(*(getattr(each, "value", None) for each in tree.body)), f"{file} copies {name}"


def names_in(*nodes: ast.AST | None) -> set[str]:
    return {each.id for node in nodes if node for each in ast.walk(node) if isinstance(each, ast.Name)}


BUFFERS = "buffers/test_replay_machine.py::TestBuffer"
SMALL_BUFFERS = f"{BUFFERS}WithSmallThresholds"
SMALL_VIEWS = "views/test_views_machine.py::TestViewsWithSmallThresholds"
TESTED: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("ring.FIRST_LENGTH",
     ("buffers/test_readers_of_wide_rows.py", "index/test_spans.py::test_rings_that_grow_and_turn_over"),
     (SMALL_BUFFERS, SMALL_VIEWS)),
    ("ring.FIRST_VALUES", ("buffers/test_readers_of_wide_rows.py",), (SMALL_BUFFERS, SMALL_VIEWS)),
    ("schema.CHUNK_BYTES schema.MAX_CHUNK_ROWS schema.DISK_CHUNK_ROWS schema.SHARD_BYTES schema.MAX_SHARD_ROWS "
     "schema.MAX_SHARDS schema.LEAST_SHARD_ROWS",
     ("test_schema.py::test_chunks_and_shards_suit_the_row",),
     (SMALL_BUFFERS, SMALL_VIEWS)),
    ("schema.RESIDENT_ROW_BYTES", ("test_schema.py::test_chunks_and_shards_suit_the_row", "buffers/test_processes.py"),
     (SMALL_BUFFERS, "buffers/test_multi_agent.py::test_transitions")),
    ("schema.RESIDENT_COLUMN_BYTES", ("test_schema.py::test_chunks_and_shards_suit_the_row",),
     (SMALL_BUFFERS, "test_schema.py::test_small_columns_stay_in_ram_however_many_rows")),
    ("schema.PLACE_CHUNK_ROWS", (BUFFERS,),
     (SMALL_BUFFERS, "ops/test_verify.py::test_stores_with_everything_in_them_have_no_problem")),
    ("schema.PLACE_SHARD_ROWS schema.LARGE_PATCH_SHARD_ROWS", ("buffers/test_window.py::test_disk_usage_is_bounded",),
     (SMALL_BUFFERS, "ops/test_verify.py::test_stores_with_everything_in_them_have_no_problem")),
    ("schema.PATCH_CHUNK_ROWS schema.PATCH_SHARD_ROWS storage.column.MAX_BACKLOG_BYTES", (BUFFERS,),
     (SMALL_BUFFERS, "crash/test_crash_after_crash.py::test_crash_after_crash")),
    ("schema.INFO_CHUNK_ROWS schema.INFO_SHARD_ROWS",
     ("engine/test_facts.py::test_facts_are_those_of_the_model",),
     ("engine/test_facts.py::test_facts_are_those_of_the_model_with_small_thresholds",
      "crash/test_facts.py::test_facts_through_crash_after_crash")),
    ("schema.LATER_CHUNK_ROWS schema.LATER_SHARD_ROWS index.later_values.SLACK_BYTES index.later_values.BLOCK_BYTES "
     "reading.bytelog.READ_BYTES",
     ("engine/test_later.py::test_values_are_those_of_the_model",),
     ("engine/test_later.py::test_values_are_those_of_the_model_with_small_thresholds",
      "crash/test_later.py::test_values_through_crash_after_crash")),
    ("storage.handles.MOST_FILES", ("storage/test_handles.py", "ops/test_compact.py::test_readers_go_on"),
     (SMALL_BUFFERS,)),
    ("storage.handles.MOST_LOOKED_AT", ("storage/test_handles.py",), (SMALL_BUFFERS,)),
    ("storage.stream.MAX_UNSYNCED storage.metadata.INDENTED_BYTES", (BUFFERS,), (SMALL_BUFFERS,)),
    ("storage.column.GROUPS_A_TASK engine.engine.COMMIT_BYTES engine.engine.WAITING_ROWS", (BUFFERS,),
     (SMALL_BUFFERS, SMALL_VIEWS)),
    ("engine.compiled_row.LOAD_AFTER engine.compiled_row.LOOK_EVERY",
     ("engine/test_compiled_row.py::test_it_is_loaded_when_it_is_worth_it",),
     (SMALL_BUFFERS, "engine/test_compiled_row.py::test_both_ways_write_the_same")),
    ("engine.compiled_row.STAGED_BYTES", ("engine/test_compiled_row.py::test_large_values_are_read_where_they_are",),
     (SMALL_BUFFERS,)),
    ("engine.steps.COMPARED_BYTES", ("engine/test_appender.py::test_steps_that_follow_are_written_together",),
     (SMALL_BUFFERS, "engine/test_compiled_row.py::test_both_ways_write_the_same")),
    ("storage.column.HURRY_BYTES", (BUFFERS,),
     (SMALL_BUFFERS, "storage/test_hurry.py::test_chunks_of_a_writer_in_a_hurry")),
    ("reading.cache.MIN_SHARE", ("reading/test_cache.py::test_a_small_share_of_the_window_is_not_worth_it",),
     (SMALL_BUFFERS, SMALL_VIEWS)),
    ("reading.cache.FIRST_SLOTS", ("reading/test_cache.py::test_what_is_found_is_what_was_put",),
     (SMALL_BUFFERS, "buffers/test_shuffled.py::test_each_transition_once_in_each_pass")),
    ("reading.cache.KEY_ROWS reading.cache.LEAST_ITEM_BYTES",
     ("reading/test_runs.py::test_what_is_kept_in_which_form",), (SMALL_BUFFERS, SMALL_VIEWS)),
    ("reading.cache.FIRST_TRIED",
     ("reading/test_runs.py::test_what_does_not_shrink_is_not_tried_for_ever",), (SMALL_BUFFERS, SMALL_VIEWS)),
    ("reading.gather.MOST_AT_ONCE", ("reading/test_kernel.py::test_as_python",), (SMALL_BUFFERS, SMALL_VIEWS)),
    ("reading.compiled.LOAD_AFTER", ("reading/test_kernel.py::test_it_is_loaded_when_it_is_worth_it",),
     (SMALL_BUFFERS, SMALL_VIEWS)),
    ("reading.compiled.LEAST_PIECES", ("reading/test_kernel.py::test_several_threads",), (SMALL_BUFFERS, SMALL_VIEWS)),
    ("reading.compiled.LEAST_HITS", ("reading/test_target.py::test_what_the_compiled_copy_leaves_to_python",),
     ("reading/test_target.py::test_pieces_of_decoded_chunks",)),
    ("reading.resident.MOST_BYTES", ("reading/test_resident.py",), (SMALL_BUFFERS, SMALL_VIEWS)),
    ("storage.checkpoint_arrays.CHUNK_ROWS storage.checkpoint_arrays.SHARD_CHUNKS",
     ("buffers/test_prioritized.py::test_a_checkpoint_goes_on_bit_for_bit",),
     ("buffers/test_prioritized.py::test_a_checkpoint_goes_on_bit_for_bit",
      "buffers/test_resume.py::test_a_thousand_samples_are_the_same_with_small_thresholds")),
    ("buffers.shuffle.POOL_SLACK buffers.shuffle.POOL_SPARE_BYTES",
     ("buffers/test_shuffled.py::test_each_chunk_is_decoded_once_a_pass",),
     ("buffers/test_shuffled.py::test_each_transition_once_in_each_pass", SMALL_BUFFERS)),
    ("buffers.shuffle.SMALL_CHUNK_ROWS", ("buffers/test_shuffled.py::test_each_transition_once_in_each_pass",),
     ("buffers/test_shuffled.py::test_each_transition_once_in_each_pass", SMALL_BUFFERS)),
    ("reading.blocks.LEAST_BYTES reading.blocks.KEPT",
     ("reading/test_cached_patches.py::test_all_samples_have_a_patch",), (SMALL_BUFFERS, SMALL_VIEWS)),
    ("index.facts.SLACK_BYTES",
     ("engine/test_facts.py::test_the_log_of_facts_stays_small",),
     ("engine/test_facts.py::test_facts_are_those_of_the_model_with_small_thresholds",
      "crash/test_facts.py::test_facts_through_crash_after_crash")),
    ("index.episodes.LOOKED_ROWS", ("engine/test_facts.py::test_facts_of_a_long_episode",),
     ("engine/test_facts.py::test_facts_are_those_of_the_model_with_small_thresholds",)),
    ("index.ranks.REBUILD_SHARE", ("index/test_ranks.py::test_the_depth_is_logarithmic_whatever_the_order",),
     ("sampling/test_rank_based.py::TestBesideOracleWithSmallThresholds", SMALL_VIEWS)),
    ("sampling.rank_based.MASS_BLOCK",
     ("sampling/test_rank_based.py::test_going_on_from_a_state_gives_the_same_thousand_batches",),
     ("sampling/test_rank_based.py::TestBesideOracleWithSmallThresholds",
      "sampling/test_rank_based.py::test_going_on_from_a_state_gives_the_same_thousand_batches")),
    ("sampling.uniform.MAX_DRAWN_SHARE", ("sampling/test_uniform.py::test_flat_where_items_are_sparse",),
     ("sampling/test_uniform.py::test_flat_where_items_are_sparse", SMALL_VIEWS)),
    ("sampling.selected.LISTED_IDS sampling.selected.MAX_DRAWN_SHARE",
     ("engine/test_facts.py::test_draws_within_a_selection_are_uniform",),
     ("engine/test_facts.py::test_draws_within_a_selection_are_uniform",)),
)  # fmt: skip
"""Names of thresholds, tests with the engine's own values of them, and tests with the small ones."""


def test_every_threshold_has_its_tests() -> None:
    """Some with the engine's own value, and some with the small one."""
    assert sorted(name for names, _, _ in TESTED for name in names.split()) == sorted(TABLE)
    for names, own, small in TESTED:
        assert own
        assert small
        for path in own:
            assert '"small_thresholds"' not in setting_of(path), f"{path} never sees the engine's own value"
        for name in names.split():
            for path in small:
                setting = setting_of(path)
                constant = name.rpartition(".")[2]
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
