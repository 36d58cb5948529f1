"""The writing of a LeRobotDataset, episode by episode, with what LeRobot keeps of each."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.episodes import EpisodeBlock, episode_blocks
from diskreplay.formats.core.transitions import Transitions
from diskreplay.formats.files import lerobot_meta, lerobot_stats, mp4
from diskreplay.formats.files.arrow import number_array, picture_array, text_array
from diskreplay.formats.files.lerobot_meta import EPISODE, FRAME, INDEX, NUMBERED, OWN, TASK, TIMESTAMP
from diskreplay.recording.video_encoding import VideoEncoder
from diskreplay.video import Video, records

NO_TASK = "no task"
TASKS_INDEX = {
    "index_columns": ["task"], "column_indexes": [],
    "columns": [
        {"name": name, "field_name": name, "pandas_type": one, "numpy_type": other, "metadata": None}
        for name, one, other in ((TASK, "int64", "int64"), ("task", "unicode", "object"))
    ],
}  # fmt: skip
"""What tells pandas that the texts of the tasks are the index of their table."""
COUNTED = (EPISODE, INDEX, TASK)
"""Features that LeRobot's tools number anew, without statistics of the new numbers."""
EPISODES_AT_ONCE = 16


class TableFiles:
    """Parquet files of rows, numbered by directory and file.

    Args:
        target: the dataset's directory.
        pattern: of the files' names in it.
        file_bytes: the bytes after which an episode begins a new file.
        chunk_files: the files of a directory.
    """

    def __init__(self, target: pathlib.Path, pattern: str, file_bytes: int, chunk_files: int) -> None:
        self._target, self._pattern, self._limit, self._file = target, pattern, file_bytes, target
        self._places, self._place = lerobot_meta.places(chunk_files), dict[str, int]()
        self._out: Any = None

    def place(self) -> dict[str, int]:
        """Begin a new file if the one before is full, and return the numbers of the file that rows go to."""
        if self._out is None or self._file.stat().st_size >= self._limit:
            self.close()
            self._place = next(self._places)
        return self._place

    def write(self, table: Any) -> None:
        import pyarrow.parquet as pq

        if self._out is None:
            self._file = self._target / self._pattern.format(**self._place)
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._out = pq.ParquetWriter(self._file, table.schema, compression="snappy")
        self._out.write_table(table, row_group_size=1 << 30)

    def close(self) -> None:
        if self._out is not None:
            self._out.close()
            self._out = None


class DatasetWriter:
    """A new dataset.

    Args:
        target: its directory.
        info: ``info.json`` of the dataset that the steps came from, or what is known of it.
        features: each feature, but for those that all datasets have, as ``info.json`` has it.
        keys: the feature of each of our names.
        packed: the facts of the video columns, by our names.
        origin: what the import kept of the dataset that the steps came from; empty if there was none.
        facts: the facts of each episode, or nothing.
        task: the feature whose texts are the tasks; None where rows have their numbers, or facts say them.
    """

    def __init__(
        self, target: pathlib.Path, info: Mapping[str, Any], features: Mapping[str, Any], keys: Mapping[str, str],
        packed: Mapping[str, Video], origin: Mapping[str, Any], facts: Sequence[Mapping[str, Any]],
        task: str | None = None,
    ) -> None:  # fmt: skip
        self._target, self._keys, self._origin, self._facts, self._task = target, keys, origin, facts, task
        self._packed = {keys[name]: video for name, video in packed.items()}
        came = (origin.get("info") or {}).get("features", {})
        every = {**{key: {**came.get(key, {}), **feature} for key, feature in NUMBERED.items()}, **features}
        self._features = {key: every[key] for key in [*came, *features, *every] if key in every}
        limits = {name: info.get(name) or default for name, default in lerobot_meta.LIMITS.items()}
        self._info = {**info, **limits, "codebase_version": lerobot_meta.VERSION}
        self._fps = float(info["fps"])
        chunks = int(limits["chunks_size"])
        sizes = {name: int(float(value) * (1 << 20)) for name, value in limits.items()}
        self._data = TableFiles(target, lerobot_meta.DATA_PATH, sizes["data_files_size_in_mb"], chunks)
        self._episodes = TableFiles(target, lerobot_meta.EPISODES_PATH, sizes["data_files_size_in_mb"], chunks)
        self._videos = {
            key: mp4.VideoFiles(target / "videos" / key, self._fps, sizes["video_files_size_in_mb"], chunks)
            for key, feature in self._features.items()
            if feature["dtype"] == "video"
        }
        self._tasks: list[str] = list(origin.get("tasks") or [])
        self._numbers = {text: at for at, text in reversed([*enumerate(self._tasks)])}
        self._stats: dict[str, dict[str, Array]] | None = None
        self._waiting: list[dict[str, Any]] = []
        self._lengths: list[int] = []
        self._rows = 0

    def write(self, blocks: Iterable[Transitions]) -> None:
        """Write all steps, and close the dataset."""
        (self._target / "meta").mkdir(parents=True)
        with contextlib.ExitStack() as stack:
            for close in (self._data.close, self._episodes.close, *(files.close for files in self._videos.values())):
                stack.callback(close)
            for block in episode_blocks(blocks):
                if not block.start:
                    episode = _EpisodeParts(self._data.place())
                self._add(block, episode)
                if block.ends:
                    self._end(block, episode)
            self._write_episodes()
        self._write_meta()

    def _numbered(self, texts: Sequence[str]) -> Array:
        for text in texts:
            if self._numbers.setdefault(text, len(self._tasks)) == len(self._tasks):
                self._tasks.append(text)
        return np.array([self._numbers[text] for text in texts])

    def _told(self, number: int) -> str:
        told = self._facts[number] if self._facts else {}
        return next(iter(_texts(told.get("tasks")) or _texts(told.get("task"))), NO_TASK)

    def _add(self, block: EpisodeBlock, episode: _EpisodeParts) -> None:
        import pyarrow as pa

        given = block.steps.columns()
        values = {key: given[name] for name, key in self._keys.items()}
        frame = np.arange(block.start, block.stop)
        exact = frame / self._fps
        # What a store kept is written as it is, unless the steps before were taken away.
        if FRAME not in values or not np.array_equal(values[FRAME], frame) or TIMESTAMP not in values:
            values[TIMESTAMP] = exact.astype(np.float32)
        count = len(frame)
        tolerance = lerobot_meta.TOLERANCE_S + np.spacing(exact.astype(np.float32))
        if (np.abs(values[TIMESTAMP].reshape(count) - exact) > tolerance).any():
            raise InputError(
                f"episode {block.number} has timestamps that are not those of {self._fps:g} frames a second: export "
                "the episodes of one dataset at a time"
            )
        values |= {EPISODE: np.full(count, block.number), FRAME: frame, INDEX: np.arange(count) + self._rows}
        texts = {key: text_array(key, values[key]) for key, one in self._features.items() if one["dtype"] == "string"}
        if self._task is not None:
            values[TASK] = self._numbered(texts[self._task].to_pylist())
        elif TASK not in values:
            values[TASK] = self._numbered([self._told(block.number)] * count)
        self._rows += count
        columns = {}
        for key, feature in self._features.items():
            match feature["dtype"]:
                case "video":
                    episode.add_video(key, values[key], self._packed.get(key), self._fps)
                case "image":
                    episode.add_pictures(key, values[key])
                    columns[key] = picture_array(values[key])
                case "string":
                    columns[key] = texts[key]
                case _:
                    shape = [] if feature["shape"] == [1] else feature["shape"]
                    column = values[key].reshape(count, *shape)
                    columns[key] = number_array(column, column.ndim == 2)
                    matches = key == TIMESTAMP and np.array_equal(column, exact.astype(np.float32))
                    episode.values.setdefault(key, []).append(exact if matches else column)
        self._data.write(pa.table(columns))

    def _end(self, block: EpisodeBlock, episode: _EpisodeParts) -> None:
        told = dict(self._facts[block.number]) if self._facts else {}
        numbers = np.unique(np.concatenate(episode.values[TASK])).tolist()
        named = {number: self._tasks[number] for number in numbers if 0 <= number < len(self._tasks)}
        tasks = list(named.values())
        used, known = {*tasks}, {*(_texts(told.get("tasks")) or tasks)}
        if marks := _texts(told.get("task_marks")):
            used, known = {lerobot_meta.task_mark(*each) for each in named.items()}, {*marks}
        if len(tasks) < len(numbers) or (self._origin and self._task is None and not used <= known):
            raise InputError(
                f"episode {block.number} has the task_index {numbers}, which in the dataset of the store "
                f"are {tasks}, and its facts say {told.get('tasks')}, or another order: export the episodes of one "
                "dataset at a time"
            )
        row: dict[str, Any] = {
            EPISODE: block.number, "tasks": tasks, "length": block.stop,
            **{f"data/{name}": number for name, number in episode.place.items()},
            "dataset_from_index": self._rows - block.stop, "dataset_to_index": self._rows,
        }  # fmt: skip
        self._lengths.append(block.stop)
        packed = told.get("camera_stats")
        known_stats = {
            key: one
            for key, text in (packed if isinstance(packed, dict) else {}).items()
            if (one := lerobot_meta.unpacked_stats(text, block.stop)) is not None
        }
        for key, files in self._videos.items():
            video, packets, hidden = episode.clips[key].taken()
            row |= {f"videos/{key}/{name}": value for name, value in files.append(video, packets, hidden).items()}
            if key in self._packed and key not in known_stats:
                for frame in itertools.islice(mp4.decoded(video, packets), hidden, None):
                    episode.add_pictures(key, frame[None])
        stats = episode.stats(known_stats)
        self._stats = lerobot_stats.added(self._stats, stats)
        row |= {f"stats/{key}/{name}": value.tolist() for key, each in stats.items() for name, value in each.items()}
        self._waiting.append({**row, OWN: json.dumps(told)})
        if len(self._waiting) == EPISODES_AT_ONCE:
            self._write_episodes()

    def _write_episodes(self) -> None:
        import pyarrow as pa

        if self._waiting:
            place = {f"meta/episodes/{name}": number for name, number in self._episodes.place().items()}
            rows = [{**row, **place} for row in self._waiting]
            wide = {
                f"stats/{key}/{name}": pa.list_(pa.uint64())  # of whole numbers Arrow takes int64 by itself
                for key, feature in self._features.items()
                if feature["dtype"] == "uint64"
                for name in ("min", "max")
            }
            self._episodes.write(pa.table({k: pa.array([row[k] for row in rows], wide.get(k)) for k in rows[0]}))
            self._waiting.clear()

    def _is_whole(self) -> bool:
        """Tell whether the steps are those of the dataset that the store came from: its lengths and its numbers."""
        stats = self._origin.get("stats") or {}
        return self._lengths == self._origin.get("lengths") and all(
            np.allclose(value, stats[key][name])
            for key, each in (self._stats or {}).items()
            if key in stats and key not in self._videos and key not in COUNTED
            for name, value in each.items()
            if name in ("min", "max", "count") and np.shape(value) == np.shape(stats[key].get(name))
        )

    def _write_meta(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        came = self._origin.get("info") or {}
        whole = self._is_whole()
        for key in self._videos:
            if "info" not in self._features[key]:
                self._features[key] = {**self._features[key], "info": self._videos[key].facts()}
        info = {
            **self._info, "total_episodes": len(self._lengths), "total_frames": self._rows,
            "total_tasks": len(self._tasks),
            "splits": came["splits"] if whole and "splits" in came else {"train": f"0:{len(self._lengths)}"},
            "data_path": lerobot_meta.DATA_PATH,
            "video_path": lerobot_meta.VIDEO_PATH if self._videos else came.get("video_path"),
            "features": self._features,
        }  # fmt: skip
        own = {key: {name: value.tolist() for name, value in each.items()} for key, each in (self._stats or {}).items()}
        stats = self._origin.get("stats") if whole else None
        _write_json(self._target / lerobot_meta.INFO, info)
        _write_json(self._target / lerobot_meta.STATS, stats or own)
        columns = [pa.array(range(len(self._tasks)), pa.int64()), pa.array(self._tasks, pa.string())]
        table = pa.table(columns, [TASK, "task"], metadata={"pandas": json.dumps(TASKS_INDEX)})
        pq.write_table(table, self._target / lerobot_meta.TASKS)


def _texts(given: Any) -> list[str]:
    return [text for text in (given if isinstance(given, list) else [given]) if isinstance(text, str)]


class PacketClip:
    """The packets of an episode's rows, each once.

    Where the first row's frame is no key frame, as its group begins with steps that were taken away, those before it
    are ``hidden``: they stand in the file before the episode begins.
    """

    def __init__(self, key: str, video: Video) -> None:
        self._key, self._video, self._last = key, video, b""
        self._packets: list[tuple[bytes, bool]] = []
        self._hidden, self._rows, self._number = 0, 0, 0

    def append(self, value: Array) -> None:
        """Take a row's value; raise InputError unless it has one packet more than the row before."""
        data = value.tobytes()
        known = len(self._last) if data.startswith(self._last) else 0
        found = records(data)
        # A key frame alone is a packet of its own, also where it has the bytes of the one before.
        fresh = found if len(found) == 1 else [packet for packet in found if packet.end > known]
        if not self._rows:
            self._hidden, self._number = len(fresh) - 1, found[0].parameters
        elif len(fresh) != 1 or found[0].parameters != self._number:
            raise InputError(
                f"{self._key}: step {self._rows} of an episode has {len(fresh)} packets that the step before lacks, or "
                "other parameters; LeRobot takes one frame a step: import with --frames decoded, or export to store"
            )
        self._packets += [(bytes(packet.data), packet.key) for packet in fresh]
        self._last = data
        self._rows += 1

    def taken(self) -> tuple[Video, list[tuple[bytes, bool]], int]:
        """Return the facts of these packets, with the parameters that are theirs; the packets; how many are hidden."""
        video = dataclasses.replace(self._video, parameters=(self._video.parameters[self._number],))
        return video, self._packets, self._hidden


class EncodedClip:
    """The frames ``(height, width, 3)`` of an episode, encoded as LeRobot does."""

    def __init__(self, shape: tuple[int, ...], fps: float) -> None:
        video = Video("av1", shape[1], shape[0], fps=mp4.rate(fps))
        self._encoder = VideoEncoder(video, options={"flags": "+global_header"})
        self._video = dataclasses.replace(video, parameters=(self._encoder.parameters,))
        self._packets: list[tuple[bytes, bool]] = []

    def append(self, frame: Array) -> None:
        """Take a frame."""
        self._packets += self._encoder.encode(frame)

    def taken(self) -> tuple[Video, list[tuple[bytes, bool]], int]:
        """Return as :meth:`PacketClip.taken` does; nothing is hidden."""
        return self._video, [*self._packets, *self._encoder.finish()], 0


class _EpisodeParts:
    """What is kept of an episode until it ends: its numbers, its pictures made small, and its encoded frames.

    Args:
        place: the numbers of the file of its rows.
    """

    def __init__(self, place: Mapping[str, int]) -> None:
        self.place = place
        self.values: dict[str, list[Array]] = {}
        self._pictures: dict[str, list[Array]] = {}
        self.clips: dict[str, PacketClip | EncodedClip] = {}

    def add_pictures(self, key: str, values: Array) -> None:
        """Take pictures ``(n, height, width)``, or with channels last."""
        self._pictures.setdefault(key, []).extend(lerobot_stats.reduced(value).copy() for value in values)

    def add_video(self, key: str, values: Any, packed: Video | None, fps: float) -> None:
        """Take the values of a camera: packets, if it is ``packed``, else frames ``(n, height, width, 3)``."""
        if key not in self.clips:
            self.clips[key] = EncodedClip(values.shape[1:], fps) if packed is None else PacketClip(key, packed)
        for value in values:
            self.clips[key].append(value)
        if packed is None:
            self.add_pictures(key, values)

    def stats(self, known: Mapping[str, dict[str, Array]]) -> dict[str, dict[str, Array]]:
        """Return the statistics of each feature; those that are known of cameras are taken as they are."""
        found = {key: lerobot_stats.of_values(np.concatenate(parts)) for key, parts in self.values.items()}
        for key in {**self.clips, **self._pictures}:
            pictures = self._pictures.get(key, [])
            chosen = (pictures[number] for number in lerobot_stats.chosen(len(pictures)))
            found[key] = known.get(key) or lerobot_stats.of_pictures(np.stack([*chosen]))
        return found


def _write_json(path: pathlib.Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=4, ensure_ascii=False))
