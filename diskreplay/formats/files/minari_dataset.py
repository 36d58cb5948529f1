"""The rules that the storages of Minari share: metadata, spaces as JSON, and what an episode is.

1. An episode of ``n`` steps holds ``observations`` ``(n + 1, *shape)``, the last of them final, and ``actions``,
   ``rewards``, ``terminations`` and ``truncations`` of ``n``.
2. The user's own columns are ``infos/<name>``, ``(n + 1, *shape)``: what step ``t`` returned is entry ``t + 1``, as
   Minari records it. Entry 0 belongs to the reset; it is zero where it is written here, and is not read. An import of
   another's dataset says so.
3. Images are kept as they are, not as JPEG: ``jpeg_encoding`` is false, which Minari knows since 0.5.4. Datasets that
   come in with JPEG are decoded; what it lost is lost.
4. Minari takes every Discrete space for int64; the values keep their dtype.
5. The environment's specification is ``env_spec``, as text: ``recover_environment()`` makes the environment of it.
6. What comes in has the spaces of its metadata, in the dtypes that its arrays have. A flag before an episode's end ends
   an episode there, too. Infos of the first episode that are numbers or texts, one a step, become columns.
   ``provenance["minari"]["text"]`` has the names of those that are texts, ragged columns of code points.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from diskreplay import spaces
from diskreplay.buffers.provenance import checked
from diskreplay.engine.facts import checked as checked_facts
from diskreplay.errors import InputError
from diskreplay.formats.core.episodes import array_slice, episode_ends, episodes_source, reshaped
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, check_length, flags, length, native
from diskreplay.formats.core.layout import Layout, check_bounds, column_name, infer_space, map_leaves
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.output import final_path
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import declared_count, parse_json, read_json
from diskreplay.schema import ACTION, DTYPES, OBS

VERSION = "0.5.4"
"""The first release of Minari that reads what is written here."""
METADATA, LAYOUT = "metadata.json", "diskreplay"
TOLD = ("dataset_id", "author", "author_email", "algorithm_name", "code_permalink", "requirements", "description")
"""The keys of Minari's metadata that may tell a dataset's origin, beside its environment."""
TOLD_OF_EPISODES = ("seed", LAYOUT)
"""The keys of an episode's metadata that are read."""
OPTIONS = "options"
"""The key of the options of a reset in an episode's metadata, which are not read."""
RESETS = "infos of resets"
"""The name of the entries 0 of columns for an import."""
KNOWN = {
    "total_episodes", "total_steps", "data_format", "jpeg_encoding", "observation_space", "action_space", "env_spec",
    "minari_version", "dataset_size", LAYOUT, *TOLD,
}  # fmt: skip
"""The keys of a dataset's metadata that are read, or follow from its steps."""
TUPLE_ENTRY = {"hdf5": "_index_{}", "arrow": "{}"}
"""The names of a Tuple's parts in each storage."""
BAD_SPACE = (KeyError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, RecursionError)
ID = re.compile(r"([-\w/]+/)?[-\w]+-v\d+")

Array = NDArray[Any]
Arrays = Mapping[str, ArrayLike]
"""The arrays of an episode by path, such as ``observations/camera``."""


def space_to_json(space: gymnasium.Space[Any]) -> dict[str, Any]:
    """Return a space as Minari writes it."""
    kind = gymnasium.spaces
    match space:
        case kind.Dict():
            return {"type": "Dict", "subspaces": {key: space_to_json(sub) for key, sub in space.spaces.items()}}
        case kind.Tuple():
            return {"type": "Tuple", "subspaces": [space_to_json(sub) for sub in space.spaces]}
        case kind.Box():
            bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
            return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
        case kind.Discrete():
            return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case kind.MultiDiscrete():
            sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"type": "MultiDiscrete", "dtype": str(space.dtype), **sizes}
        case kind.MultiBinary():
            return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case kind.Text():
            lengths = {"max_length": space.max_length, "min_length": space.min_length}
            return {"type": "Text", **lengths, "charset": space.characters}
    raise InputError(f"Minari has no name for the space {space}")


def space_from_json(stored: Mapping[str, Any]) -> gymnasium.Space[Any]:
    """Return the space that :func:`space_to_json` wrote; raise one of ``BAD_SPACE`` for anything else."""
    kind = stored["type"]
    if kind == "Dict":
        return gymnasium.spaces.Dict([(key, space_from_json(sub)) for key, sub in stored["subspaces"].items()])
    if kind == "Tuple":
        return gymnasium.spaces.Tuple([space_from_json(sub) for sub in stored["subspaces"]])
    if kind in ("Box", "MultiBinary"):
        check_bounds(stored.get("shape", np.ravel(stored.get("n", []))), stored.get("dtype", "int8"))
    if kind == "Box":
        dtype = np.dtype(stored["dtype"])
        low, high = (np.array(stored[bound], dtype) for bound in ("low", "high"))
        return gymnasium.spaces.Box(low, high, tuple(stored["shape"]), dtype.type)
    if kind == "Discrete":
        return gymnasium.spaces.Discrete(int(stored["n"]), start=int(stored["start"]))
    if kind == "MultiDiscrete":
        dtype = np.dtype(stored["dtype"])
        nvec = np.array(stored["nvec"], dtype)
        return gymnasium.spaces.MultiDiscrete(nvec, dtype.type, start=np.array(stored.get("start", nvec * 0), dtype))
    if kind == "MultiBinary":
        return gymnasium.spaces.MultiBinary(stored["n"])
    if kind == "Text":
        lengths = [int(stored[key]) for key in ("max_length", "min_length")]
        return gymnasium.spaces.Text(lengths[0], min_length=lengths[1], charset=str(stored["charset"]))
    raise ValueError(f"a store holds no values of a {kind} space")


def leaf_paths(layout: Layout, storage: str) -> dict[str, str]:
    """Return the place in Minari of each leaf of observations and actions, by our name of it."""

    def walk(tree: spaces.Tree, path: str) -> Iterator[tuple[str, str]]:
        if isinstance(tree, str):
            yield tree, path
            return
        children = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, child in children:
            yield from walk(child, f"{path}/{key if isinstance(key, str) else TUPLE_ENTRY[storage].format(key)}")

    return {**dict(walk(layout.obs_tree, "observations")), **dict(walk(layout.action_tree, "actions"))}


# Metadata


def dataset_id(target: pathlib.Path) -> str:
    """Return Minari's name of a directory: with its namespace if it is below Minari's root, else the name alone.

    Minari wants a version at the end of a name; one without gets version 0.
    """
    root = os.environ.get("MINARI_DATASETS_PATH") or pathlib.Path.home() / ".minari" / "datasets"
    target = final_path(target)
    name = re.sub(r"[^-\w]", "_", target.name)
    if not re.search(r"-v\d+$", name):
        name += "-v0"
    whole = name
    with contextlib.suppress(ValueError):
        whole = (target.parent.resolve().relative_to(pathlib.Path(root).resolve()) / name).as_posix()
    return whole if ID.fullmatch(whole) else name


def write_metadata(data: pathlib.Path, storage: str, source: Source, episodes: int) -> None:
    """Describe the episodes in ``data``, the directory of that name in a dataset."""
    layout = source.layout
    stored = sum(entry.stat().st_size for entry in data.rglob("*") if entry.is_file())
    metadata = {
        "total_episodes": episodes,
        "total_steps": source.steps,
        "data_format": storage,
        "jpeg_encoding": False,
        "observation_space": json.dumps(space_to_json(layout.observation_space)),
        "action_space": json.dumps(space_to_json(layout.action_space)),
        "dataset_id": dataset_id(data.parent),
        "minari_version": VERSION,
        "dataset_size": round(stored / 1e6, 1),
        LAYOUT: json.dumps(layout.to_json()),
    }
    if isinstance(layout.provenance.get("env_spec"), dict):
        metadata["env_spec"] = json.dumps(layout.provenance["env_spec"])
    origin = layout.provenance.get("minari")
    if isinstance(origin, dict):
        metadata |= {key: origin[key] for key in TOLD if key in origin and key not in metadata}
    (data / METADATA).write_text(json.dumps(metadata))


def data_directory(path: pathlib.Path) -> pathlib.Path:
    """Return the place of the metadata: the directory ``data`` of a dataset, or ``path`` if that is it."""
    return path / "data" if (path / "data").is_dir() else path


def is_dataset(path: pathlib.Path, storage: str) -> bool:
    """Tell whether a directory says that it is a dataset of this storage."""
    try:
        found = read_json(data_directory(path) / METADATA)
    except InputError:
        return False
    return isinstance(found, dict) and found.get("data_format") == storage and "total_episodes" in found


def refuse_parquet(path: pathlib.Path) -> None:
    """Raise InputError if Parquet files, at ``path`` or below it, are those of a dataset of Minari's.

    An episode there has a row more than steps, so that the format ``parquet`` would give other steps than it has.
    """
    whole = path.absolute()
    for folder in (data_directory(whole), *whole.parents[:2]):
        if is_dataset(folder, "parquet"):
            raise InputError(
                f"{str(path)!r} is of Minari's storage 'parquet', which is not read here; save it as hdf5 or arrow "
                "with Minari first"
            )


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The facts that a dataset tells of itself.

    Attributes:
        storage: a key of ``TUPLE_ENTRY``.
        episodes: their number.
        declared: the layout with the spaces that it names; what dtypes and columns there are, only the arrays say.
        layout: the whole layout, which :func:`write_metadata` left; None where others wrote the dataset.
        provenance: the origin of the steps, as others wrote it.
        ignored: names in others' metadata that are not read.
    """

    storage: str
    episodes: int
    declared: Layout
    layout: Layout | None
    provenance: Mapping[str, Any]
    ignored: tuple[str, ...]


def read_metadata(path: pathlib.Path, storage: str) -> Metadata:
    """Return the metadata; raise InputError for another storage, or if something is missing."""
    file = data_directory(path) / METADATA
    if not file.is_file():
        raise InputError(f"{str(path)!r} is no dataset of Minari 0.5: it has no data/{METADATA}")
    found = read_json(file)
    try:
        kind, count = str(found["data_format"]), declared_count(found["total_episodes"], "total_episodes")
    except (KeyError, TypeError, InputError) as error:
        raise InputError(f"{file}: is no description of a dataset of Minari 0.5: {error!r}") from error
    if kind != storage:
        ours = {"hdf5": "minari", "arrow": "minari-arrow"}.get(kind)
        advice = f"name the format {ours} (--format)" if ours else "save it as hdf5 or arrow with Minari first"
        raise InputError(f"{str(path)!r} is of Minari's storage {kind!r}, not {storage!r}; {advice}")
    declared = Layout(_stored_space(found, "observation_space", file), _stored_space(found, "action_space", file))
    layout = Layout.from_json(found[LAYOUT], str(file)) if LAYOUT in found else None
    ignored = sorted(key for key, value in found.items() if key not in KNOWN and value is not None)
    provenance = _provenance(found)
    return Metadata(storage, count, declared, layout, provenance, tuple(ignored) if layout is None else ())


def _provenance(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Minari's metadata tell of a dataset's origin, without what is not JSON."""
    found: dict[str, Any] = {}
    with contextlib.suppress(InputError, LookupError, TypeError):
        spec = parse_json(metadata["env_spec"], "env_spec")
        found = checked({"env_id": str(spec["id"]), "env_spec": spec})
    told = {key: metadata[key] for key in TOLD if metadata.get(key)}
    with contextlib.suppress(InputError):
        found = checked({**found, **({"minari": told} if told else {})})
    return found


def _stored_space(metadata: Mapping[str, Any], key: str, file: pathlib.Path) -> gymnasium.Space[Any]:
    """Return a space of the metadata; raise InputError if it is missing, or not a space."""
    if key not in metadata:
        raise InputError(f"{file}: has no {key}: only its environment knows it")
    try:
        with np.errstate(invalid="raise", over="raise"):  # bounds that their dtype does not hold
            space = space_from_json(parse_json(metadata[key], f"{file}: {key}"))
        spaces.tree(space, key)
    except BAD_SPACE as error:
        raise InputError(f"{file}: its {key} cannot be read: {error!r}") from error
    return space


# Episodes


def told(source: Source, number: int) -> dict[str, Any]:
    """Return an episode's metadata of its facts: the seed as Minari has it, and all of them for us."""
    facts = source.facts[number] if number < len(source.facts) else {}
    seed = {"seed": facts["seed"]} if facts.get("seed") is not None else {}
    return {**seed, LAYOUT: json.dumps(facts)} if facts else {}


def _facts(where: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an episode by its metadata, or of others' datasets the seed."""
    ours = stored.get(LAYOUT)
    if isinstance(ours, str | bytes):
        facts = parse_json(ours, f"{where}: {LAYOUT}")
        if not isinstance(facts, dict):
            raise InputError(f"{where}: {LAYOUT} must hold the facts of the episode, got {type(facts).__name__}")
        return checked_facts(facts, {})
    seed = stored.get("seed")
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 1 << 64:
        return {"seed": int(seed)}
    return {}


def source(
    where: str, metadata: Metadata, arrays: Callable[[int], Arrays], steps: Callable[[int], int],
    told: Callable[[int], Mapping[str, Any]],
) -> Source:  # fmt: skip
    """Return a dataset as a source; episode ``i`` has ``arrays(i)``, ``steps(i)`` steps, and metadata ``told(i)``."""
    numbers, layout = range(metadata.episodes), metadata.layout
    columns: dict[str, str] = {}
    ignored: tuple[str, ...] = ()
    if layout is not None:
        columns = {name: f"infos/{name}" for name in layout.columns}
    elif numbers:
        columns, ignored = _columns(arrays(0), steps(0))
    paths = leaf_paths(metadata.declared, metadata.storage)

    def opened(number: int, layout: Layout | None) -> FlatArrays:
        episode = _episode(f"{where}, episode {number}", arrays(number), metadata.declared, paths, columns)
        return dataclasses.replace(episode, layout=layout)

    if layout is None:
        layout = _as_stored(metadata.declared, opened(0, None)) if numbers else metadata.declared
    if metadata.layout is None:
        provenance, texts = metadata.provenance, sorted(layout.ragged_columns)
        if texts:
            provenance = {**provenance, "minari": {**provenance.get("minari", {}), "text": texts}}
        layout = dataclasses.replace(layout, provenance=provenance)
    lengths = [steps(number) for number in numbers]
    found = episodes_source(where, numbers, lengths, opened, layout)
    stored = {number: told(number) for number in numbers if lengths[number]}
    facts = [_facts(f"{where}, episode {number}", one) for number, one in stored.items()]
    options = (OPTIONS,) if any(one.get(OPTIONS) for one in stored.values()) else ()
    names = Names((*metadata.ignored, *ignored, *options))
    return dataclasses.replace(found, facts=tuple(facts) if any(facts) else (), names=names)


def _columns(arrays: Arrays, count: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the paths of infos that become columns, by name, and the names of infos that are not read."""
    columns: dict[str, str] = {}
    ignored = []
    for path, array in arrays.items():
        if path.startswith("infos/"):
            fits = tuple(array.shape[:1]) in ((count,), (count + 1,)) and 0 not in array.shape[1:]
            if fits and native(array.dtype).name in DTYPES:
                columns[column_name(path.removeprefix("infos/"))] = path
            else:
                ignored.append(path)
    resets = [RESETS] if any(tuple(arrays[path].shape[:1]) == (count + 1,) for path in columns.values()) else []
    return columns, (*sorted(ignored), *resets)


def _episode(
    where: str, arrays: Arrays, declared: Layout, paths: Mapping[str, str], columns: Mapping[str, str]
) -> FlatArrays:
    """Return one episode; ``paths`` of leaves and ``columns`` say where its arrays are."""

    def array(path: str) -> ArrayLike:
        if path not in arrays:
            raise InputError(f"{where}: the array {path!r} is missing")
        return arrays[path]

    count = length(where, "rewards", array("rewards"))
    obs = {name: reshaped(array(paths[name]), shape) for name, (shape, _) in declared.obs.items()}
    for name, values in obs.items():
        check_length(where, name, values, count + 1, "steps and the end")
    action = {name: reshaped(array(paths[name]), shape) for name, (shape, _) in declared.action.items()}
    terminated, truncated = (flags(where, key, array(key), count) for key in ("terminations", "truncations"))
    last = episode_ends(terminated, truncated)
    arrays_of_steps = FlatArrays(
        where, {name: array_slice(values, 0, count) for name, values in obs.items()}, action, terminated, truncated,
        last, array("rewards"), {name: _of_steps(array(path), count) for name, path in columns.items()},
    )  # fmt: skip
    if last[:-1].any():  # several episodes, each with an observation after its last step
        following = {name: array_slice(values, 1, count + 1) for name, values in obs.items()}
        return dataclasses.replace(arrays_of_steps, next_obs=following)
    finals = {name: array_slice(values, count, count + 1) for name, values in obs.items()}
    return dataclasses.replace(arrays_of_steps, finals=finals if count else None)


def _of_steps(infos: ArrayLike, count: int) -> ArrayLike:
    """Return infos without those of the reset."""
    return array_slice(infos, 1, count + 1) if tuple(infos.shape[:1]) == (count + 1,) else infos


def _as_stored(declared: Layout, first: FlatArrays) -> Layout:
    """Return the declared spaces in the dtypes of an episode's arrays, and its columns."""
    found = first.source().layout

    def as_stored(leaf: gymnasium.Space[Any], name: str) -> gymnasium.Space[Any]:
        return _with_dtype(leaf, *found.step_shapes[name], name)

    observations = map_leaves(declared.observation_space, OBS, as_stored)
    actions = map_leaves(declared.action_space, ACTION, as_stored)
    return dataclasses.replace(found, observation_space=observations, action_space=actions, stacks=())


def _with_dtype(
    space: gymnasium.Space[Any], shape: tuple[int, ...], dtype: np.dtype[Any], name: str
) -> gymnasium.Space[Any]:
    """Return the space for values of another dtype, or the widest one if its bounds say nothing about them."""
    if space.dtype == dtype or space.shape != shape:
        return space
    if isinstance(space, gymnasium.spaces.Box) and dtype.kind == np.dtype(space.dtype).kind == "f":
        with np.errstate(over="ignore"):
            return gymnasium.spaces.Box(space.low.astype(dtype), space.high.astype(dtype), shape, dtype.type)
    if isinstance(space, gymnasium.spaces.Discrete) and dtype.kind in "iu":
        return spaces.discrete(int(space.n), int(space.start), dtype)
    return infer_space(shape, dtype, name)
