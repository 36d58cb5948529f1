"""What native/core.pyx offers; its docstrings say what each function does."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

sources: str
NEXT_OWN: str
EXACT: int
ADDED: int
LOOK: int
ENDS_CHUNK: int

class RLock:
    def acquire(self, blocking: bool = True, timeout: float = -1, /) -> bool: ...
    def release(self) -> None: ...
    def _is_owned(self) -> bool: ...
    def _at_fork_reinit(self) -> None: ...

class Gate:
    lock: RLock
    write_lock: RLock
    closed: bool
    ending: bool
    refused: bool
    failed: bool
    broken: bool
    stale: bool

class Window:
    begin: int
    end: int
    rows: int
    context: int
    invalid: int
    cut: int
    patch_begin: int
    patch_end: int
    pending: bool
    going: bool
    noted: bool
    table: Any
    patches: Any

class Counted:
    end: int

def crc32c(data: Bytes, by_table: bool = False, /) -> int: ...
def checksum_method() -> str: ...
def draw_integers(capsule: object, low: int, high: int, size: int, /) -> Ints: ...
def to_slots(table: Ints, ids: Ints, /) -> Ints: ...
def to_ids(table: Ints, slots: Ints, /) -> Ints: ...

class Tree:
    def __init__(self, sums: Floats, mins: Floats, offsets: Ints, /) -> None: ...
    def fill(self, slots: Ints, masses: Floats, /) -> None: ...
    def totals(self, ranges: Ints, /) -> Floats: ...

def find_ranks(nodes: NDArray[Any], head: Ints, slots: Ints, /) -> Ints: ...
def build_ranks(nodes: NDArray[Any], head: Ints, slots: Ints, /) -> None: ...

class Followed:
    def waiting(self) -> Ints: ...
    def follow(self, spans: Ints, standing: Callable[[Ints], NDArray[np.int8]] | None, /) -> None: ...
    def draw(self, uniforms: Floats, size: int, beta: float, /) -> tuple[Ints, NDArray[np.float32]]: ...
    def update(self, ids: Ints, priorities: Floats, /) -> int: ...
    def check_writable(self) -> None: ...

class Masses(Followed):
    def __init__(
        self, table: Ints, waiting: Ints, maxima: Floats, counts: Ints, tree: Tree, by_env: bool,
        power: tuple[float, float, float, float], /,
    ) -> None: ...  # fmt: skip
    def ranges(self) -> Ints: ...

class Ranked(Followed):
    def __init__(
        self, table: Ints, waiting: Ints, maxima: Floats, counts: Ints, nodes: NDArray[Any], head: Ints, masses: Floats,
        rule: tuple[float, int, float], /,
    ) -> None: ...  # fmt: skip
    def weigh(self, masses: Floats, /) -> None: ...

class Argument:
    def __init__(
        self, dtype: np.dtype[Any], shape: tuple[int, ...], finite: bool, rounded: bool, low: float, high: float,
        most: NDArray[Any] | None, single: bool, /,
    ) -> None: ...  # fmt: skip

class Signs:
    episodes: int
    differing: int
    cuts: int
    ends: int
    unmoved: int
    empty: int
    earning: int
    watched_steps: int
    watched_ends: int
    most_cuts: float
    cuts_said: bool
    resets_said: bool

class Written:
    def __init__(self, counted: tuple[Counted, ...], facts: Ints, owners: object, /) -> None: ...
    def attach(self, until: int, buffers: list[NDArray[Any]], /) -> None: ...

class Row:
    due: int
    due_at: float
    def __init__(
        self, gate: Gate, log: Window, signs: Signs, ended: NDArray[np.bool_], rows: Written, patches: Written,
        valid: NDArray[np.bool_], known: Ints, arguments: tuple[Argument, ...], targets: Ints,
        trees: tuple[Any, Any, tuple[str, ...]], numbers: tuple[int, int, int, int, bool],
        codes: tuple[int, int, int], /,
    ) -> None: ...  # fmt: skip
    def add(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, terminated: Any, truncated: Any, valid: Any,
        extra: Mapping[str, Any], held: bool = False, /,
    ) -> int: ...  # fmt: skip
    def put(self, values: list[Any], /) -> int: ...
    def breaks(
        self, values: list[Any], valid: NDArray[np.bool_], cut: NDArray[np.bool_] | None, /
    ) -> NDArray[np.bool_]: ...
    def write(
        self, values: list[Any], valid: NDArray[np.bool_], starts: NDArray[np.uint8], in_place: bool, /
    ) -> int: ...

Found = tuple[Ints, list[tuple[int, int]], Ints, Ints, bool]

class Logs:
    def __init__(self, logs: list[Any], starts: str, numbers: str, /) -> None: ...

class Chunks:
    cache: Any
    columns: list[Any]
    def __init__(
        self, cache: object, columns: list[Any], logs: Logs | None = None, patches: bool = False, /
    ) -> None: ...
    def rows(self, at: int, runs: Ints, /) -> Found: ...
    def take(
        self, pieces: Ints, begin: int, end: int, row_bytes: int, packed: Ints, alone: bool, out: Bytes,
        following: Bytes | None = None, /,
    ) -> int: ...  # fmt: skip

def frames(
    logs: Logs, rows: Chunks, patches: Chunks, ids: Ints, place: Ints, first_step: int, last_step: int, runs: int, /
) -> tuple[Found, Found | None, Ints] | None: ...

class Frames:
    def __init__(
        self, rows: Chunks, patches: Chunks, frames: int, dtype: np.dtype[Any], shape: tuple[int, ...], given: bool,
        empty: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]], /,
    ) -> None: ...  # fmt: skip

class Rows:
    def __init__(
        self, logs: Logs, columns: list[tuple[str, np.dtype[Any], tuple[int, ...], bool]], leaves: list[Frames],
        places: list[int], valid: str, most_bytes: int, most_size: int, /,
    ) -> None: ...  # fmt: skip
    def gather(self, ids: Ints, place: Ints, size: int, /) -> dict[str, NDArray[Any]] | None: ...

class Draw: ...

class Uniform(Draw):
    def __init__(
        self, rng: np.random.Generator, most_share: float, newest: int = 0, numerator: int = 0, denominator: int = 1, /
    ) -> None: ...

class Prioritized(Draw):
    def __init__(self, sampler: object, rng: np.random.Generator, /) -> None: ...

class Told:
    updated: bool
    unsaved: bool
    def __init__(self, updated: bool, /) -> None: ...

class Batches:
    def __init__(
        self, gate: Gate, streams: Any, draw: Draw, n_step: int, gamma: float,
        sequence: tuple[int, int, int, bool] | None, made: Callable[[list[Any]], Any], told: Told, /,
    ) -> None: ...  # fmt: skip
    def sample(self, size: int, draw_only: bool = False, /) -> Any: ...
    def get(self, ids: Ints, /) -> Any: ...
    def update(self, index: object, errors: object, /) -> bool: ...

class Calls:
    def __init__(
        self, lz4: int, lz4_partial: int, blosc: int, pread: int, preadv2: int, fadvise: int, nowait: int,
        will_need: int, /,
    ) -> None: ...  # fmt: skip

def read(
    calls: Calls, files: Ints, pieces: Ints, begin: int, end: int, chunk_rows: int, row_bytes: int, raw: bool,
    encoded: Bytes, decoded: Bytes, out: Bytes, following: Bytes | None = None, /,
) -> int: ...  # fmt: skip
def majority(rows: Bytes, key: Bytes, /) -> None: ...
def pack(rows: Bytes, key: Bytes, block: Bytes, /) -> int: ...
