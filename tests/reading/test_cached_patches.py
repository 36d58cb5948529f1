"""Final observations out of a warm decoded cache, where every sample of a batch has one."""

import gymnasium
import numpy as np
import pytest

import diskreplay as dr


@pytest.mark.long
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("frame_stack", [1, 4])
def test_all_samples_have_a_patch(tmp_path, frame_stack):
    space = gymnasium.spaces.Box(0, 255, (40, 40), np.uint8)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (200, 2, 40, 40), np.uint8)
    with dr.ReplayBuffer.create(
        tmp_path / "s", space, gymnasium.spaces.Discrete(2), capacity=200, frame_stack=frame_stack, seed=0, chunk_rows=4
    ) as rb:
        for obs, final in frames:
            rb.add(obs, 0, 0.0, final, True, False)
        rb.commit()
        for size in (1, 3, 200, 1, 3):
            batch = rb.sample(size)
            obs, following = batch.obs, batch.next_obs
            if frame_stack > 1:
                assert not obs[:, :-1].any()
                np.testing.assert_array_equal(following[:, :-1], obs[:, 1:])
                obs, following = obs[:, -1], following[:, -1]
            np.testing.assert_array_equal(obs, frames[batch.index, 0])
            np.testing.assert_array_equal(following, frames[batch.index, 1])
        assert rb.stats()["cache_used_bytes"] > 0
