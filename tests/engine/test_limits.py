"""Numbers that do not fit, values outside of discrete spaces, and stores that are made with ``finite=True``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr
from diskreplay.engine import appender, row_call
from diskreplay.errors import InputError, StateError
from diskreplay.ops.combine import merge

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
HALF = spaces.Box(-np.inf, np.inf, (2,), np.float16)
INF, NAN = float("inf"), float("nan")


def step(**given: Any) -> dict[str, Any]:
    zeros = np.zeros(3, np.float32)
    return {
        "obs": zeros, "action": np.zeros(2, np.float16), "reward": 0.0, "next_obs": zeros, "terminated": False,
        "truncated": False, "x": 0.0, **given,
    }  # fmt: skip


def make(path: str, action_space: gymnasium.Space[Any] = HALF, **options: Any) -> dr.ReplayBuffer:
    return dr.ReplayBuffer.create(path, VECTOR, action_space, capacity=100, columns={"x": np.float32}, **options)


def steps(given: dict[str, Any]) -> dict[str, Any]:
    """The step as one of ``extend``."""
    return {
        name: [value] if isinstance(value, list | float) else np.asarray(value)[None] for name, value in given.items()
    }


# Numbers that do not fit


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("obs", [0.0, 1e300, 0.0], r"^obs: 1e\+300 is too large for float32, which goes up to 3.4e\+38"),
        ("obs", (0.0, -1e300, 0.0), r"^obs: -1e\+300 is too large for float32"),
        ("obs", [0, 10**39, 0], "^obs: must be numbers"),
        ("next_obs", [0.0, 1e300, 0.0], r"^next_obs: 1e\+300 is too large for float32"),
        ("action", [7e4, 0.0], r"^action: 70000.0 is too large for float16, which goes up to 6.55e\+04"),
        ("action", [70_000, 0], "^action: 70000 is too large for float16"),
        ("action", np.array([7e4, 0.0]), "^action: 70000.0 is too large for float16"),
        ("x", 1e300, r"^x: 1e\+300 is too large for float32"),
        ("x", -1e300, r"^x: -1e\+300 is too large for float32"),
        ("x", np.float64(1e300), r"^x: 1e\+300 is too large for float32"),
        ("x", 3.5e38, r"^x: 3.5e\+38 is too large for float32"),
        ("reward", 1e300, r"^reward: 1e\+300 is too large for float32"),
        ("reward", np.float64(1e300), r"^reward: 1e\+300 is too large for float32"),
    ],
)
def test_a_finite_number_never_becomes_infinite(path: str, name: str, value: Any, message: str) -> None:
    """Lists, tuples and Python's floats took on the column's precision, and with it infinity."""
    with make(path) as buffer:
        buffer.add(**step())
        before = buffer.stats()
        with pytest.raises(InputError, match=message):
            buffer.add(**step(**{name: value}))
        with pytest.raises(InputError, match=message.partition(",")[0]):
            buffer.extend(**steps(step(**{name: value})))
        assert buffer.stats() == before
        buffer.add(**step())
        assert len(buffer.episodes) == 1


def test_infinite_and_almost_infinite_values_are_kept(path: str) -> None:
    largest = float(np.finfo(np.float32).max)
    given = [largest, np.nextafter(largest, INF), -largest, INF, -INF, NAN, 1e-300]
    with make(path) as buffer:
        for x in given:
            buffer.add(**step(x=x, obs=[x, 0.0, 0.0], action=[INF, NAN]))
        batch = buffer.get(np.arange(len(given)))
    np.testing.assert_array_equal(batch.extra["x"], np.array(given, np.float32))
    np.testing.assert_array_equal(batch.obs[:, 0], np.array(given, np.float32))
    np.testing.assert_array_equal(batch.action[0], [INF, NAN])


def test_rewards_of_float64_are_rounded_as_those_of_python(path: str) -> None:
    largest = float(np.finfo(np.float32).max)
    given = [0.1, 1 / 3, largest, -largest, np.nextafter(largest, INF), 1e-300]
    with make(path) as buffer:
        for reward in given:
            buffer.add(**step(reward=reward))
            buffer.add(**step(reward=np.float64(reward)))
        stored = buffer.get(buffer.items()).reward
    np.testing.assert_array_equal(stored[::2], np.array(given, np.float32))
    np.testing.assert_array_equal(stored[1::2], np.array(given, np.float32))


@pytest.mark.parametrize("name", ["value", "log_prob", "final_value"])
def test_estimates_of_a_rollout_that_do_not_fit(path: str, name: str) -> None:
    zeros = np.zeros(3, np.float32)
    with dr.RolloutBuffer.create(path, VECTOR, spaces.Discrete(2), steps=4) as rollout:
        for value in (1e300, np.float64(-1e300), np.array(1e300)):
            with pytest.raises(InputError, match=rf"^{name}: -?1e\+300 is too large for float32"):
                rollout.add(zeros, 0, 0.0, zeros, False, True, **{"value": 0.0, "log_prob": 0.0, name: value})
        assert len(rollout) == 0
        rollout.add(zeros, 0, 0.0, zeros, False, True, value=0.1, log_prob=np.float64(-0.3), final_value=NAN)
        assert len(rollout) == 1


def test_returns_that_do_not_fit(path: str) -> None:
    zeros = np.zeros(3, np.float32)
    with dr.RolloutBuffer.create(path, VECTOR, spaces.Discrete(2), steps=2, gamma=1.0) as rollout:
        rollout.add(zeros, 0, 0.0, zeros, False, False, value=0.0, log_prob=0.0)
        with pytest.raises(InputError, match=r"^advantage: .* is too large for float32"):
            rollout.finish(1e300)
        assert not rollout.finished
        rollout.finish(1.0)


# Discrete spaces


TUPLE = spaces.Tuple([spaces.Discrete(3, start=-1), spaces.Dict({"b": spaces.MultiBinary(2)})])
CHOICES: dict[str, tuple[gymnasium.Space[Any], list[Any], list[tuple[Any, str]]]] = {
    "discrete": (
        spaces.Discrete(3),
        [0, 2, np.int64(2), np.uint8(1), np.array(1), True],
        [(-1, "0 to 2 .int64., got -1"), (3, "got 3"), (np.int64(3), "got 3"), (np.array(-1), "got -1"), (3.0, "3")],
    ),
    "discrete with a start": (spaces.Discrete(3, start=5), [5, 7], [(4, "5 to 7"), (8, "got 8"), (0, "got 0")]),
    "more choices than integers": (
        spaces.Discrete(100, start=200, dtype=np.uint8), [200, np.uint8(255)], [(199, "200 to 255 .uint8., got 199")],
    ),
    "small integers": (spaces.Discrete(200, dtype=np.uint8), [0, 199], [(200, "0 to 199 .uint8., got 200")]),
    "multi-discrete": (
        spaces.MultiDiscrete([3, 5], start=[0, 10]),
        [[2, 14], np.array([0, 10])],
        [([3, 10], r"0 to 2 .int64., got 3 at \[0\]"), ([0, 9], r"10 to 14 .int64., got 9 at \[1\]")],
    ),
    "multi-discrete of one number": (spaces.MultiDiscrete([4, 4]), [[3, 0]], [([0, 4], "got 4"), ([-1, 0], "got -1")]),
    "multi-binary": (
        spaces.MultiBinary(3), [[0, 1, 1], [True, False, True]], [([0, 1, 2], "got 2"), ([-1, 0, 0], "got -1")],
    ),
    "nested": (
        TUPLE, [(-1, {"b": [0, 1]}), (1, {"b": [1, 1]})],
        [((2, {"b": [0, 1]}), "^action/0: .* got 2"), ((0, {"b": [0, 2]}), "^action/1/b: .* got 2")],
    ),
}  # fmt: skip


def lead(value: Any) -> Any:
    """A value with one more axis in front, nested as it is."""
    if isinstance(value, dict):
        return {name: lead(part) for name, part in value.items()}
    return tuple(lead(part) for part in value) if isinstance(value, tuple) else np.asarray(value)[None]


@pytest.mark.parametrize("case", CHOICES)
def test_actions_outside_of_their_space(path: str, case: str) -> None:
    space, good, bad = CHOICES[case]
    with make(path, space) as buffer:
        for action in good:
            buffer.add(**step(action=action))
        before = buffer.stats()
        for action, message in bad:
            with pytest.raises(InputError, match=f"(?s){message}"):
                buffer.add(**step(action=action))
            with pytest.raises(InputError, match=f"(?s){message.partition(' at ')[0]}"):
                buffer.extend(**steps(step()) | {"action": lead(action)})
        assert buffer.stats() == before
        buffer.extend(**steps(step()) | {"action": lead(good[0])})
        for action, _ in bad:  # a row that is no transition may hold them
            buffer.add(**step(action=action), valid=False)
            buffer.extend(**steps(step()) | {"action": lead(action)}, valid=[False])
        assert len(buffer) == len(good) + 1


def test_actions_of_several_environments(path: str) -> None:
    obs, flags = np.zeros((3, 3), np.float32), np.zeros(3, bool)

    def add(action: list[int], **given: Any) -> None:
        buffer.add(obs, np.array(action), np.zeros(3), obs, flags, flags, x=np.zeros(3, np.float32), **given)

    with make(path, spaces.Discrete(4), num_envs=3) as buffer:
        with pytest.raises(InputError, match=r"action: .* from 0 to 3 .int64., got 4 at \[1\]"):
            add([0, 4, 9])
        with pytest.raises(InputError, match=r"got 9 at \[2\]"):
            add([0, 4, 9], valid=np.array([True, False, True]))
        assert len(buffer) == 0
        add([3, -7, 0], valid=np.array([True, False, True]))
        assert len(buffer) == 2


def test_observations_outside_of_their_space(path: str) -> None:
    space = spaces.Dict({"room": spaces.Discrete(4), "keys": spaces.MultiBinary(2)})
    good = {"room": 3, "keys": [1, 0]}
    with dr.ReplayBuffer.create(path, space, spaces.Discrete(2), capacity=10) as buffer:
        with pytest.raises(InputError, match=r"^obs/room: .* got 4"):
            buffer.add({"room": 4, "keys": [1, 0]}, 0, 0.0, good, False, False)
        with pytest.raises(InputError, match=r"^next_obs/keys: .* got 2"):
            buffer.add(good, 0, 0.0, {"room": 0, "keys": [1, 2]}, False, False)
        assert len(buffer) == 0
        buffer.add(good, 0, 0.0, good, False, False)


def test_bounds_of_a_box_are_not_looked_at(path: str) -> None:
    with dr.ReplayBuffer.create(path, spaces.Box(-1, 1, (1,)), spaces.Box(0, 1, (1,)), capacity=10) as buffer:
        obs = np.array([2], np.float32)
        buffer.add(obs, obs, 0.0, obs, False, False)
        assert buffer.sample(1).action.tolist() == [[2.0]]


@pytest.mark.parametrize("rollout", [False, True])
def test_actions_of_agents(path: str, rollout: bool) -> None:
    """Agents that are not alive may hold any padding, in actions and in discrete observations."""
    arguments: Any = (spaces.Discrete(6), spaces.Discrete(3), 2)
    buffer: Any = (
        dr.MultiAgentRolloutBuffer.create(path, *arguments, steps=9, state_space=spaces.Discrete(2))
        if rollout
        else dr.MultiAgentReplayBuffer.create(path, *arguments, capacity=9, state_space=spaces.Discrete(2))
    )
    more = {"value": np.zeros(2), "log_prob": np.zeros(2)} if rollout else {}

    def add(action: list[int], obs: list[int] | None = None, state: int = 0, **given: Any) -> None:
        seen = np.array([0, 0] if obs is None else obs)
        buffer.add(seen, action, 0.0, seen, False, False, state=state, next_state=0, **given, **more)

    with buffer:
        with pytest.raises(InputError, match=r"action: .* from 0 to 2 .int64., got -1 at \[1\]"):
            add([0, -1])
        with pytest.raises(InputError, match=r"got 3 at \[0\]"):
            add([3, -1], agent_mask=np.array([True, False]))
        with pytest.raises(InputError, match=r"obs/state: .* got 2"):
            add([0, 0], state=2)
        assert len(buffer) == 0
        add([2, -1], obs=[5, -1], agent_mask=np.array([True, False]))
        add([-1, -1], valid=False)
        assert len(buffer) == 1


def test_a_copy_holds_what_an_older_store_held(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from diskreplay.engine.inputs import InputExceptions

    monkeypatch.setattr(dr.ReplayBuffer, "_exceptions", InputExceptions(anything=True))
    with make(path, spaces.Discrete(2)) as buffer:
        buffer.add(**step(action=7))
    monkeypatch.undo()
    merge(f"{path}.copy", [path])
    with dr.ReplayBuffer.open(f"{path}.copy") as copy:
        assert copy.sample(1).action.tolist() == [7]
        with pytest.raises(InputError, match="action: must lie in its space"):
            copy.add(**step(action=7))


# finite=True


def test_only_finite_numbers_in_a_store_that_says_so(path: str) -> None:
    zeros = np.zeros(3, np.float32)
    bad = {
        "obs": [np.array([0, NAN, 0], np.float32), [0, INF, 0], zeros.astype(np.float64) - INF],
        "next_obs": [np.array([0, NAN, 0], np.float32)],
        "action": [np.array([0, NAN], np.float16), [INF, 0]],
        "x": [NAN, INF, np.float32(-INF), np.array(NAN, np.float32)],
    }
    make(path, finite=True).close()
    with dr.ReplayBuffer.open(path) as buffer:  # it holds on reopening
        assert buffer.schema.finite
        for name, values in bad.items():
            for value in values:
                with pytest.raises(
                    InputError, match=rf"^{name}: must be finite, as the store was made with finite=True"
                ):
                    buffer.add(**step(**{name: value}))
                with pytest.raises(InputError, match=rf"^{name}: must be finite"):
                    buffer.extend(**steps(step(**{name: value})))
        assert len(buffer) == 0
        buffer.add(**step())
        buffer.add(**step(obs=[NAN] * 3, x=INF), valid=False)
        assert len(buffer) == 1


def test_finite_rollouts_may_leave_final_values_open(path: str) -> None:
    zeros = np.zeros(3, np.float32)
    with dr.RolloutBuffer.create(path, VECTOR, spaces.Discrete(2), steps=4, finite=True) as rollout:
        for name in ("value", "log_prob"):
            with pytest.raises(InputError, match=f"^{name}: must be finite"):
                rollout.add(zeros, 0, 0.0, zeros, False, True, **{"value": 0.0, "log_prob": 0.0, name: NAN})
        rollout.add(zeros, 0, 0.0, zeros, False, True, value=0.0, log_prob=0.0, final_value=NAN)
        rollout.add(zeros, 0, 0.0, zeros, False, True, value=0.0, log_prob=0.0)
        rollout.finish(0.0, lambda obs: np.ones(len(obs)))


def test_finite_stores_of_several_agents(path: str) -> None:
    space = spaces.Box(-1, 1, (2,), np.float32)
    obs = np.zeros((3, 2), np.float32)
    with dr.MultiAgentReplayBuffer.create(path, space, space, 3, capacity=9, finite=True) as buffer:
        with pytest.raises(InputError, match=r"^action: must be finite.* at \[0, 0\]"):
            buffer.add(obs, obs + NAN, 0.0, obs, False, False)
        buffer.add(obs, obs, 0.0, obs, False, False)
    with dr.MultiAgentRolloutBuffer.create(f"{path}2", space, space, 3, steps=9, finite=True) as rollout:
        with pytest.raises(InputError, match=r"^obs/obs: must be finite"):
            rollout.add(obs + NAN, obs, 0.0, obs, False, False, value=np.zeros(3), log_prob=np.zeros(3))
        rollout.add(obs, obs, 0.0, obs, False, False, value=np.zeros(3), log_prob=np.zeros(3))


@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_finite_is_true_or_false(path: str, value: Any) -> None:
    with pytest.raises(InputError, match="finite must be True or False"):
        make(path, finite=value)


def test_stores_without_the_field_take_what_they_took(path: str) -> None:
    with make(path) as buffer:
        assert "finite" not in buffer.schema.to_json()
        buffer.add(**step(obs=[NAN, INF, 0.0], x=NAN))
        assert len(buffer) == 1


# Numbers of numpy


def test_numbers_of_numpy_are_taken_wherever_pythons_are(path: str) -> None:
    """gamma=np.float32(.9) was refused as not 0 to 1; other options came out as JSON that nobody could write."""
    view = dr.Transition(n_step=np.int64(3), gamma=np.float32(0.9))  # type: ignore[arg-type]
    assert (type(view.n_step), type(view.gamma)) == (int, float)
    sampler = dr.Proportional(
        alpha=np.float32(0.5), beta=np.float16(0.5), beta_schedule=(np.float32(1), np.int32(9)), by_env=np.bool_(False)
    )  # type: ignore[arg-type]
    options = {
        "capacity": np.int64(9),
        "commit_seconds": np.float32(5),
        "commit_rows": np.int32(7),
        "seed": np.uint8(3),
    }
    with dr.ReplayBuffer.create(
        path, VECTOR, spaces.Discrete(2), view=view, sampler=sampler, codec=dr.Codec("zstd", np.int64(3)), **options
    ) as buffer:
        buffer.checkpoint("one")
    with dr.ReplayBuffer.open(path, checkpoint="one") as buffer:
        assert buffer.view == dr.Transition(3, float(np.float32(0.9)))
    for other in (
        dr.Sequence(np.int8(3), np.int8(0), np.int8(1), np.bool_(True), np.bool_(False), np.float16(1)),
        dr.PaddedEpisodes(np.int8(3), np.float32(0.5)),
    ):
        with dr.ReplayBuffer.open(path, view=other, seed=0) as buffer:
            buffer.checkpoint(type(other).__name__)
    zeros = np.zeros(3, np.float32)
    with dr.RolloutBuffer.create(
        f"{path}2", VECTOR, spaces.Discrete(2), steps=np.int64(2), gamma=np.float32(0.5), gae_lambda=np.float64(1),
        normalize_advantage=np.bool_(False),
    ) as rollout:  # fmt: skip
        rollout.add(zeros, 0, np.float64(1), zeros, False, True, value=0.0, log_prob=0.0, final_value=2.0)
        rollout.finish(np.float32(0))
        rollout.checkpoint("one")
        assert (rollout.gamma, rollout.gae_lambda) == (0.5, 1.0)
    with dr.MultiAgentRolloutBuffer.create(
        f"{path}3", VECTOR, spaces.Discrete(2), np.int64(2), steps=2, td_lambda=np.float32(0.5),
        available_actions=np.bool_(True),
    ) as agents:  # fmt: skip
        assert agents.td_lambda == 0.5


@pytest.mark.parametrize("gamma", [np.float32(1.5), np.float64(NAN), "0.9", None, np.array([0.9])])
def test_what_is_no_discount_factor(gamma: Any) -> None:
    with pytest.raises(InputError, match="gamma must be 0 to 1"):
        dr.Transition(gamma=gamma)


# More rows than ids


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_row_that_no_id_would_name_is_refused(path: str, num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream has 2^48 ids; those above are the next stream's."""
    for module in (appender, row_call):
        monkeypatch.setattr(module, "MAX_IDS", 10 * num_envs + num_envs - 1)
    shape = (num_envs,) if num_envs > 1 else ()
    obs, zeros, flags = np.zeros((*shape, 2), np.float16), np.zeros(shape), np.zeros(shape, bool)
    row = obs, zeros.astype(int), zeros, obs, flags, flags
    four = tuple(np.stack([part] * 4) for part in row)
    with dr.ReplayBuffer.create(path, HALF, spaces.Discrete(3), capacity=6, num_envs=num_envs) as buffer:
        buffer.extend(*four)
        buffer.extend(*four)
        with pytest.raises(StateError, match=f"no more 4 rows of {num_envs} after 8; nothing was added: go on in"):
            buffer.extend(*four)
        for _ in range(2):
            buffer.add(*row)
        before = buffer.items()
        with pytest.raises(StateError, match="transitions ever, and no more 1 rows"):
            buffer.add(*row)
        assert (buffer.items() == before).all()
        assert before[-1] == 10 * num_envs - 1
        buffer.commit()
    with dr.ReplayBuffer.open(path) as buffer:
        assert (buffer.items() == before).all()
        with pytest.raises(StateError, match="transitions ever"):
            buffer.add(*row)
