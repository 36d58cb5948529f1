"""The layout of a dataset's steps: its spaces, further columns, and how its frames are stacked.

A :class:`Layout` stands between a store's schema and a format's arrays. Observations are the frames that a store keeps:
single, however many of them an observation stacks; :attr:`Layout.stacks` says how many. Formats that have a place for
it keep the layout as JSON, so that nothing has to be inferred when the dataset is read again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np

from diskreplay.buffers.provenance import checked
from diskreplay.checks import Array
from diskreplay.errors import CorruptionError, InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.names import natural
from diskreplay.formats.core.untrusted import VALUE_BYTES, declared_count, parse_json
from diskreplay.schema import columns as schemas
from diskreplay.schema import spaces
from diskreplay.schema.columns import (
    ACTION,
    OBS,
    RESERVED,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Column,
    Continuity,
    Schema,
    Stack,
    Start,
)  # fmt: skip
from diskreplay.schema.spec import build
from diskreplay.video import Video

Shape = tuple[tuple[int, ...], np.dtype[Any]]
"""The shape and dtype of one value; of a ragged column that of one item, see ``Layout.ragged``."""
ChangeLeaf = Callable[[gymnasium.Space[Any], str], gymnasium.Space[Any] | None]
BAD_DESCRIPTION = (CorruptionError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
FLOAT32: np.dtype[Any] = np.dtype(np.float32)
PACKETS: Shape = (), np.dtype(np.uint8)
"""The shape and dtype of an item of video."""
CODE_POINTS: Shape = (), np.dtype(np.int32)
"""The shape and dtype of a character of a text."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of each step of a dataset.

    Attributes:
        observation_space: the space of the observations in the dataset: single frames, unless a stack's ``axis`` says
            otherwise.
        action_space: the space of the dataset's actions.
        columns: shape and dtype of each further column, by name.
        reward_dtype: a floating point type.
        stacks: one for each observation leaf, in order.
        padding: the padding of single frames at an episode's start.
        finite: the same option of the store that the steps come from; datasets of other formats do not hold it.
        continuity: likewise; datasets hold it, for next observations of their own would be cuts without it.
        provenance: the origin of the steps, a mapping of JSON values; empty where nothing is known.
        ragged_columns: those of ``columns`` that are ragged.
        video: the facts of the leaves and columns that hold video, by name. Their values are lists of bytes: the format
            keeps packets, and nothing is encoded or decoded. Their spaces are those of pictures.
        task: the name of the texts that a caller wants as the tasks of the steps; datasets do not hold it.
    """

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    columns: Mapping[str, Shape] = dataclasses.field(default_factory=dict)
    reward_dtype: np.dtype[Any] = FLOAT32
    stacks: tuple[Stack, ...] = ()
    padding: Start = Start.ZEROS
    finite: bool = False
    continuity: Continuity = "observations"
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ragged_columns: frozenset[str] = frozenset()
    video: Mapping[str, Video] = dataclasses.field(default_factory=dict)
    task: str | None = None

    def __post_init__(self) -> None:
        if not self.stacks:
            object.__setattr__(self, "stacks", tuple(Stack() for _ in self.obs))

    @property
    def obs_tree(self) -> spaces.Tree:
        return spaces.tree(self.observation_space, OBS)

    @property
    def action_tree(self) -> spaces.Tree:
        return spaces.tree(self.action_space, ACTION)

    @property
    def obs(self) -> dict[str, Shape]:
        """The observation leaves by name, such as ``obs/camera``."""
        leaves = _leaves(self.observation_space, OBS)
        return {name: PACKETS if name in self.video else shape for name, shape in leaves.items()}

    @property
    def action(self) -> dict[str, Shape]:
        """The action leaves by name."""
        return _leaves(self.action_space, ACTION)

    @property
    def leaves(self) -> dict[str, gymnasium.Space[Any]]:
        """The spaces of the leaves of observations and actions by name."""
        return spaces.named_leaves(self.observation_space, OBS) | spaces.named_leaves(self.action_space, ACTION)

    @property
    def ragged(self) -> set[str]:
        """The names of all ragged leaves and columns, whose values are :class:`~diskreplay.schema.ragged.Lists`."""
        varying = {name for name, leaf in self.leaves.items() if spaces.is_ragged(leaf, name)}
        return varying | self.ragged_columns | self.video.keys()

    @property
    def texts(self) -> set[str]:
        """The names of the leaves that are Text spaces, and of the columns whose rows are code points of texts.

        Which columns that are an import says in the provenance, as ``text`` below the name of its format.
        """
        told = [origin.get("text") for origin in self.provenance.values() if isinstance(origin, dict)]
        known = [self.task, *(name for names in told if isinstance(names, list) for name in names)]
        columns = {name for name in self.ragged_columns if name in known and self.columns[name] == CODE_POINTS}
        return columns | {name for name, leaf in self.leaves.items() if isinstance(leaf, gymnasium.spaces.Text)}

    def with_texts(self, texts: Mapping[str, gymnasium.Space[Any]]) -> Layout:
        """Return an inferred layout with these spaces in place of the leaves of their names."""
        observations = map_leaves(self.observation_space, OBS, lambda leaf, name: texts.get(name, leaf))
        actions = map_leaves(self.action_space, ACTION, lambda leaf, name: texts.get(name, leaf))
        return dataclasses.replace(self, observation_space=observations, action_space=actions, stacks=())

    @property
    def step_shapes(self) -> dict[str, Shape]:
        """The shapes of all parts of a step but its next observation, by the names of ``Transitions.columns()``."""
        flag: Shape = (), np.dtype(bool)
        own: dict[str, Shape] = {REWARD: ((), self.reward_dtype), TERMINATED: flag, TRUNCATED: flag}
        return {**self.obs, **self.action, **self.columns, **own}

    @property
    def step_bytes(self) -> int:
        """The number of decoded bytes of one step: observation, action, reward, flags and columns."""
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in self.step_shapes.values())

    @property
    def stacked(self) -> bool:
        """True if observations hold stacks, and not single frames."""
        return any(stack.axis is not None for stack in self.stacks)

    @classmethod
    def of(cls, schema: Schema, *, stacked: bool = False, provenance: Mapping[str, Any] | None = None) -> Layout:
        """Return the layout of a store's single frames, or with ``stacked`` of observations just as they were given."""
        columns = {column.name: (column.shape, column.dtype) for column in schema.extra_columns}
        ragged = columns.keys() & schema.ragged.keys()
        columns |= {name: (schema.ragged[name].items.shape, schema.ragged[name].items.dtype) for name in ragged}
        reward = schema.column(REWARD).dtype
        space, stacks = schema.observation_space, schema.stacks
        if not stacked:
            frames = {c.name: (stack, c) for stack, c in zip(schema.stacks, schema.obs_columns, strict=True)}
            space = map_leaves(
                space, OBS, lambda leaf, name: _frame_space(leaf, *frames[name]) if name in frames else leaf
            )  # a Graph stays as it is
            stacks = tuple(Stack(stack.frames) for stack in stacks)
        return cls(
            space, schema.action_space, columns, reward, stacks, schema.padding, schema.finite, schema.continuity,
            provenance or {}, frozenset(ragged),
            schema.videos,
        )  # fmt: skip

    def only(self, names: tuple[str, ...] | None) -> Layout:
        """Return the layout with the named columns only; action, reward and flags stay.

        Args:
            names: the names of observation leaves (``obs`` for all) and of further columns; None for everything.

        Raises InputError for a name that does not exist, or where no observation would be left.
        """
        if names is None:
            return self
        choice = Choice(columns=names)
        choice.check_columns(self.obs, self.columns)
        wanted = set(filter(choice.wants, [*self.obs, *self.columns]))
        space = map_leaves(
            self.observation_space, OBS, lambda leaf, name: None if wanted.isdisjoint(_leaves(leaf, name)) else leaf
        )
        stacks = tuple(stack for leaf, stack in zip(self.obs, self.stacks, strict=True) if leaf in wanted)
        columns = {name: shape for name, shape in self.columns.items() if name in wanted}
        ragged = self.ragged_columns & columns.keys()
        video = {name: facts for name, facts in self.video.items() if name in wanted}
        return dataclasses.replace(
            self, observation_space=space, stacks=stacks, columns=columns, ragged_columns=ragged, video=video
        )

    def create_arguments(self) -> dict[str, Any]:
        """Return the arguments with which ``ReplayBuffer.create`` makes a store for such steps."""
        shapes = {n: (None, *shape) if n in self.ragged_columns else shape for n, (shape, _) in self.columns.items()}
        shapes |= {name: facts.shape for name, facts in self.video.items()}
        given: dict[str, Any] = {
            "observation_space": self.observation_space,
            "action_space": self.action_space,
            "columns": {name: (shapes[name], dtype) for name, (_, dtype) in self.columns.items()},
            "video": dict(self.video),
            "reward_dtype": self.reward_dtype,
            "frame_stack": {leaf: stack.frames for leaf, stack in zip(self.obs, self.stacks, strict=True)},
            "stack_padding": "zero" if self.padding == Start.ZEROS else "reset",
            "finite": self.finite,
            "continuity": self.continuity,
        }
        axes = {stack.axis for stack in self.stacks if stack.frames > 1} or {None}
        axis = next(iter(axes)) if len(axes) == 1 else "auto"
        if build(**given, capacity=1, stack_axis=axis).stacks != self.stacks:
            raise InputError(f"no stack_axis describes the stacks {self.stacks}")
        return {**given, "stack_axis": axis, "provenance": self.provenance}

    def to_json(self) -> dict[str, Any]:
        return {
            "observation_space": spaces.to_json(self.observation_space),
            "action_space": spaces.to_json(self.action_space),
            "columns": {name: [list(shape), dtype.name] for name, (shape, dtype) in self.columns.items()},
            "reward_dtype": self.reward_dtype.name,
            "frame_stack": [stack.frames for stack in self.stacks],
            "padding": self.padding.name.lower(),
            "continuity": self.continuity,
            **({"provenance": dict(self.provenance)} if self.provenance else {}),
            **({"ragged": sorted(self.ragged_columns)} if self.ragged_columns else {}),
            **({"video": {name: facts.to_json() for name, facts in self.video.items()}} if self.video else {}),
        }

    @classmethod
    def from_json(cls, stored: Any, where: str) -> Layout:
        """Return the layout that :meth:`to_json` gave, or a JSON text of it; raise InputError otherwise."""
        if isinstance(stored, str | bytes):
            stored = parse_json(stored, where)
        try:
            columns = {
                str(name): (tuple(declared_count(size, "a size") for size in shape), _dtype(dtype))
                for name, (shape, dtype) in stored["columns"].items()
            }
            _check_spaces([stored["observation_space"], stored["action_space"]])
            with np.errstate(invalid="raise", over="raise"):  # bounds that their dtype does not hold
                observations, actions = (spaces.from_json(stored[f"{key}_space"]) for key in ("observation", "action"))
            stacks = tuple(Stack(declared_count(frames, "frame_stack")) for frames in stored["frame_stack"])
            padding = Start[stored["padding"].upper()]
            continuity = schemas.check_continuity(stored.get("continuity", "observations"))
            layout = cls(
                observations, actions, columns, _dtype(stored["reward_dtype"]), stacks, padding, continuity=continuity,
                provenance=checked(stored.get("provenance")),
                ragged_columns=frozenset(map(str, stored.get("ragged", ()))),
                video={str(name): Video.from_json(facts) for name, facts in stored.get("video", {}).items()},
            )  # fmt: skip
            layout.create_arguments()
            return layout
        except BAD_DESCRIPTION as error:
            raise InputError(f"{where}: the description that diskreplay left there cannot be read: {error}") from error


def read_description(stored: Any, where: str) -> tuple[Layout, dict[str, str]]:
    """Return the layout and our name of each array from a description ``{"layout": ..., "keys": {name: array}}``.

    Raises InputError, naming ``where``, for anything else.
    """
    try:
        layout, names = stored["layout"], {str(key): str(name) for name, key in stored["keys"].items()}
    except BAD_DESCRIPTION as error:
        raise InputError(f"{where}: the description that diskreplay left there cannot be read: {error}") from error
    return Layout.from_json(layout, where), names


def _dtype(name: Any) -> np.dtype[Any]:
    if name not in schemas.DTYPES:
        raise ValueError(f"there is no dtype {str(name)[:40]!r}")
    return np.dtype(str(name))


def _check_spaces(documents: Any) -> None:
    """Raise ValueError for spaces whose bounds would take more memory than a step's value may."""
    for document in documents:
        parts = document.get("spaces", [])
        _check_spaces(parts.values() if isinstance(parts, dict) else parts)
        check_bounds(document.get("shape", ()), document.get("dtype", "bool"))


def check_bounds(shape: Any, dtype: Any) -> None:
    """Raise ValueError for a space whose values would take more memory than a step's value may."""
    if math.prod(declared_count(size, "a size") for size in shape) * _dtype(dtype).itemsize > VALUE_BYTES:
        raise ValueError(f"values of {dtype} {shape} are too large")


def map_leaves(space: gymnasium.Space[Any], name: str, change: ChangeLeaf) -> Any:
    """Return the space called ``name`` with ``change(leaf, leaf's name)`` in place of each leaf, without those of None.

    Returns None if no leaf is left; raises InputError where only some parts of a Tuple are.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        parts = [(key, map_leaves(sub, f"{name}/{key}", change)) for key, sub in space.spaces.items()]
        named = [(key, part) for key, part in parts if part is not None]
        return gymnasium.spaces.Dict(named) if named else None
    if isinstance(space, gymnasium.spaces.Tuple):
        each = [map_leaves(sub, f"{name}/{at}", change) for at, sub in enumerate(space.spaces)]
        if None in each and any(part is not None for part in each):
            raise InputError(f"{name}: the parts of a Tuple space have no names of their own; choose all of them")
        return None if None in each else gymnasium.spaces.Tuple(each)
    return change(space, name)


def infer_space(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> gymnasium.Space[Any]:
    """Return the widest Box of this shape and dtype: what an array alone says about a space."""
    if dtype.name not in schemas.DTYPES or dtype.kind == "c":
        raise InputError(f"{name}: a store holds no values of dtype {dtype}; convert the source first")
    if math.prod(shape) == 0:
        raise InputError(f"{name}: a step has no element (shape {shape})")
    check_bounds(shape, dtype.name)
    return spaces.unbounded(shape, dtype)


def infer_discrete(low: int, high: int, dtype: np.dtype[Any]) -> gymnasium.Space[Any]:
    """Return the Discrete space of integers from ``low`` to ``high``, which begins at 0 if they are not negative.

    Raises InputError where it cannot be so wide.
    """
    start = min(0, low)
    if high - start >= np.iinfo(np.int64).max:
        raise InputError(f"actions from {low} to {high} are more than a Discrete space has")
    return spaces.discrete(max(1, high - start + 1), start, dtype)


def infer_choices(low: Array, high: Array, dtype: np.dtype[Any]) -> gymnasium.Space[Any]:
    """Return the space of integers between ``low`` and ``high``, arrays of one value each of a step.

    Single integers are Discrete; several that are not negative MultiDiscrete, others a Box of their range.
    """
    least, most = int(low.min()), int(high.max())
    if not low.shape:
        return infer_discrete(least, most, dtype)
    if least < 0 or most >= min(np.iinfo(dtype).max, np.iinfo(np.int64).max):
        return gymnasium.spaces.Box(least, most, low.shape, dtype.type)
    return gymnasium.spaces.MultiDiscrete(high.astype(np.int64) + 1, dtype=dtype.type)


def infer_text(characters: Iterable[str], longest: int) -> gymnasium.Space[Any]:
    """Return the space of texts of these characters that are at most so long."""
    return gymnasium.spaces.Text(max(1, longest), min_length=0, charset="".join(sorted({*characters})) or " ")


def infer_dict(leaves: Mapping[str, gymnasium.Space[Any]]) -> gymnasium.Space[Any]:
    """Return nested spaces of leaves by path, such as ``"arm/joints"``, or the one leaf at ``""``.

    Parts that are numbered from 0 on make a Tuple, others a Dict.
    """
    if "" in leaves:
        return leaves[""]
    nested: dict[str, dict[str, gymnasium.Space[Any]]] = {}
    for path, space in leaves.items():
        first, _, rest = path.partition("/")
        nested.setdefault(first, {})[rest] = space
    found = {key: infer_dict(parts) for key, parts in nested.items()}
    numbers = [str(number) for number in range(len(found))]
    if sorted(found, key=natural) == numbers:
        return gymnasium.spaces.Tuple([found[number] for number in numbers])
    return gymnasium.spaces.Dict(list(found.items()))


def column_name(key: str) -> str:
    """Return a name that a store allows for a column ``key``, without slashes, leading dots and reserved names."""
    name = key.replace("/", ".").strip(".") or "column"
    return f"info_{name}" if name in RESERVED else name


def _leaves(space: gymnasium.Space[Any], root: str) -> dict[str, Shape]:
    layouts = {name: spaces.column_layout(leaf, name) for name, leaf in spaces.named_leaves(space, root).items()}
    return {name: (tuple(size for size in shape if size), dtype) for name, (shape, dtype) in layouts.items()}


def _frame_space(space: gymnasium.Space[Any], stack: Stack, column: Column) -> gymnasium.Space[Any]:
    if stack.axis is None:
        return space
    if not isinstance(space, gymnasium.spaces.Box):
        return infer_space(column.shape, column.dtype, column.name)
    newest = np.arange(-column.shape[stack.axis], 0) if stack.channels else -1
    low, high = (np.take(bound, newest, stack.axis) for bound in (space.low, space.high))
    return gymnasium.spaces.Box(low, high, column.shape, column.dtype.type)
