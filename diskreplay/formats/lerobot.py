"""The directories of LeRobotDataset: version 3.0, as LeRobot 0.4.4 reads and writes them, and 2.0 and 2.1 to be read.

==========================================  ==========================================================================
file                                        what it holds
==========================================  ==========================================================================
``data/chunk-000/file-000.parquet``         one row a step: all features but videos; pictures as PNG
``videos/KEY/chunk-000/file-000.mp4``       the video of a camera, episodes one behind another
``meta/``                                   see :mod:`diskreplay.formats.files.lerobot_meta`; of version 2
                                            :mod:`diskreplay.formats.files.lerobot_v2`
==========================================  ==========================================================================

What comes in:

1. Features that begin with ``observation`` are parts of a Dict of the same names, ``action`` is the action, or several
   that begin so are a Dict. ``next.reward`` is the reward, 0 without it. All else, numbers of tasks and timestamps too,
   are columns. Text is a Text space, as a column a ragged one of code points. A camera is a video column, or with
   ``Choice.decoded`` an ordinary one. Features of other dtypes are not read.
2. An episode is terminated if ``next.done``, or without it ``next.success``, is true in its last row; else truncated.
3. No observation after an episode's last row is known: its own stands in for it.
4. Timestamps must be those of ``fps``. The texts of an episode's tasks, and its cameras' statistics, become facts.

What goes out: features, tasks and frames a second of a store that came in so are those that it came with. Of others

1. Flags are ``next.done`` and ``next.truncated``.
2. Frames are encoded as LeRobot does, or are PNG with the compression "png", and where the encoder does not take their
   shape.
3. The task of a step is its text, of the column or part of the observation that is called ``language_instruction`` or
   ``task``, or that ``Layout.task`` names. Without texts it is the fact ``task`` or ``tasks`` of the episode.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from diskreplay.buffers.provenance import checked
from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, flags, leaves_of
from diskreplay.formats.core.format import Format, Holds, Loss
from diskreplay.formats.core.layout import PACKETS, Layout, Shape, infer_dict, infer_space, infer_text, read_description
from diskreplay.formats.core.names import Names, files_below, free, numbered
from diskreplay.formats.core.reader import reader
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.core.untrusted import read_json
from diskreplay.formats.files import images, lerobot_meta, lerobot_v2, mp4
from diskreplay.formats.files.arrow import damage
from diskreplay.formats.files.lerobot_meta import DESCRIPTION, DONE, EPISODE, FRAME, TASK, TIMESTAMP, DatasetMeta
from diskreplay.formats.files.lerobot_output import DatasetWriter
from diskreplay.formats.files.parquet_array import ParquetArray, Texts
from diskreplay.index.episodes import Episode
from diskreplay.schema.columns import ACTION, DTYPES, OBS, REWARD, TERMINATED, TRUNCATED

NAME = "lerobot"
CHECKED_ROWS = 1 << 16
"""The number of rows whose places are looked at at once."""
DEFAULT_FPS = 30
KINDS = {*DTYPES, "video", "image", "string"}
"""The dtypes of features that are read."""
FLAGGED = (DONE, lerobot_meta.SUCCESS)
"""The features that say how an episode ended, whatever a caller leaves out."""
CERTAIN = (ACTION, REWARD, TERMINATED, TRUNCATED)
"""The roots of names of what always comes in."""
TASKS = ("language_instruction", "task")
FLAGS = {REWARD: lerobot_meta.NEXT_REWARD, TERMINATED: DONE, TRUNCATED: "next.truncated"}


# In


@reader
def read(path: pathlib.Path, choice: Choice) -> Iterator[Source]:
    """Open a directory as a source, as the module's docstring says."""
    where, info = str(path), lerobot_meta.read_info(path)
    meta = (lerobot_v2 if info["codebase_version"] in lerobot_meta.EARLIER else lerobot_meta).read(path, info)
    names = Names([*meta.features, *files_below(path)], numbered)
    last = _ends(meta, names)
    described, keys = _described(path)
    keys = {key: name for key, name in (keys or lerobot_meta.names(meta.features)).items() if key in meta.features}
    if described is not None:
        described = described.only(choice.columns)
        names.take(*lerobot_meta.NUMBERED)  # facts or texts say again what is none of its columns
    wanted = _wanted(meta, keys, choice)
    arrays: dict[str, ArrayLike] = {}
    for key, name in keys.items():
        if name in wanted | {*FLAGGED} and meta.features[key]["dtype"] in KINDS:
            names.take(key)
            if meta.features[key]["dtype"] == "video":
                clips = meta.clips(key)
                arrays[name] = (mp4.DecodedFrames if choice.decoded else mp4.PacketRows)(clips, meta.fps)
                names.take(*(clip.file.relative_to(path).as_posix() for clip in clips))
            else:
                known, text = _shaped(meta, key, name, described), meta.features[key]["dtype"] == "string"
                arrays[name] = ParquetArray(meta.data, key, len(last), known, text=text)
    terminated, truncated = _flags(where, arrays, last)
    arrays = {name: array for name, array in arrays.items() if name in wanted}
    texts = {name: found for name, array in arrays.items() if (found := getattr(array, "texts", None)) is not None}
    for root, begin in ((OBS, lerobot_meta.OBSERVATION), (ACTION, ACTION)):
        if not leaves_of(arrays, root):
            raise InputError(f"{where}: a store needs a feature that begins with {begin!r}, and info.json has none")
    layout = _with_video(_layout(arrays, texts) if described is None else described, arrays)
    if described is None or NAME in layout.provenance:
        origin = {"fps": meta.fps, NAME: _origin(meta, keys, [*texts])}
        layout = dataclasses.replace(layout, provenance={**layout.provenance, **origin})
    columns = {name: array for name, array in arrays.items() if name.partition("/")[0] not in (OBS, *CERTAIN)}
    found = FlatArrays(
        where, leaves_of(arrays, OBS), leaves_of(arrays, ACTION), terminated, truncated, last, arrays.get(REWARD),
        columns, layout=layout, own_finals=True,
    )  # fmt: skip
    yield dataclasses.replace(found.source(), facts=lerobot_meta.facts(meta), names=names)


def _wanted(meta: DatasetMeta, keys: Mapping[str, str], choice: Choice) -> set[str]:
    every = [name for key, name in keys.items() if meta.features[key]["dtype"] in KINDS]
    own = [name for name in every if name.partition("/")[0] not in CERTAIN]
    choice.check_columns(leaves_of(dict.fromkeys(own), OBS), [name for name in own if name.partition("/")[0] != OBS])
    return {name for name in every if name not in own or choice.wants(name)}


def _origin(meta: DatasetMeta, names: Mapping[str, str], texts: list[str]) -> dict[str, Any]:
    """Return what an export must know of the dataset besides its steps."""
    return checked({
        "info": dict(meta.info), "stats": _finite(meta.stats), "tasks": list(meta.tasks), "names": dict(names),
        "lengths": meta.lengths, **({"text": texts} if texts else {}),
    })  # fmt: skip


def _finite(stats: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the statistics, or None if one is NaN or infinite: provenance cannot hold it. An export computes it."""
    try:
        json.dumps(stats, allow_nan=False)
    except ValueError:
        return None
    return stats


def _described(path: pathlib.Path) -> tuple[Layout | None, dict[str, str]]:
    """Return the layout and our name of each feature that :func:`write` left, or None and nothing if it did not."""
    file = path / DESCRIPTION
    return read_description(read_json(file), str(file)) if file.exists() else (None, {})


def _shaped(meta: DatasetMeta, key: str, name: str, layout: Layout | None) -> Shape | None:
    """Return the shape and dtype of a column, if known; a single value of a column of others is a number."""
    if meta.features[key]["dtype"] in ("image", "string"):
        return None if layout is None else layout.step_shapes.get(name)
    shape, dtype = meta.shape(key)
    if layout is not None:
        return layout.step_shapes.get(name, (shape, dtype))
    return ((), dtype) if shape == (1,) and "/" not in name and name != ACTION else (shape, dtype)


def _layout(arrays: Mapping[str, ArrayLike], texts: Mapping[str, Texts]) -> Layout:
    def space(name: str) -> gymnasium.Space[Any]:
        if name in texts:
            return infer_text(texts[name].charset, texts[name].longest)
        return infer_space(*_shape(arrays[name]), name)

    obs, actions = (
        infer_dict({name.removeprefix(root).removeprefix("/"): space(name) for name in leaves_of(arrays, root)})
        for root in (OBS, ACTION)
    )
    wide = REWARD in arrays and np.dtype(arrays[REWARD].dtype).itemsize > 4
    columns = {
        name: _shape(array) for name, array in arrays.items() if name.partition("/")[0] not in (OBS, ACTION, REWARD)
    }
    reward = np.dtype(np.float64 if wide else np.float32)
    return Layout(obs, actions, columns, reward, ragged_columns=frozenset(texts.keys() & columns.keys()))


def _shape(array: ArrayLike) -> Shape:
    return array.video.shape if isinstance(array, mp4.PacketRows) else tuple(array.shape[1:]), np.dtype(array.dtype)


def _with_video(layout: Layout, arrays: Mapping[str, ArrayLike]) -> Layout:
    video = {name: array.video for name, array in arrays.items() if isinstance(array, mp4.PacketRows)}
    columns = {
        name: PACKETS if name in video else _shape(arrays[name]) if name in layout.video else shape
        for name, shape in layout.columns.items()
    }
    ragged = (layout.ragged_columns - layout.video.keys()) | (video.keys() & columns.keys())
    return dataclasses.replace(layout, video=video, columns=columns, ragged_columns=ragged)


def _flags(where: str, arrays: Mapping[str, ArrayLike], last: Array) -> tuple[Array, Array]:
    count = len(last)
    if TERMINATED in arrays and TRUNCATED in arrays:
        return flags(where, TERMINATED, arrays[TERMINATED], count), flags(where, TRUNCATED, arrays[TRUNCATED], count)
    done = next((name for name in FLAGGED if name in arrays), DONE)
    terminated = last & flags(where, done, arrays.get(done), count)
    return terminated, last & ~terminated


def _ends(meta: DatasetMeta, names: Names) -> Array:
    """Return which rows end an episode, ``(N,)`` bool; raise InputError for rows that are not where they must be.

    Takes what it reads of ``names``, to which it adds columns that are no features.
    """
    import pyarrow.parquet as pq

    count = 0
    for file in meta.data:
        with damage(file):
            found = pq.read_metadata(file)
            names.add(*found.schema.to_arrow_schema().names)
            count += found.num_rows
        names.take(file.relative_to(meta.path).as_posix())
    names.take(EPISODE, FRAME, TIMESTAMP, lerobot_meta.INDEX, *meta.documents, DESCRIPTION)
    last = np.zeros(sum(meta.lengths), bool)
    if count != len(last):
        raise InputError(f"{meta.path}: has {count:,} rows below data, and {len(last):,} steps of its episodes")
    stops = np.cumsum(meta.lengths)
    last[stops - 1] = True
    rows = {name: ParquetArray(meta.data, name, len(last), None) for name in (EPISODE, FRAME, TIMESTAMP)}
    for start in range(0, len(last), CHECKED_ROWS):
        part = slice(start, min(start + CHECKED_ROWS, len(last)))
        index = np.arange(part.start, part.stop)
        episode = np.searchsorted(stops, index, side="right")
        frame = index - (stops[episode] - np.array(meta.lengths)[episode])
        times = frame / meta.fps
        rounded = np.spacing(times.astype(np.float32))  # timestamps are float32
        for name, wanted, tolerance in (
            (EPISODE, episode, 0), (FRAME, frame, 0), (TIMESTAMP, times, lerobot_meta.TOLERANCE_S + rounded),
        ):  # fmt: skip
            found = np.asarray(rows[name][part]).reshape(-1)
            wrong = np.flatnonzero(~(np.abs(found - wanted) <= tolerance)) if len(found) == len(wanted) else [0]
            if len(wrong):
                at = int(wrong[0])
                raise InputError(
                    f"{meta.path}: row {start + at:,}, frame {frame[at]:,} of episode {episode[at]:,}, has the {name} "
                    f"{found[at]}; at {meta.fps:g} frames a second, and by the lengths of its episodes, it must be "
                    f"{wanted[at]:g}"
                )
    return last


# Out


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    layout = source.layout
    origin = layout.provenance.get(NAME) or {}
    keys = _keys(layout, origin)
    features = {key: _feature(layout, name, origin, key, compression) for name, key in keys.items()}
    info = {"robot_type": None, "fps": _fps(layout), **(origin.get("info") or {})}
    task = _task(layout, keys)
    if task is not None:
        origin = {**origin, "tasks": [], "stats": None}
    writer = DatasetWriter(target, info, features, keys, layout.video, origin, source.facts, keys.get(task or ""))
    writer.write(source.blocks())
    # What the dataset itself says again, of one that came in so, is only marked.
    own = dataclasses.replace(layout, provenance={k: {} if k == NAME else v for k, v in layout.provenance.items()})
    described = {"layout": own.to_json(), "keys": keys}
    (target / DESCRIPTION).write_text(json.dumps(described))


def _task(layout: Layout, keys: Mapping[str, str]) -> str | None:
    """Return our name of the texts that are the tasks; None where steps have their tasks' numbers, or no such texts.

    Raises InputError where several can be the tasks, or a caller names no texts.
    """
    texts = sorted(layout.texts)
    if layout.task is not None and layout.task not in texts:
        raise InputError(f"task: {layout.task!r} has no texts; those that have are {', '.join(texts) or 'none'}")
    found = [] if TASK in keys.values() else [name for name in texts if name.rpartition("/")[2] in TASKS]
    if layout.task is None and len(found) > 1:
        raise InputError(f"both {' and '.join(found)} can be the tasks: choose one (--task COLUMN)")
    return layout.task or next(iter(found), None)


def _fps(layout: Layout) -> float:
    """Return the frames a second: of the video, else as the provenance says, else :data:`DEFAULT_FPS`."""
    given = layout.provenance.get("fps")
    told = given if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < 1e6 else DEFAULT_FPS
    fps = next((float(video.fps) for video in layout.video.values()), float(told))
    return int(fps) if fps.is_integer() else fps


def _keys(layout: Layout, origin: Mapping[str, Any]) -> dict[str, str]:
    """Return the feature of each of our names; names that meet get a dot."""
    came = {name: key for key, name in (origin.get("names") or {}).items()}
    given = (layout.obs, layout.action, {} if came else FLAGS, layout.columns)
    found: dict[str, str] = {}
    taken = {*came.values(), *lerobot_meta.NUMBERED}
    for name in [*(name for part in given for name in part), *([REWARD] if REWARD in came else [])]:
        root, _, rest = name.partition("/")
        first = lerobot_meta.OBSERVATION if root == OBS else root
        own = rest.startswith(f"{first}.")  # as an import names it
        key = FLAGS.get(name) or ".".join(filter(None, ["" if own else first, *rest.split("/")]))
        if name == OBS:
            key = "observation.image" if images.is_image(*layout.obs[OBS]) else "observation.state"
        found[name] = came.get(name) or free(key, taken)
        taken.add(found[name])
    return found


def _feature(layout: Layout, name: str, origin: Mapping[str, Any], key: str, compression: str) -> dict[str, Any]:
    """Return a feature as ``info.json`` has it: as it came, or with the dtype that its values are written with."""
    shape = layout.video[name].shape if name in layout.video else layout.step_shapes[name][0]
    came = (origin.get("info") or {}).get("features", {}).get(key)
    kind = _kind(layout, name, came, compression)
    if came and came["dtype"] == kind and math.prod(came["shape"]) == math.prod(shape):
        encoded = kind == "video" and name not in layout.video
        return {part: value for part, value in came.items() if not (encoded and part == "info")}
    colours = ["height", "width", "channels"] if kind in ("image", "video") else None
    if kind == "image" and len(shape) == 2:
        shape = (*shape, 1)
    return {"dtype": kind, "shape": list(shape) or [1], "names": colours}


def _kind(layout: Layout, name: str, came: Mapping[str, Any] | None, compression: str) -> str:
    """Return the dtype of a feature: "video", "image", "string", or that of its numbers."""
    shape, dtype = layout.step_shapes[name]
    if name in layout.texts:
        return "string"
    if name not in layout.video and not images.is_image(shape, dtype):
        return dtype.name
    as_image = compression == "png" or (came and came["dtype"] == "image") or not mp4.is_encodable(shape, dtype)
    return "image" if as_image and name not in layout.video else "video"


def losses(layout: Layout, episodes: Sequence[Episode], compression: str) -> list[Loss]:
    """Return the columns whose frames are encoded, and rewards of a dataset that came without."""
    origin = layout.provenance.get(NAME) or {}
    keys = _keys(layout, origin)
    steps = sum(episode.length for episode in episodes)
    kinds = {name: _feature(layout, name, origin, key, compression)["dtype"] for name, key in keys.items()}
    encoded = [name for name, kind in kinds.items() if kind == "video" and name not in layout.video]
    found = [
        Loss(f"exact pixels of {name!r}, which are encoded (not with --compression png)", steps) for name in encoded
    ]
    if _task(layout, keys) is not None:
        found += [Loss(f"numbers {name!r} of tasks as they came", steps) for name, key in keys.items() if key == TASK]
    if origin and REWARD not in keys:
        found.append(Loss("rewards", sum(episode.length for episode in episodes if episode.total_reward)))
    if origin and not {*FLAGGED} & {*keys.values()}:
        found.append(Loss("terminated", sum(episode.terminated for episode in episodes)))
    return [loss for loss in found if loss.count]


def check(layout: Layout) -> None:
    """Raise InputError for values with more axes than a feature can have."""
    for name, (shape, _) in layout.step_shapes.items():
        if len(shape) > 5:
            raise InputError(f"{NAME} holds values of at most 5 axes, and {name!r} has {len(shape)}")


def recognise(path: pathlib.Path) -> bool:
    """Tell whether a path is a directory with LeRobot's description, of any version."""
    file = path / lerobot_meta.INFO
    return file.is_file() and b'"codebase_version"' in file.read_bytes()[: 1 << 16]


FORMATS = (
    Format(
        NAME, "LeRobotDataset v3.0, in also v2: Parquet, and cameras as MP4", "directory",
        Holds(
            final_obs=False, final_steps=True, next_obs=False, facts=True, empty=False, video=True,
            text=True, dtypes=frozenset(name for name in DTYPES if not name.startswith("complex")),
        ), recognise, read, write, ("av1", "png"), ("pyarrow", "av"), NAME, check, losses, videos=True,
        tasks=True,
    ),
)  # fmt: skip
