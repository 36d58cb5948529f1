"""What the files below ``meta`` say of a LeRobotDataset of version 3.0: its features, tasks and episodes.

=========================  ===========================================================================================
``info.json``              version, frames a second, features with dtype and shape, and the pattern of files' names
``tasks.parquet``          the text of each task; the tasks' numbers are those of the rows
``stats.json``             statistics of each feature over the whole dataset
``episodes/*/*.parquet``   of each episode its length, tasks, files, places in its videos, and statistics
``diskreplay.json``        of datasets that diskreplay wrote: the layout of its steps, and our name of each feature
=========================  ===========================================================================================
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.formats.core.layout import Shape, column_name
from diskreplay.formats.core.names import natural
from diskreplay.formats.core.untrusted import VALUE_BYTES, check_size, declared_count, parse_json, read_json
from diskreplay.formats.files.arrow import damage
from diskreplay.formats.files.lerobot_stats import QUANTILES
from diskreplay.schema.columns import ACTION, OBS, REWARD

VERSION, EARLIER = "v3.0", ("v2.0", "v2.1")
INFO, STATS, TASKS, DESCRIPTION = "meta/info.json", "meta/stats.json", "meta/tasks.parquet", "meta/diskreplay.json"
PLACE = "chunk-{chunk_index:03d}/file-{file_index:03d}"
EPISODES_PATH = f"meta/episodes/{PLACE}.parquet"
DATA_PATH = f"data/{PLACE}.parquet"
VIDEO_PATH = f"videos/{{video_key}}/{PLACE}.mp4"
OBSERVATION, NEXT_REWARD, DONE, SUCCESS = "observation", "next.reward", "next.done", "next.success"
TIMESTAMP, FRAME, EPISODE, INDEX, TASK = "timestamp", "frame_index", "episode_index", "index", "task_index"
NUMBERED = {
    name: {"dtype": "float32" if name == TIMESTAMP else "int64", "shape": [1], "names": None}
    for name in (TIMESTAMP, FRAME, EPISODE, INDEX, TASK)
}
"""The features that every dataset has."""
LIMITS = {"chunks_size": 1000, "data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
"""How large a directory and files become, unless ``info.json`` says it."""
TOLERANCE_S = 1e-4
"""The seconds by which a timestamp may differ from its frame's, as LeRobot has it."""
OWN = "diskreplay/facts"
"""The column of an episode's facts, as JSON, that only diskreplay reads."""
CAMERA_STATS = ("min", "max", "mean", "std", *QUANTILES, "count")
FACTS_BYTES = 4000
"""The most bytes of an episode's facts as JSON: a few less than a store takes."""
KEPT = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


@dataclasses.dataclass(frozen=True)
class Clip:
    """The place of an episode in a camera's video.

    Attributes:
        file: the video.
        start_s: seconds from the video's begin.
        length: frames.
        where: the name of the episode in errors.
    """

    file: pathlib.Path
    start_s: float
    length: int
    where: str


@dataclasses.dataclass(frozen=True)
class DatasetMeta:
    """All that the files below ``meta`` say.

    Attributes:
        path: the dataset's directory.
        info, stats: the documents of these names.
        tasks: the text of each task.
        episodes: of each episode its values by column, without statistics of what is not a camera.
        data: the files of its rows, in order.
        video_path: the pattern of the names of its videos.
        documents: the names of the files below ``meta`` that were read.
    """

    path: pathlib.Path
    info: Mapping[str, Any]
    stats: Mapping[str, Any] | None
    tasks: Sequence[str]
    episodes: Sequence[Mapping[str, Any]]
    data: Sequence[pathlib.Path]
    video_path: str
    documents: Sequence[str]

    @property
    def fps(self) -> float:
        return float(self.info["fps"])

    @property
    def features(self) -> Mapping[str, Any]:
        return cast(Mapping[str, Any], self.info["features"])

    @property
    def lengths(self) -> list[int]:
        return [episode["length"] for episode in self.episodes]

    def clips(self, key: str) -> list[Clip]:
        """Return the place of each episode in a camera's videos; raise InputError if one is missing."""
        found = []
        for number, episode in enumerate(self.episodes):
            where = f"{self.path}: {key}, episode {number}"
            values = [episode.get(f"videos/{key}/{name}") for name in KEPT]
            if any(value is None for value in values):
                raise InputError(f"{where}: meta/episodes does not say where its video is")
            chunk, file = (declared_count(value, f"{where}: the number of its video") for value in values[:2])
            start, stop = (float(str(value)) for value in values[2:])
            if not 0 <= start < stop < math.inf:
                raise InputError(f"{where}: its video goes from {start} to {stop} s, which are no times")
            frames = (stop - start) * self.fps
            if abs(frames - episode["length"]) > 0.5:
                raise InputError(
                    f"{where}: has {episode['length']:,} steps, and {frames:,.1f} frames of video at {self.fps:g} a s"
                )
            name = filled(self.video_path, where, key, chunk, file)
            found.append(Clip(inside(self.path, name), start, episode["length"], where))
        return found

    def shape(self, key: str) -> Shape:
        """Return the shape and dtype of a feature's values, as ``info.json`` has them."""
        feature = self.features[key]
        return tuple(feature["shape"]), np.dtype(feature["dtype"])


def inside(path: pathlib.Path, name: str) -> pathlib.Path:
    """Return the file of a name within a dataset; raise InputError if it is missing, or lies elsewhere."""
    found = path / name
    if pathlib.PurePath(name).is_absolute() or ".." in pathlib.PurePath(name).parts:
        raise InputError(f"{path}: {name[:100]!r} is no file within the dataset")
    if not found.is_file():
        raise InputError(f"{path}: the file {name!r} is missing; download the dataset again, whole")
    return found


def filled(pattern: Any, where: str, key: str, chunk: int, file: int) -> str:
    """Return the name of a file by its pattern; in version 2 an episode has a file, and its number."""
    try:
        return str(pattern).format(
            video_key=key, chunk_index=chunk, file_index=file, episode_chunk=chunk, episode_index=file
        )
    except (LookupError, ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{where}: {str(pattern)[:100]!r} is no pattern of a file's name") from error


def read_info(path: pathlib.Path) -> dict[str, Any]:
    """Return ``info.json``; raise InputError if it is not that of a dataset of a version that is read."""
    found: Any = read_json(path / INFO)
    version = found.get("codebase_version") if isinstance(found, dict) else None
    if version not in (*EARLIER, VERSION):
        raise InputError(
            f"{path}: is a LeRobotDataset of version {str(version)[:20]}, and {', '.join(EARLIER)} and {VERSION} are "
            "read; convert it with LeRobot first"
        )
    fps, features = found.get("fps"), found.get("features")
    if type(fps) not in (int, float) or not 0 < fps < 1 << 16:
        raise InputError(f"{path}: info.json must have frames a second, fps, as a number, got {str(fps)[:40]}")
    for name, least in (("chunks_size", 1), ("data_files_size_in_mb", 0), ("video_files_size_in_mb", 0)):
        value = found.get(name)
        if value is not None and (type(value) not in (int, float) or not least <= value < 1 << 31):
            raise InputError(f"{path}: info.json must have a number as {name}, got {str(value)[:40]}")
    if not isinstance(features, dict) or not features:
        raise InputError(f"{path}: info.json has no features")
    for key, feature in features.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        if not isinstance(shape, list) or not isinstance(feature.get("dtype"), str) or "/" in key:
            raise InputError(f"{path}: info.json: feature {key[:100]!r} has no dtype and shape")
        size = math.prod(declared_count(length, f"{path}: {key}: a size") for length in shape)
        if size > VALUE_BYTES:
            raise InputError(f"{path}: info.json: values of {key!r} {shape} are too large")
    if missing := [name for name in NUMBERED if name not in features]:
        raise InputError(f"{path}: info.json: the feature {missing[0]!r} is missing")
    return dict(found)


def read(path: pathlib.Path, info: Mapping[str, Any]) -> DatasetMeta:
    """Return what the files below ``meta`` say; raise InputError for what is wrong or missing there."""
    stats = read_json(path / STATS) if (path / STATS).exists() else None
    if stats is not None and not (isinstance(stats, dict) and all(isinstance(each, dict) for each in stats.values())):
        raise InputError(f"{path}: stats.json is no object of features")
    data, episodes = (_tables(path, folder) for folder in ("data", "meta/episodes"))
    documents = [INFO, TASKS, *([] if stats is None else [STATS])]
    documents += [file.relative_to(path).as_posix() for file in episodes]
    return DatasetMeta(
        path, info, stats, _tasks(path), _episodes(path, episodes, cameras(info)), data,
        str(info.get("video_path") or VIDEO_PATH), documents,
    )  # fmt: skip


def _tables(path: pathlib.Path, folder: str) -> list[pathlib.Path]:
    found = sorted((path / folder).glob("*/*.parquet"), key=lambda file: natural(file.relative_to(path).as_posix()))
    if not found:
        raise InputError(f"{path}: there is no file below {folder}; download the dataset again, whole")
    return found


def cameras(info: Mapping[str, Any]) -> list[str]:
    """Return the features that are videos."""
    return [key for key, feature in info["features"].items() if feature["dtype"] == "video"]


def _tasks(path: pathlib.Path) -> list[str]:
    rows = _rows(inside(path, TASKS), lambda name: True)
    found: dict[int, str] = {}
    for row in rows:
        texts = [value for value in row.values() if isinstance(value, str)]
        if len(texts) != 1 or type(row.get(TASK)) is not int:
            raise InputError(f"{path}: tasks.parquet must have a text and a task_index in each row")
        found[row[TASK]] = texts[0]
    if found.keys() != set(range(len(rows))):
        raise InputError(f"{path}: the tasks of tasks.parquet must be numbered from 0")
    return [found[number] for number in range(len(rows))]


def _episodes(path: pathlib.Path, files: Sequence[pathlib.Path], cameras: Sequence[str]) -> list[dict[str, Any]]:
    videos = tuple(f"{kind}/{key}/" for key in cameras for kind in ("videos", "stats"))
    found = [
        row
        for file in files
        for row in _rows(file, lambda name: name in (EPISODE, "tasks", "length", OWN) or name.startswith(videos))
    ]
    if not found:
        raise InputError(f"{path}: there is no episode")
    for number, row in enumerate(found):
        if row.get(EPISODE) != number:
            raise InputError(f"{path}: meta/episodes must number them from 0 in order; {number} is {row.get(EPISODE)}")
        row["length"] = length(path, number, row)
    return found


def length(path: pathlib.Path, number: int, told: Mapping[str, Any]) -> int:
    """Return the steps of an episode; raise InputError if it has none."""
    found = declared_count(told.get("length"), f"{path}: episode {number}: its length")
    if not found:
        raise InputError(f"{path}: episode {number}: has no step")
    return found


def _rows(file: pathlib.Path, wanted: Any) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    with damage(file), pq.ParquetFile(file) as opened:
        check_size(str(file), (opened.metadata.num_rows,), 1, lambda: file.stat().st_size)
        columns = [name for name in opened.schema_arrow.names if wanted(name)]
        for batch in opened.iter_batches(1 << 10, columns=columns, use_threads=False):
            found += batch.to_pylist()
    return found


def names(features: Mapping[str, Any]) -> dict[str, str]:
    """Return our name of each feature of a dataset by others, but for those that follow from the order of steps.

    >>> names({"observation.state": {}, "action": {}, "next.reward": {}, "index": {}})
    {'observation.state': 'obs/observation.state', 'action': 'action', 'next.reward': 'reward'}
    """
    actions = [key for key in features if key.partition(".")[0] == ACTION]
    known = {key: ACTION if actions == [ACTION] else f"{ACTION}/{key}" for key in actions}
    known |= {key: f"{OBS}/{key}" for key in features if key.startswith(OBSERVATION)} | {NEXT_REWARD: REWARD}
    return {key: known.get(key) or column_name(key) for key in features if key not in (EPISODE, INDEX)}


def places(chunk_files: int) -> Iterator[dict[str, int]]:
    """Yield the numbers in the name of one file after another, where a directory has ``chunk_files``.

    >>> list(itertools.islice(places(1000), 1000, 1002))
    [{'chunk_index': 1, 'file_index': 0}, {'chunk_index': 1, 'file_index': 1}]
    """
    for number in itertools.count():
        chunk, file = divmod(number, chunk_files)
        yield {"chunk_index": chunk, "file_index": file}


def facts(meta: DatasetMeta) -> list[dict[str, Any]]:
    """Return the facts of each episode: those that diskreplay left there, or its tasks and its cameras' statistics."""
    found = []
    numbers = {text: at for at, text in reversed([*enumerate(meta.tasks)])}  # the first of those with one text
    for number, row in enumerate(meta.episodes):
        tasks = [text for text in row.get("tasks") or () if isinstance(text, str)]
        marks = [task_mark(numbers[text], text) for text in tasks if text in numbers]
        if row.get(OWN) is not None:
            told = parse_json(row[OWN], f"{meta.path}: episode {number}: {OWN}")
            if not isinstance(told, dict):
                raise InputError(f"{meta.path}: episode {number}: {OWN} is no object of facts")
            found.append({**told, "task_marks": marks} if "task_marks" in told else told)
            continue
        told = {}
        for name, value in (
            ("tasks", [text for text in tasks if all(char.isprintable() or char in "\n\t" for char in text)]),
            ("task_marks", marks),
            ("camera_stats", {key: stats for key in cameras(meta.info) if (stats := packed_stats(row, key))}),
        ):  # fmt: skip
            if value and len(json.dumps({**told, name: value})) <= FACTS_BYTES:  # known, and a store has room for it
                told[name] = value
        found.append(told)
    return found


def task_mark(number: int, text: str) -> str:
    """Return a short text that stands for a task and its number in a dataset."""
    return hashlib.blake2s(f"{number} {text}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def packed_stats(row: Mapping[str, Any], key: str) -> str:
    """Return the statistics of a camera, with the episode's length, as a short text; empty if some are missing."""
    stats = [np.array(row.get(f"stats/{key}/{name}"), object) for name in CAMERA_STATS]
    if not all(values.size in (1, 3) and np.all(values != None) for values in stats):  # noqa: E711
        return ""
    numbers = np.concatenate([[row["length"]], *(values.reshape(-1) for values in stats)]).astype("<f8")
    return base64.b64encode(numbers.tobytes()).decode()


def unpacked_stats(text: str, length: int) -> dict[str, NDArray[Any]] | None:
    """Return the statistics of :func:`packed_stats`, or None where the episode has another length now."""
    try:
        numbers = np.frombuffer(base64.b64decode(text), "<f8")
    except (TypeError, ValueError):
        return None  # a fact of the same name
    if len(numbers) != 2 + 3 * (len(CAMERA_STATS) - 1) or numbers[0] != length:
        return None
    shaped = zip(CAMERA_STATS, [*numbers[1:-1].reshape(-1, 3, 1, 1), numbers[-1:].astype(np.int64)], strict=True)
    return dict(shaped)
