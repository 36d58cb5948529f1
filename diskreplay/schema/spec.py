"""The options of a new store, and the schema that follows: columns for its spaces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypedDict, Unpack, cast

import gymnasium
import numpy as np

from diskreplay.checks import check_count, check_flag, check_key
from diskreplay.errors import InputError, SchemaError
from diskreplay.schema import spaces
from diskreplay.schema.columns import (
    ACTION,
    ALWAYS_RESIDENT,
    CHOSEN,
    ITEMS,
    MAX_SET_ROWS,
    OBS,
    RESERVED,
    SPAN_DTYPE,
    SPAN_SHAPE,
    Codec,
    Column,
    Continuity,
    Given,
    RaggedColumn,
    Schema,
    Stack,
    Start,
    check_continuity,
)
from diskreplay.video import MAX_VALUE_BYTES, Video

Field = tuple[str, tuple[int | None, ...], np.dtype[Any]]
"""Name, shape and dtype of a column; None first in a ragged one."""


class FrameOptions(TypedDict, total=False):
    """The options for the observations of a new store of one agent, and the dtype of its rewards.

    Attributes:
        frame_stack: frames of an observation, for every leaf or by name of the leaf. Frames are stored once.
        stack_axis: the axis of given observations that holds the stack: 0, -1, or None if they are single frames, which
            are stacked at sampling time; "auto" takes an axis with just ``frame_stack`` entries for it, and raises
            SchemaError where one has three or four times as many, as stacked colour frames do.
        stack_padding: the padding of single frames at an episode's start: "zero", or "reset" for the first frame
            repeated (Gymnasium's FrameStackObservation). Stacked input keeps its own padding.
        reward_dtype: float32, as most learners want it, or another floating point type.
        video: the columns that hold video, with the facts of each: ``{"camera": Video("av1", 640, 480)}``. Such a leaf
            of the observation, or column, has the shape ``(height, width, 3)`` and dtype uint8. ``add`` takes the
            records of its packets, from the key frame on (:mod:`diskreplay.video`), and a batch shows pictures, decoded
            by PyAV: ``pip install 'diskreplay[video]'``. Only with one environment.
    """

    frame_stack: int | Mapping[str, int]
    stack_axis: Literal["auto", 0, -1] | None
    stack_padding: Literal["zero", "reset"]
    reward_dtype: Any
    video: Mapping[str, Video] | None


class ColumnOptions(TypedDict, total=False):
    """The options that a new store keeps, for one agent or several.

    Attributes:
        columns: further values of each step by name: a dtype, ``(shape, dtype)`` or a space. With a first axis of None
            it has another length in each step, as values of Text, Sequence and Graph spaces have.
        later: columns, in the same form, whose values :meth:`write` gives to steps after they were added, such as
            recurrent states.
        codec: "lz4hc", "lz4", "zstd" (with a level: "lz4hc:5") or "none"; for the observations, or by column.
        chunk_rows, shard_rows: rows of a compressed chunk and of a file, likewise; chosen for each stream if None.
        finite: refuse NaN and infinity in observations, actions and columns, as always in rewards; the store keeps it.
        continuity: the rule by which a step goes on with the episode of the one before it: "observations", where its
            ``obs`` is bit for bit the ``next_obs`` of the step before, or "flags", which does not compare them, for
            observations that are normalised or encoded anew for each call. A flag, :meth:`cut`, :meth:`begin_episode`
            and a step that is not ``valid`` end an episode in both cases. The ``next_obs`` that was given is kept in
            both cases. Of stacked observations the older frames must still be those of the steps before; and the first
            step after opening goes on only where its ``obs`` is the last ``next_obs``. The store keeps it.
    """

    columns: Mapping[str, Any] | None
    later: Mapping[str, Any] | None
    codec: str | Codec | Mapping[str, str | Codec] | None
    chunk_rows: int | Mapping[str, int] | None
    shard_rows: int | Mapping[str, int] | None
    finite: bool
    continuity: Continuity


class StoreOptions(FrameOptions, ColumnOptions, total=False):
    """The options of :func:`build`."""


FRAME_DEFAULTS = FrameOptions(
    frame_stack=1, stack_axis="auto", stack_padding="zero", reward_dtype=np.float32, video=None
)
COLUMN_DEFAULTS = ColumnOptions(
    columns=None, later=None, codec=None, chunk_rows=None, shard_rows=None, finite=False, continuity="observations"
)


def build(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    *,
    capacity: int,
    num_envs: int = 1,
    **options: Unpack[StoreOptions],
) -> Schema:
    """Return the schema of a new store, in the words of ``create``; raise SchemaError or InputError for a bad one."""
    options = {**FRAME_DEFAULTS, **COLUMN_DEFAULTS, **options}
    stack_padding = options["stack_padding"]
    num_envs = check_count("num_envs", num_envs, most=1 << 20)
    capacity = check_count("capacity", capacity)
    if capacity < num_envs:
        raise InputError(
            f"capacity counts transitions (rows x environments) and must hold at least one row of "
            f"{num_envs} environments, got {capacity}"
        )
    if not isinstance(observation_space, gymnasium.Space) or not isinstance(action_space, gymnasium.Space):
        got = f"{type(observation_space).__name__} and {type(action_space).__name__}"
        raise SchemaError(f"observation_space and action_space must be Gymnasium spaces, got {got}")
    if stack_padding not in ("zero", "reset"):
        raise InputError(f"stack_padding must be 'zero' or 'reset', got {stack_padding!r}")
    video = _video(options["video"], observation_space)
    given = [_encoded(field, video) for field in _leaf_fields(observation_space, OBS)]
    longest = _longest(observation_space, OBS) | _longest(action_space, ACTION) | dict.fromkeys(video, MAX_VALUE_BYTES)
    stacks, frames = _stacked(given, options["frame_stack"], options["stack_axis"])
    extras = [_encoded(field, video) for field in _extras(options["columns"], "columns")]
    fields = [*frames, *_leaf_fields(action_space, ACTION), *_always(options["reward_dtype"]), *extras]
    for name, _, _ in extras:
        if isinstance(space := (options["columns"] or {})[name], gymnasium.Space):
            longest |= _longest(space, name)
    later = _extras(options["later"], "later")
    for name, shape, _ in later:
        if None in shape:
            raise SchemaError(f"later: {name!r} cannot be ragged; write values of one length, or give it in columns=")
    names, obs_names = [name for name, _, _ in fields], [name for name, _, _ in frames]
    _check_names("video", set(video), [*obs_names, *(name for name, _, _ in extras)])
    settings = {"codec": options["codec"], "chunk_rows": options["chunk_rows"], "shard_rows": options["shard_rows"]}
    for what, setting in settings.items():
        if isinstance(setting, Mapping):
            _check_names(what, set(setting), names)
    given_of = {name: _given(name, obs_names, settings, packets=name in video) for name in names}
    built = tuple(
        Column(name, SPAN_SHAPE, SPAN_DTYPE, CHOSEN)
        if None in shape
        else Column(name, cast(tuple[int, ...], shape), dtype, given_of[name])
        for name, shape, dtype in fields
    )
    padding = Start.ZEROS if stack_padding == "zero" else Start.REPEAT
    return Schema(
        observation_space, action_space, built, tuple(stacks), padding, num_envs, capacity,
        finite=check_flag("finite", options["finite"]), continuity=check_continuity(options["continuity"]),
        later=tuple(Column(name, cast(tuple[int, ...], shape), dtype, CHOSEN) for name, shape, dtype in later),
        ragged={
            name: RaggedColumn(
                name, Column(f"{ITEMS}/{name}", cast(tuple[int, ...], shape[1:]), dtype, given_of[name]),
                longest.get(name), video.get(name),
            )
            for name, shape, dtype in fields if None in shape
        },
    )  # fmt: skip


def _video(given: Any, observation_space: gymnasium.Space[Any]) -> dict[str, Video]:
    given = {} if given is None else given
    if not isinstance(given, Mapping) or not all(isinstance(one, Video) for one in given.values()):
        raise InputError(f"video must be a mapping of columns to Video(...), got {given!r:.200}")
    leaves = spaces.named_leaves(observation_space, OBS)
    return {f"{OBS}/{name}" if f"{OBS}/{name}" in leaves else name: one for name, one in given.items()}


def _encoded(field: Field, video: Mapping[str, Video]) -> Field:
    """Return the field of a column as it is stored: of a video column that of its packets."""
    name, shape, dtype = field
    if name not in video:
        return field
    if (shape, dtype) != (video[name].shape, np.dtype(np.uint8)):
        raise SchemaError(f"video: {name!r} must be {video[name].shape} of uint8, as Video has it, got {shape} {dtype}")
    return name, (None,), dtype


def _leaf_fields(space: gymnasium.Space[Any], name: str) -> list[Field]:
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
    try:
        reward = np.dtype(reward_dtype)
    except TypeError as error:
        raise SchemaError(f"reward_dtype must be a floating point type, got {reward_dtype!r}") from error
    if reward.kind != "f":
        raise SchemaError(f"reward_dtype must be a floating point type, got {reward}")
    dtypes = [reward, *[np.dtype(bool)] * 3, np.dtype(np.uint8)]
    return [(name, (), dtype) for name, dtype in zip(ALWAYS_RESIDENT, dtypes, strict=True)]


def _extras(columns: Mapping[str, Any] | None, what: str) -> list[Field]:
    if columns is not None and not isinstance(columns, Mapping):
        raise InputError(f"{what} must be a mapping of names to dtypes, got {columns!r}")
    return [_extra(name, value, what) for name, value in (columns or {}).items()]


def _longest(space: gymnasium.Space[Any], name: str) -> dict[str, int]:
    leaves = spaces.named_leaves(space, name)
    return {key: leaf.max_length for key, leaf in leaves.items() if isinstance(leaf, gymnasium.spaces.Text)}


def _given(name: str, obs_names: list[str], settings: Mapping[str, Any], packets: bool) -> Given:
    """Return what the settings of ``create`` give for a column; ``packets`` of video are not compressed again."""
    found = {
        what: setting.get(name) if isinstance(setting, Mapping) else setting if name in obs_names else None
        for what, setting in settings.items()
    }
    for what in ("chunk_rows", "shard_rows"):
        if found[what] is not None:
            found[what] = check_count(f"{what} of column {name!r}", found[what], most=MAX_SET_ROWS)
    codec = found["codec"] or ("none" if packets else None)
    return Given(found["chunk_rows"], found["shard_rows"], Codec.parse(codec) if codec else None)


def _check_names(what: str, given: set[str], known: list[str]) -> None:
    if unknown := sorted(given - set(known)):
        raise InputError(f"{what}: there is no column {unknown[0]!r}; the columns are {known}")


def _frames_of(name: str, frame_stack: int | Mapping[str, int]) -> int:
    if isinstance(frame_stack, Mapping):
        frame_stack = frame_stack.get(name, frame_stack.get(name.removeprefix(f"{OBS}/"), 1))
    return check_count(f"frame_stack of {name!r}", frame_stack, most=1024)


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
    if frames == 1 or None in shape:  # of ragged ones the schema takes no stack
        axis = None
    if axis == "auto":
        axis = 0 if len(shape) >= 2 and shape[0] == frames else -1 if len(shape) >= 3 and shape[-1] == frames else None
        colours = [at for at in (0, -1) if len(shape) == 3 and shape[at] in [frames * count for count in COLOURS]]
        if axis is None and colours:
            raise SchemaError(
                f"{name!r}: axis {colours[0]} of shape {shape} may hold a stack of {frames} frames of "
                f"{cast(int, shape[colours[0]]) // frames} channels each; say stack_axis={colours[0]} if it does, "
                "stack_axis=None if observations are single frames, which are stacked when they are sampled"
            )
    if axis is None:
        return Stack(frames), shape
    size = shape[axis] if shape else None
    if size is None or size % frames:
        raise InputError(f"{name!r}: axis {axis} of shape {shape} cannot hold a stack of {frames} frames")
    depth = size // frames
    if depth == 1:
        return Stack(frames, axis), shape[1:] if axis == 0 else shape[:-1]
    return Stack(frames, axis, channels=True), (depth, *shape[1:]) if axis == 0 else (*shape[:-1], depth)


def _extra(name: str, value: Any, what: str) -> Field:
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
    if not layout[1].itemsize:
        raise SchemaError(
            f"{what}: {name!r} has a dtype without a size, {layout[1]}; text is kept as code points: (None,), np.int32"
        )
    return (name, *layout)
