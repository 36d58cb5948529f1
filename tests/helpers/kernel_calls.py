"""A call of each kernel that writes something, with what it writes to, for tests that go through all of them.

A kernel that is new gets a function here that makes one call of it, all of whose arrays are its own.
"""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from helpers.forged import Cached, Column, Log, blocks_of, chunks_of, log_of

from diskreplay.index.log import NOW
from diskreplay.index.ranks import NODE
from diskreplay.index.sum_tree import layout
from diskreplay.native import core
from diskreplay.reading import compiled
from diskreplay.sampling.priorities import SAMPLES
from diskreplay.sampling.proportional import LEAST_MASS, Proportional
from diskreplay.sampling.window import Window
from diskreplay.schema.columns import Codec
from diskreplay.storage import chunks

SLOTS = 100
PIECES = 300
"""More than the numbers that Python has made once for all: the count that is returned is an object to allocate."""


class KernelCall(NamedTuple):
    """A call that can be made once.

    Attributes:
        function: what is called with the values of `given`.
        given: its arguments.
        writes: the names of the arguments that it writes to.
        behind: the arrays at addresses that it is given.
        state: what it changes beside these arrays.
        new: True if what it writes is a batch that is being made, which nobody sees if an error is raised.
    """

    function: Callable[..., object]
    given: dict[str, Any]
    writes: tuple[str, ...] = ()
    behind: tuple[np.ndarray, ...] = ()
    state: Callable[[], object] = bool
    new: bool = False

    def __call__(self) -> object:
        return self.function(*self.given.values())

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: value for name, value in self.given.items() if isinstance(value, np.ndarray)}

    def contents(self) -> dict[str, object]:
        """All that it may change, to be compared."""
        beside = [array.tobytes() for array in self.behind], self.state()
        return {name: array.tobytes() for name, array in self.arrays().items()} | {"beside": beside}


Made = Callable[[], KernelCall]
CALLS: dict[str, Made] = {}
"""The calls by the names of the functions; that of a method begins with its class, as ``tree_``."""
TWICE = {"batches_draw", "row_begin", "row_held", "ranked_follow", "ranked_draw", "ranked_update"}
"""A second call of a function."""
WITHOUT = {
    "to_slots",
    "to_ids",
    "crc32c",
    "checksum_method",
    "rows_gather",
    "rlock_acquire",
    "rlock_release",
    "followed_check_writable",
}
"""Functions that return something new of what they are given, and change nothing."""


def one(make: Made) -> Made:
    """Names a call."""
    return CALLS.setdefault(make.__name__, make)


# Priorities of 80 ids with numbers from 20 on, in two lanes of 50 slots: as masses, then as ranks


def of_tree() -> dict[str, Any]:
    offsets, total = layout(SLOTS)
    arrays: dict[str, Any] = {"sums": np.zeros(total), "mins": np.zeros(total), "offsets": offsets}
    core.Tree(*arrays.values()).fill(np.arange(SLOTS), np.arange(1.0, SLOTS + 1))
    return arrays


def of_places() -> dict[str, Any]:
    table = np.array([[0, 0, 2, 50, 20, 100, SLOTS, 0]])
    return {"table": table, "waiting": np.array([90]), "maxima": np.ones(2), "counts": np.zeros(2, np.int64)}


def of_masses(method: str, writes: tuple[str, ...], **given: Any) -> KernelCall:
    def function(
        table: Any, waiting: Any, maxima: Any, counts: Any, sums: Any, mins: Any, offsets: Any, *rest: Any
    ) -> Any:
        tree = core.Tree(sums, mins, offsets)
        return getattr(core.Masses(table, waiting, maxima, counts, tree, False, (0.6, 0.1, LEAST_MASS, 1e140)), method)(
            *rest
        )

    return KernelCall(function, of_places() | of_tree() | given, writes)


def of_ranks() -> dict[str, Any]:
    nodes, head, slots = np.zeros(SLOTS, NODE), np.array([-1, 0]), np.arange(SLOTS)
    nodes["id"] = slots
    core.build_ranks(nodes, head, slots[::-1].copy())
    return {"nodes": nodes, "head": head}


def of_ranked(method: str, writes: tuple[str, ...], **given: Any) -> KernelCall:
    masses, rule = np.arange(1.0, 121), (0.7, 0, 1e140)

    def function(table: Any, waiting: Any, maxima: Any, counts: Any, nodes: Any, head: Any, *rest: Any) -> Any:
        return getattr(core.Ranked(table, waiting, maxima, counts, nodes, head, masses, rule), method)(*rest)

    return KernelCall(function, of_places() | of_ranks() | given, writes)


def all_now(ids: np.ndarray) -> np.ndarray:
    return np.full(len(ids), NOW, np.int8)


MOVED: dict[str, Any] = {"spans": np.array([[30, 110]]), "standing": all_now}
DRAWN: dict[str, Any] = {"uniforms": np.linspace(0, 0.9, 32), "size": 32, "beta": 0.4}
UPDATED: dict[str, Any] = {"ids": np.array([25, 1, 70, 25]), "priorities": np.full(4, 300.0)}


@one
def followed_follow() -> KernelCall:
    return of_masses("follow", ("table", "sums", "mins"), **MOVED)


@one
def ranked_follow() -> KernelCall:
    return of_ranked("follow", ("table", "nodes", "head"), **MOVED)


@one
def followed_draw() -> KernelCall:
    return of_masses("draw", ("counts",), **DRAWN)


@one
def ranked_draw() -> KernelCall:
    return of_ranked("draw", ("counts",), **DRAWN)


@one
def followed_update() -> KernelCall:
    return of_masses("update", ("maxima", "counts", "sums", "mins"), **UPDATED)


@one
def ranked_update() -> KernelCall:
    return of_ranked("update", ("maxima", "counts", "nodes", "head"), **UPDATED)


@one
def followed_waiting() -> KernelCall:
    return of_masses("waiting", ())


@one
def masses_ranges() -> KernelCall:
    return of_masses("ranges", ())


@one
def ranked_weigh() -> KernelCall:
    return of_ranked("weigh", (), masses=np.arange(1.0, 9.0))


@one
def tree_fill() -> KernelCall:
    given = {"slots": np.arange(60, 70), "masses": np.full(10, 3.0)}
    return KernelCall(
        lambda sums, mins, offsets, *rest: core.Tree(sums, mins, offsets).fill(*rest),
        of_tree() | given,
        ("sums", "mins"),
    )


@one
def tree_totals() -> KernelCall:
    given = {"ranges": np.array([[0, SLOTS, 0]])}
    return KernelCall(
        lambda sums, mins, offsets, ranges: core.Tree(sums, mins, offsets).totals(ranges), of_tree() | given
    )


@one
def build_ranks() -> KernelCall:
    return KernelCall(core.build_ranks, of_ranks() | {"slots": np.arange(79, -1, -1)}, ("nodes", "head"))


@one
def find_ranks() -> KernelCall:
    return KernelCall(core.find_ranks, of_ranks() | {"slots": np.arange(90)})


# A row


def of_columns(buffers: list[np.ndarray], rings: list[Any]) -> np.ndarray:
    """The facts of columns of one environment, whose write buffers are ``(1, rows, items)``."""
    facts = []
    for buffer, ring in zip(buffers, rings, strict=True):
        size, at = buffer[0, 0].nbytes, 0 if ring is None else ring.ctypes.data
        facts.append([0, 0, size, 1, buffer.ctypes.data, buffer.shape[1], size, buffer.nbytes, at])
    return np.array(facts)


def of_row(method: str, **given: Any) -> KernelCall:
    """A call for row 5 of chunks of 8 rows, of one environment, each of whose values has 8 bytes, or is a flag."""
    row = {"obs": np.array([1.5]), "action": np.array([2]), "reward": 3.5, "next_obs": np.array([2.5])}
    kinds = [np.dtype(kind) for kind in ("f8", "i8", "f8", "?", "?", "?", "u1")]
    buffers = [np.zeros((1, 8, 1), kind) for kind in kinds]
    buffers[0][0, 5] = row["obs"]
    rings, ended = [np.zeros((16, 1), kind) for kind in kinds], np.zeros(1, bool)
    patches = [np.zeros((1, 8, 3), np.int64), np.zeros((1, 8, 1))]
    arguments = tuple(
        core.Argument(kinds[column], shape, False, False, -9, 9, None, False)
        for column, shape in zip([0, 1, 2, 3, 4, 0], [(1,), (1,), (), (), (), (1,)], strict=True)
    )
    gate, log, signs, counted = core.Gate(), core.Window(), core.Signs(), tuple(core.Counted() for _ in range(9))
    log.end, log.rows, log.pending, log.going, log.cut, log.table = 5, 10, True, True, -1, rings
    written = core.Written(counted[:7], of_columns(buffers, rings), rings)
    patched = core.Written(counted[7:], of_columns(patches, [None, None]), None)
    known = np.full((16, 1), -1)
    call = core.Row(
        gate, log, signs, ended, written, patched, rings[5], known, arguments, np.array([0, 1, 2, 3, 4, 0, 5, 6]),
        ("", "", ()), (1, 1 << 40, 0, 16, False), (0, 1, 1),
    )  # fmt: skip
    written.attach(7, buffers)
    patched.attach(7, patches)
    flags: dict[str, Any] = {"terminated": False, "truncated": False}
    values = [row["obs"], row["action"], row["reward"], False, False, row["next_obs"]]
    arrays = {**row, **flags} if method == "add" else {"values": values}

    def state() -> object:
        columns = [column.end for column in counted]
        return log.begin, log.end, log.invalid, log.pending, log.going, log.patch_end, columns

    behind = (*buffers, *rings, *patches, ended, known)
    return KernelCall(getattr(call, method), arrays | given, behind=behind, state=state)


@one
def row_add() -> KernelCall:
    return of_row("add", valid=None, extra={})


@one
def row_put() -> KernelCall:
    return of_row("put")


@one
def row_held() -> KernelCall:
    return of_row("add", valid=None, extra={}, held=True)


@one
def row_breaks() -> KernelCall:
    return of_row("breaks", valid=np.zeros(1, bool), cut=np.ones(1, bool))


@one
def row_write() -> KernelCall:
    return of_row("write", valid=np.zeros(1, bool), starts=np.zeros(1, np.uint8), in_place=False)


@one
def row_begin() -> KernelCall:
    """Adds a row with another observation."""
    call = of_row("add", valid=None, extra={})
    call.given["obs"] = np.array([9.5])
    return call


@one
def written_attach() -> KernelCall:
    buffers = [np.zeros((1, 8, 1)), np.zeros((1, 8, 1))]
    columns = core.Written((core.Counted(), core.Counted()), of_columns(buffers, [None, None]), None)
    return KernelCall(columns.attach, {"until": 7, "buffers": buffers})


# A batch


def of_chunks() -> core.Chunks:
    """Chunks of 4 rows, of which the first two are on disk."""
    column = Column(4, begin=0, end=2, in_ram=2, array=np.full((3, 1, 2), 100))
    return chunks_of([column], [Cached(np.full((1, 1), -1), np.zeros((1, 5), np.int64))])


@one
def frames() -> KernelCall:
    """Plans frames and one next to each."""
    log = log_of(np.zeros((16, 1), np.uint8), np.full((16, 1), -1), 0, 10)
    given = {
        "logs": core.Logs([log], "start", "next"),
        "rows": of_chunks(),
        "patches": of_chunks(),
        "ids": np.arange(4, 9),
        "place": np.arange(5),
        "first_step": -3,
        "last_step": 1,
        "runs": 0,
    }
    return KernelCall(core.frames, given)


@one
def chunks_rows() -> KernelCall:
    runs = np.array([[0, 0, 1, 9, 0], [1, 0, 4, 4, 4]]).T.copy()
    return KernelCall(of_chunks().rows, {"at": 0, "runs": runs})


def of_chunk() -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """A chunk of 8 rows of 16 bytes, pieces of a row and the next one, and arrays for both."""
    rows, pieces = np.arange(128, dtype=np.uint8).reshape(8, 16), np.zeros((PIECES, 13), np.int64)
    pieces[:, 0], pieces[:, 2], pieces[:, 3] = np.arange(PIECES), np.arange(PIECES) % 7, 2
    pieces[:, 10] = 1
    return rows, pieces, {name: np.zeros((PIECES, 16), np.uint8) for name in ("out", "following")}


@functools.cache
def descriptor_of(data: bytes) -> int:
    """A file without a name, which is open as long as the process is."""
    descriptor, path = tempfile.mkstemp()
    pathlib.Path(path).unlink()
    os.write(descriptor, data)
    return descriptor


@one
def read() -> KernelCall:
    rows, pieces, to = of_chunk()
    data = chunks.encode(Codec("lz4", 5), rows)
    pieces[:, 9] = len(data)
    given = {
        "calls": compiled.CALLS,
        "files": np.array([descriptor_of(data)]),
        "pieces": pieces,
        "begin": 0,
        "end": PIECES,
        "chunk_rows": 8,
        "row_bytes": 16,
        "raw": False,
        "encoded": np.zeros(512, np.uint8),
        "decoded": np.zeros(128, np.uint8),
        **to,
    }
    return KernelCall(core.read, given, ("encoded", "decoded", *to), new=True)


@one
def chunks_take() -> KernelCall:
    rows, pieces, to = of_chunk()
    key, block = rows[0].copy(), np.zeros(512, np.uint8)
    slots = np.array([[block.ctypes.data, core.pack(rows, key, block), key.ctypes.data, 0, 0]])
    given = {
        "pieces": pieces,
        "begin": 0,
        "end": PIECES,
        "row_bytes": 16,
        "packed": np.zeros(1, np.int64),
        "alone": True,
        **to,
    }
    return KernelCall(blocks_of([slots], 8).take, given, ("packed", *to), (key, block, slots), new=True)


@one
def majority() -> KernelCall:
    rows, _, _ = of_chunk()
    return KernelCall(core.majority, {"rows": rows, "key": np.zeros(16, np.uint8)}, ("key",), new=True)


@one
def pack() -> KernelCall:
    rows, _, _ = of_chunk()
    given = {"rows": rows, "key": rows[0].copy(), "block": np.zeros(512, np.uint8)}
    return KernelCall(core.pack, given, ("block",), new=True)


@one
def draw_integers() -> KernelCall:
    bits = np.random.PCG64(1)
    given = {"capsule": bits.capsule, "low": 10, "high": 20, "size": 30}
    return KernelCall(core.draw_integers, given, state=lambda: repr(bits.state))


def batches() -> tuple[core.Batches, Callable[[], object]]:
    """Batches of eleven rows with priorities, one of which was added since the last draw, and their state."""
    names, length = ("reward", "terminated", "truncated", "obs"), 16
    dtypes = dict(zip(names, [np.dtype(kind) for kind in ("f4", "?", "?", "f8")], strict=True))
    arrays = {name: np.arange(length)[:, None].astype(dtype) for name, dtype in dtypes.items()}
    arrays |= {"start": np.zeros((length, 1), np.uint8), "valid": np.ones((length, 1), bool)}
    arrays["next"] = np.full((length, 1), -1)
    log = Log()
    log.stream, log.num_envs, log.begin, log.end, log.rows = 0, 1, 2, 13, 14
    log.table = types.SimpleNamespace(length=length, arrays=arrays)
    log.patches = types.SimpleNamespace(length=2, arrays={"obs": np.zeros(2)})
    columns: list[Any] = [(name, dtype, (), False) for name, dtype in dtypes.items()] + [
        ("obs", dtypes["obs"], (), True)
    ]
    logs = core.Logs([log], "start", "next")
    rows = core.Rows(logs, columns, [], list(range(5)), "valid", 1 << 20, 1 << 20)
    sampler, rng, told = Proportional(), np.random.default_rng(1), core.Told(False)
    sampler.update(np.arange(2, 13), np.arange(1.0, 12.0), [Window(2, 13, 14)], lambda ids: np.ones(len(ids), np.int8))
    draw = core.Prioritized(sampler, rng)
    drawn = core.Batches(core.Gate(), types.SimpleNamespace(rows=rows), draw, 1, 0.9, None, tuple, told)
    drawn.sample(6)  # from here on it knows where all is
    log.begin, log.end = 3, 14

    def state() -> object:
        sampler.sample(np.random.default_rng(0), [Window(3, 14, 14)], lambda ids: np.ones(len(ids), np.int8), 1)
        facts, of = sampler.state()
        facts["samples"] -= 1
        sampler._counts[SAMPLES] -= 1
        return repr(
            (facts, {name: array.tolist() for name, array in of.items()}, rng.bit_generator.state, told.updated)
        )

    return drawn, state


@one
def batches_sample() -> KernelCall:
    drawn, state = batches()
    return KernelCall(drawn.sample, {"size": 6}, state=state)


@one
def batches_draw() -> KernelCall:
    drawn, state = batches()
    return KernelCall(drawn.sample, {"size": 6, "draw_only": True}, state=state)


@one
def batches_get() -> KernelCall:
    drawn, state = batches()
    return KernelCall(drawn.get, {"ids": np.array([2, 5, 12])}, state=state)


@one
def batches_update() -> KernelCall:
    drawn, state = batches()
    given = {"index": np.array([2, 5, 12]), "errors": np.array([3.0, -4.0, 1.0])}
    return KernelCall(drawn.update, given, state=state)
