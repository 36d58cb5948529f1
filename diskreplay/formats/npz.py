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

from diskreplay.formats.core.array_reader import LAYOUT_FILE, array_format, matches
from diskreplay.formats.core.array_writer import write_flat
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import FINAL_OBS, FLAT_NAMES, LAYOUT, OFFSETS, Convention
from diskreplay.formats.core.ends import DISCOUNT
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.transitions import Source, whole_episodes
from diskreplay.formats.exorl import DREAMER, EXORL, is_named_by_steps
from diskreplay.formats.files import npz_archive
from diskreplay.formats.files.npz_archive import KIND
from diskreplay.schema.columns import ACTION, OBS, TERMINATED


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to one file."""
    layout = source.layout
    with npz_archive.created(target, compression) as out:
        out.put("layout", json.dumps(layout.to_json()))
        write_flat(layout, source.blocks(), out, _written(layout))


def write_episodes(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a directory, one file an episode."""
    target.mkdir()
    layout = source.layout
    (target / LAYOUT_FILE).write_text(json.dumps(layout.to_json(), indent=1))
    names = _written(layout)
    del names["/last"]
    names |= {name.replace(OBS, FINAL_OBS, 1): names[name] for name in layout.obs}  # behind the others
    names |= {f"{OFFSETS}/{name.replace(OBS, FINAL_OBS, 1)}": names[f"{OFFSETS}/{name}"] for name in layout.obs}
    for number, steps in enumerate(whole_episodes(source.blocks())):
        with npz_archive.created(target / f"episode-{number:06d}.npz", compression) as out:
            write_flat(layout, [steps], out, names)


def _written(layout: Layout) -> dict[str, str]:
    keys = {name: f"extra/{name}" if name in layout.columns else name for name in layout.step_shapes}
    keys |= {name.replace(OBS, FINAL_OBS, 1): f"final_{name}" for name in layout.obs}
    return {**keys, "/last": "last", **{f"{OFFSETS}/{name}": f"offsets/{key}" for name, key in keys.items()}}


def _unclear(path: pathlib.Path, container: Container) -> bool:
    marks = {"discount", "is_first", "is_last", "is_terminal"}
    return not marks.isdisjoint(container.names()) or is_named_by_steps(path, container)


FLAT = Convention({"obs": OBS, "action": ACTION, **FLAT_NAMES, "layout": LAYOUT}, written=_written)
EPISODES = Convention(
    {**FLAT.names, "discount": DISCOUNT, "is_first": "/first", "is_last": "/last", "is_terminal": TERMINATED},
    written=_written, closed=True, unclear=_unclear,
)  # fmt: skip


def _in_folder(path: pathlib.Path) -> bool:
    return path.is_dir() and (matches(KIND, (EPISODES,), path) or [*path.iterdir()] == [path / LAYOUT_FILE])


def _is_file(path: pathlib.Path) -> bool:
    return path.is_file() and matches(KIND, (FLAT,), path) and not matches(KIND, (EXORL, DREAMER), path)


FORMATS = (
    array_format(
        "npz", "one NPZ file of flat arrays", "file", KIND, (FLAT,), Holds(next_obs=False, ragged=True), write,
        tuple(npz_archive.COMPRESSIONS), recognise=_is_file,
    ),
    array_format(
        "npz-episodes", "a directory with an NPZ file for each episode", "directory", KIND, (EPISODES,),
        Holds(next_obs=False, ragged=True), write_episodes, tuple(npz_archive.COMPRESSIONS), recognise=_in_folder,
    ),
)  # fmt: skip
