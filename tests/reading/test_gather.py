"""Runs are cut at chunk borders, and every way that their rows may be found gives the same rows."""

import types
from collections.abc import Iterator
from unittest import mock

import gymnasium
import numpy as np
import pytest
from helpers.configs import Config
from helpers.effort import examples
from helpers.forged import Column
from helpers.model import Leaf
from helpers.recording import Recording
from hypothesis import given, settings
from hypothesis import strategies as st

import diskreplay as dr
from diskreplay.native import core
from diskreplay.reading import compiled, gather
from diskreplay.reading.cache import ChunkCache
from diskreplay.reading.target import Target

ROWS, ENVS, CHUNK = 45, 2, 4
SHAPE = (40, 40)
BUDGET = 1 << 30


def frame(row: int, env: int) -> np.ndarray:
    return np.full(SHAPE, row * ENVS + env, np.uint8)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dr.ReplayBuffer]:
    """Rows of two environments: most are committed, some sealed, some in the buffer that is written to."""
    path = tmp_path_factory.mktemp("gather") / "store"
    box = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
    with dr.ReplayBuffer.create(
        path, box, gymnasium.spaces.Discrete(2), capacity=1000, num_envs=ENVS, chunk_rows=CHUNK, commit_rows=30,
        commit_seconds=1e9,
    ) as rb:  # fmt: skip
        for row in range(ROWS):
            obs, following = (np.stack([frame(at, env) for env in range(ENVS)]) for at in (row, row + 1))
            ended = np.zeros(ENVS, bool)
            rb.add(obs, np.zeros(ENVS, int), np.zeros(ENVS), following, ended, ended)
        yield rb


@st.composite
def runs(draw: st.DrawFn, steps: int = 6) -> np.ndarray:
    """Runs ``(5, n)`` of up to ``steps`` rows, one for each place, somewhere in the steps of their place."""
    count = draw(st.integers(1, 12))
    first = np.array(draw(st.lists(st.integers(0, ROWS - 1), min_size=count, max_size=count)))
    length = np.array(draw(st.lists(st.integers(1, steps), min_size=count, max_size=count)))
    last = np.minimum(first + length - 1, ROWS - 1)
    spare = steps - (last - first + 1)
    before = np.array([draw(st.integers(0, int(most))) for most in spare])
    place = np.array(draw(st.permutations(range(count)))) if draw(st.booleans()) else np.arange(count)
    env = np.array(draw(st.lists(st.integers(0, ENVS - 1), min_size=count, max_size=count)))
    return np.array([place, env, first, last, first - before])


def cells(wanted: np.ndarray) -> dict[tuple[int, int], tuple[int, int]]:
    """The row and environment that each place and step asks for, from the definition."""
    found = {}
    for place, env, first, last, base in wanted.T.tolist():
        for row in range(first, last + 1):
            found[place, row - base] = row, env
    return found


@given(wanted=runs(), chunk_rows=st.integers(1, 9), together=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_pieces_are_the_runs_cut_at_chunk_borders(wanted: np.ndarray, chunk_rows: int, together: bool) -> None:
    envs, groups = (ENVS, 1) if together else (1, ENVS)
    entries = np.arange(2 * groups * ROWS).reshape(ROWS, groups, 2)
    columns = [Column(chunk_rows, envs, groups, begin=0, end=ROWS, array=entries)]
    pieces, files, *in_ram = core.Chunks(types.SimpleNamespace(_columns={}), columns).rows(0, wanted)
    assert not any(part.size for part in in_ram[:2])
    assert in_ram[2] is False
    found = {}
    for place, step, row, rows, chunk, group, stream, file, offset, size, *_ in pieces.tolist():
        assert rows > 0
        assert row + rows <= chunk_rows * envs
        assert files[file] == (stream, chunk // 2)
        assert [offset, size] == entries[chunk, group].tolist()
        for more in range(rows):
            assert (place, step + more) not in found
            at, env = divmod(row + more, envs)
            found[place, step + more] = chunk * chunk_rows + at, group + env
    assert found == cells(wanted)
    chunks = [tuple(key) for key in pieces[:, 4:6].tolist()]
    assert chunks == sorted(chunks)  # a chunk's pieces side by side, and a disk is read forwards


@pytest.mark.parametrize(
    "run", [(0, 0, -1, 2, 0), (0, 0, 3, 2, 0), (0, -1, 0, 1, 0), (0, 2, 0, 1, 0), (0, 0, 0, 1 << 60, 0)], ids=str
)
def test_a_run_that_no_column_has(run: tuple[int, ...]) -> None:
    chunks = core.Chunks(types.SimpleNamespace(_columns={}), [Column()])
    with pytest.raises(ValueError, match="a run"):
        chunks.rows(0, np.array([run]).T.copy())


@pytest.mark.long(quick=11)
@pytest.mark.parametrize("twice", [False, True], ids=["one array", "obs and next_obs"])
@pytest.mark.parametrize("way", ["Python", "compiled"])
@pytest.mark.parametrize("budget", [0, 20 * CHUNK * 1600, BUDGET], ids=["no cache", "a small cache", "a large cache"])
@given(wanted=st.lists(runs(), min_size=1, max_size=4))
@settings(max_examples=examples(40), deadline=None)
def test_rows_wherever_they_stand(
    store: dr.ReplayBuffer, budget: int, way: str, twice: bool, wanted: list[np.ndarray]
) -> None:
    column = next(iter(store.engine.streams)).disk.rows["obs"]
    cache = ChunkCache(budget)
    cache.resize_window(min(budget, 1))
    with mock.patch.object(compiled, "LEAST_PIECES", 1):
        if way == "Python":
            only = mock.patch.object(compiled, "reader", return_value=None)
        else:
            only = mock.patch.object(compiled, "LEAST_HITS", 1)
        with only:
            for each in wanted:
                count = each.shape[1]
                out = Target(np.full((count, 5 if twice else 6, *SHAPE), 255, np.uint8))
                if twice:
                    out = Target(out.first, out.first.copy())
                chunks = core.Chunks(cache, [column])
                gather.run([gather.plan(chunks, chunks.rows(0, each), out)], cache)
                for (place, step), (row, env) in cells(each).items():
                    for shift, array in enumerate(out.arrays):
                        if 0 <= step - shift < array.shape[1]:
                            np.testing.assert_array_equal(array[place, step - shift], frame(row, env))
                asked = cells(each)
                for place in range(count):  # what no run names is left alone
                    for step in range(out.first.shape[1]):
                        if (place, step) not in asked:
                            assert (out.first[place, step] == 255).all()
    assert cache.used_bytes <= budget


@pytest.mark.parametrize("closed", [False, True])
def test_rows_of_a_column_are_those_that_python_reads(path: str, closed: bool) -> None:
    """Small values have all environments in a chunk, large ones one; the newest rows are in the tail, or in a chunk."""
    config = Config("plain", Leaf((100,)), 3, capacity=300, chunk_rows=4, shard_rows=16)
    with config.create(path) as buffer:
        Recording(config).add(buffer, 61, commit=True)
        if closed:
            buffer.close()
        with dr.ReplayBuffer.open(path, mode="r") as other:
            columns = other.engine.streams.all[0].disk.rows.values()
            assert {column.groups for column in columns} == {1, 3}
            for column in columns:
                for start, stop in ((0, 61), (0, 1), (3, 9), (4, 8), (57, 61), (60, 61)):
                    out = np.full((stop - start, 3, *column.column.shape), 7, column.column.dtype)
                    gather.read_rows(column, start, out)
                    np.testing.assert_array_equal(out, column.read_rows(start, stop), strict=True)
