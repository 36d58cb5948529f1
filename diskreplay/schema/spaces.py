"""Gymnasium spaces as columns: the arrays that a space needs, and how nested values go in and come out.

A Box, Discrete, MultiDiscrete or MultiBinary space is one *leaf*; so is a Text, or a Sequence of one of these, whose
values have different numbers of items. Dict and Tuple spaces nest: the leaf of ``Dict(camera=..., joints=Tuple(...))``
under ``obs`` are ``obs/camera``, ``obs/joints/0``, ``obs/joints/1``. A Graph is a Dict of the Sequences ``nodes``,
``edges`` and ``edge_links``.
A :data:`Tree` is that structure with leaf names at its ends; values travel flat, in the order of
:func:`leaves`. Spaces are kept as JSON (:func:`to_json`, :func:`from_json`), so that a store opens without them.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike

from diskreplay.checks import check_array, check_key
from diskreplay.errors import CorruptionError, InputError, SchemaError

Tree = str | dict[str, Any] | tuple[Any, ...]
"""A leaf's name, or a dict or tuple of trees."""

MAX_VALUE_BYTES = 1 << 30
"""The most bytes of one value of a leaf: more does not fit into a chunk."""
MAX_ELEMENTS = 1 << 28
"""The most elements of one value of a space: it keeps bounds of each, however short its document is."""
MAX_DEPTH = 100
"""The most Dict and Tuple spaces within each other: far from what a reader's stack holds."""
LEAF_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
LINKS = spaces.Box(0, np.iinfo(np.int32).max, (2,), np.int32)
"""The space of an edge of a Graph: the numbers of its two nodes."""
ADVICE = {
    "OneOf": "store the choice as a Discrete and every alternative as a padded Box in a Dict first",
    "Text": "its values are texts: declare a gymnasium.spaces.Text(1000, charset=string.printable) in its place, by "
    "gymnasium.wrappers.TransformObservation(env, lambda obs: obs, space)",
}


TYPED_DISCRETE = "dtype" in inspect.signature(spaces.Discrete.__init__).parameters
"""False in older versions of Gymnasium, which know Discrete spaces of int64 alone."""


def discrete(n: int, start: int, dtype: np.dtype[Any]) -> gymnasium.Space[Any]:
    """Return a Discrete space of a dtype, or a Box of the same numbers if Gymnasium has no such Discrete."""
    if dtype == np.int64:
        return spaces.Discrete(n, start=start)
    if not TYPED_DISCRETE or n > np.iinfo(dtype).max:
        return spaces.Box(start, start + n - 1, (), cast(Any, dtype.type))
    return spaces.Discrete(n, start=start, dtype=cast(Any, dtype.type))


def unbounded(shape: tuple[int, ...], dtype: DTypeLike) -> spaces.Box:
    """Return the Box of all values of a shape and dtype."""
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind.kind in "fb":
        low, high = (-np.inf, np.inf) if kind.kind == "f" else (0, 1)
    else:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
    return spaces.Box(low, high, shape, kind.type)


def tree(space: gymnasium.Space[Any], name: str) -> Tree:
    """Return the structure of ``space``, its leaves named under ``name``; raise SchemaError for a bad leaf."""
    if name.count("/") > MAX_DEPTH:
        raise SchemaError(f"{name[:80]}...: Dict and Tuple spaces may be {MAX_DEPTH} deep; flatten the space")
    kind = type(space).__name__
    match space:
        case spaces.Dict() | spaces.Tuple() if not space.spaces:
            raise SchemaError(f"{name}: a {kind} space needs at least one entry")
        case spaces.Dict():
            return {key: tree(sub, f"{name}/{check_key(key, name)}") for key, sub in space.spaces.items()}
        case spaces.Tuple():
            return tuple(tree(sub, f"{name}/{position}") for position, sub in enumerate(space.spaces))
        case spaces.Graph():
            return tree(_graph(space), name)
        case spaces.Sequence() if not isinstance(space.feature_space, LEAF_SPACES):
            raise SchemaError(
                f"{name}: a Sequence of {type(space.feature_space).__name__} is no single array; make it a Dict or "
                "Tuple of Sequences of Box, Discrete, MultiDiscrete or MultiBinary"
            )
        case _ if isinstance(space, (*LEAF_SPACES, spaces.Sequence, spaces.Text)):
            return name
    texts = space.dtype is not None and np.dtype(space.dtype).kind == "U"
    advice = ADVICE.get(
        "Text" if texts else kind, "map it to Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple first"
    )
    raise SchemaError(f"{name}: a {kind} space has no fixed shape and dtype on disk; {advice}")


def _graph(space: spaces.Graph) -> spaces.Dict:
    parts: dict[str, gymnasium.Space[Any]] = {"nodes": spaces.Sequence(space.node_space, stack=True)}
    if space.edge_space is not None:
        parts |= {"edges": spaces.Sequence(space.edge_space, stack=True)}
        parts |= {"edge_links": spaces.Sequence(LINKS, stack=True)}
    return spaces.Dict(list(parts.items()))


def is_ragged(space: gymnasium.Space[Any], name: str) -> bool:
    """Tell whether a leaf of a space has values of different lengths."""
    return not all(isinstance(leaf, LEAF_SPACES) for leaf in named_leaves(space, name).values())


def leaves(structure: Tree) -> list[str]:
    """Return leaf names in storage order."""
    if isinstance(structure, str):
        return [structure]
    children = structure.values() if isinstance(structure, dict) else structure
    return [leaf for child in children for leaf in leaves(child)]


def leaf_spaces(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    """Return the leaf spaces in the order of :func:`leaves`."""
    if isinstance(space, spaces.Graph):
        space = _graph(space)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        children = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [leaf for child in children for leaf in leaf_spaces(child)]
    return [space]


def named_leaves(space: gymnasium.Space[Any], name: str) -> dict[str, gymnasium.Space[Any]]:
    """Return the leaves of ``space`` by their names under ``name``."""
    return dict(zip(leaves(tree(space, name)), leaf_spaces(space), strict=True))


def flatten(structure: Tree, value: Any, what: str) -> list[Any]:
    """Return the leaves of a nested ``value``; raise InputError if its structure is not that of the space."""
    if isinstance(structure, str):
        return [value]
    if isinstance(structure, dict):
        if isinstance(value, spaces.GraphInstance):
            value = _parts(value, structure, what)
        elif isinstance(value, list | tuple) and value and all(isinstance(one, spaces.GraphInstance) for one in value):
            graphs = [_parts(one, structure, what) for one in value]  # of several environments, or steps
            value = {key: [one.get(key) for one in graphs] for key in dict.fromkeys(itertools.chain(*graphs))}
        if not isinstance(value, dict) or value.keys() != structure.keys():
            got = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise InputError(f"{what}: must be a dict with the keys {sorted(structure)}, got {got}")
        return [leaf for key, child in structure.items() for leaf in flatten(child, value[key], f"{what}[{key!r}]")]
    if not isinstance(value, tuple | list) or len(value) != len(structure):
        raise InputError(f"{what}: must be a tuple of {len(structure)} values, got {type(value).__name__}")
    pairs = enumerate(zip(structure, value, strict=True))
    return [leaf for i, (child, part) in pairs for leaf in flatten(child, part, f"{what}[{i}]")]


def _parts(graph: spaces.GraphInstance, structure: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the parts of a graph by name; raise InputError unless it has a link for each edge, from node to node."""
    parts = {key: part for key, part in graph._asdict().items() if key in structure or part is not None}
    named = {"edges": graph.edges, "edge_links": graph.edge_links}
    edges, links = (check_array(f"{what}[{key!r}]", () if part is None else part) for key, part in named.items())
    if edges.shape[:1] != links.shape[:1]:
        raise InputError(
            f"{what}: a graph must have a link for each edge, got edges {edges.shape} and edge_links {links.shape}"
        )
    given: Any = graph.nodes
    nodes = len(given) if hasattr(given, "__len__") else 0
    if links.dtype.kind in "iu" and links.size and (links.min() < 0 or links.max() >= nodes):
        raise InputError(f"{what}: edge_links must be numbers of the {nodes} nodes, got {links.min()} to {links.max()}")
    return parts


def unflatten(structure: Tree, values: Sequence[Any]) -> Any:
    """Return the nested value whose leaves are ``values``: the inverse of :func:`flatten`."""
    if isinstance(structure, str):  # as mostly
        return values[0]
    return _build(structure, iter(values))


def _build(node: Tree, remaining: Iterator[Any]) -> Any:
    # No nested function: one that calls itself is a reference cycle, and would keep the arrays until collected.
    if isinstance(node, str):
        return next(remaining)
    if isinstance(node, dict):
        return {key: _build(child, remaining) for key, child in node.items()}
    return tuple(_build(child, remaining) for child in node)


def column_layout(space: gymnasium.Space[Any], name: str) -> tuple[tuple[int | None, ...], np.dtype[Any]]:
    """Return the shape and dtype of one value of a leaf space; the first axis is None if its length varies."""
    match space:
        case spaces.Text():
            return (None,), np.dtype(np.int32)  # code points
        case spaces.Sequence():
            shape, dtype = leaf_layout(space.feature_space, name)
            return (None, *shape), dtype
    return leaf_layout(space, name)


def leaf_layout(space: gymnasium.Space[Any], name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of one value of a leaf space; raise SchemaError if its length varies."""
    if not isinstance(space, LEAF_SPACES):
        raise SchemaError(f"{name}: values of a {type(space).__name__} have no fixed shape, as is needed here")
    shape, dtype = space.shape, space.dtype
    if shape is None or dtype is None:
        raise SchemaError(f"{name}: the space {space} has no shape or dtype")
    if math.prod(shape) == 0:
        raise SchemaError(f"{name}: a column needs at least one element a row, got shape {shape}")
    return tuple(int(n) for n in shape), np.dtype(dtype)


def choices(space: gymnasium.Space[Any]) -> tuple[Any, Any] | None:
    """Return the least and largest value of a discrete leaf space, numbers or arrays of its shape; None for a Box."""
    match space:
        case spaces.Discrete():
            return int(space.start), int(space.start) + int(space.n) - 1
        case spaces.MultiDiscrete():
            wide = np.uint64 if space.dtype == np.uint64 else np.int64
            least = space.start.astype(wide)
            most = least + (space.nvec.astype(wide) - wide(1))
            if (least == least.flat[0]).all() and (most == most.flat[0]).all():
                return int(least.flat[0]), int(most.flat[0])
            return least, most
        case spaces.MultiBinary():
            return 0, 1
        case spaces.Sequence():
            return choices(space.feature_space)
    return None


def to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """Return a JSON document that :func:`from_json` turns into an equal space."""
    match space:
        case spaces.Dict():
            return {"kind": "Dict", "spaces": {key: to_json(sub) for key, sub in space.spaces.items()}}
        case spaces.Tuple():
            return {"kind": "Tuple", "spaces": [to_json(sub) for sub in space.spaces]}
        case spaces.Box():
            return {
                "kind": "Box",
                "shape": list(space.shape),
                "dtype": np.dtype(space.dtype).name,
                "low": _bound_to_json(space.low),
                "high": _bound_to_json(space.high),
            }
        case spaces.Discrete():
            return {
                "kind": "Discrete",
                "n": int(space.n),
                "start": int(space.start),
                "dtype": np.dtype(cast(Any, space.dtype)).name,
            }
        case spaces.MultiDiscrete():
            return {
                "kind": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "dtype": np.dtype(cast(Any, space.dtype)).name,
            }
        case spaces.MultiBinary():
            return {"kind": "MultiBinary", "shape": list(space.shape)}
        case spaces.Text():
            characters = "".join(space.character_list)
            return {"kind": "Text", "min": space.min_length, "max": space.max_length, "characters": characters}
        case spaces.Sequence():
            return {"kind": "Sequence", "item": to_json(space.feature_space), "stacked": bool(space.stack)}
        case spaces.Graph():
            edges = space.edge_space
            return {"kind": "Graph", "node": to_json(space.node_space), "edge": edges and to_json(edges)}
    raise SchemaError(f"cannot store the space {space}")


def from_json(document: Any) -> gymnasium.Space[Any]:
    """Return the space of a document by :func:`to_json`; raise CorruptionError if it is none."""
    try:
        if (count := _elements(document)) > MAX_ELEMENTS:
            raise ValueError(f"a value of {count:,} elements is too large; at most {MAX_ELEMENTS:,} are read")
        return _from_json(document)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, OverflowError, RecursionError) as error:
        raise CorruptionError(f"the stored space {str(document)[:200]} cannot be read: {error}") from error


def _elements(document: Any) -> int:
    match document["kind"]:
        case "Sequence" | "Graph":
            return sum(_elements(document[part]) for part in ("item", "node", "edge") if document.get(part))
        case "Dict":
            return sum(map(_elements, document["spaces"].values()))
        case "Tuple":
            return sum(map(_elements, document["spaces"]))
    shape = document.get("shape", ())
    if not all(type(size) is int and size > 0 for size in shape):
        raise ValueError(f"the shape {shape!r} must be positive integers")
    return math.prod(shape)


def _from_json(document: Any) -> gymnasium.Space[Any]:
    match document["kind"]:
        case "Dict":  # in the stored order of the keys: gymnasium keeps that of a sequence of pairs
            return spaces.Dict([(key, _from_json(sub)) for key, sub in document["spaces"].items()])
        case "Tuple":
            return spaces.Tuple([_from_json(sub) for sub in document["spaces"]])
        case "Box":
            shape, dtype = tuple(document["shape"]), np.dtype(document["dtype"])
            if math.prod(shape) * dtype.itemsize > MAX_VALUE_BYTES:
                raise ValueError(f"shape {shape} of {dtype} is too large")
            low, high = (_bound_from_json(document[key], shape, dtype) for key in ("low", "high"))
            return spaces.Box(low, high, shape, cast(Any, dtype.type))
        case "Discrete":
            dtype = np.dtype(document["dtype"])
            if dtype != np.int64 and not TYPED_DISCRETE:
                raise ValueError(
                    f"Gymnasium {gymnasium.__version__} knows no Discrete spaces of {dtype}; a newer one does"
                )
            return discrete(document["n"], document["start"], dtype)
        case "MultiDiscrete":
            dtype = np.dtype(document["dtype"])
            start = np.array(document["start"], dtype)
            return spaces.MultiDiscrete(np.array(document["nvec"]), dtype=cast(Any, dtype.type), start=start)
        case "MultiBinary":
            shape = tuple(document["shape"])
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
        case "Text":
            return spaces.Text(document["max"], min_length=document["min"], charset=document["characters"])
        case "Sequence":
            return spaces.Sequence(_from_json(document["item"]), stack=document["stacked"])
        case "Graph":
            edge = document["edge"]
            return spaces.Graph(cast(Any, _from_json(document["node"])), cast(Any, edge and _from_json(edge)))
    raise ValueError(f"unknown kind {document['kind']!r}")


def _bound_to_json(bound: np.ndarray[Any, Any]) -> Any:
    values = bound.ravel()
    if np.array_equal(values, np.full_like(values, values[0]), equal_nan=values.dtype.kind == "f"):
        return _number_to_json(values[0])
    different, places = np.unique(values, return_inverse=True)
    numbers = [_number_to_json(value) for value in different]
    return [numbers[place] for place in places.ravel().tolist()]


def _bound_from_json(stored: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if isinstance(stored, list):
        return np.array([float(v) if isinstance(v, str) else v for v in stored], dtype).reshape(shape)
    return np.full(shape, float(stored) if isinstance(stored, str) else stored, dtype)


def _number_to_json(value: np.generic) -> Any:
    # The shortest decimal that gives the same number back: 0.1, and not 0.10000000149011612.
    number = float(str(value)) if isinstance(value, np.float16 | np.float32) else value.item()
    return repr(number) if isinstance(number, float) and not math.isfinite(number) else number
