"""The place in a store of each leaf of a tensordict.

1. A leaf under a key and another of the same shape and dtype under ``("next", *key)`` are an observation: the store
   holds it once where the next row's observation is bit for bit this row's next one.
2. ``action``, ``("next", "reward")``, ``("next", "terminated")`` and ``("next", "truncated")`` stand where the store
   keeps such values, so that it knows its episodes; where only ``("next", "done")`` is there, it counts as terminated.
3. Any other leaf is a column of its own.

A store that was made from tensordicts keeps the layout in its provenance, and gives each leaf back bit for bit. Any
other store has one, too: torchrl's TED layout, see :func:`standard`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase, is_non_tensor, is_tensor_collection

from diskreplay.checks import Array, check_array, check_key
from diskreplay.engine.inputs import rounded
from diskreplay.errors import CorruptionError, InputError, SchemaError
from diskreplay.schema.columns import ACTION, DTYPES, KNOWN, OBS, RESERVED, REWARD, TERMINATED, TRUNCATED, Schema
from diskreplay.schema.spaces import unbounded

Key = tuple[str, ...]
Source = Literal[
    "obs", "next_obs", "action", "reward", "terminated", "truncated", "done", "none", "column", "later", "slot"
]
"""The source of a leaf: a column, ``done`` (terminated or truncated), ``none`` (False), or the number of its slot."""

TORCHRL = "torchrl"
"""The entry of a store's provenance that is its layout."""
NEXT, DONE, INDEX = "next", "done", "index"
TRAJECTORIES: Key = ("collector", "traj_ids")
FLAGS = (REWARD, DONE, TERMINATED, TRUNCATED)
NOTHING = spaces.Box(0, 0, (1,), np.uint8)
"""The space of zeros, for what tensordicts do not have and a store must."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf.

    Attributes:
        key: the entry's key in the tensordict.
        source: the part of a step that the entry shows.
        name: the name of the store's column, where there is one.
        shape: the shape of one item; None for that of the column.
        dtype: numpy's name of it; "" for that of the column.
    """

    key: Key
    source: Source
    name: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""

    def shaped(self, values: Array) -> Array:
        """Return a column's values ``(n, ...)`` as those of the leaf."""
        if self.dtype and values.dtype != self.dtype:
            values = values.view(bool) if self.dtype == "bool" else values.astype(self.dtype)
        return values if self.shape is None else values.reshape(len(values), *self.shape)


@dataclasses.dataclass(frozen=True)
class Node:
    """The tensordict itself (``key`` is ``()``), or one within it; ``batch`` are its batch axes after the first."""

    key: Key
    batch: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """All leaves and nodes of a tensordict; a node comes before those in it."""

    leaves: tuple[Leaf, ...]
    nodes: tuple[Node, ...]

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, stored: Any) -> TensorLayout:
        """Return the layout that :meth:`to_json` described; raise CorruptionError if it is none."""
        try:
            leaves = tuple(
                Leaf(tuple(one["key"]), one["source"], one["name"], tuple(one["shape"]), str(np.dtype(one["dtype"])))
                for one in stored["leaves"]
            )
            return cls(leaves, tuple(Node(tuple(one["key"]), tuple(one["batch"])) for one in stored["nodes"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptionError(f"the store's layout of tensordicts cannot be read: {error!r}") from error

    # What the store holds

    def of(self, source: Source) -> list[Leaf]:
        """Return the leaves that show a source."""
        return [leaf for leaf in self.leaves if leaf.source == source]

    def create(self) -> dict[str, Any]:
        """Return arguments of ``ReplayBuffer.create``: spaces, columns, the reward's dtype."""
        observations = {leaf.name: _box(leaf) for leaf in self.of("obs")}
        actions, rewards = self.of("action"), self.of("reward")
        single = observations.get(OBS)
        parts: dict[str, spaces.Space[Any]] = {
            name.removeprefix(f"{OBS}/"): space for name, space in observations.items()
        }
        return {
            "observation_space": single or (spaces.Dict(parts) if parts else NOTHING),
            "action_space": _box(actions[0]) if actions else NOTHING,
            "columns": {leaf.name: (leaf.shape, np.dtype(leaf.dtype)) for leaf in self.of("column")},
            "reward_dtype": rewards[0].dtype if rewards else np.float32,
        }

    def rows(self, values: Mapping[Key, Array]) -> dict[str, Any]:
        """Return arguments of ``ReplayBuffer.extend`` from the leaves' values ``(n, ...)`` by key."""
        count = len(next(iter(values.values())))
        nothing = np.zeros((count, 1), np.uint8)

        def stored(source: Source, otherwise: Array, shape: tuple[int, ...] | None = None) -> Array:
            for leaf in self.of(source):
                return _stored(values[leaf.key]) if shape is None else values[leaf.key].reshape(count, *shape)
            return otherwise

        def observed(source: Source) -> Any:
            leaves = self.of(source)
            if [leaf.name for leaf in leaves] == [OBS]:
                return _stored(values[leaves[0].key])
            return {leaf.name.removeprefix(f"{OBS}/"): _stored(values[leaf.key]) for leaf in leaves} or nothing

        terminated = stored("terminated", np.zeros(count, bool), ())
        done = values.get((NEXT, DONE))
        ended = terminated if done is None or done.size != count else done.reshape(count).astype(bool)
        return {
            "obs": observed("obs"), "next_obs": observed("next_obs"), "action": stored("action", nothing),
            "reward": stored("reward", np.zeros(count, np.float32), ()), "terminated": terminated,
            "truncated": stored("truncated", ended & ~terminated, ()),
            **{leaf.name: values[leaf.key] for leaf in self.of("column")},
        }  # fmt: skip

    # Tensordicts that come in

    def values(self, data: TensorDictBase) -> dict[Key, Array]:
        """Return the values ``(n, ...)`` of each leaf of a tensordict, but for a slot's number.

        Raises InputError where it has other leaves, shapes or dtypes.
        """
        found = dict(leaves_of(data))
        inner, known = ({key for key, _ in _nodes(data)}, {node.key for node in self.nodes})
        slots = {leaf.key for leaf in self.of("slot")}
        wanted = {leaf.key: leaf for leaf in self.leaves if leaf.key not in slots}
        missing = (wanted.keys() - found.keys()) | (known - inner)
        unknown = (found.keys() - wanted.keys() - slots) | (inner - known)
        if missing or unknown:
            what = f"lacks {sorted(missing)[0]!r}" if missing else f"has {sorted(unknown)[0]!r} too"
            raise InputError(f"each tensordict must have the same leaves as the first one of the store; this {what}")
        arrays = {key: check_array(repr(key), found[key]) for key in wanted}
        for key, leaf in wanted.items():
            array = arrays[key]
            if found[key].dtype is torch.bfloat16 and np.dtype(leaf.dtype).kind == "f":
                array = arrays[key] = rounded(repr(key), array, leaf.dtype)
            if (array.shape[1:], array.dtype.name) != (leaf.shape, leaf.dtype):
                raise InputError(
                    f"{key!r} must be {leaf.dtype} {leaf.shape} as in the first tensordict of the store, "
                    f"got {array.dtype} {array.shape[1:]}"
                )
        return arrays


def layout_of(data: TensorDictBase, slots: bool) -> TensorLayout:
    """Return the layout of tensordicts ``(n, ...)``; a leaf ``index`` is the number of the slot if ``slots``.

    Raises InputError for what is no tensor of numbers, and SchemaError for what no store can hold.
    """
    nodes = tuple(Node(key, tuple(node.batch_size[1:])) for key, node in _nodes(data))
    shapes = {}
    for key, tensor in leaves_of(data):
        array = to_array(key, tensor)
        shapes[key] = array.shape[1:], array.dtype
    pairs = {
        key for key, (_, dtype) in shapes.items()
        if key[-1] not in FLAGS and shapes.get((NEXT, *key)) == shapes[key] and dtype.kind in "biuf"
    }  # fmt: skip
    names = Names()
    observations = {key: OBS if len(pairs) == 1 else f"{OBS}/{names.of(key)}" for key in sorted(pairs)}
    if not shapes.keys() - ({(INDEX,)} if slots else set()):
        raise InputError("a tensordict must have a leaf, got an empty one; give its tensors")
    names = Names({*RESERVED, "self"})  # columns become arguments of a method
    leaves = []
    for key, (shape, dtype) in shapes.items():
        source, name = _place(key, shape, dtype, shapes.keys(), observations, slots)
        leaves.append(Leaf(key, source, name or names.of(key), shape, dtype.name))
    return TensorLayout(tuple(leaves), nodes)


def _place(
    key: Key, shape: tuple[int, ...], dtype: np.dtype[Any], keys: Any, observations: Mapping[Key, str], slots: bool
) -> tuple[Source, str]:
    """Return what a leaf shows, and the name of the column, "" for a column that is yet to be named."""
    if key in observations:
        return "obs", observations[key]
    if key[0] == NEXT and key[1:] in observations:
        return "next_obs", observations[key[1:]]
    if key == (ACTION,) and dtype.kind in "biuf":
        return "action", ACTION
    if slots and key == (INDEX,):
        return "slot", INDEX
    if shape in ((), (1,)) and key[0] == NEXT and len(key) == 2:
        if key[1] == REWARD and dtype.kind == "f":
            return "reward", REWARD
        if dtype.kind == "b" and (key[1] == TERMINATED or (key[1] == DONE and (NEXT, TERMINATED) not in keys)):
            return "terminated", TERMINATED
        if dtype.kind == "b" and key[1] == TRUNCATED:
            return "truncated", TRUNCATED
    return "column", ""


def standard(schema: Schema) -> TensorLayout:
    """Return torchrl's TED layout of a store that was not made from tensordicts.

    An observation space that is no Dict is ``observation``; the keys of one stand beside ``action``, as torchrl's
    Gymnasium environments have them. The store's own columns follow by name; ``("collector", "traj_ids")`` numbers the
    episodes. InputError where two of them would have one key.
    """
    observations = [(_parts(column.name, OBS, "observation"), column.name) for column in schema.obs_columns]
    leaves = [
        *(Leaf(key, "obs", name) for key, name in observations),
        *(Leaf((NEXT, *key), "next_obs", name) for key, name in observations),
        *(Leaf((ACTION, *column.name.split("/")[1:]), "action", column.name) for column in schema.action_columns),
        *(Leaf((name,), "none", shape=(1,), dtype="bool") for name in (DONE, TERMINATED, TRUNCATED)),
        Leaf((NEXT, REWARD), "reward", shape=(1,)),
        Leaf((NEXT, DONE), "done", shape=(1,)),
        Leaf((NEXT, TERMINATED), "terminated", shape=(1,)),
        Leaf((NEXT, TRUNCATED), "truncated", shape=(1,)),
        *(Leaf((column.name,), "column", column.name) for column in schema.extra_columns),
        *(Leaf((name,), "later", name) for c in schema.later for name in (c.name, c.name + KNOWN)),
        Leaf(TRAJECTORIES, "slot", "", (), "int64"),
    ]
    seen: set[Key] = set()
    for leaf in leaves:
        if any(leaf.key[: len(key)] == key or key[: len(leaf.key)] == leaf.key for key in seen):
            raise InputError(f"the store has two leaves that would be {leaf.key!r} in a tensordict")
        seen.add(leaf.key)
    inner = {leaf.key[:depth] for leaf in leaves for depth in range(len(leaf.key))}
    return TensorLayout(tuple(leaves), tuple(Node(key, ()) for key in sorted(inner, key=lambda key: (len(key), key))))


def _parts(name: str, root: str, alone: str) -> Key:
    return (alone,) if name == root else tuple(name.split("/")[1:])


def stored_layout(provenance: Mapping[str, Any]) -> TensorLayout | None:
    """Return the layout that a store was made with, or None if it was not made from tensordicts."""
    return TensorLayout.from_json(provenance[TORCHRL]) if TORCHRL in provenance else None


# Names


class Names:
    """The names of columns, each given once."""

    def __init__(self, taken: Any = ()) -> None:
        self._taken = set(taken)

    def of(self, key: Key) -> str:
        """Return a name like the key that no other has; raise SchemaError if a file system cannot hold such a name."""
        name = check_key(".".join(part.replace("/", "-") for part in key), "tensordict")
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


# Tensors


def _nodes(data: TensorDictBase, key: Key = ()) -> Iterator[tuple[Key, TensorDictBase]]:
    yield key, data
    for name, value in data.items():
        if isinstance(value, TensorDictBase):
            yield from _nodes(value, (*key, name))


def leaves_of(data: TensorDictBase, key: Key = ()) -> Iterator[tuple[Key, torch.Tensor]]:
    """Yield keys and tensors; raise InputError for what is not a tensor, and for what only some of a stack have."""
    for part in getattr(data, "tensordicts", ()):
        if odd := {*part.keys()} - {*data.keys()}:
            raise InputError(f"{(*key, min(odd))!r} must be in each of the tensordicts of a stack, or in none")
    for name, value in data.items():
        here = (*key, name)
        if isinstance(value, TensorDictBase) and not is_non_tensor(value):
            yield from leaves_of(value, here)
        elif isinstance(value, torch.Tensor) and not is_tensor_collection(value):
            yield here, value
        else:
            raise InputError(
                f"{here!r} must be a tensor, got {type(value).__name__}: a store holds numbers; exclude it"
            )


def to_array(key: Key, tensor: torch.Tensor) -> Array:
    """Return a tensor as an array that may share its memory; raise SchemaError for a dtype unknown to Zarr."""
    array = check_array(repr(key), tensor)
    if array.dtype.name not in DTYPES or array.itemsize != tensor.itemsize:
        raise SchemaError(f"{key!r} cannot be stored as {tensor.dtype}; use one of {sorted(DTYPES)}")
    return array


def _box(leaf: Leaf) -> spaces.Box:
    assert leaf.shape is not None
    return unbounded(leaf.shape, np.uint8 if leaf.dtype == "bool" else leaf.dtype)  # as a bool is stored


def _stored(values: Array) -> Array:
    return values.view(np.uint8) if values.dtype == bool else values
