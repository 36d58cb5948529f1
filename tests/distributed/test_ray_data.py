"""Ray Data reads a store as the store itself shows it, shard by shard."""

from __future__ import annotations

import pathlib
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import ray

import diskreplay as dr
from diskreplay.errors import CheckpointError, DiskReplayError, EvictedError, InputError, StateError
from diskreplay.ray import DiskReplayDatasource
from diskreplay.remote.collect import collect_garbage
from diskreplay.remote.mirror import Mirror
from diskreplay.remote.objects import ObjectStore
from diskreplay.remote.remote_files import RemoteFiles

SHAPE = (48, 48)  # large enough not to be held in RAM
STEPS = 300
SHARD_ROWS = 64
PIXELS = gymnasium.spaces.Box(0, 255, SHAPE, np.uint8)
BUTTONS = gymnasium.spaces.Discrete(6)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    return record(str(tmp_path / "a.replay"))


def record(path: str, capacity: int = 10_000) -> str:
    """Two environments, stacks of three frames, a column; episodes of 40 and 25 steps."""
    with make(path, capacity) as rb:
        add(rb, np.random.default_rng(0), STEPS)
    return path


def make(
    path: str, capacity: int = 10_000, chunk_rows: int = 16, shard_rows: int = SHARD_ROWS, **options: Any
) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(
        path, PIXELS, BUTTONS, capacity=capacity, num_envs=2, seed=0, frame_stack=3, chunk_rows=chunk_rows,
        shard_rows=shard_rows, columns={"value": "f4"}, **options,
    )  # fmt: skip


def add(rb: dr.ReplayBuffer, rng: np.random.Generator, steps: int) -> None:
    frames = rng.integers(0, 255, (2, *SHAPE), np.uint8)
    for step in range(steps):
        following = rng.integers(0, 255, (2, *SHAPE), np.uint8)
        ends = [step % 40 == 39, step % 25 == 24]
        rb.add(frames, [step % 6, 1], [step, 1.0], following, ends, [False, False], value=[step / 2, -1])
        frames = np.where(np.array(ends)[:, None, None], rng.integers(0, 255, (2, *SHAPE), np.uint8), following)


def rows(source: DiskReplayDatasource, parallelism: int = 3, **options: Any) -> dict[str, np.ndarray]:
    """What all tasks give, read in this process, after each has been pickled as on its way to another."""
    tasks = [pickle.loads(ray.cloudpickle.dumps(task)) for task in source.get_read_tasks(parallelism, **options)]
    blocks = [block for task in tasks for block in task()]
    columns = [ray.data.block.BlockAccessor.for_block(block).to_numpy(source.columns) for block in blocks]
    return {name: np.concatenate([column[name] for column in columns]) for name in source.columns}


def sorted_by_place(read: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    order = np.lexsort((read["step"], read["episode"]))
    return {name: values[order] for name, values in read.items()}


def expected(path: str) -> dict[str, np.ndarray]:
    """The store's own batch of every transition, by episode and step."""
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        ids = [
            np.arange(e.start, e.stop) * rb.num_envs + e.env + (e.stream << 48) for e in rb.episodes
        ]  # fmt: skip
        batch = rb.get(np.concatenate(ids))
        numbers = np.repeat(np.arange(len(ids)), [len(each) for each in ids])
    return {
        "obs": batch.obs, "action": batch.action, "reward": batch.reward, "next_obs": batch.next_obs,
        "terminated": batch.terminated, "truncated": batch.truncated, "value": batch.extra["value"],
        "episode": numbers, "step": np.concatenate([np.arange(len(each)) for each in ids]),
    }  # fmt: skip


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("parallelism", [1, 2, 7, 100])
def test_every_transition_is_read_once_and_as_the_store_shows_it(path: str, parallelism: int) -> None:
    read = rows(DiskReplayDatasource(path), parallelism)
    assert same(sorted_by_place(read), expected(path))


def test_tasks_are_whole_shards_and_share_the_rows(path: str) -> None:
    source = DiskReplayDatasource(path, ["episode", "step"])
    tasks = source.get_read_tasks(2)
    assert len(tasks) == 2
    for task in tasks:
        assert {part.start // SHARD_ROWS for part in task.read_fn.parts}.isdisjoint(
            part.start // SHARD_ROWS for other in tasks if other is not task for part in other.read_fn.parts
        )
    assert len(source.get_read_tasks(100)) == -(-STEPS // 16)  # no chunk is decoded twice


def test_sizes_are_exact(path: str, cluster: None) -> None:
    source = DiskReplayDatasource(path)
    tasks = source.get_read_tasks(5)
    read = ray.data.read_datasource(source, override_num_blocks=5).materialize()
    assert read.count() == len(source) == sum(task.metadata.num_rows for task in tasks) == 2 * STEPS
    assert abs(read.size_bytes() - source.estimate_inmemory_data_size()) <= 64 * len(tasks)  # ends of bits in blocks
    assert abs(sum(task.metadata.size_bytes for task in tasks) - read.size_bytes()) <= 64 * len(tasks)
    assert read.schema().names == source.columns


def test_a_dataset_is_what_the_store_holds(path: str, cluster: None) -> None:
    read = ray.data.read_datasource(DiskReplayDatasource(path), override_num_blocks=3)
    found = [batch for batch in read.iter_batches(batch_size=None)]
    whole = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    assert same(sorted_by_place(whole), expected(path))


@pytest.mark.parametrize("side", [48, 2])  # read from disk, and held in RAM
@pytest.mark.parametrize(
    ("channels", "axis", "newest"),
    [
        ((), None, (slice(None), -1)),
        ((), 0, (slice(None), -1)),
        ((), -1, (..., -1)),
        ((3,), -1, (..., slice(-3, None))),
    ],
)
def test_without_stacks_each_observation_is_its_newest_frame(
    tmp_path: pathlib.Path, side: int, channels: tuple[int, ...], axis: int | None, newest: Any
) -> None:
    frame, path = (side, side, *channels), str(tmp_path / "a.replay")
    rng = np.random.default_rng(0)

    def given(frames: np.ndarray) -> np.ndarray:
        """What an environment shows whose last four frames are these."""
        if axis is None:
            return frames[-1]
        return np.concatenate(list(frames), axis=-1) if channels else np.moveaxis(frames, 0, axis)

    frames = rng.integers(0, 255, (4, *frame), np.uint8)
    space = gymnasium.spaces.Box(0, 255, given(frames).shape, np.uint8)
    with dr.ReplayBuffer.create(
        path, space, BUTTONS, capacity=100, frame_stack=4, stack_axis=axis, chunk_rows=8, shard_rows=16, seed=0
    ) as rb:
        for step in range(60):
            following = np.concatenate([frames[1:], rng.integers(0, 255, (1, *frame), np.uint8)])
            if step % 13 == 5:  # a stack that does not follow
                following = rng.integers(0, 255, (4, *frame), np.uint8)
            end = step % 11 == 10
            rb.add(given(frames), 0, 0.0, given(following), end and step % 2 == 0, end and step % 2 == 1)
            frames = following if not end else rng.integers(0, 255, (4, *frame), np.uint8)
    stacked, single = DiskReplayDatasource(path), DiskReplayDatasource(path, stack=False)
    shown, read = sorted_by_place(rows(stacked)), sorted_by_place(rows(single))
    for name in ("obs", "next_obs"):
        assert read[name].shape == (60, *frame)
        assert np.array_equal(read[name], shown[name][newest])
        only = rows(DiskReplayDatasource(path, [name, "episode", "step"], stack=False))
        assert np.array_equal(sorted_by_place(only)[name], read[name])
    assert all(np.array_equal(read[name], shown[name]) for name in read if "obs" not in name)
    assert 0 < single.estimate_inmemory_data_size() < stacked.estimate_inmemory_data_size()


def test_row_limits_are_forwarded_and_read_no_further(path: str, cluster: None) -> None:
    source = DiskReplayDatasource(path)
    tasks = source.get_read_tasks(3, per_task_row_limit=10)
    assert [sum(block.num_rows for block in task()) for task in tasks] == [10] * len(tasks)
    assert all(task.per_task_row_limit == 10 and task.metadata.num_rows == 10 for task in tasks)
    assert [sum(map(len, task.read_fn.parts)) for task in tasks] == [10] * len(tasks)
    assert len(ray.data.read_datasource(source, override_num_blocks=2).limit(7).take_all()) == 7


def lose_frames(path: str) -> None:
    """Damages the first chunks of each shard of frames: whoever decodes one fails."""
    for shard in pathlib.Path(path, "streams", "0", "obs").glob("c*"):
        data = shard.read_bytes()
        shard.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])


def test_frames_that_nobody_asked_for_are_not_decoded(path: str, cluster: None) -> None:
    wanted = expected(path)
    small = DiskReplayDatasource(path, ["reward", "value", "episode", "step"])
    everything = DiskReplayDatasource(path)
    lose_frames(path)
    assert np.array_equal(sorted_by_place(rows(small))["reward"], wanted["reward"])
    pushed = ray.data.read_datasource(everything, override_num_blocks=2).select_columns(["reward", "action"])
    assert sum(row["reward"] for row in pushed.take_all()) == wanted["reward"].sum()
    with pytest.raises(DiskReplayError):
        rows(everything)


def test_episodes_are_chosen_by_number_slice_and_condition(path: str) -> None:
    with dr.ReplayBuffer.open(path, mode="r") as rb:
        long = [number for number, episode in enumerate(rb.episodes) if episode.length == 40]
    assert 0 < len(long) < len(expected(path)["step"])
    for chosen in ("length == 40", long, tuple(long)):
        read = rows(DiskReplayDatasource(path, ["episode"], chosen))
        assert sorted(set(read["episode"].tolist())) == long
        assert len(read["episode"]) == 40 * len(long)
    assert set(rows(DiskReplayDatasource(path, ["episode"], slice(2)))["episode"].tolist()) == {0, 1}


def test_what_is_not_there_is_refused(path: str) -> None:
    with pytest.raises(InputError, match="no column 'frame'; there are obs, action"):
        DiskReplayDatasource(path, ["frame"])
    with pytest.raises(InputError, match="list of names"):
        DiskReplayDatasource(path, "obs")
    with pytest.raises(InputError, match="there is no episode 900"):
        DiskReplayDatasource(path, episodes=[900])
    with pytest.raises(CheckpointError, match="kept"):
        DiskReplayDatasource(path, checkpoint="kept")


def test_a_checkpoint_keeps_the_rows_that_a_live_writer_evicts(tmp_path: pathlib.Path) -> None:
    path = record(str(tmp_path / "live.replay"), capacity=2 * STEPS)
    with dr.ReplayBuffer.open(path) as rb:
        rb.checkpoint("kept")
        pinned, loose = DiskReplayDatasource(path, checkpoint="kept"), DiskReplayDatasource(path)
        before = sorted_by_place(rows(pinned))
        add(rb, np.random.default_rng(1), STEPS)
        rb.commit()
        tasks = pickle.loads(ray.cloudpickle.dumps(loose.get_read_tasks(1)))
        forgotten()
        assert same(sorted_by_place(rows(pinned)), before)
        with pytest.raises(EvictedError):
            list(tasks[0]())


def forgotten() -> None:
    """The worker that comes next has no store open."""
    from diskreplay.ray import data

    data._kept_open.cache_clear()


def test_rows_of_another_timeline_are_not_given(path: str) -> None:
    with dr.ReplayBuffer.open(path) as rb:
        rb.checkpoint("early")
        add(rb, np.random.default_rng(1), 40)
    planned, pinned = DiskReplayDatasource(path), DiskReplayDatasource(path, checkpoint="early")
    with dr.ReplayBuffer.open(path, checkpoint="early") as rb:
        add(rb, np.random.default_rng(2), 40)
    forgotten()
    with pytest.raises(StateError, match=r"stream '0' of .* went back to a checkpoint after the dataset was made"):
        rows(planned)
    assert len(rows(pinned)["step"]) == 2 * STEPS
    assert len(rows(DiskReplayDatasource(path))["step"]) == 2 * (STEPS + 40)


# Under a URL


@pytest.fixture
def storage(s3: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables by which processes find the server; set in this one."""
    found = {
        "AWS_ENDPOINT_URL": s3, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def by_workers(source: DiskReplayDatasource, storage: dict[str, str], tasks: int = 3) -> Any:
    """The dataset, of workers that find the server."""
    environment = {"runtime_env": {"env_vars": storage}}
    return ray.data.read_datasource(source, override_num_blocks=tasks, ray_remote_args=environment)


def whole(dataset: Any) -> dict[str, np.ndarray]:
    batches = list(dataset.iter_batches(batch_size=None))
    return sorted_by_place({name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]})


def obs_copies(mirror: pathlib.Path) -> dict[str, int]:
    """Inodes of the shards of frames in a mirror, by their names."""
    return {file.name: file.stat().st_ino for file in mirror.glob("streams-0-obs-*")}


def test_a_url_is_read_by_workers_that_share_a_mirror(
    tmp_path: pathlib.Path, storage: dict[str, str], cluster: None
) -> None:
    url, local, mirror = "s3://bucket/ray/shared.replay", str(tmp_path / "a.replay"), tmp_path / "mirror"
    with make(local, remote=url, chunk_rows=8, shard_rows=8) as rb:
        add(rb, np.random.default_rng(0), STEPS)
        rb.push()
    source = DiskReplayDatasource(url, mirror=mirror)
    small = by_workers(source, storage).select_columns(["reward", "episode", "step"])
    assert np.array_equal(whole(small)["reward"], expected(local)["reward"])
    assert len(obs_copies(mirror)) <= 1  # no frame was asked for: the newest came
    assert same(whole(by_workers(source, storage)), expected(local))
    copies = obs_copies(mirror)
    assert len(copies) == -(-STEPS // 8) > 2
    assert same(whole(by_workers(source, storage, tasks=2)), expected(local))
    assert obs_copies(mirror) == copies  # none came again
    assert not (tmp_path / "cache").exists()
    long = DiskReplayDatasource(url, ["obs", "episode", "step"], "length == 40", mirror=mirror)
    read, every = whole(by_workers(long, storage)), expected(local)
    chosen = np.isin(every["episode"], read["episode"])
    assert 0 < len(read["step"]) < len(every["step"])
    assert same(read, {name: every[name][chosen] for name in read})


def test_a_remote_dataset_does_not_grow_with_later_pushes(
    tmp_path: pathlib.Path, storage: dict[str, str], cluster: None
) -> None:
    url, local = "s3://bucket/ray/grown.replay", str(tmp_path / "a.replay")
    with make(local, remote=url) as rb:
        add(rb, np.random.default_rng(0), STEPS - 10)  # an episode goes on
        rb.push()
        before, source = expected(local), DiskReplayDatasource(url)
        add(rb, np.random.default_rng(1), STEPS)
        rb.push()
    assert same(whole(by_workers(source, storage)), before)
    assert same(whole(by_workers(DiskReplayDatasource(url), storage)), expected(local))


def test_evicted_rows_of_a_url_are_missed_by_name(
    tmp_path: pathlib.Path, storage: dict[str, str], cluster: None
) -> None:
    url = "s3://bucket/ray/evicted.replay"
    with make(str(tmp_path / "a.replay"), capacity=2 * STEPS, remote=url) as rb:
        add(rb, np.random.default_rng(0), STEPS)
        rb.checkpoint("kept")
        rb.push()
        pinned, loose = DiskReplayDatasource(url, checkpoint="kept"), DiskReplayDatasource(url)
        before = expected(str(tmp_path / "a.replay"))
        add(rb, np.random.default_rng(1), 2 * STEPS)
        rb.push()
    collect_garbage(RemoteFiles(ObjectStore(url), Mirror(str(tmp_path / "own"), 1 << 30, url)), older_than=0)
    assert same(whole(by_workers(pinned, storage)), before)
    with pytest.raises(EvictedError, match="transition 0 has left the window"):
        whole(by_workers(loose, storage))


def test_a_mirror_is_for_urls(path: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="for stores under a URL"):
        DiskReplayDatasource(path, mirror=tmp_path / "mirror")
