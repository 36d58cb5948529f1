"""Faults that were found by review, one test each."""

import gc
import multiprocessing
import threading
import time

import gymnasium
import numpy as np
import pytest
from helpers.crashes import uncollected
from helpers.line import rows_in
from helpers.patience import PATIENCE

import diskreplay as dr
from diskreplay.errors import StateError

FRAME = gymnasium.spaces.Box(0, 255, (40, 40), np.uint8)
VECTOR = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
ACTION = gymnasium.spaces.Discrete(2)


def add(rb, start, stop, **extra):
    shape = rb.schema.observation_space.shape
    lead = () if rb.num_envs == 1 else (rb.num_envs,)
    dtype = rb.schema.observation_space.dtype
    flags = np.zeros(lead, bool) if lead else False
    for row in range(start, stop):
        obs, following = (np.full((*lead, *shape), value % 250, dtype) for value in (row, row + 1))
        rb.add(obs, flags * 1, flags * 0.0 + row, following, flags, flags, **extra)


def test_a_column_whose_name_begins_like_the_patch_table(tmp_path):
    columns = {"patches_seen": np.float32, "patches_image": ((400,), np.float32)}
    options = {"chunk_rows": {"patches_image": 4}, "shard_rows": {"patches_image": 8}}
    with dr.ReplayBuffer.create(tmp_path / "s", VECTOR, ACTION, capacity=100, columns=columns, **options) as rb:
        for row in range(0, 400, 20):
            add(rb, row, row + 20, patches_seen=1.5, patches_image=np.full(400, row, np.float32))
            rb.commit()
    with dr.ReplayBuffer.open(tmp_path / "s") as rb:
        batch = rb.get(np.arange(300, 400))
        np.testing.assert_array_equal(batch.extra["patches_image"][:, 0], np.repeat(np.arange(300, 400, 20), 20))


def test_a_shuffled_pass_beside_a_writer_that_evicts(tmp_path):
    with dr.ReplayBuffer.create(
        tmp_path / "s", FRAME, ACTION, capacity=400, chunk_rows=1, shard_rows=2, commit_rows=10**6
    ) as rb:
        add(rb, 0, 400)
        rb.commit()
        with dr.ReplayBuffer.open(tmp_path / "s", mode="r", seed=0) as reader:
            batches = reader.shuffled(16, pool_bytes=1 << 16)
            seen = [next(batches)]
            add(rb, 400, 650)
            rb.commit()
            seen += batches
            ids = np.concatenate([batch.index for batch in seen])
            assert len(set(ids.tolist())) == len(ids)
            assert set(range(250, 400)) <= set(ids.tolist())
            for batch in seen:
                np.testing.assert_array_equal(batch.obs[:, 0, 0], batch.index % 250)


@pytest.mark.long
def test_evicted_patches_leave_the_cache(tmp_path):
    size = 40 * 40
    with dr.ReplayBuffer.create(
        tmp_path / "s", FRAME, ACTION, capacity=64, chunk_rows=4, cache_bytes=200 * size, seed=0, commit_rows=10**6
    ) as rb:
        for row in range(600):
            rb.add(np.full((40, 40), row % 250, np.uint8), 0, 0.0, np.full((40, 40), 251, np.uint8), True, False)
            if row % 20 == 19:
                rb.commit()
                rb.sample(20)
        rb.commit()
        assert rb.stats()["cache_used_bytes"] <= (64 + 8 + 64) * size


def test_a_forked_process_does_not_write(tmp_path):
    with dr.ReplayBuffer.create(tmp_path / "s", VECTOR, ACTION, capacity=100) as rb:
        add(rb, 0, 10)
        answers = multiprocessing.get_context("fork").SimpleQueue()

        def child():
            try:
                add(rb, 10, 11)
            except StateError as error:
                answers.put(str(error))

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join()
        assert "forked" in answers.get()
        add(rb, 10, 12)
    assert rows_in(tmp_path / "s") == 12


@pytest.mark.long
def test_a_forgotten_loader_ends(tmp_path):
    with dr.ReplayBuffer.create(tmp_path / "s", VECTOR, ACTION, capacity=100) as rb:
        add(rb, 0, 10)
        for _ in rb.loader(4):
            break
        gc.collect()
        deadline = time.monotonic() + PATIENCE
        while any(thread.name == "diskreplay-loader" for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("value", [-0.7, np.float32(-0.7), np.array(-0.7, np.float32)])
def test_a_python_float_takes_on_the_columns_precision(tmp_path, value):
    with dr.ReplayBuffer.create(tmp_path / "s", VECTOR, ACTION, capacity=9, columns={"logp": np.float32}) as rb:
        rb.add([0.1, 0.2], 0, 0.3, [0.3, 0.4], False, False, logp=value)
        batch = rb.sample(1)
        assert batch.extra["logp"][0] == np.float32(-0.7)
        np.testing.assert_array_equal(batch.obs[0], np.array([0.1, 0.2], np.float32))


def test_the_sampler_that_was_given_is_used(tmp_path):
    sampler = dr.Proportional()
    with dr.ReplayBuffer.create(tmp_path / "s", VECTOR, ACTION, capacity=9, sampler=sampler) as rb:
        assert rb.sampler is sampler


@pytest.mark.long
def test_batches_hold_no_reference_cycles(tmp_path):
    with dr.ReplayBuffer.create(tmp_path / "s", FRAME, ACTION, capacity=99, frame_stack=3, seed=0) as rb:
        add(rb, 0, 50)
        rb.sample(8)
        with uncollected():
            for _ in range(3):
                rb.sample(8)
            assert gc.collect() == 0
