"""What the files below ``meta`` say of a LeRobotDataset of version 2.0 or 2.1, as it would be said in version 3.0.

==========================  ==========================================================================================
``info.json``               as in version 3.0; the patterns of its files are of one file an episode
``tasks.jsonl``             of each task its number and its text
``episodes.jsonl``          of each episode its number, tasks and length
``episodes_stats.jsonl``    of each episode the statistics of its features; not in version 2.0
==========================  ==========================================================================================

1. It becomes what ``convert_dataset_v21_to_v30.py`` of LeRobot 0.4.4 (``src/lerobot/datasets/v30``) makes of it.
2. ``stats.json`` of version 2.0 is not read. ``convert_dataset_v20_to_v21.py`` of LeRobot 0.3 computes the statistics
   again, with the number of frames, which it lacks; so does an export.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.errors import InputError
from diskreplay.formats.core.untrusted import DOCUMENT_BYTES, declared_count, parse_json
from diskreplay.formats.files import lerobot_meta, lerobot_stats
from diskreplay.formats.files.lerobot_meta import EPISODE, INFO, TASK, DatasetMeta, inside

TASKS, EPISODES, STATS = "meta/tasks.jsonl", "meta/episodes.jsonl", "meta/episodes_stats.jsonl"
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
CHUNK_FILES = 1000


def read(path: pathlib.Path, info: Mapping[str, Any]) -> DatasetMeta:
    """Return what the files below ``meta`` say; raise InputError for what is wrong or missing there."""
    documents = [INFO, TASKS, EPISODES, *([STATS] if (path / STATS).exists() else [])]
    stats = [row.get("stats") for row in _numbered(path, STATS, EPISODE)] if STATS in documents else []
    episodes = _numbered(path, EPISODES, EPISODE)
    if STATS in documents and len(stats) != len(episodes):
        raise InputError(f"{path}: {STATS} has {len(stats):,} episodes, and {EPISODES} {len(episodes):,}")
    chunk_files = int(info.get("chunks_size") or CHUNK_FILES)
    cameras, rows, data = lerobot_meta.cameras(info), [], []
    for number, told in enumerate(episodes):
        length = lerobot_meta.length(path, number, told)
        chunk, stop = number // chunk_files, length / float(info["fps"])
        place = dict(zip(lerobot_meta.KEPT, (chunk, number, 0.0, stop), strict=True))
        videos = {f"videos/{key}/{name}": value for key in cameras for name, value in place.items()}
        rows.append({**told, "length": length, **videos})
        where = f"{path}: episode {number}"
        data.append(inside(path, lerobot_meta.filled(info.get("data_path") or DATA_PATH, where, "", chunk, number)))
    tasks = _numbered(path, TASKS, TASK)
    if not all(isinstance(row.get("task"), str) for row in tasks):
        raise InputError(f"{path}: {TASKS} must have a text in each line")
    return DatasetMeta(
        path, _converted(info), _aggregated(path, stats), [row["task"] for row in tasks], rows, data,
        str(info.get("video_path") or VIDEO_PATH), documents,
    )  # fmt: skip


def _converted(info: Mapping[str, Any]) -> dict[str, Any]:
    fps = int(info["fps"]) if float(info["fps"]).is_integer() else info["fps"]
    left = {key: value for key, value in info.items() if key not in ("total_chunks", "total_videos")}
    return {
        **left, "codebase_version": lerobot_meta.VERSION, "fps": fps, "data_path": lerobot_meta.DATA_PATH,
        "video_path": None if info.get("video_path") is None else lerobot_meta.VIDEO_PATH,
        **{name: value for name, value in lerobot_meta.LIMITS.items() if name != "chunks_size"},
        "features": {
            key: feature if feature.get("dtype") == "video" else {**feature, "fps": fps}
            for key, feature in info["features"].items()
        },
    }  # fmt: skip


def _aggregated(path: pathlib.Path, episodes: list[Any]) -> dict[str, dict[str, Any]] | None:
    try:
        keys = dict.fromkeys(key for stats in episodes for key in stats)
        each = {
            key: [{name: np.array(value) for name, value in stats[key].items()} for stats in episodes if key in stats]
            for key in keys
        }
        found = {key: lerobot_stats.weighted(*stats) for key, stats in each.items()}
        return {key: {name: value.tolist() for name, value in one.items()} for key, one in found.items()} or None
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{path}: {STATS} holds no statistics of each feature: {error}") from error


def _numbered(path: pathlib.Path, name: str, key: str) -> list[dict[str, Any]]:
    found: dict[Any, dict[str, Any]] = {}
    with inside(path, name).open("rb") as lines:
        while line := lines.readline(DOCUMENT_BYTES):
            row = parse_json(line, f"{path}: {name}") if line.strip() else {}
            if not isinstance(row, dict):
                raise InputError(f"{path}: {name}: each line must hold an object")
            if row:
                found[declared_count(row.get(key), f"{path}: {name}: {key}")] = row
    if found.keys() != set(range(len(found))) or not found:
        raise InputError(f"{path}: {name} must number its lines from 0 by {key}")
    return [found[number] for number in range(len(found))]
