"""The schema of a store: columns with shapes and dtypes, frozen and validated once.

A row of a stream is one step of ``num_envs`` environments. Its columns are the leaves of the observation and
action spaces, ``reward``, ``terminated``, ``truncated``, ``valid`` (the step is a transition), ``start`` (how the
row's history begins, see :class:`Start`), and the user's own. :mod:`diskreplay.schema.layout` says how the array of
a column is cut into chunks and shards.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, cast

import gymnasium
import numpy as np

from diskreplay.checks import check_count, check_key
from diskreplay.errors import CorruptionError, InputError, SchemaError
from diskreplay.schema import spaces
from diskreplay.video import MAX_VALUE_BYTES, Video

FORMAT_VERSION = 1

ACTION, OBS, REWARD, TERMINATED, TRUNCATED, VALID, START = (
    "action", "obs", "reward", "terminated", "truncated", "valid", "start",
)  # fmt: skip
RECORDED = "recorded_reward"
"""The name of the recorded rewards where another column's values are shown as rewards."""
ALWAYS_RESIDENT = (REWARD, TERMINATED, TRUNCATED, VALID, START)
PLACE = "place"
PATCH_TABLE = "patches"
"""The group, below a stream's own, that holds the patch table."""
PLACES = f"{PATCH_TABLE}/{PLACE}"
RESERVED = {
    OBS, ACTION, REWARD, TERMINATED, TRUNCATED, VALID, START, PLACE,
    "next_obs", "discount", "index", "weight", "mask", "patches", "info", "later", "cuts",
}  # fmt: skip

DTYPES = frozenset(
    {"bool", "complex64", "complex128"}
    | {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    | {f"float{bits}" for bits in (16, 32, 64)}
)
"""The dtypes of the Zarr v3 core specification."""

RESIDENT_ROW_BYTES = 1 << 10
"""The bytes of a value up to which it is a small one."""
RESIDENT_COLUMN_BYTES = 128 << 20
"""The bytes of a window of small values that is held in RAM whatever the budget: its chunks are long."""
PACKED_BYTES = 256
"""The least bytes of a value that a cache keeps as runs: of smaller ones, such as vectors, these are no shorter."""
MAX_SET_ROWS = 1 << 24
"""The most rows that a chunk or shard may be set to have."""
MAX_CHUNK_BYTES = 1 << 30
"""The most decoded bytes of a chunk, of all its environments."""
INFO = "info"
"""The name of a stream's array with the facts of its episodes, made with the first; no column can have it."""
LATER = "later/values"
"""The name of a stream's array with the values written after their rows, made with the first."""
LATER_TABLE = "later"
"""The name of the table of these bytes in a commit record."""
LOGS = INFO, LATER
"""The arrays that are logs of bytes."""
CUTS = "cuts"
"""The table, and the group below a stream's own, that says where runs of rows begin."""
CUT_PLACES = f"{CUTS}/{PLACE}"
ITEMS = "ragged"
"""The group of a stream with the items of its ragged columns."""
MAX_ROW_BYTES = 1 << 30
"""The most bytes of the items of one row."""
KNOWN = "_known"
"""The suffix of a column that is written later for the array that tells which rows of a batch have a value."""


Continuity = Literal["observations", "flags"]
"""The rule that says whether a row continues the episode of the one before it; see ``ReplayBuffer.create``."""


class Start(enum.IntEnum):
    """The code in the column ``start`` for what stands before a row of one environment.

    A frame stack reaches back from a row to the last row that is not ``CONTINUES``; where it needs older frames than
    that row has, this code says what they are. If the first steps of the row's episode are missing, because the episode
    is a copy of one that had lost them, the column has the code plus :data:`CUT_START`.
    """

    CONTINUES = 0
    """The row before it: its next observation is this row's observation."""
    ZEROS = 1
    """Nothing; older frames are zeros."""
    REPEAT = 2
    """Nothing; older frames repeat this row's frame, as Gymnasium's FrameStackObservation pads."""
    PATCHES = 3
    """Nothing; older frames stand in the patch table."""

    @staticmethod
    def by_patches(codes: Any) -> Any:
        """Tell which codes of a column say that older frames stand in the patch table."""
        return codes & PATCHES == PATCHES

    @staticmethod
    def wrong(codes: Any) -> Any:
        """Tell which numbers of a column are no codes."""
        return (codes == CUT_START) | (codes > CUT_START + PATCHES)


CONTINUES, ZEROS, REPEAT, PATCHES = (int(code) for code in Start)
"""The codes, to compare arrays with.

Given a member of an enumeration, NumPy looks for methods in its class, which runs Python code of the class and swallows
what is raised there: a Ctrl-C in that moment would be lost.
"""
CUT_START = 4
"""What is added to another code than ``CONTINUES`` if the first steps of the episode are missing."""


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


class Given(NamedTuple):
    """What the user gave for the layout of a column; None is chosen for each stream."""

    chunk_rows: int | None = None
    shard_rows: int | None = None
    codec: Codec | None = None


CHOSEN = Given()
"""Nothing was given."""


@dataclasses.dataclass(frozen=True)
class Column:
    """One array of a table.

    Attributes:
        name: path below the table's group, such as ``"obs/camera"``.
        shape: one value, without row and environment.
        dtype: the dtype of the stored values.
        given: what the user gave for its layout, in all streams.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    given: Given

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.dtype.newbyteorder("="))
        if self.dtype.name not in DTYPES:
            raise SchemaError(
                f"column {self.name!r}: Zarr has no portable data type for {self.dtype}; use one of {sorted(DTYPES)}"
            )
        chunk_rows, shard_rows = self.given.chunk_rows or 1, self.given.shard_rows or self.given.chunk_rows or 1
        for what, value in (("chunk_rows", chunk_rows), ("shard_rows", shard_rows)):
            if not 1 <= value <= MAX_SET_ROWS:
                raise SchemaError(f"column {self.name!r}: {what} must be 1 to {MAX_SET_ROWS}, got {value}")
        if shard_rows % chunk_rows:
            raise SchemaError(
                f"column {self.name!r}: shard_rows must be a multiple of chunk_rows, got {shard_rows} and {chunk_rows}"
            )
        if self.item_bytes * chunk_rows > MAX_CHUNK_BYTES:
            raise SchemaError(f"column {self.name!r}: a chunk must have at most 1 GiB, set fewer chunk_rows")

    @functools.cached_property
    def item_bytes(self) -> int:
        """The number of bytes of one value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_small(self, window: int) -> bool:
        """Tell whether a window of ``window`` transitions is held in RAM by whoever opens the stream."""
        is_small = self.item_bytes <= RESIDENT_ROW_BYTES and self.item_bytes * window <= RESIDENT_COLUMN_BYTES
        return is_small or self.name in ALWAYS_RESIDENT

    @property
    def may_pack(self) -> bool:
        """True if the cache may keep values in a tenth of their bytes, so that it should have them: frames."""
        return self.item_bytes >= PACKED_BYTES and self.dtype.kind not in "fc"

    def to_json(self) -> dict[str, Any]:
        settings = self.given._asdict().items()
        given = {what: str(value) if what == "codec" else value for what, value in settings if value is not None}
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name, **given}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Column:
        name, shape = stored["name"], tuple(stored["shape"])
        rows = {what: stored[what] for what in ("chunk_rows", "shard_rows") if what in stored}
        for part in name.split("/"):
            check_key(part, "column")
        for number in (*shape, *rows.values()):
            if type(number) is not int or number < 1:
                raise ValueError(f"column {name!r}: {number!r} is no positive integer")
        if stored["dtype"] not in DTYPES or "as" in stored:
            raise ValueError(f"column {name!r}: dtype or as cannot be read")
        codec = Codec.parse(stored["codec"]) if "codec" in stored else None
        return cls(name, shape, np.dtype(stored["dtype"]), Given(**rows, codec=codec))


@dataclasses.dataclass(frozen=True)
class StoredColumn(Column):
    """A column as the array of one stream has it.

    Attributes:
        chunk_rows, shard_rows: rows of a chunk and of a shard file; a shard holds whole chunks.
        chunk_envs: environments of a chunk, a divisor of the stream's.
        codec: compression of its chunks.
    """

    chunk_rows: int
    shard_rows: int
    chunk_envs: int
    codec: Codec

    @classmethod
    @functools.lru_cache(4096)  # the streams of a store have the same few
    def of(cls, column: Column, chunk_rows: int, shard_rows: int, chunk_envs: int, codec: Codec) -> StoredColumn:
        """Return a column with this layout."""
        return cls(column.name, column.shape, column.dtype, column.given, chunk_rows, shard_rows, chunk_envs, codec)


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
        video: the facts of a video column, whose items are the bytes of packets; None for any other.
    """

    name: str
    items: Column
    longest: int | None = None
    video: Video | None = None

    @property
    def most(self) -> int:
        """The most items that a row may have."""
        most = MAX_ROW_BYTES // self.items.item_bytes
        return most if self.longest is None else min(most, self.longest)

    def to_json(self) -> dict[str, Any]:
        video = {} if self.video is None else {"video": self.video.to_json()}
        return {**self.items.to_json(), "name": self.name, "longest": self.longest, **video}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> RaggedColumn:
        name, longest = stored["name"], stored["longest"]
        items = Column.from_json({**stored, "name": f"{ITEMS}/{name}"})
        video = Video.from_json(stored["video"]) if "video" in stored else None
        return cls(name, items, None if longest is None else check_count("longest", longest, least=0), video)


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
        needed = [*spaces.leaves(self.obs_tree), *spaces.leaves(self.action_tree), *ALWAYS_RESIDENT]
        if names[: len(needed)] != needed or len(set(names)) != len(names):
            raise SchemaError(f"the columns must begin with {needed} and not repeat, got {names}")
        shown = [*names, *(name for column in self.later for name in (column.name, column.name + KNOWN))]
        if twice := [name for name in shown if shown.count(name) > 1]:
            raise SchemaError(
                f"the columns written later need names of their own in a batch: {twice[0]!r} is there twice"
            )
        if any(column.shape for column in self.columns if column.name in ALWAYS_RESIDENT):
            raise SchemaError(f"the columns {ALWAYS_RESIDENT} must have one value a step")
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
        self._check_video(leaves)
        varying = {name for name, space in leaves.items() if name in self.videos or spaces.is_ragged(space, name)}
        if varying != self.ragged.keys() & leaves.keys():
            raise SchemaError(f"the ragged columns must be those of the ragged spaces {sorted(varying)} and extra ones")
        if ITEMS in {column.name for column in (*self.columns, *self.later)}:
            raise SchemaError(f"{ITEMS!r} cannot be a column: a store has ragged columns there; choose another name")
        if not self.ragged:
            return
        spans = {c.name for c in self.columns if (c.shape, c.dtype) == (SPAN_SHAPE, SPAN_DTYPE)}
        stacked = [c.name for c, stack in zip(self.obs_columns, self.stacks, strict=True) if stack.frames > 1]
        if wrong := sorted(self.ragged.keys() - spans):
            raise SchemaError(f"the ragged column {wrong[0]!r} needs a column of spans")
        if wrong := sorted(self.ragged.keys() & set(stacked)):
            raise SchemaError(
                f"{wrong[0]!r} is ragged and cannot have a frame_stack: give the stacks of other leaves by name, as in "
                "frame_stack={'camera': 4}"
            )

    def _check_video(self, leaves: Mapping[str, gymnasium.Space[Any]]) -> None:
        for name, video in self.videos.items():
            pictures = gymnasium.spaces.Box(0, 255, video.shape, np.uint8)
            if (space := leaves.get(name, pictures)) != pictures or name.partition("/")[0] == ACTION:
                raise SchemaError(
                    f"video: {name!r} must be an observation leaf Box(0, 255, {video.shape}, uint8), or a column "
                    f"({video.shape}, uint8), got {space}"
                )
            items, most = self.ragged[name].items, self.ragged[name].most
            if (items.shape, items.dtype) != ((), np.dtype(np.uint8)) or most > MAX_VALUE_BYTES:
                raise SchemaError(f"video: the items of {name!r} must be bytes, at most {MAX_VALUE_BYTES:,} a row")
        if self.videos and self.num_envs != 1:
            raise SchemaError(f"video: a store with video has one environment a stream, got num_envs={self.num_envs}")

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
    def videos(self) -> dict[str, Video]:
        """The facts of the columns that hold video, by name."""
        return {name: column.video for name, column in self.ragged.items() if column.video is not None}

    def picture(self, column: Column) -> Column:
        """Return the column of the frames ``(height, width, 3)`` of a video column, any other column as it is."""
        if (video := self.videos.get(column.name)) is None:
            return column
        return dataclasses.replace(column, shape=video.shape, dtype=np.dtype(np.uint8), given=CHOSEN)

    @property
    def logs(self) -> dict[str, Column]:
        """The arrays of bytes of :data:`LOGS` that a stream can have, by their paths."""
        paths = (INFO, LATER) if self.later else (INFO,)
        return {path: Column(path, (), np.dtype(np.uint8), CHOSEN) for path in paths}

    @functools.cached_property
    def extra_columns(self) -> tuple[Column, ...]:
        """The user's own columns."""
        return self.columns[len(self.stacks) + len(self.action_columns) + 5 :]

    @functools.cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    def column(self, name: str) -> Column:
        """Return the column of the rows that has this name; raise KeyError if there is none."""
        return self._by_name[name]

    def held(self, window: int, entries: int = 0, budget_bytes: int = 0) -> dict[str, int]:
        """Return the columns whose windows are held in RAM, and how many bytes of the budget each takes.

        Small ones take none, nor do spans. Of the others those with the smallest values come first.

        Args:
            window: the most transitions in the window of a stream.
            entries: the transitions, and patches, of all streams.
            budget_bytes: the bytes that other columns than small ones may take.
        """
        found = {}
        for column in sorted((*self.columns, *self.later), key=lambda column: column.item_bytes):
            size = column.item_bytes * entries
            if column.name in self.ragged or column.is_small(window):
                found[column.name] = 0
            elif not column.may_pack and size < budget_bytes:
                found[column.name] = size
                budget_bytes -= size
        return found

    @property
    def arrays(self) -> dict[str, Column]:
        """Every array of a stream by its path below the stream's group: of the rows, the patches, the items."""
        patches = {f"{PATCH_TABLE}/{column.name}": column for column in self.patch_columns}
        items = {ragged.items.name: ragged.items for ragged in self.ragged.values()}
        cuts = Column(CUT_PLACES, (3,), np.dtype(np.int64), CHOSEN)
        return {column.name: column for column in self.columns} | patches | items | {CUT_PLACES: cuts}

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
        place = Column(PLACE, (3,), np.dtype(np.int64), CHOSEN)
        leaves = [dataclasses.replace(c, given=Given(codec=c.given.codec)) for c in self.obs_columns]
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
            **({"later": [column.to_json() for column in self.later]} if self.later else {}),
            **({"ragged": [column.to_json() for column in self.ragged.values()]} if self.ragged else {}),
        }

    @classmethod
    def from_json(cls, stored: Any) -> Schema:
        try:
            return cls(
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
                tuple(Column.from_json(column) for column in stored.get("later", ())),
                {column["name"]: RaggedColumn.from_json(column) for column in stored.get("ragged", ())},
            )
        except (KeyError, TypeError, ValueError, AttributeError, InputError, RecursionError) as error:
            raise CorruptionError(f"the stored schema cannot be read: {type(error).__name__}: {error}") from error


def _check_identity(given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise ValueError(f"identity must be text, got {given!r}")
    return given


def check_continuity(given: Any) -> Continuity:
    """Return ``given`` if it is one of the two; raise InputError otherwise."""
    if given not in ("observations", "flags"):
        raise InputError(f"continuity must be 'observations' or 'flags', got {given!r}")
    return cast(Continuity, given)


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
