"""The schema of a store: columns with shapes, dtypes, chunk and shard rows, and codecs, frozen and validated once.

A row of a stream is one step of ``num_envs`` environments. Its columns are the leaves of the observation and
action spaces, ``reward``, ``terminated``, ``truncated``, ``valid`` (the step is a transition), ``start`` (how the
row's history begins, see :class:`Start`), and the user's own. *Resident* columns are small enough that their
whole window is mirrored in RAM; the others are reached chunk by chunk.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import gymnasium
import numpy as np

from diskreplay import spaces
from diskreplay.checks import check_count, check_flag, check_key
from diskreplay.errors import CorruptionError, InputError, SchemaError

FORMAT_VERSION = 1
"""The version of a store without ragged columns, whose bytes are what they always were."""
RAGGED_VERSION = 2
"""The version of a store with one, which is also the newest that is read."""

ACTION, OBS, REWARD, TERMINATED, TRUNCATED, VALID, START = (
    "action", "obs", "reward", "terminated", "truncated", "valid", "start",
)  # fmt: skip
ALWAYS_RESIDENT = (REWARD, TERMINATED, TRUNCATED, VALID, START)
PLACE = "place"
PATCH_TABLE = "patches"
"""The group, below a stream's own, that holds the patch table."""
PLACES = f"{PATCH_TABLE}/{PLACE}"
RESERVED = {
    OBS, ACTION, REWARD, TERMINATED, TRUNCATED, VALID, START, PLACE,
    "next_obs", "discount", "index", "weight", "mask", "patches", "info", "later",
}  # fmt: skip

DTYPES = frozenset(
    {"bool", "complex64", "complex128"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    | {f"float{bits}" for bits in (16, 32, 64)}
)
"""The dtypes of the Zarr v3 core specification."""

CHUNK_BYTES = 128 << 10
"""The decoded bytes of a chunk: few enough for a CPU's second-level cache."""
SHARD_BYTES = 64 << 20
"""The decoded bytes that a shard should have."""
RESIDENT_ROW_BYTES = 1 << 10
RESIDENT_COLUMN_BYTES = 128 << 20
MAX_CHUNK_ROWS = 4096
DISK_CHUNK_ROWS = 128
"""The most rows of a chunk of a column on disk, because a sample decodes a whole chunk."""
MAX_SHARD_ROWS = 65536
MAX_SHARDS = 4096
LEAST_SHARD_ROWS = 16
"""The least rows of a shard if nothing else was set, however short the window is."""
MAX_SET_ROWS = 1 << 24
"""The most rows that a chunk or shard may be set to have."""
PLACE_CHUNK_ROWS, PLACE_SHARD_ROWS = 1024, 16384
PATCH_CHUNK_ROWS, PATCH_SHARD_ROWS = 256, 4096
LARGE_PATCH_CHUNK_ROWS, LARGE_PATCH_SHARD_ROWS = 1, 256
"""The rows of the patch table's chunks and shards, for places, resident leaves and others, fixed by the format."""
INFO = "info"
"""The name of a stream's array with the facts of its episodes, made with the first; no column can have it."""
INFO_CHUNK_ROWS, INFO_SHARD_ROWS = 1 << 14, 1 << 20
"""The rows, which are bytes, of that array's chunks and shards, fixed by the format."""
LATER = "later/values"
"""The name of a stream's array with the values written after their rows, made with the first.

No column can be called so: names of the user's have no slash, and ``later`` was no reserved name in earlier versions.
"""
LATER_CHUNK_ROWS, LATER_SHARD_ROWS = 1 << 16, 1 << 23
"""The rows, which are bytes too, of that array's chunks and shards."""
LOGS = {INFO: "info", LATER: "later"}
"""The arrays that are logs of bytes, each made when something is first logged, and their names in a commit record."""
ITEMS = "ragged"
"""The group of a stream with the items of its ragged columns."""
ITEMS_CHUNK_BYTES, ITEMS_SHARD_BYTES = 32 << 10, 32 << 20
"""The decoded bytes of a chunk and of a shard of items: a short row decodes one chunk."""
MAX_ROW_BYTES = 1 << 30
"""The most bytes of the items of one row."""
KNOWN = "_known"
"""The suffix of a column that is written later for the array that tells which rows of a batch have a value."""


Continuity = Literal["observations", "flags"]
"""The rule that says whether a row continues the episode of the one before it; see ``ReplayBuffer.create``."""


class Start(enum.IntEnum):
    """The code in the column ``start`` for what stands before a row of one environment.

    A frame stack reaches back from a row to the last row that is not ``CONTINUES``; where it needs older frames than
    that row has, this code says what they are.
    """

    CONTINUES = 0
    """The row before it: its next observation is this row's observation."""
    ZEROS = 1
    """Nothing; older frames are zeros."""
    REPEAT = 2
    """Nothing; older frames repeat this row's frame, as Gymnasium's FrameStackObservation pads."""
    PATCHES = 3
    """Nothing; older frames stand in the patch table."""


CONTINUES, ZEROS, REPEAT, PATCHES = (int(code) for code in Start)
"""The codes, to compare arrays with.

Given a member of an enumeration, NumPy looks for methods in its class, which runs Python code of the class and swallows
what is raised there: a Ctrl-C in that moment would be lost.
"""


@dataclasses.dataclass(frozen=True)
class Codec:
    """The compression of a chunk: Blosc with one of its compressors, or nothing.

    Attributes:
        name: ``"lz4hc"``, ``"lz4"``, ``"zstd"`` or ``"none"``.
        level: 1 to 9, as Blosc counts them; ignored for ``"none"``.
    """

    name: Literal["lz4hc", "lz4", "zstd", "none"] = "lz4hc"
    level: int = 4

    def __post_init__(self) -> None:
        if self.name not in ("lz4hc", "lz4", "zstd", "none"):
            raise SchemaError(f"codec must be 'lz4hc', 'lz4', 'zstd' or 'none', got {self.name!r}")
        if isinstance(self.level, np.integer):
            object.__setattr__(self, "level", int(self.level))
        if not isinstance(self.level, int) or not 1 <= self.level <= 9:
            raise SchemaError(f"codec level must be 1 to 9, got {self.level!r}")

    @classmethod
    def parse(cls, text: str | Codec) -> Codec:
        """Return the codec of a text such as ``"zstd"`` or ``"lz4hc:5"``; raise SchemaError for another text.

        >>> Codec.parse("lz4hc:5")
        Codec(name='lz4hc', level=5)
        """
        if isinstance(text, Codec):
            return text
        if not isinstance(text, str):
            raise SchemaError(f"codec must be text such as 'lz4hc:4', got {text!r}")
        name, _, level = text.partition(":")
        defaults = {"lz4hc": 4, "lz4": 5, "zstd": 1}
        if level and not level.isdecimal():
            raise SchemaError(f"codec level must be 1 to 9, got {level!r} in {text!r}")
        return cls(name, int(level) if level else defaults.get(name, 1))  # type: ignore[arg-type]  # checked above

    @property
    def lightest(self) -> Codec:
        """The fastest level of this compressor: what it writes is decoded in the same way."""
        return self if self.name == "none" else Codec(self.name, 1)

    def __str__(self) -> str:
        return self.name if self.name == "none" else f"{self.name}:{self.level}"


@dataclasses.dataclass(frozen=True)
class Column:
    """One array of a table.

    Attributes:
        name: path below the table's group, such as ``"obs/camera"``.
        shape: one value, without row and environment.
        dtype: the dtype of the stored values.
        chunk_rows, shard_rows: rows of a chunk and of a shard file; a shard holds whole chunks.
        codec: compression of its chunks.
        resident: True if chunks hold all environments, not only one: so it was small enough for RAM when it was made.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int
    shard_rows: int
    codec: Codec
    resident: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.dtype.newbyteorder("="))
        if self.dtype.name not in DTYPES:
            raise SchemaError(
                f"column {self.name!r}: Zarr has no portable data type for {self.dtype}; use one of {sorted(DTYPES)}"
            )
        for what, value in (("chunk_rows", self.chunk_rows), ("shard_rows", self.shard_rows)):
            if not 1 <= value <= MAX_SET_ROWS:
                raise SchemaError(f"column {self.name!r}: {what} must be 1 to {MAX_SET_ROWS}, got {value}")
        if self.shard_rows % self.chunk_rows:
            raise SchemaError(
                f"column {self.name!r}: shard_rows must be a multiple of chunk_rows, "
                f"got {self.shard_rows} and {self.chunk_rows}"
            )
        if self.item_bytes * self.chunk_rows > 1 << 30:
            raise SchemaError(f"column {self.name!r}: a chunk must have at most 1 GiB, set fewer chunk_rows")

    @functools.cached_property
    def item_bytes(self) -> int:
        """The number of bytes of one value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_held(self, window: int) -> bool:
        """Tell whether a stream with a window of ``window`` transitions holds its values in RAM.

        ``resident`` was chosen for the window that the store was made with, and a stream may have grown since.
        """
        return self.resident and (self.name in ALWAYS_RESIDENT or _is_small(self.item_bytes, window))

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "shape": list(self.shape), "dtype": self.dtype.name, "codec": str(self.codec)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Column:
        name, shape = stored["name"], tuple(stored["shape"])
        for part in name.split("/"):
            check_key(part, "column")
        for number in (*shape, stored["chunk_rows"], stored["shard_rows"]):
            if type(number) is not int or number < 1:
                raise ValueError(f"column {name!r}: {number!r} is no positive integer")
        if stored["dtype"] not in DTYPES or type(stored["resident"]) is not bool:
            raise ValueError(f"column {name!r}: dtype or resident cannot be read")
        return cls(
            name, shape, np.dtype(stored["dtype"]), stored["chunk_rows"], stored["shard_rows"],
            Codec.parse(stored["codec"]), stored["resident"],
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Stack:
    """The way in which the frames of one observation leaf are stacked.

    Attributes:
        frames: length of the stack; 1 means none.
        axis: the axis of given observations that holds the stack: 0 (first), -1 (last), or None (they are single
            frames).
        channels: True, with ``axis`` given, if the stacked axis is merged with an axis of channels.
    """

    frames: int = 1
    axis: Literal[0, -1] | None = None
    channels: bool = False


@dataclasses.dataclass(frozen=True)
class RaggedColumn:
    """A column whose rows have different numbers of items; in the rows stand *spans*, ``(start, stop)`` of each.

    Attributes:
        name: of the column of spans.
        items: the array of all items, one behind another, with rows of one environment.
        longest: the most items of a row, or None.
    """

    name: str
    items: Column
    longest: int | None = None

    @property
    def most(self) -> int:
        """The most items that a row may have."""
        most = MAX_ROW_BYTES // self.items.item_bytes
        return most if self.longest is None else min(most, self.longest)

    def to_json(self) -> dict[str, Any]:
        stored = self.items.to_json()
        del stored["resident"]
        return {**stored, "name": self.name, "longest": self.longest}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> RaggedColumn:
        name, longest = stored["name"], stored["longest"]
        items = Column.from_json({**stored, "name": f"{ITEMS}/{name}", "resident": False})
        return cls(name, items, None if longest is None else check_count("longest", longest, least=0))


SPAN_SHAPE, SPAN_DTYPE = (2,), np.dtype(np.int64)
"""The shape and dtype of a span."""


@dataclasses.dataclass(frozen=True)
class Schema:
    """The facts of a store that do not change.

    Attributes:
        observation_space, action_space: the spaces that were given.
        columns: the columns of the rows; see the module's docstring.
        stacks: one for each observation leaf, in order.
        padding: ``Start.ZEROS`` or ``Start.REPEAT``, for single frames.
        num_envs: environments of the first stream.
        capacity: transitions of the first stream's window when the store was made.
        identity: a text that names the store and seals its shards; empty until :meth:`Store.create` draws it.
        finite: True if ``add`` refuses NaN and infinity in observations, actions and columns.
        continuity: the rule by which a row continues the one before: "observations" (and flags), or "flags" alone.
        later: columns whose values are written after their rows were added; they stand in the log :data:`LATER`.
        ragged: the ragged ones among the columns, by name.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    columns: tuple[Column, ...]
    stacks: tuple[Stack, ...]
    padding: Start
    num_envs: int
    capacity: int
    identity: str = dataclasses.field(default="", compare=False)
    finite: bool = dataclasses.field(default=False, compare=False)
    continuity: Continuity = dataclasses.field(default="observations", compare=False)
    later: tuple[Column, ...] = ()
    ragged: Mapping[str, RaggedColumn] = dataclasses.field(default_factory=dict)
    obs_tree: spaces.Tree = dataclasses.field(init=False)
    action_tree: spaces.Tree = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs_tree", spaces.tree(self.observation_space, OBS))
        object.__setattr__(self, "action_tree", spaces.tree(self.action_space, ACTION))
        names = [column.name for column in self.columns]
        needed = [*spaces.leaves(self.obs_tree), *spaces.leaves(self.action_tree)]
        needed += [REWARD, TERMINATED, TRUNCATED, VALID, START]
        if names[: len(needed)] != needed or len(set(names)) != len(names):
            raise SchemaError(f"the columns must begin with {needed} and not repeat, got {names}")
        shown = [*names, *(name for column in self.later for name in (column.name, column.name + KNOWN))]
        twice = next((name for name in shown if shown.count(name) > 1), None)
        if twice is not None:
            raise SchemaError(f"the columns written later need names of their own in a batch: {twice!r} is there twice")
        if not all(column.resident for column in self.columns if column.name in ALWAYS_RESIDENT):
            raise SchemaError(f"the columns {ALWAYS_RESIDENT} must be resident")
        self._check_ragged()
        axes = {stack.axis is None for stack in self.stacks if stack.frames > 1}
        if len(axes) > 1:
            raise SchemaError(
                "observation leaves with a frame_stack must all be given stacked, or all as single frames: where a "
                "step starts anew, one rule must explain the older frames of all; see stack_axis"
            )
        if self.padding not in (Start.ZEROS, Start.REPEAT):
            raise SchemaError(f"padding must be zeros or repeat, got {self.padding.name.lower()}")
        if len(self.stacks) != len(spaces.leaves(self.obs_tree)):
            raise SchemaError(f"one stack for each observation leaf is needed, got {len(self.stacks)}")

    def _check_ragged(self) -> None:
        leaves = spaces.named_leaves(self.observation_space, OBS) | spaces.named_leaves(self.action_space, ACTION)
        varying = {name for name, space in leaves.items() if spaces.is_ragged(space, name)}
        if varying != self.ragged.keys() & leaves.keys():
            raise SchemaError(f"the ragged columns must be those of the ragged spaces {sorted(varying)} and extra ones")
        if not self.ragged:
            return
        spans = {c.name for c in self.columns if (c.shape, c.dtype) == (SPAN_SHAPE, SPAN_DTYPE) and c.resident}
        stacked = [c.name for c, stack in zip(self.obs_columns, self.stacks, strict=True) if stack.frames > 1]
        if wrong := sorted(self.ragged.keys() - spans):
            raise SchemaError(f"the ragged column {wrong[0]!r} needs a resident column of spans")
        if wrong := sorted(self.ragged.keys() & set(stacked)):
            raise SchemaError(
                f"{wrong[0]!r} is ragged and cannot have a frame_stack: give the stacks of other leaves by name, as in "
                "frame_stack={'camera': 4}"
            )
        if ITEMS in {column.name for column in (*self.columns, *self.later)}:
            raise SchemaError(f"{ITEMS!r} cannot be a column of a store with ragged columns; choose another name")

    @property
    def format_version(self) -> int:
        """The least version of a reader that reads the store rightly."""
        return RAGGED_VERSION if self.ragged else FORMAT_VERSION

    @functools.cached_property
    def obs_columns(self) -> tuple[Column, ...]:
        """The columns of the leaves of the observation space."""
        return self.columns[: len(self.stacks)]

    @functools.cached_property
    def action_columns(self) -> tuple[Column, ...]:
        """The columns of the leaves of the action space."""
        first = len(self.stacks)
        return self.columns[first : first + len(spaces.leaves(self.action_tree))]

    @property
    def logs(self) -> dict[str, Column]:
        """The arrays of bytes of :data:`LOGS` that a stream can have, by their paths."""
        info = Column(INFO, (), np.dtype(np.uint8), INFO_CHUNK_ROWS, INFO_SHARD_ROWS, Codec("zstd", 1), True)
        later = Column(LATER, (), np.dtype(np.uint8), LATER_CHUNK_ROWS, LATER_SHARD_ROWS, Codec("zstd", 1), False)
        return {INFO: info, **({LATER: later} if self.later else {})}

    @functools.cached_property
    def extra_columns(self) -> tuple[Column, ...]:
        """The user's own columns."""
        return self.columns[len(self.stacks) + len(self.action_columns) + 5 :]

    def column(self, name: str) -> Column:
        """Return the column of the rows that has this name; raise KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def arrays(self) -> dict[str, Column]:
        """Every array of a stream by its path below the stream's group: of the rows, the patches, the items."""
        patches = {f"{PATCH_TABLE}/{column.name}": column for column in self.patch_columns}
        items = {ragged.items.name: ragged.items for ragged in self.ragged.values()}
        return {column.name: column for column in self.columns} | patches | items

    @functools.cached_property
    def context(self) -> int:
        """The number of rows before the window that are kept because frame stacks reach back to them."""
        return max(stack.frames for stack in self.stacks) - 1

    @functools.cached_property
    def patch_columns(self) -> tuple[Column, ...]:
        """The columns of the patch table: ``place`` (row, environment, offset) and the observation leaves.

        A patch of offset 1 is the true next observation of its row, offset ``1 + j`` the frame ``j`` steps
        before that one; offset ``-j`` the frame ``j`` steps before the row's own.
        """
        place = Column(PLACE, (3,), np.dtype(np.int64), PLACE_CHUNK_ROWS, PLACE_SHARD_ROWS, Codec("zstd", 1), True)
        leaves = [
            dataclasses.replace(column, chunk_rows=PATCH_CHUNK_ROWS, shard_rows=PATCH_SHARD_ROWS)
            if column.resident
            else dataclasses.replace(column, chunk_rows=LARGE_PATCH_CHUNK_ROWS, shard_rows=LARGE_PATCH_SHARD_ROWS)
            for column in self.obs_columns
        ]
        return (place, *leaves)

    def to_json(self) -> dict[str, Any]:
        return {
            "observation_space": spaces.to_json(self.observation_space),
            "action_space": spaces.to_json(self.action_space),
            "columns": [column.to_json() for column in self.columns],
            "stacks": [dataclasses.asdict(stack) for stack in self.stacks],
            "padding": self.padding.name.lower(),
            "num_envs": self.num_envs,
            "capacity": self.capacity,
            "identity": self.identity,
            **({"finite": True} if self.finite else {}),
            **({"continuity": self.continuity} if self.continuity != "observations" else {}),
            **({"later": [_later_to_json(column) for column in self.later]} if self.later else {}),
            **({"ragged": [column.to_json() for column in self.ragged.values()]} if self.ragged else {}),
        }

    @classmethod
    def from_json(cls, stored: Any) -> Schema:
        try:
            schema = cls(
                spaces.from_json(stored["observation_space"]),
                spaces.from_json(stored["action_space"]),
                tuple(Column.from_json(column) for column in stored["columns"]),
                tuple(_stack_from_json(stack) for stack in stored["stacks"]),
                Start[stored["padding"].upper()],
                check_count("num_envs", stored["num_envs"]),
                check_count("capacity", stored["capacity"]),
                _check_identity(stored["identity"]),
                stored.get("finite", False) is True,
                check_continuity(stored.get("continuity", "observations")),
                tuple(_later_from_json(column) for column in stored.get("later", ())),
                {column["name"]: RaggedColumn.from_json(column) for column in stored.get("ragged", ())},
            )
        except (KeyError, TypeError, ValueError, AttributeError, InputError, RecursionError) as error:
            raise CorruptionError(f"the stored schema cannot be read: {type(error).__name__}: {error}") from error
        return schema


def _check_identity(given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ValueError(f"identity must be text, got {given!r}")
    return given


def check_continuity(given: Any) -> Continuity:
    """Return ``given`` if it is one of the two; raise InputError otherwise."""
    if given == "flags":
        return "flags"
    if given == "observations":
        return "observations"
    raise InputError(f"continuity must be 'observations' or 'flags', got {given!r}")


def later_column(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], window: int) -> Column:
    """Return a column that is written later, which has no array of its own, and so no chunks."""
    item = math.prod(shape) * dtype.itemsize
    return Column(name, shape, dtype, 1, 1, Codec("none"), _is_small(item, window))


def _later_to_json(column: Column) -> dict[str, Any]:
    stored = column.to_json()
    return {key: stored[key] for key in ("name", "shape", "dtype", "resident")}


def _later_from_json(stored: dict[str, Any]) -> Column:
    return Column.from_json({**stored, "chunk_rows": 1, "shard_rows": 1, "codec": "none"})


def _stack_from_json(stored: dict[str, Any]) -> Stack:
    frames, axis, channels = stored["frames"], stored["axis"], stored["channels"]
    if type(frames) is not int or not 1 <= frames <= 1024 or axis not in (0, -1, None) or type(channels) is not bool:
        raise ValueError(f"stack {stored!r} cannot be read")
    return Stack(frames, axis, channels)


def refuse_ragged(schema: Schema, what: str) -> None:
    """Raise SchemaError if a store has a ragged column, which ``what`` cannot take."""
    if schema.ragged:
        raise SchemaError(
            f"{what} cannot take ragged columns, and the store has {sorted(schema.ragged)}: use ReplayBuffer itself, "
            "or columns of one length, padded"
        )


Field = tuple[str, tuple[int | None, ...], np.dtype[Any]]
"""Name, shape and dtype of a column whose chunks and codec are still to be chosen; None first in a ragged one."""


@dataclasses.dataclass(frozen=True)
class StoreSpec:
    """The spec of a new store, in the words of ``ReplayBuffer.create``, which :func:`build` checks.

    Attributes:
        provenance: the origin of the steps.
        settings: the settings that the buffer's class keeps in the store, by name.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    _: dataclasses.KW_ONLY
    capacity: int
    num_envs: int = 1
    frame_stack: int | Mapping[str, int] = 1
    stack_axis: Literal["auto", 0, -1] | None = "auto"
    stack_padding: Literal["zero", "reset"] = "zero"
    reward_dtype: Any = np.float32
    columns: Mapping[str, Any] | None = None
    later: Mapping[str, Any] | None = None
    codec: str | Codec | Mapping[str, str | Codec] | None = None
    chunk_rows: int | Mapping[str, int] | None = None
    shard_rows: int | Mapping[str, int] | None = None
    finite: bool = False
    continuity: Continuity = "observations"
    provenance: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def build(spec: StoreSpec) -> Schema:
    """Return the schema of a new store; raise SchemaError or InputError if the spec breaks a rule."""
    observation_space, action_space, stack_padding = spec.observation_space, spec.action_space, spec.stack_padding
    num_envs = check_count("num_envs", spec.num_envs, most=1 << 20)
    capacity = check_count("capacity", spec.capacity)
    if capacity < num_envs:
        raise InputError(
            f"capacity counts transitions (rows x environments) and must hold at least one row of "
            f"{num_envs} environments, got {capacity}"
        )
    if not isinstance(observation_space, gymnasium.Space) or not isinstance(action_space, gymnasium.Space):
        raise SchemaError("observation_space and action_space must be Gymnasium spaces")
    if stack_padding not in ("zero", "reset"):
        raise InputError(f"stack_padding must be 'zero' or 'reset', got {stack_padding!r}")
    given = _leaf_fields(observation_space, OBS)
    longest = _longest(observation_space, OBS) | _longest(action_space, ACTION)
    stacks, frames = _stacked(given, spec.frame_stack, spec.stack_axis)
    extras = _extras(spec.columns, "columns")
    fields = [*frames, *_leaf_fields(action_space, ACTION), *_always(spec.reward_dtype), *extras]
    for name, _, _ in extras:
        if isinstance(space := (spec.columns or {})[name], gymnasium.Space):
            longest |= _longest(space, name)
    later = _extras(spec.later, "later")
    for name, shape, _ in later:
        if None in shape:
            raise SchemaError(f"later: {name!r} cannot be ragged; write values of one length, or give it in columns=")
    names, obs_names = [name for name, _, _ in fields], [name for name, _, _ in frames]
    settings = {what: getattr(spec, what) for what in ("codec", "chunk_rows", "shard_rows")}
    for what, setting in settings.items():
        if isinstance(setting, Mapping):
            _check_names(what, set(setting), names)
    built = tuple(
        _spans(field[0], num_envs, capacity // num_envs)
        if None in field[1]
        else _column(field, num_envs, capacity // num_envs, **_settings_of(field[0], obs_names, settings))
        for field in fields
    )
    padding = Start.ZEROS if stack_padding == "zero" else Start.REPEAT
    return Schema(
        observation_space, action_space, built, tuple(stacks), padding, num_envs, capacity,
        finite=check_flag("finite", spec.finite), continuity=check_continuity(spec.continuity),
        later=tuple(later_column(name, cast(tuple[int, ...], shape), dtype, capacity) for name, shape, dtype in later),
        ragged={
            field[0]: RaggedColumn(
                field[0], _items_column(field, **_settings_of(field[0], obs_names, settings)), longest.get(field[0])
            )
            for field in fields if None in field[1]
        },
    )  # fmt: skip


def _leaf_fields(space: gymnasium.Space[Any], name: str) -> list[Field]:
    """Return the leaves of a space, as its values are given."""
    fields: list[Field] = [
        (key, *spaces.column_layout(leaf, key)) for key, leaf in spaces.named_leaves(space, name).items()
    ]
    count = sum(math.prod(size for size in shape if size) for _, shape, _ in fields)
    if count > spaces.MAX_ELEMENTS:
        raise SchemaError(
            f"{name}: a value may have {spaces.MAX_ELEMENTS:,} elements, all leaves together, got {count:,}"
        )
    return fields


def _stacked(
    given: list[Field], frame_stack: int | Mapping[str, int], axis: Literal["auto", 0, -1] | None
) -> tuple[list[Stack], list[Field]]:
    """Return the stack of each observation leaf, and the field of its single frames, which are what is stored."""
    stacks, fields = [], []
    for name, shape, dtype in given:
        stack, shape = _stack_of(name, shape, _frames_of(name, frame_stack), axis)
        stacks.append(stack)
        fields.append((name, shape, dtype))
    if isinstance(frame_stack, Mapping):
        names = [name for name, _, _ in given]
        _check_names("frame_stack", {key if key in names else f"{OBS}/{key}" for key in frame_stack}, names)
    return stacks, fields


def _always(reward_dtype: Any) -> list[Field]:
    """Return the columns that every store has beside observations and actions."""
    try:
        reward = np.dtype(reward_dtype)
    except TypeError as error:
        raise SchemaError(f"reward_dtype must be a floating point type, got {reward_dtype!r}") from error
    if reward.kind != "f":
        raise SchemaError(f"reward_dtype must be a floating point type, got {reward}")
    dtypes = [reward, *[np.dtype(bool)] * 3, np.dtype(np.uint8)]
    return [(name, (), dtype) for name, dtype in zip(ALWAYS_RESIDENT, dtypes, strict=True)]


def _extras(columns: Mapping[str, Any] | None, what: str) -> list[Field]:
    """Return the user's own columns, of the argument ``what``."""
    if columns is not None and not isinstance(columns, Mapping):
        raise InputError(f"{what} must be a mapping of names to dtypes, got {columns!r}")
    return [_extra(name, value, what) for name, value in (columns or {}).items()]


def _column(
    field: Field, num_envs: int, rows: int, codec: str | Codec | None, chunk_rows: int | None, shard_rows: int | None
) -> Column:  # fmt: skip
    """Return a column of a window of ``rows`` rows; what is None is chosen to suit it."""
    name, shape, dtype = field
    what = f"of column {name!r}"
    chunk_rows, shard_rows = (
        None if rows_given is None else check_count(f"{setting} {what}", rows_given, most=MAX_SET_ROWS)
        for setting, rows_given in (("chunk_rows", chunk_rows), ("shard_rows", shard_rows))
    )
    item = math.prod(cast(tuple[int, ...], shape)) * dtype.itemsize
    resident = _is_small(item, rows * num_envs) or name in ALWAYS_RESIDENT
    chunk_width = item * num_envs if resident else item
    if shard_rows is None:
        least = chunk_rows if chunk_rows is not None else max(1, rows // MAX_SHARDS)
        wanted = min(SHARD_BYTES // (item * num_envs), MAX_SHARD_ROWS, rows // 4)
        shards = _power_of_two(max(wanted, least, LEAST_SHARD_ROWS))
        shard_rows = shards if chunk_rows is None else chunk_rows * max(1, shards // chunk_rows)
    if chunk_rows is None:
        wanted = min(CHUNK_BYTES // chunk_width, MAX_CHUNK_ROWS if resident else DISK_CHUNK_ROWS)
        chunk_rows = math.gcd(_power_of_two(max(wanted, 1)), shard_rows)
    if codec is None:
        codec = Codec("zstd", 1) if resident else Codec("lz4hc", 4)
    return Column(name, cast(tuple[int, ...], shape), dtype, chunk_rows, shard_rows, Codec.parse(codec), resident)


def _spans(name: str, num_envs: int, rows: int) -> Column:
    """Return the column of the spans of a ragged column, which is resident however long the window is."""
    column = _column((name, SPAN_SHAPE, SPAN_DTYPE), num_envs, rows, None, None, None)
    return dataclasses.replace(column, resident=True)


def _items_column(
    field: Field, codec: str | Codec | None, chunk_rows: int | None, shard_rows: int | None
) -> Column:  # fmt: skip
    """Return the array of the items of a ragged column; its rows are items."""
    name, shape, dtype = field[0], cast(tuple[int, ...], field[1][1:]), field[2]
    item = math.prod(shape) * dtype.itemsize
    for what, rows in (("chunk_rows", chunk_rows), ("shard_rows", shard_rows)):
        if rows is not None:
            check_count(f"{what} of column {name!r}", rows, most=MAX_SET_ROWS)
    if chunk_rows is None:
        chunk_rows = _power_of_two(max(ITEMS_CHUNK_BYTES // item, 1))
        if shard_rows is not None:
            chunk_rows = math.gcd(chunk_rows, shard_rows)
    if shard_rows is None:
        wanted = min(ITEMS_SHARD_BYTES // item, MAX_SET_ROWS)
        shard_rows = chunk_rows * max(1, wanted // chunk_rows)
    codec = Codec("lz4hc", 4) if codec is None else Codec.parse(codec)
    return Column(f"{ITEMS}/{name}", shape, dtype, chunk_rows, shard_rows, codec, False)


def _longest(space: gymnasium.Space[Any], name: str) -> dict[str, int]:
    """Return the most items of the ragged leaves of a space that have a most, by name."""
    found = {key: spaces.longest(leaf) for key, leaf in spaces.named_leaves(space, name).items()}
    return {key: most for key, most in found.items() if most is not None}


def _is_small(item: int, window: int) -> bool:
    """Tell whether values of ``item`` bytes, of a window of ``window`` transitions, are held in RAM."""
    return item <= RESIDENT_ROW_BYTES and item * window <= RESIDENT_COLUMN_BYTES


def _power_of_two(value: int) -> int:
    """Return the largest power of two that is not above ``value``."""
    return 1 << (value.bit_length() - 1)


def _settings_of(name: str, obs_names: list[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of one column: a mapping names columns, anything else is meant for the observations."""
    return {
        what: setting.get(name) if isinstance(setting, Mapping) else setting if name in obs_names else None
        for what, setting in settings.items()
    }


def _check_names(what: str, given: set[str], known: list[str]) -> None:
    unknown = sorted(given - set(known))
    if unknown:
        raise InputError(f"{what}: there is no column {unknown[0]!r}; the columns are {known}")


def _frames_of(name: str, frame_stack: int | Mapping[str, int]) -> int:
    if isinstance(frame_stack, Mapping):
        value = frame_stack.get(name, frame_stack.get(name.removeprefix(f"{OBS}/"), 1))
    else:
        value = frame_stack
    return check_count(f"frame_stack of {name!r}", value, most=1024)


COLOURS = (3, 4)
"""The numbers of channels of a colour frame."""


def _stack_of(
    name: str, shape: tuple[int | None, ...], frames: int, axis: Literal["auto", 0, -1] | None
) -> tuple[Stack, tuple[int | None, ...]]:
    """Return the stack of a leaf, and the shape of its single frame.

    ``"auto"`` takes observations of two or more axes whose first (else last) axis has just ``frames`` entries for
    stacked; ``stack_axis=None`` says that they are single frames all the same. Where one of the two could as well hold
    a stack of colour frames, it asks.
    """
    if axis not in ("auto", 0, -1, None):
        raise InputError(f"stack_axis must be 'auto', 0, -1 or None, got {axis!r}")
    if None in shape and frames > 1:
        raise SchemaError(
            f"{name!r} is ragged and cannot have a frame_stack: give the stacks of other leaves by name, as in "
            "frame_stack={'camera': 4}"
        )
    if frames == 1 or axis is None:
        return Stack(frames), shape
    if axis == "auto":
        if len(shape) >= 2 and shape[0] == frames:
            return Stack(frames, 0), shape[1:]
        if len(shape) >= 3 and shape[-1] == frames:
            return Stack(frames, -1), shape[:-1]
        colours = [at for at in (0, -1) if len(shape) == 3 and shape[at] in [frames * count for count in COLOURS]]
        if colours:
            raise SchemaError(
                f"{name!r}: axis {colours[0]} of shape {shape} may hold a stack of {frames} frames of "
                f"{cast(int, shape[colours[0]]) // frames} channels each; say stack_axis={colours[0]} if it does, "
                "stack_axis=None if observations are single frames, which are stacked when they are sampled"
            )
        return Stack(frames), shape
    size = shape[axis] if shape else None
    if size is None or size % frames:
        raise InputError(f"{name!r}: axis {axis} of shape {shape} cannot hold a stack of {frames} frames")
    depth = size // frames
    if depth == 1:
        return Stack(frames, axis), shape[1:] if axis == 0 else shape[:-1]
    return Stack(frames, axis, channels=True), (depth, *shape[1:]) if axis == 0 else (*shape[:-1], depth)


def _extra(name: str, value: Any, what: str) -> Field:
    """Return a user's column from a dtype, ``(shape, dtype)``, or a leaf space."""
    check_key(name, what)
    if name in RESERVED:
        raise SchemaError(f"{what}: {name!r} is a name of the store's own; choose another")
    if isinstance(value, gymnasium.Space):
        if not isinstance(spaces.tree(value, name), str):
            raise SchemaError(f"{what}: {name!r} must be one array; give each part of the {value} a name of its own")
        return (name, *spaces.column_layout(value, name))
    try:
        shape, dtype = value if isinstance(value, tuple) else ((), value)
        varies = len(shape) > 0 and shape[0] is None
        sizes = f"shape of {name!r}" + ", but for a first None," * (None in shape)
        fixed = tuple(check_count(sizes, n) for n in shape[varies:])
        layout = (None, *fixed) if varies else fixed, np.dtype(dtype)
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{what}: {name!r} must be a dtype, (shape, dtype) or a space, got {value!r}") from error
    return (name, *layout)
