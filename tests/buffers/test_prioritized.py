"""Prioritized samplers in a buffer: what they draw, and that a checkpoint holds all that they go on from."""

import gymnasium
import numpy as np
import pytest

import diskreplay as dr
from diskreplay.errors import InputError

SPACE = gymnasium.spaces.Box(-1e9, 1e9, (2,), np.float32)
SAMPLERS = [
    lambda: dr.Proportional(alpha=0.7, beta=0.4, beta_schedule=(1.0, 50)),
    lambda: dr.RankBased(alpha=0.6, beta=0.5),
]


def create(path, sampler, **options):
    options = {"capacity": 60, "seed": 3, "sampler": sampler, **options}
    return dr.ReplayBuffer.create(path, SPACE, gymnasium.spaces.Discrete(3), **options)


def add(rb, start, stop, valid=None):
    lead = (rb.num_envs, 2) if rb.num_envs > 1 else (2,)
    flag = np.zeros(rb.num_envs, bool) if rb.num_envs > 1 else False
    reward = np.zeros(rb.num_envs, np.float32) if rb.num_envs > 1 else 0.0
    for step in range(start, stop):
        ends = flag | (step % 13 == 12)
        obs, following = np.full(lead, step, np.float32), np.full(lead, step + 1, np.float32)
        rb.add(obs, flag * 1, reward, following, ends, flag, valid=valid)


def go_on(rb, rounds):
    """Samples, updates and adds; everything that came out."""
    seen = []
    for at in range(rounds):
        batch = rb.sample(8)
        seen.append((batch.index.copy(), batch.weight.copy(), np.array(batch.obs)))
        rb.update_priorities(batch.index, np.sin(batch.index + at))
        if at % 3 == 0:
            add(rb, 1000 + at, 1001 + at)
    return seen


@pytest.mark.long(quick=5)
@pytest.mark.usefixtures("both_thresholds")
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("options", [{}, {"num_envs": 3}, {"view": dr.Transition(n_step=3), "num_envs": 2}])
def test_a_checkpoint_goes_on_bit_for_bit(path, sampler, options):
    with create(path, sampler(), **options) as rb:
        add(rb, 0, 40)
        go_on(rb, 30)
        rb.checkpoint("here")
        expected = go_on(rb, 200)
    with dr.ReplayBuffer.open(path, checkpoint="here") as rb:
        assert repr(rb.sampler) == repr(sampler())
        found = go_on(rb, 200)
    for left, right in zip(expected, found, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


def test_priorities_decide(tmp_path):
    with create(tmp_path / "s", dr.Proportional(alpha=1.0, beta=1.0)) as rb:
        add(rb, 0, 10)
        rb.update_priorities(np.arange(10), np.array([1e-3] * 9 + [10.0]))
        counts = np.bincount(np.concatenate([rb.sample(10).index for _ in range(300)]), minlength=10)
        assert counts[9] > 0.99 * counts.sum()


def test_what_is_no_transition_has_no_mass(tmp_path):
    with create(tmp_path / "s", dr.Proportional(), num_envs=2, view=dr.Transition(n_step=3)) as rb:
        add(rb, 0, 10, valid=np.array([True, False]))
        drawn = np.concatenate([rb.sample(4).index for _ in range(100)])
        assert set(drawn.tolist()) == set(range(0, 16, 2))  # rows 8 and 9 still lack steps
        add(rb, 10, 12)
        drawn = np.concatenate([rb.sample(4).index for _ in range(300)])
        assert set(drawn.tolist()) == {*range(0, 20, 2)}


def test_late_priorities_are_ignored(tmp_path):
    with create(tmp_path / "s", dr.Proportional(), capacity=10) as rb:
        add(rb, 0, 10)
        batch = rb.sample(5)
        add(rb, 10, 30)
        rb.update_priorities(batch.index, np.full(5, 100.0))
        assert (rb.sampler.ignored_updates, rb.sampler.maximum) == (5, 1.0)


def test_several_streams(path):
    with create(path, dr.Proportional()) as rb, dr.ReplayBuffer.open(path, stream="actor") as actor:
        add(rb, 0, 10)
        add(actor, 0, 10)
        actor.commit()
        rb.refresh()
        drawn = np.concatenate([rb.sample(10).index for _ in range(50)])
        assert set((drawn >> 48).tolist()) == {0, 1}
        rb.update_priorities(drawn[:10], np.ones(10))


def test_uniform_has_no_priorities(tmp_path):
    with create(tmp_path / "s", None) as rb:
        add(rb, 0, 5)
        with pytest.raises(InputError, match="has no priorities"):
            rb.update_priorities([0], [1.0])


def test_a_stream_that_exists_is_not_shrunk_by_opening_it(tmp_path):
    create(tmp_path / "s", None).close()
    with pytest.raises(InputError, match="the stream '0' has the capacity 60, and 50 would keep fewer rows"):
        dr.ReplayBuffer.open(tmp_path / "s", capacity=50)
    dr.ReplayBuffer.open(tmp_path / "s", capacity=60, num_envs=1).close()
