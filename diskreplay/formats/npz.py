"""NPZ archives of NumPy arrays, without pickles: one flat file, or a directory with one file an episode.

One file, one entry a step:

==========================  ====================================================================
key                         shape
==========================  ====================================================================
``obs``                     ``(N, *obs_shape)``; of nested spaces ``obs/<name>``
``action``                  ``(N, *action_shape)``; of nested spaces ``action/<name>``
``reward``                  ``(N,)``
``terminated, truncated``   ``(N,)`` bool
``last``                    ``(N,)`` bool: the step ends an episode, in whatever way
``final_obs``               ``(episodes, *obs_shape)``: the true next observation of each episode's last step
``extra/<name>``            ``(N, *shape)``: the user's own columns
``offsets/<key>``           ``(rows + 1,)`` int64: of a ragged ``<key>``, whose array holds items one behind another;
                            row ``i`` has items ``[offsets[i], offsets[i + 1])``
``layout``                  the layout as JSON
==========================  ====================================================================

In a directory, ``episode-000000.npz`` and so on hold the same of one episode; ``obs`` has one entry more, the final
observation, and ``last`` and ``final_obs`` are not needed. ``layout.json`` stands beside them.

What comes in may have the names of D4RL (``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts``,
``next_observations``) and lack everything but observations and actions. Arrays of a flat file are read from its archive
as they are needed, and written one after another: a large file is never in RAM.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import pathlib
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.episodes import widest
from diskreplay.formats.core.flat import FlatArrays, ListedArray, flags, leaves_of, listed
from diskreplay.formats.core.format import Format, Holds
from diskreplay.formats.core.layout import Layout, column_name
from diskreplay.formats.core.names import Names
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source, Transitions, whole, whole_episodes
from diskreplay.formats.core.untrusted import read_text
from diskreplay.formats.files.npy import NpyArray, damage
from diskreplay.ragged import Lists, offsets_of
from diskreplay.schema import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

COMPRESSIONS = {"deflate": zipfile.ZIP_DEFLATED, "none": zipfile.ZIP_STORED}
SYNONYMS = {
    "observation": OBS, "observations": OBS, "actions": ACTION, "rewards": REWARD, "terminals": TERMINATED,
    "terminations": TERMINATED, "dones": TERMINATED, "done": TERMINATED, "timeouts": TRUNCATED,
    "truncations": TRUNCATED, "next_observations": "next_obs", "next_observation": "next_obs", "infos": "extra",
}  # fmt: skip

OFFSETS = "offsets"

Array = NDArray[Any]


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to one file: small columns in one pass over it, each of the others in a pass of its own."""
    layout = source.layout
    shapes = layout.step_shapes
    ragged = layout.ragged
    small = {
        name: [np.empty((0, *shape), dtype)]
        for name, (shape, dtype) in shapes.items()
        if _is_small(shape, dtype) and name not in ragged
    }
    lengths: dict[str, list[Array]] = {_key(layout, name): [] for name in ragged}
    lengths |= {f"final_{name}": [] for name in ragged & layout.obs.keys()}
    last = [np.empty(0, bool)]
    for steps in source.blocks():
        columns = steps.columns()
        for name in ragged:
            lengths[_key(layout, name)].append(columns[name].length)
        for name in ragged & layout.obs.keys():
            lengths[f"final_{name}"].append(steps.next_obs[name][steps.last].length)
        for name, parts in small.items():
            parts.append(columns[name].copy())
        last.append(steps.last)
    ends = np.concatenate(last)
    if len(ends):
        ends[-1] = True
    with zipfile.ZipFile(target, "w", COMPRESSIONS[compression], compresslevel=4) as archive:
        for name, (shape, dtype) in shapes.items():
            if name in small:
                values: Iterator[Any] = iter(small[name])
            else:
                values = (steps.columns()[name] for steps in source.blocks())
            key = _key(layout, name)
            _write_rows(archive, key, (source.steps, *shape), dtype, values, lengths.get(key))
        _write_member(archive, "last", ends.shape, ends.dtype, iter([ends]))
        for name, (shape, dtype) in layout.obs.items():
            finals = (steps.next_obs[name][steps.last] for steps in source.blocks())
            key = f"final_{name}"
            _write_rows(archive, key, (int(ends.sum()), *shape), dtype, finals, lengths.get(key))
        text = np.array([json.dumps(layout.to_json())])
        _write_member(archive, "layout", (), text.dtype, iter([text]))


def _is_small(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Tell whether a column of a million steps may stand in RAM."""
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize <= 16


def _key(layout: Layout, name: str) -> str:
    return f"extra/{name}" if name in layout.columns else name


def _write_rows(
    archive: zipfile.ZipFile, key: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterator[Any],
    lengths: Sequence[Array] | None,
) -> None:  # fmt: skip
    """Write the rows of a column; of a ragged one, which has ``lengths``, all items and the rows' offsets."""
    if lengths is not None:
        offsets = offsets_of(np.concatenate([np.empty(0, np.int64), *lengths]))
        _write_member(archive, f"{OFFSETS}/{key}", offsets.shape, offsets.dtype, iter([offsets]))
        shape, parts = (int(offsets[-1]), *shape[1:]), (part.values for part in parts)
    _write_member(archive, key, shape, dtype, parts)


def _write_member(
    archive: zipfile.ZipFile, key: str, shape: tuple[int, ...], dtype: np.dtype[Any], parts: Iterator[Array]
) -> None:
    """Write an array as ``numpy.savez`` does, part by part."""
    with archive.open(f"{key}.npy", "w", force_zip64=True) as file:
        description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, description)
        for part in parts:
            file.write(np.ascontiguousarray(part, dtype).data.cast("B") if part.size else b"")


@contextlib.contextmanager
def _archive(path: pathlib.Path) -> Iterator[dict[str, NpyArray]]:
    """Open the arrays of a file by our names."""
    where = str(path)
    try:
        with damage(where):
            archive = zipfile.ZipFile(path)
    except InputError as error:
        raise InputError(f"{where!r} is no NPZ archive: {error}") from error
    with archive, contextlib.ExitStack() as stack:
        members = {}
        for name in archive.namelist():
            if name.endswith(".npy"):
                key = name.removesuffix(".npy")
                member = NpyArray(functools.partial(archive.open, name), f"{where}: {key}", path)
                stack.callback(member.close)
                first, slash, rest = key.partition("/")
                members[SYNONYMS.get(first, first) + slash + rest] = member
        yield members


def _columns(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {column_name(name.removeprefix("extra/")): array for name, array in leaves_of(arrays, "extra").items()}


def _with_lists(where: str, arrays: Mapping[str, NpyArray]) -> dict[str, Any]:
    """Return the arrays, those that have offsets as ragged ones."""
    found: dict[str, Any] = dict(arrays)
    for name in leaves_of(arrays, OFFSETS):
        key = name.removeprefix(f"{OFFSETS}/")
        if key in arrays and key != name:
            found[key] = ListedArray(f"{where}: {key}", arrays[key], found.pop(name)[:])
    return found


def _check_keys(where: str, arrays: Mapping[str, Any]) -> None:
    for root in (OBS, ACTION):
        if not leaves_of(arrays, root):
            raise InputError(f"{where}: the array {root!r} is missing; there are {', '.join(sorted(arrays)) or 'none'}")


def _ignored(arrays: Mapping[str, Any]) -> tuple[str, ...]:
    known = {OBS, ACTION, REWARD, TERMINATED, TRUNCATED, "last", "final_obs", "next_obs", "extra", "layout"}
    return tuple(sorted(name for name in arrays if name.partition("/")[0] not in known))


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a flat file as a source, as the module's docstring says."""
    where = str(path)
    with _archive(path) as opened:
        arrays = _with_lists(where, opened)
        _check_keys(where, arrays)
        layout = Layout.from_json(str(arrays["layout"].value()), where) if "layout" in arrays else None
        obs = leaves_of(arrays, OBS)
        first = next(iter(obs.values()))
        count = first.shape[0] if first.shape else 0
        terminated, truncated = (flags(where, name, arrays.get(name), count) for name in (TERMINATED, TRUNCATED))
        last = flags(where, "last", arrays.get("last"), count) | terminated | truncated
        finals, following = leaves_of(arrays, "final_obs"), leaves_of(arrays, "next_obs")
        yield FlatArrays(
            where, obs, leaves_of(arrays, ACTION), terminated, truncated, last, arrays.get(REWARD), _columns(arrays),
            {name.replace("next_obs", OBS, 1): array for name, array in following.items()} or None,
            {name.replace("final_obs", OBS, 1): array for name, array in finals.items()} or None,
            layout, Names(_ignored(arrays)),
        ).source()  # fmt: skip


# One file an episode

LAYOUT_FILE = "layout.json"
EPISODE = re.compile(r".*?(\d+)\.npz")


def write_episodes(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a directory, one file an episode."""
    target.mkdir()
    layout = source.layout
    (target / LAYOUT_FILE).write_text(json.dumps(layout.to_json(), indent=1))
    for number, steps in enumerate(whole_episodes(source.blocks())):
        columns: dict[str, Any] = steps.columns()
        for name in layout.obs:
            columns[name] = whole([steps.obs[name], steps.next_obs[name][-1:]])
        with zipfile.ZipFile(
            target / f"episode-{number:06d}.npz", "w", COMPRESSIONS[compression], compresslevel=4
        ) as file:
            for name, values in columns.items():
                shape, dtype = layout.step_shapes[name]
                lengths = [values.length] if isinstance(values, Lists) else None
                _write_rows(file, _key(layout, name), (len(values), *shape), dtype, iter([values]), lengths)


@reader
def read_episodes(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a directory as a source, for which all actions are read to find their bounds if it has no layout."""
    files = _files(path)
    described = path / LAYOUT_FILE
    layout = Layout.from_json(read_text(described), str(described)) if described.exists() else None
    if not files and layout is None:
        raise InputError(f"{str(path)!r} holds no NPZ file")
    count = 0
    ignored: set[str] = set()
    found: list[Layout] = []
    for file in files:
        with _archive(file) as arrays:
            source = _episode(file, arrays, layout).source()
        count += source.steps
        ignored |= set(source.names.unread())
        if found and _described(source.layout) != _described(found[0]):
            raise InputError(f"{file}: its arrays are not those of {files[0].name}")
        if layout is None:
            found.append(source.layout)
    if layout is None:
        layout = dataclasses.replace(found[0], action_space=widest([one.action_space for one in found]))

    def blocks() -> Iterator[Transitions]:
        for file in files:
            with _archive(file) as arrays:
                yield from _episode(file, arrays, layout).source().blocks()

    yield Source(layout, count, blocks, len(files), Names(ignored))


def _described(layout: Layout) -> tuple[Any, ...]:
    return layout.obs, layout.columns, layout.ragged


def _files(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the episodes' files by number."""
    numbered = [(EPISODE.fullmatch(file.name), file) for file in path.iterdir() if file.is_file()]
    return [file for _, file in sorted((int(match[1]), file) for match, file in numbered if match)]


def _episode(path: pathlib.Path, opened: Mapping[str, NpyArray], layout: Layout | None) -> FlatArrays:
    """Return one file's arrays."""
    where = str(path)
    arrays = _with_lists(where, opened)
    _check_keys(where, arrays)
    obs: dict[str, Any] = leaves_of(arrays, OBS)
    action = leaves_of(arrays, ACTION)
    shape = next(iter(action.values())).shape
    count = shape[0] if shape else 0
    finals = None
    if all(array.shape and array.shape[0] == count + 1 for array in obs.values()):
        every = {name: array[:] for name, array in obs.items()}
        obs, finals = (
            {name: listed(f"{where}: {name}", values[rows]) for name, values in every.items()}
            for rows in (np.s_[:-1], np.s_[-1:])
        )
    following = {name.replace("next_obs", OBS, 1): array for name, array in leaves_of(arrays, "next_obs").items()}
    last = np.arange(count) == count - 1
    terminated, truncated = (_end_flags(where, name, arrays.get(name), last) for name in (TERMINATED, TRUNCATED))
    return FlatArrays(
        where, obs, action, terminated, truncated, last, arrays.get(REWARD), _columns(arrays), following or None,
        finals, layout, Names(_ignored(arrays)),
    )  # fmt: skip


def _end_flags(where: str, name: str, array: NpyArray | None, last: Array) -> Array:
    """Return the flags of the steps; a single one is meant for the last."""
    if array is not None and not array.shape:
        return last & bool(array.value())
    found = flags(where, name, array, len(last))
    if (found & ~last).any():
        raise InputError(f"{where}: {name} is set before the episode's last step")
    return found


# Which is which


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a zip archive with observations and actions as NumPy arrays."""
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with damage(str(path)):
            archive = zipfile.ZipFile(path)
    except InputError:
        return False
    with archive:
        names = {name.removesuffix(".npy").partition("/")[0] for name in archive.namelist() if name.endswith(".npy")}
    return {OBS, ACTION} <= {SYNONYMS.get(name, name) for name in names}


def recognise_episodes(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory of numbered NPZ files, or of our layout alone."""
    if not path.is_dir():
        return False
    files = _files(path)
    return recognise(files[0]) if files else (path / LAYOUT_FILE).is_file()


FORMATS = (
    Format(
        "npz", "one NPZ file of flat arrays", "file", Holds(next_obs=False, ragged=True), recognise, read, write,
        tuple(COMPRESSIONS),
    ),
    Format(
        "npz-episodes", "a directory with an NPZ file for each episode", "directory",
        Holds(next_obs=False, ragged=True), recognise_episodes, read_episodes, write_episodes, tuple(COMPRESSIONS),
    ),
)  # fmt: skip
