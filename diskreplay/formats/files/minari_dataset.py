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
7. All files, keys of metadata, arrays and attributes of a dataset are its names. Those of episodes are shown with a
   ``*`` in place of the number.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np

from diskreplay.buffers.provenance import checked
from diskreplay.engine.facts import checked as checked_facts
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import AS_IT_IS, Choice
from diskreplay.formats.core.container import Container, is_attribute
from diskreplay.formats.core.convention import Convention
from diskreplay.formats.core.episodes import array_slice, episodes_source
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, check_length, length, native
from diskreplay.formats.core.layout import Layout, check_bounds, column_name, infer_space, map_leaves
from diskreplay.formats.core.names import Names, files_below
from diskreplay.formats.core.output import final_path
from diskreplay.formats.core.runs import steps_of
from diskreplay.formats.core.transitions import NO_START, Source
from diskreplay.formats.core.untrusted import declared_count, parse_json, read_json, stored_bytes
from diskreplay.schema import spaces
from diskreplay.schema.columns import ACTION, DTYPES, OBS, TERMINATED, TRUNCATED

VERSION = "0.5.4"
"""The first release of Minari that reads what is written here."""
METADATA, LAYOUT = "metadata.json", "diskreplay"
TOLD = ("dataset_id", "author", "author_email", "algorithm_name", "code_permalink", "requirements", "description")
"""The keys of Minari's metadata that may tell a dataset's origin, beside its environment."""
READ = ("data_format", "total_episodes", "observation_space", "action_space", LAYOUT,
        "total_steps", "jpeg_encoding", "minari_version", "dataset_size")  # fmt: skip
"""The keys of a dataset's metadata that are read, and those that say nothing that the arrays do not say."""
KEYS = ("id", "total_steps", "seed", LAYOUT)
"""The keys of an episode's metadata that are read."""
FLAGS = {TERMINATED: "terminations", TRUNCATED: "truncations"}
TUPLE_ENTRY = {"hdf5": "_index_{}", "arrow": "{}"}
"""The names of a Tuple's parts in each storage."""
TABLES = {
    "hdf5": Convention({}, episode=r"episode_(?P<episode>0|[1-9][0-9]*)(?P<name>/.+|\.attrs/.+)", label="episode_{}"),
    "arrow": Convention({}, episode=r"(data/)?(?P<episode>0|[1-9][0-9]*)(?P<name>/.+)", label="{}"),
}
"""Which names are those of an episode in each storage."""
TOLD_OF = {"hdf5": ".attrs/", "arrow": f"{METADATA}/"}
"""What the names of an episode's metadata begin with."""
BAD_SPACE = (KeyError, TypeError, ValueError, AttributeError, AssertionError, ArithmeticError, RecursionError)
ID = re.compile(r"([-\w/]+/)?[-\w]+-v\d+")


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
    kind = gymnasium.spaces
    match stored["type"]:
        case "Dict":
            return kind.Dict([(key, space_from_json(sub)) for key, sub in stored["subspaces"].items()])
        case "Tuple":
            return kind.Tuple([space_from_json(sub) for sub in stored["subspaces"]])
        case "Box":
            check_bounds(stored["shape"], stored["dtype"])
            dtype = np.dtype(stored["dtype"])
            low, high = (np.array(stored[bound], dtype) for bound in ("low", "high"))
            return kind.Box(low, high, tuple(stored["shape"]), dtype.type)
        case "Discrete":
            return kind.Discrete(int(stored["n"]), start=int(stored["start"]))
        case "MultiDiscrete":
            dtype = np.dtype(stored["dtype"])
            nvec = np.array(stored["nvec"], dtype)
            return kind.MultiDiscrete(nvec, dtype.type, start=np.array(stored.get("start", nvec * 0), dtype))
        case "MultiBinary":
            check_bounds(np.ravel(stored["n"]), "int8")
            return kind.MultiBinary(stored["n"])
        case "Text":
            longest, shortest = (int(stored[key]) for key in ("max_length", "min_length"))
            return kind.Text(longest, min_length=shortest, charset=str(stored["charset"]))
    raise ValueError(f"a store holds no values of a {stored['type']} space")


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
    metadata = {
        "total_episodes": episodes,
        "total_steps": source.steps,
        "data_format": storage,
        "jpeg_encoding": False,
        "observation_space": json.dumps(space_to_json(layout.observation_space)),
        "action_space": json.dumps(space_to_json(layout.action_space)),
        "dataset_id": dataset_id(data.parent),
        "minari_version": VERSION,
        "dataset_size": round(stored_bytes(data) / 1e6, 1),
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


def filled(metadata: Mapping[str, Any]) -> list[str]:
    """Return the keys of metadata that have a value which says something."""
    return [key for key, value in metadata.items() if value not in (None, "", [], {})]


def _stored_space(metadata: Mapping[str, Any], key: str, file: pathlib.Path) -> gymnasium.Space[Any]:
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
        checked_facts({name: value for name, value in facts.items() if name != NO_START}, {})
        return facts
    seed = stored.get("seed")
    if isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 1 << 64:
        return {"seed": int(seed)}
    return {}


class Dataset:
    """A dataset, of which the metadata are read.

    Args:
        path: the dataset.
        storage: a key of :data:`TABLES`.
        choice: what the caller says.

    Attributes:
        data: the place of the metadata.
        episodes: their number.
        declared: the layout with the spaces that the metadata name; what dtypes and columns there are, only the arrays
            say.
        names: the names in the dataset.

    Raises InputError for another storage, or if something is missing.
    """

    _container: Container

    def __init__(self, path: pathlib.Path, storage: str, choice: Choice) -> None:
        self.data, self._storage, self._choice, self._table = data_directory(path), storage, choice, TABLES[storage]
        file = self.data / METADATA
        if not file.is_file():
            raise InputError(f"{str(path)!r} is no dataset of Minari 0.5: it has no data/{METADATA}")
        found = read_json(file)
        try:
            kind, self.episodes = str(found["data_format"]), declared_count(found["total_episodes"], "total_episodes")
        except (KeyError, TypeError, InputError) as error:
            raise InputError(f"{file}: is no description of a dataset of Minari 0.5: {error!r}") from error
        if kind != storage:
            ours = {"hdf5": "minari", "arrow": "minari-arrow"}.get(kind)
            advice = f"name the format {ours} (--format)" if ours else "save it as hdf5 or arrow with Minari first"
            raise InputError(f"{str(path)!r} is of Minari's storage {kind!r}, not {storage!r}; {advice}")
        observations, actions = (_stored_space(found, key, file) for key in ("observation_space", "action_space"))
        self.declared = Layout(observations, actions)
        self._layout = Layout.from_json(found[LAYOUT], str(file)).only(choice.columns) if LAYOUT in found else None
        self._provenance = _provenance(found)
        self.names, name = Names(files_below(path), self._table.shown), file.relative_to(path).as_posix()
        self.names.add(*(f"{name}/{key}" for key in filled(found)))
        origin = {*TOLD, "env_spec"}  # which our layout has, or the provenance if it can hold them
        if self._layout is None:
            origin &= {*self._provenance, *self._provenance.get("minari", ())}
        self.names.take(name, *(f"{name}/{key}" for key in (*READ, *origin)))

    def source(self, container: Container, where: str) -> Source:
        """Return all episodes, which are in a container, as a source; ``where`` is its name in errors."""
        self._container, self._where, numbers = container, where, range(self.episodes)
        self.names.add(*container.names())
        self._each = self._table.split(container.names())
        for number in numbers:
            if number not in self._each:
                raise InputError(f"{where}: the group {self._table.label.format(number)!r} is missing")
        layout, choice = self._layout, self._choice
        self._columns = self._fitting() if layout is None else {name: f"infos/{name}" for name in layout.columns}
        self._chosen = self.declared.only(tuple(filter(choice.wants, self.declared.obs)))
        self._paths = {**leaf_paths(self._chosen, self._storage), **FLAGS}
        if layout is None:
            layout = _as_stored(self._chosen, self._opened(0, None)) if numbers else self._chosen
            origin, texts = self._provenance, sorted(layout.ragged_columns)
            if texts:
                origin = {**origin, "minari": {**origin.get("minari", {}), "text": texts}}
            layout = dataclasses.replace(layout, provenance=origin)
        told = [self._told(number) for number in numbers]
        found = episodes_source(where, numbers, [count for count, _ in told], self._opened, layout)
        facts = tuple(facts for count, facts in told if count)
        return dataclasses.replace(found, names=self.names, facts=facts if any(facts) else ())

    def _array(self, number: int, path: str) -> ArrayLike:
        name = self._each[number].get(path)
        if name is None:
            raise InputError(f"{self._where}, episode {number}: the array {path!r} is missing")
        self.names.take(name)
        return self._container.array(name)

    def _told(self, number: int) -> tuple[int, dict[str, Any]]:
        where, own, root = f"{self._where}, episode {number}", self._each[number], TOLD_OF[self._storage]
        names = {key: own[root + key] for key in KEYS if root + key in own}
        stored = {key: self._container.value(name) for key, name in names.items()}
        facts = _facts(where, stored)
        self.names.take(*(name for key, name in names.items() if key != "seed" or key in facts))
        if "total_steps" in stored:
            return declared_count(stored["total_steps"], f"{where}: total_steps"), facts
        return length(where, "rewards", self._array(number, "rewards")), facts

    def _fitting(self) -> dict[str, str]:
        """Return the paths of the chosen infos of the first episode that become columns, by name.

        Raises InputError for a choice of what is not there, or is no column.
        """
        own, choice = self._each.get(0, {}), self._choice
        infos: dict[str, str] = {}
        for path in own:
            if path.startswith("infos/") and not is_attribute(path):
                infos.setdefault(column_name(path.removeprefix("infos/")), path)
        choice.check_columns(self.declared.obs, infos)
        count = self._told(0)[0] if infos else 0

        def fits(path: str) -> bool:
            try:
                array = self._container.array(own[path])
            except InputError:
                if choice.columns is not None:
                    raise
                return False
            there = tuple(array.shape[:1]) in ((count,), (count + 1,)) and 0 not in array.shape[1:]
            fine = there and native(array.dtype).name in DTYPES
            if not fine and choice.columns is not None:
                raise InputError(f"{self._where}: {path!r} has no number, text, or array of numbers, for each step")
            return fine

        return {name: path for name, path in infos.items() if choice.wants(name) and fits(path)}

    def _opened(self, number: int, layout: Layout | None) -> FlatArrays:
        where, obs = f"{self._where}, episode {number}", self._chosen.obs
        arrays = {name: self._array(number, path) for name, path in self._paths.items()}
        reward = self._array(number, "rewards")
        count = length(where, "rewards", reward)
        for name, array in arrays.items():
            check_length(where, name, array, count + (name in obs), "steps and the end" if name in obs else "steps")
        columns = {name: self._array(number, path) for name, path in self._columns.items()}
        for name, array in columns.items():
            if tuple(array.shape[:1]) == (count + 1,):
                columns[name] = array_slice(array, 1, count + 1)
                self.names.add(*(["infos of resets"] if self._layout is None else []))
        found, _ = steps_of(where, arrays, self._paths, self._table, AS_IT_IS, self._chosen)
        return dataclasses.replace(found, reward=reward, extra=columns, layout=layout)


def _as_stored(declared: Layout, first: FlatArrays) -> Layout:
    found = first.source().layout
    observations, actions = (
        map_leaves(space, root, lambda leaf, name: _with_dtype(leaf, *found.step_shapes[name], name))
        for space, root in ((declared.observation_space, OBS), (declared.action_space, ACTION))
    )
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
