"""How the stores of ``interrupted/`` came about: writers of diskreplay 0.1.0 of November 2026, interrupted once.

That version did not keep its state together when KeyboardInterrupt came between two of its lines. Each recipe raises
one at a line that it names, goes on as a training script would, and closes the store; what then is on disk breaks one
rule or another of docs/format.md. Later versions are not broken like this: there the recipes cannot make the stores
anew (``python tests/golden/interrupted_recipes.py FOLDER``, with that version installed). They say what was done.

Beside each store stands its log, ``<kind>.npz``: every row that was added, in order, as it was given, and

- ``committed``: rows that a commit had made durable before the interrupt, or that ``close`` returned for: all that
  were added;
- ``begin``: the first row of the window when the store was closed.
"""

from __future__ import annotations

import linecache
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.errors import CorruptionError

PACKAGE = str(pathlib.Path(dr.__file__).parent)
SMALL = ("action", "reward", "terminated", "truncated", "valid", "start")
FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
VECTOR = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
FRAME = gymnasium.spaces.Box(0, 255, (40, 40), np.uint8)
STACK = gymnasium.spaces.Box(0, 255, (3, 40, 40), np.uint8)
BOTH = gymnasium.spaces.Dict(frame=FRAME, vector=VECTOR)
"""Frames of 1,600 bytes are not mirrored in memory: their columns have a chunk for each environment and each patch."""


def interrupt(call: Callable[[], object], function: str, line: str, nth: int = 1) -> None:
    """Calls, and raises KeyboardInterrupt before the ``nth`` time that a line with this text runs in the function."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name != function:
            return None
        if event == "line" and line in linecache.getline(frame.f_code.co_filename, frame.f_lineno):
            count += 1
            if count == nth:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return
    finally:
        sys.settrace(None)
    raise AssertionError(f"{function} has no line {line!r} that is run {nth} times: another version")


class Recipe:
    """A store that is being made, and the log of its rows; every value tells row and environment."""

    def __init__(self, path: pathlib.Path, space: gymnasium.Space[Any], envs: int, rows: int, cut_every: int = 6):
        self.path, self.space, self.envs, self.cut_every = path, space, envs, cut_every
        self.log: dict[str, list[Any]] = {}
        leaves = ["obs/frame", "obs/vector"] if space is BOTH else ["obs"]
        self.rb = dr.ReplayBuffer.create(
            path, space, gymnasium.spaces.Discrete(3), capacity=rows * envs, num_envs=envs, seed=0, commit_rows=10**6,
            commit_seconds=1e9, codec="lz4:1", frame_stack=3 if space is STACK else 1,
            chunk_rows=dict.fromkeys((*leaves, *SMALL), 4), shard_rows=dict.fromkeys((*leaves, *SMALL), 8),
        )  # fmt: skip

    def observation(self, row: int, run: int) -> Any:
        """Of all environments; ``run`` counts the times that an observation was not the one before."""

        def vector(env: int) -> Any:
            return np.array([row, env, run], np.float32)

        def frame(row: int, env: int) -> Any:
            return np.full((40, 40), (row + 7 * run + 50 * env) % 251, np.uint8)

        def one(env: int) -> Any:
            if self.space is BOTH:
                return {"frame": frame(row, env), "vector": vector(env)}
            if self.space is not STACK:
                return vector(env) if self.space is VECTOR else frame(row, env)
            return np.stack([frame(row - back, env) for back in (2, 1, 0)])

        every = [one(env) for env in range(self.envs)]
        if self.envs == 1:
            return every[0]
        return {key: np.stack([o[key] for o in every]) for key in every[0]} if self.space is BOTH else np.stack(every)

    def step(self, row: int) -> tuple[Any, ...]:
        """A run begins every ``cut_every`` rows, every other ends flagged; each ninth next stack does not follow."""
        run = row // self.cut_every
        following = self.observation(row + 1, run)
        if self.space is STACK and row % 9 == 8:
            following = following[..., ::-1, :, :].copy()
        ended = row % (2 * self.cut_every) == 2 * self.cut_every - 1
        values = np.int64(row % 3), np.float32(row), np.bool_(ended), np.bool_(False)
        action, reward, terminated, truncated = (
            np.full(self.envs, value) if self.envs > 1 else value for value in values
        )
        return self.observation(row, run), action, reward, following, terminated, truncated

    def _logged(self, step: tuple[Any, ...]) -> None:
        for name, value in zip(FIELDS, step, strict=True):
            parts = {f"{name}/{key}": part for key, part in value.items()} if isinstance(value, dict) else {name: value}
            for key, part in parts.items():
                self.log.setdefault(key, []).append(np.asarray(part))

    @property
    def rows(self) -> int:
        return len(self.log.get("reward", ()))

    def add(self, count: int, commit_every: int | None = None) -> None:
        """Adds rows, and commits after each ``commit_every`` of all."""
        for _ in range(count):
            step = self.step(self.rows)
            self._logged(step)
            self.rb.add(*step)
            if commit_every and self.rows % commit_every == 0:
                self.rb.commit()

    def extend(self, count: int) -> None:
        steps = [self.step(self.rows + at) for at in range(count)]
        for step in steps:
            self._logged(step)
        self.rb.extend(*(np.stack([step[at] for step in steps]) for at in range(len(FIELDS))))

    def close(self) -> None:
        """Writes the log beside the store, and closes that."""
        assert self.rb._streams.written is not None
        log = self.rb._streams.written.log
        assert log.end == self.rows
        facts = {"committed": np.int64(log.end), "begin": np.int64(max(log.begin, log.end - log.rows))}
        arrays = {name: np.stack(values) for name, values in self.log.items()}
        np.savez_compressed(self.path.with_suffix(".npz"), **arrays, **facts)
        self.rb.close()


RECIPES: dict[str, Callable[[pathlib.Path], None]] = {}


def recipe(make: Callable[[pathlib.Path], None]) -> Callable[[pathlib.Path], None]:
    RECIPES[make.__name__.replace("_", "-")] = make
    return make


# The window holds more rows than its capacity: interrupted between the row and the window's move


@recipe
def window_add(path: pathlib.Path) -> None:
    """By one row."""
    store = Recipe(path, VECTOR, 1, rows=10)
    store.add(17, commit_every=5)
    interrupt(lambda: store.add(1), "_slide", "log = self._appender.log")
    store.close()


@recipe
def window_add_stacked(path: pathlib.Path) -> None:
    store = Recipe(path, STACK, 2, rows=10)
    store.add(20, commit_every=5)
    interrupt(lambda: store.add(1), "slide", "self.begin = begin")
    store.close()


@recipe
def window_extend(path: pathlib.Path) -> None:
    """By three rows, as ``extend`` adds as many at once as a chunk has room for."""
    store = Recipe(path, VECTOR, 2, rows=10, cut_every=50)
    store.add(12, commit_every=5)
    steps = store.rows

    def extend() -> None:
        store.extend(4)

    interrupt(extend, "_slide", "if log.end - log.begin > log.rows", nth=2)
    for values in store.log.values():
        del values[steps + 4 :]
    store.close()


@recipe
def window_checkpoint(path: pathlib.Path) -> None:
    """A checkpoint of such a window: it was made, but could not be read back. Then the stream went on."""
    store = Recipe(path, VECTOR, 1, rows=10)
    store.add(17, commit_every=5)
    interrupt(lambda: store.add(1), "_slide", "log = self._appender.log")
    with pytest.raises(CorruptionError, match="must not hold more rows"):
        store.rb.checkpoint("full")
    store.add(3)
    with pytest.raises(CorruptionError, match="must not hold more rows"):
        store.close()


# The record names older tails: interrupted after it was written, before every column knew


def _publish(store: Recipe, column: int) -> None:
    """Interrupts a commit before it publishes the column of that number."""
    interrupt(store.rb.commit, "commit", "column.publish(", nth=column + 1)


@recipe
def tails_of_obs(path: pathlib.Path) -> None:
    """Of the first column, in an older shard."""
    store = Recipe(path, VECTOR, 1, rows=100)
    store.add(17, commit_every=5)
    _publish(store, 1)
    store.close()


@recipe
def tails_in_the_same_shard(path: pathlib.Path) -> None:
    """The record names the right shards: only their seals say that the lengths are older ones."""
    store = Recipe(path, VECTOR, 2, rows=100)
    store.add(17, commit_every=5)
    store.rb.commit()
    store.add(2)
    _publish(store, 4)
    store.close()


@recipe
def tails_of_all_rows(path: pathlib.Path) -> None:
    """Of all columns of rows, and of the places of patches, not of their frames; the window had moved on."""
    store = Recipe(path, STACK, 2, rows=10)
    store.add(19, commit_every=5)
    _publish(store, 8)
    store.close()


@recipe
def tails_of_everything(path: pathlib.Path) -> None:
    store = Recipe(path, BOTH, 2, rows=30)
    store.add(19, commit_every=5)
    interrupt(store.rb.commit, "commit", "self.commit_record = record")
    store.close()


@recipe
def tails_of_the_first_commit(path: pathlib.Path) -> None:
    """The record names no tails of columns that have rows."""
    store = Recipe(path, VECTOR, 1, rows=100)
    store.add(10)
    _publish(store, 6)
    store.close()


@recipe
def tails_of_a_checkpoint(path: pathlib.Path) -> None:
    """The checkpoint's cut names them too; a checkpoint from before is right."""
    store = Recipe(path, STACK, 1, rows=100)
    store.add(9)
    store.rb.checkpoint("before")
    store.add(8)
    _publish(store, 5)
    store.rb.checkpoint("after")
    store.close()


@recipe
def tails_of_a_checkpoint_left_behind(path: pathlib.Path) -> None:
    """The cut names older tails, the stream's own record, of rows that were added since, the right ones."""
    store = Recipe(path, VECTOR, 2, rows=100)
    store.add(9, commit_every=5)
    _publish(store, 7)
    store.rb.checkpoint("wrong")
    store.add(7)
    store.close()


@recipe
def tails_opened(path: pathlib.Path) -> None:
    """Opened to write: that version cut the shards back to the older tails, and then saw that they were wrong."""
    store = Recipe(path, VECTOR, 1, rows=100)
    store.add(15, commit_every=5)
    store.add(4)
    _publish(store, 1)
    store.close()
    with pytest.raises(CorruptionError, match="the commit record"):
        dr.ReplayBuffer.open(path)


# The patch table: interrupted while a patch was put into it, or after


@recipe
def patches_short(path: pathlib.Path) -> None:
    """The place of a patch is there twice, its frame once."""
    store = Recipe(path, VECTOR, 2, rows=100)
    store.add(17, commit_every=5)
    interrupt(store.rb.commit, "_patch", "column.single[", nth=2)
    store.close()


@recipe
def patches_short_and_on(path: pathlib.Path) -> None:
    """A place without a frame, in the middle of the table: the next row needed no patch any more."""
    store = Recipe(path, VECTOR, 1, rows=100, cut_every=5)
    store.add(13, commit_every=4)
    interrupt(store.rb.commit, "_patch", "column.single[", nth=2)
    store.add(9, commit_every=6)
    store.close()


@recipe
def patches_short_of_frames(path: pathlib.Path) -> None:
    """As above, with stacks and chunks of one frame, in a window that moves on."""
    store = Recipe(path, STACK, 2, rows=12)
    store.add(16, commit_every=5)
    interrupt(store.rb.commit, "_patch", "column.single[", nth=4)
    store.add(3)
    store.close()


@recipe
def patches_short_of_a_leaf(path: pathlib.Path) -> None:
    """One leaf has the frame, the other has not."""
    store = Recipe(path, BOTH, 2, rows=100)
    store.add(17, commit_every=5)
    interrupt(store.rb.commit, "_patch", "column.single[", nth=3)
    store.add(2)
    store.close()


@recipe
def patches_short_twice(path: pathlib.Path) -> None:
    """Interrupted twice, some commits apart."""
    store = Recipe(path, VECTOR, 2, rows=100, cut_every=5)
    store.add(8, commit_every=3)
    interrupt(store.rb.commit, "_patch", "column.single[", nth=2)
    store.add(7)
    interrupt(store.rb.commit, "_patch", "column.single[", nth=4)
    store.add(3)
    store.close()


@recipe
def patches_twice(path: pathlib.Path) -> None:
    """A patch is there twice, whole."""
    store = Recipe(path, STACK, 1, rows=100)
    store.add(17, commit_every=5)
    interrupt(store.rb.commit, "_patch", "self.log.add_patches(")
    store.close()


@recipe
def patches_with_a_hole(path: pathlib.Path) -> None:
    """The chunk of a frame was never made; the patch is there again after it."""
    store = Recipe(path, STACK, 2, rows=100)
    store.add(17, commit_every=5)
    interrupt(store.rb.commit, "advance", "if self.end % self.column.chunk_rows", nth=2)
    store.close()


@recipe
def patches_past_a_shard(path: pathlib.Path) -> None:
    """The places say one shard of frames more than there is."""
    store = Recipe(path, FRAME, 1, rows=300, cut_every=1)
    store.add(254)
    store.rb.commit()
    store.add(1)
    interrupt(store.rb.commit, "_patch", "column.single[", nth=2)
    store.close()


@recipe
def patches_overwritten(path: pathlib.Path) -> None:
    """The next patch's frame stands in its chunk too: it came into the same buffer before that was compressed."""
    store = Recipe(path, FRAME, 1, rows=100)
    store.add(17, commit_every=5)
    seconds = sys.getswitchinterval()
    sys.setswitchinterval(10)  # the thread that compresses is late
    interrupt(store.rb.commit, "advance", "self._fresh()")
    store.add(3)
    sys.setswitchinterval(seconds)
    store.close()


@recipe
def patches_unknown(path: pathlib.Path) -> None:
    """A patch is there twice, with two frames: the second was put into a buffer that nobody wrote."""
    store = Recipe(path, STACK, 2, rows=100)
    store.add(17, commit_every=5)
    interrupt(store.rb.commit, "_write_into", "slots = buffer[0]")
    store.close()


# On disk all is right: only readers of that version took other rows' observations


@recipe
def wide_vectors(path: pathlib.Path) -> None:
    """512 environments of 250 numbers; a window of more rows than twice the first length of such a ring.

    All numbers of a row's observation are its number; the log has one of them.
    """
    envs, size, capacity, rows = 512, 250, 80, 121
    space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
    rb = dr.ReplayBuffer.create(
        path, space, gymnasium.spaces.Discrete(2), capacity=envs * capacity, num_envs=envs, seed=0, codec="zstd:9",
        commit_rows=10**6, commit_seconds=1e9,
    )  # fmt: skip
    log: dict[str, list[Any]] = {name: [] for name in FIELDS}
    zeros = np.zeros(envs, np.bool_)
    for row in range(rows):
        obs, following = (np.full((envs, size), value, np.float32) for value in (row, row + 1))
        step = obs, zeros * 1, np.full(envs, row, np.float32), following, zeros, zeros
        rb.add(*step)
        for name, value in zip(FIELDS, step, strict=True):
            log[name].append(value.flat[0])
    rb.close()
    arrays = {name: np.stack(values) for name, values in log.items()}
    np.savez_compressed(path.with_suffix(".npz"), **arrays, committed=np.int64(rows), begin=np.int64(rows - capacity))


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, make in RECIPES.items():
        if sys.argv[2:] and kind not in sys.argv[2:]:
            continue
        path = folder / f"{kind}.replay"
        shutil.rmtree(path, ignore_errors=True)
        make(path)
        print(kind)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
