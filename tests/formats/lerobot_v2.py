"""LeRobotDatasets of version 2.0 and 2.1, as LeRobot 0.3.3 writes them.

It follows ``create_empty_dataset_info``, ``write_task``, ``write_episode`` and ``write_episode_stats`` of
``lerobot/datasets/utils.py``, ``get_feature_stats`` of ``compute_stats.py``, and ``save_episode`` of
``lerobot_dataset.py``. Version 2.0 has one ``stats.json`` in place of the statistics of each episode.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from diskreplay.formats.files import images
from diskreplay.recording.video_encoding import as_a_guest

LENGTHS, FPS, CAMERA = (4, 7, 3), 20, "observation.images.top"
TASKS = [["push"] * 4, ["pull"] * 3 + ["push"] * 4, ["é語 lift\nup"] * 3]
VECTOR = {"dtype": "float32", "shape": [2], "names": ["x", "y"]}
FEATURES: dict[str, Any] = {
    CAMERA: {"dtype": "video", "shape": [64, 96, 3], "names": ["height", "width", "channels"]},
    "observation.images.small": {"dtype": "image", "shape": [8, 9, 3], "names": ["height", "width", "channels"]},
    "observation.state": VECTOR, "action": VECTOR,
    "observation.force": {"dtype": "float64", "shape": [1], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    **{key: {"dtype": "int64", "shape": [1], "names": None}
       for key in ("frame_index", "episode_index", "index", "task_index")},
}  # fmt: skip


def frame(episode: int, step: int, height: int = 64, width: int = 96) -> Any:
    slope = np.add.outer(np.arange(height), np.arange(width))[..., None] + np.array([9 * step, 40 * episode, 50])
    return (slope % 256).astype(np.uint8)


def values(episode: int) -> dict[str, Any]:
    """The rows of an episode, without those of cameras that are videos."""
    rng, count = np.random.default_rng(episode), LENGTHS[episode]
    numbers = list(dict.fromkeys(text for texts in TASKS for text in texts))
    return {
        "observation.images.small": np.stack([frame(episode, step, 8, 9) for step in range(count)]),
        "observation.state": rng.normal(size=(count, 2)).astype(np.float32),
        "action": rng.normal(size=(count, 2)).astype(np.float32),
        "observation.force": rng.normal(size=count), "next.done": np.arange(count) == count - 1 - episode % 2,
        "timestamp": (np.arange(count) / FPS).astype(np.float32), "frame_index": np.arange(count),
        "episode_index": np.full(count, episode), "index": np.arange(count) + sum(LENGTHS[:episode]),
        "task_index": np.array([numbers.index(text) for text in TASKS[episode]]),
    }  # fmt: skip


def write(root: pathlib.Path, version: str = "v2.1", codec: str = "libx264") -> None:
    """A dataset of three episodes, a file each, two of them in a folder, with tasks that change within an episode."""
    meta = root / "meta"
    meta.mkdir(parents=True)
    texts = list(dict.fromkeys(text for each in TASKS for text in each))
    lines = {"tasks": [{"task_index": at, "task": text} for at, text in enumerate(texts)], "episodes": [], "stats": []}
    for number, count in enumerate(LENGTHS):
        rows, chunk = values(number), f"chunk-{number // 2:03d}"
        frames = [frame(number, step) for step in range(count)]
        options = {"g": "2", **({"bf": "0"} if codec == "libx264" else {})}
        film(root / "videos" / chunk / CAMERA / f"episode_{number:06d}.mp4", frames, codec, **options)
        save(root / "data" / chunk / f"episode_{number:06d}.parquet", rows)
        told = {"episode_index": number, "tasks": list(dict.fromkeys(TASKS[number])), "length": count}
        lines["episodes"].append(told)
        stats = {key: stats_of(each) for key, each in {CAMERA: np.stack(frames), **rows}.items()}
        lines["stats"].append({"episode_index": number, "stats": stats})
    (meta / "tasks.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines["tasks"]))
    (meta / "episodes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines["episodes"]))
    if version == "v2.1":
        (meta / "episodes_stats.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines["stats"]))
    else:
        (meta / "stats.json").write_text(json.dumps(lines["stats"][0]["stats"]))
    info = {
        "codebase_version": version, "robot_type": "arm", "total_episodes": len(LENGTHS), "total_frames": sum(LENGTHS),
        "total_tasks": len(texts), "total_videos": len(LENGTHS), "total_chunks": 2, "chunks_size": 2, "fps": FPS,
        "splits": {"train": f"0:{len(LENGTHS)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": FEATURES,
    }  # fmt: skip
    (meta / "info.json").write_text(json.dumps(info, indent=4))


def save(target: pathlib.Path, rows: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    columns = {key: pa.array(each.tolist(), pa.from_numpy_dtype(each.dtype)) for key, each in rows.items()
               if each.ndim == 1}  # fmt: skip
    columns |= {key: pa.array(each.tolist(), pa.list_(pa.float32(), 2)) for key, each in rows.items() if each.ndim == 2}
    pictures = [{"bytes": one, "path": f"{at}.png"} for at, one in enumerate(images.encoded(next(iter(rows.values()))))]
    image = {"observation.images.small": pa.array(pictures, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))}
    pq.write_table(pa.table({**image, **columns}), target)


def film(target: pathlib.Path, frames: list[Any], codec: str = "libx264", fps: int = FPS, **options: str) -> None:
    """A video of these frames, by PyAV alone."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(target), "w", options={"movflags": "faststart"}) as container:
        stream = container.add_stream(codec, fps, options=options)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        with as_a_guest():
            stream.codec_context.open()
        for each in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(each, format="rgb24")))
        container.mux(stream.encode())


def decoded(file: pathlib.Path) -> list[Any]:
    """The frames of a video, decoded by PyAV alone."""
    with av.open(str(file)) as container:
        return [each.to_ndarray(format="rgb24") for each in container.decode(video=0)]


def stats_of(each: Any) -> dict[str, Any]:
    pictures = each.ndim == 4
    array = np.moveaxis(each, -1, 1) if pictures else each
    axes: Any = (0, 2, 3) if pictures else 0
    found = {name: getattr(np, name)(array, axis=axes, keepdims=pictures or each.ndim == 1)
             for name in ("min", "max", "mean", "std")}  # fmt: skip
    shaped = {name: (value[0] / 255.0 if pictures else value).tolist() for name, value in found.items()}
    return {**shaped, "count": [len(each)]}
