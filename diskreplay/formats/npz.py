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

import json
import pathlib
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.formats.core.array_reader import LAYOUT_FILE, array_format, recognising
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import FINAL_OBS, LAYOUT, OFFSETS, Convention
from diskreplay.formats.core.ends import DISCOUNT
from diskreplay.formats.core.flat_names import NAMES
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source, whole, whole_episodes
from diskreplay.formats.exorl import is_named_by_steps
from diskreplay.formats.files.npz_archive import KIND
from diskreplay.ragged import Lists, offsets_of
from diskreplay.schema import ACTION, OBS, TERMINATED

COMPRESSIONS = {"deflate": zipfile.ZIP_DEFLATED, "none": zipfile.ZIP_STORED}
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


# One file an episode


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


# In


def _written(layout: Layout) -> dict[str, str]:
    keys = {name: _key(layout, name) for name in layout.step_shapes}
    keys |= {name.replace(OBS, FINAL_OBS, 1): f"final_{name}" for name in layout.obs}
    return {**keys, "/last": "last", **{f"{OFFSETS}/{name}": f"{OFFSETS}/{key}" for name, key in keys.items()}}


def _unclear(path: pathlib.Path, container: Container) -> bool:
    """Tell whether a file can be one of ExORL's or DreamerV2's, by what is in it or by its name."""
    marks = {"discount", "is_first", "is_last", "is_terminal"}
    return not marks.isdisjoint(container.names()) or is_named_by_steps(path, container)


FLAT = Convention({"obs": OBS, "action": ACTION, **NAMES, "layout": LAYOUT}, written=_written)
EPISODES = Convention(
    {**FLAT.names, "discount": DISCOUNT, "is_first": "/first", "is_last": "/last", "is_terminal": TERMINATED},
    written=_written, closed=True, unclear=_unclear,
)  # fmt: skip


def _in_folder(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory of NPZ files, or of our layout alone."""
    return path.is_dir() and (recognising(KIND, (EPISODES,))(path) or [*path.iterdir()] == [path / LAYOUT_FILE])


def _is_file(path: pathlib.Path) -> bool:
    return path.is_file() and recognising(KIND, (FLAT,))(path)


FORMATS = (
    array_format(
        "npz", "one NPZ file of flat arrays", "file", KIND, (FLAT,), Holds(next_obs=False, ragged=True), write,
        tuple(COMPRESSIONS), recognise=_is_file,
    ),
    array_format(
        "npz-episodes", "a directory with an NPZ file for each episode", "directory", KIND, (EPISODES,),
        Holds(next_obs=False, ragged=True), write_episodes, tuple(COMPRESSIONS), recognise=_in_folder,
    ),
)  # fmt: skip
