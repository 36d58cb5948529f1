"""XuanCe's on-policy buffers against lists that do what its document says."""

from __future__ import annotations

import gc
import pathlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.crashes import die

from diskreplay import ReplayBuffer
from diskreplay.compat.rows import window
from diskreplay.compat.xuance import DummyOnPolicyBuffer, DummyOnPolicyBuffer_Atari
from diskreplay.errors import InputError, NotEnoughDataError

SPACES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any]]] = {
    "vector": (spaces.Box(-1, 1, (3,)), spaces.Discrete(4)),
    "dict": (spaces.Dict(seen=spaces.Box(-1, 1, (2,)), map=spaces.Box(0, 9, (2, 2))), spaces.Box(-1, 1, (2,))),
    "dict of actions": (spaces.Discrete(5), spaces.Dict(move=spaces.Box(-1, 1, (2,)), say=spaces.Discrete(3))),
}
AUXILIARY = {"old_logp": (), "hidden": (2,)}


class Oracle:
    """Steps of each environment in a list; paths are computed from their definitions, forward."""

    def __init__(self, n_envs: int, n_size: int, use_gae: bool, gamma: float, lam: float) -> None:
        self.n_envs, self.n_size, self.use_gae, self.gamma, self.lam = n_envs, n_size, use_gae, gamma, lam
        self.clear()

    def clear(self) -> None:
        self.steps: list[list[dict[str, Any]]] = [[] for _ in range(self.n_envs)]
        self.open = [0] * self.n_envs

    def store(self, steps: list[dict[str, Any]]) -> None:
        for env, step in enumerate(steps):
            self.steps[env].append({**step, "return": 0.0, "advantage": 0.0})

    def finish_path(self, val: float, env: int) -> None:
        steps = self.steps[env]
        path = steps[max(self.open[env], len(steps) - self.n_size) :]
        self.open[env] = len(steps)
        values = [step["value"] for step in path] + [val]
        for at, step in enumerate(path):
            end = next((k for k in range(at, len(path)) if path[k]["terminal"]), len(path) - 1)
            deltas = [
                path[k]["reward"] + self.gamma * values[k + 1] * (not path[k]["terminal"]) - values[k]
                for k in range(at, end + 1)
            ]
            if self.use_gae:
                step["advantage"] = sum((self.gamma * self.lam) ** k * delta for k, delta in enumerate(deltas))
                step["return"] = step["advantage"] + step["value"]
            else:
                step["advantage"] = deltas[0]
                rewards = [path[k]["reward"] for k in range(at, end + 1)]
                rewards += [] if path[end]["terminal"] else [values[end + 1]]
                step["return"] = sum(self.gamma**k * reward for k, reward in enumerate(rewards))

    def at(self, index: int) -> dict[str, Any]:
        env, slot = divmod(index, self.n_size)
        count = len(self.steps[env])
        return self.steps[env][count - 1 - (count - 1 - slot) % self.n_size]


def drawn(rng: np.random.Generator, space: spaces.Space[Any], n_envs: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: drawn(rng, part, n_envs) for key, part in space.items()}
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, int(space.n), n_envs)
    assert isinstance(space, spaces.Box)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (n_envs, *space.shape)).astype(np.uint8)
    return rng.normal(size=(n_envs, *space.shape)).astype(np.float32)


def entry(values: Any, env: int) -> Any:
    return {key: part[env] for key, part in values.items()} if isinstance(values, dict) else values[env]


def stacked(entries: list[Any]) -> Any:
    if isinstance(entries[0], dict):
        return {key: stacked([each[key] for each in entries]) for key in entries[0]}
    return np.array(entries)


def same(found: Any, wanted: Any, **tolerance: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            same(found[key], wanted[key], **tolerance)
    else:
        assert np.shape(found) == np.shape(wanted)
        np.testing.assert_allclose(np.asarray(found, float), np.asarray(wanted, float), **tolerance)


def step_of(buffer: DummyOnPolicyBuffer, oracle: Oracle, rng: np.random.Generator, terminal: float = 0.15) -> Any:
    n = buffer.n_envs
    obs, acts = drawn(rng, buffer.observation_space, n), drawn(rng, buffer.action_space, n)
    rews, value, over = rng.normal(size=n).astype("f4"), rng.normal(size=n).astype("f4"), rng.random(n) < terminal
    aux = {"old_logp": rng.normal(size=n).astype("f4"), "hidden": rng.normal(size=(n, 2)).astype("f4")}
    buffer.store(obs, acts, rews, value, over, aux if buffer.auxiliary_shape else None)
    oracle.store(
        [
            {
                "obs": entry(obs, env), "action": entry(acts, env), "reward": float(rews[env]),
                "value": float(value[env]), "terminal": bool(over[env]), "aux": entry(aux, env),
            }
            for env in range(n)
        ]
    )  # fmt: skip
    return over


def check(buffer: DummyOnPolicyBuffer, oracle: Oracle, indexes: Any) -> None:
    obs, acts, returns, values, advantages, aux = buffer.sample(indexes)
    wanted = [oracle.at(index) for index in indexes]
    same(obs, stacked([step["obs"] for step in wanted]))
    same(acts, stacked([step["action"] for step in wanted]))
    same(values, [step["value"] for step in wanted], rtol=1e-6)
    same(returns, [step["return"] for step in wanted], rtol=1e-4, atol=1e-5)
    expected = np.array([step["advantage"] for step in wanted])
    if buffer.use_advnorm:
        expected = (expected - expected.mean()) / (expected.std() + 1e-8)
    same(advantages, expected, rtol=1e-3, atol=1e-4)
    if buffer.auxiliary_shape:
        same(aux, stacked([step["aux"] for step in wanted]))
    else:
        assert aux is None
    floats = [returns, values, advantages, *(acts.values() if isinstance(acts, dict) else [acts])]
    assert {array.dtype for array in floats} == {np.dtype(np.float32)}
    for found in obs.values() if isinstance(obs, dict) else [obs]:
        assert found.dtype == buffer.OBSERVED


@pytest.mark.long
@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("use_gae", [True, False])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_like_lists(kind: str, use_gae: bool, n_envs: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng([len(kind), use_gae, n_envs])
    given: tuple[Any, ...] = (*SPACES[kind], AUXILIARY if use_gae else None, n_envs, 9, use_gae, n_envs == 4, 0.9, 0.8)
    buffer, oracle = (
        DummyOnPolicyBuffer(*given, path=tmp_path / "s", chunk_rows=4),
        Oracle(n_envs, 9, use_gae, 0.9, 0.8),
    )
    for number in range(120):
        over = step_of(buffer, oracle, rng)
        for env in range(n_envs):
            if over[env] or rng.random() < 0.1:
                val = float(np.float32(rng.normal()))
                for _ in range(int(rng.integers(1, 3))):  # runners finish a path twice
                    buffer.finish_path(val, env)
                    oracle.finish_path(val, env)
        size = min(len(oracle.steps[0]), 9)
        assert (buffer.size, buffer.ptr, buffer.full) == (size, len(oracle.steps[0]) % 9, size == 9)
        opened = [min(len(oracle.steps[env]) - oracle.open[env], 9) for env in range(n_envs)]
        assert buffer.start_ids.tolist() == [(buffer.ptr - count) % 9 for count in opened]
        if buffer.full and number % 4 == 0:
            check(buffer, oracle, rng.integers(0, 9 * n_envs, 12))
            check(buffer, oracle, np.arange(9 * n_envs))
        if number in (37, 90):
            buffer.clear()
            oracle.clear()
            assert not buffer.size
            assert not buffer.full
            assert not buffer.start_ids.any()
            assert not buffer.values.any()
        if number in (25, 60, 88):
            if number == 60:
                del buffer
                gc.collect()
            else:
                buffer.close()
            buffer = DummyOnPolicyBuffer(*given, path=tmp_path / "s")
    leaves = buffer.observations if isinstance(buffer.observations, dict) else {None: buffer.observations}
    for key, array in leaves.items():
        wanted = [[oracle.at(env * 9 + slot)["obs"] for slot in range(9)] for env in range(n_envs)]
        same(array, [[each[key] if key else each for each in row] for row in wanted])
        same(array[0, [2, 2, 1]], np.asarray(array)[0, [2, 2, 1]])
    buffer.close()


def test_atari() -> None:
    space, rng = spaces.Box(0, 255, (8, 6, 4), np.uint8), np.random.default_rng(0)
    buffer, oracle = DummyOnPolicyBuffer_Atari(space, spaces.Discrete(3), None, 2, 5), Oracle(2, 5, True, 0.99, 0.95)
    for _ in range(5):
        step_of(buffer, oracle, rng)
    for env in range(2):
        buffer.finish_path(0.5, env)
        oracle.finish_path(0.5, env)
    check(buffer, oracle, np.arange(10))
    assert buffer.observations.shape == (2, 5, 8, 6, 4)
    assert buffer.observations.dtype == np.uint8
    buffer.clear()
    assert not np.asarray(buffer.observations).any()
    assert not buffer.terminals.any()
    for wrong in (np.full((2, 8, 6, 4), 0.5), np.full((2, 8, 6, 4), 256), np.full((2, 8, 6, 4), -1)):
        with pytest.raises(InputError, match="0 to 255"):
            buffer.store(wrong, [0, 1], [0, 0], [0, 0], [0, 0])


@pytest.mark.parametrize("n_envs", [1, 3])
def test_frames_of_a_stack_are_stored_once(n_envs: int, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(n_envs)
    given: tuple[Any, ...] = (spaces.Box(0, 255, (6, 5, 4), np.uint8), spaces.Discrete(4), None, n_envs, 20)
    buffer = DummyOnPolicyBuffer_Atari(*given, path=tmp_path / "s", frame_stack=4)
    assert buffer.engine.schema.obs_columns[0].shape == (6, 5)
    stack, seen, nothing = np.zeros((n_envs, 6, 5, 4), np.uint8), [], np.zeros(n_envs)
    for number in range(50):
        frame = rng.integers(0, 256, (n_envs, 6, 5, 1)).astype(np.uint8)
        stack = np.concatenate([stack[..., 1:], frame], -1)
        seen.append(stack)
        buffer.store(stack, nothing, nothing, nothing, nothing)
        if number % 7 == 3:
            buffer.finish_path(0.0, 0)
            stack = stack.copy()
            stack[0] = 0
        if number % 11 == 5:
            np.testing.assert_array_equal(np.asarray(buffer.observations)[:, buffer.ptr - 1], seen[-1])
        if number == 30:
            buffer.close()
            buffer = DummyOnPolicyBuffer_Atari(*given, path=tmp_path / "s", frame_stack=4)
    wanted = np.stack([seen[49 - (49 - slot) % 20] for slot in range(20)], 1)
    np.testing.assert_array_equal(np.asarray(buffer.observations), wanted)
    np.testing.assert_array_equal(buffer.sample(np.arange(20 * n_envs))[0], wanted.reshape(-1, 6, 5, 4))
    buffer.close()


def make(path: Any = None, auxiliary: Any = None, **options: Any) -> DummyOnPolicyBuffer:
    return DummyOnPolicyBuffer(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), auxiliary, 2, 4, path=path, **options)


def fill(buffer: DummyOnPolicyBuffer, steps: int = 4, **more: Any) -> None:
    for number in range(steps):
        buffer.store(np.full((2, 2), number), [0, 1], [1, 2], [3, 4], [False, False], **more)


def test_arrays_are_rewritten_in_place() -> None:
    buffer = make(use_advnorm=False)
    fill(buffer)
    buffer.returns[1, 2] = 7.5
    buffer.advantages[:] = [[1, 2, 3, 4], [5, 6, 7, 8]]
    buffer.actions += 1
    _, acts, returns, _, advantages, _ = buffer.sample(np.array([6, 0]))
    assert (returns.tolist(), advantages.tolist(), acts.tolist()) == ([7.5, 0], [7, 1], [2, 1])
    with pytest.raises(TypeError):
        buffer.observations[0, 0] = 1


def test_objects() -> None:
    buffer = make(auxiliary={"old_dist": None, "logp": ()})
    dists = np.array([object(), object()])
    fill(buffer, aux_info={"old_dist": dists})
    found = buffer.sample(np.array([4, 0]))[5]
    assert found["old_dist"][0] is dists[1]
    assert found["old_dist"][1] is dists[0]
    buffer.auxiliary_infos.update({"logp": np.ones((2, 4), "f4")})
    assert buffer.sample(np.array([4, 0]))[5]["logp"].tolist() == [1, 1]
    buffer.commit()
    buffer.close()


def test_objects_are_not_written(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="'old_dist': None"):
        make(tmp_path / "s", {"old_dist": None})
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((2, 3))}, "obs must have the shape"),
        ({"obs": {"x": np.zeros((2, 2))}}, "obs must have the shape"),
        ({"obs": None}, "obs must have the shape"),
        ({"acts": [0, 1, 2]}, "acts must have the shape"),
        ({"obs": np.full((2, 2), 1e300)}, r"obs: 1e\+300 is too large for float32"),
        ({"acts": [1e300, 0]}, r"acts: 1e\+300 is too large for float32"),
        ({"value": -1e300}, r"value: -1e\+300 is too large for float32"),
        ({"rews": [np.nan, 0]}, "finite"),
        ({"value": "x"}, "value must have the shape"),
        ({"terminals": [[0], [1], [1]]}, "terminals must have the shape"),
        ({"terminals": [0, 0.5]}, "terminals must be True or False"),
        ({"terminals": None}, "terminals must have the shape"),
        ({"aux_info": {"new": [1, 2]}}, "aux_info must be a dict with keys of"),
        ({"aux_info": [1, 2]}, "aux_info must be a dict"),
        ({"aux_info": {"logp": np.zeros((2, 3))}}, "logp"),
    ],
)
def test_refused_steps_change_nothing(change: dict[str, Any], message: str) -> None:
    buffer = make(auxiliary={"logp": ()})
    fill(buffer, 3)
    before = buffer.rewards.copy(), buffer.actions.copy(), window(buffer.engine).end
    step = {"obs": np.ones((2, 2)), "acts": [0, 1], "rews": [5, 5], "value": [0, 0], "terminals": [0, 0]}
    with pytest.raises(InputError, match=message):
        buffer.store(**{**step, **change})
    np.testing.assert_array_equal(buffer.rewards, before[0])
    np.testing.assert_array_equal(buffer.actions, before[1])
    assert (buffer.ptr, buffer.size, window(buffer.engine).end) == (3, 3, before[2])


def test_left_out_values_do_not_stay_from_the_last_round() -> None:
    buffer = make(auxiliary={"logp": ()}, use_advnorm=False)
    fill(buffer, 4, aux_info={"logp": [8, 9]})
    for env in range(2):
        buffer.finish_path(1.0, env)
    buffer.store(np.zeros((2, 2)), [0, 1], [1, 2], None, [False, False])
    _, _, returns, values, advantages, aux = buffer.sample(np.array([0, 4, 1, 5]))
    assert (values.tolist(), aux["logp"].tolist()) == ([0, 0, 3, 4], [0, 0, 8, 9])
    assert not returns[:2].any()
    assert not advantages[:2].any()
    assert returns[2:].all()


def test_the_store_knows_where_episodes_end() -> None:
    buffer = make()
    for number in range(4):
        buffer.store(np.full((2, 2), number), [0, 1], [1, 2], [0, 0], [number == 1, False])
        if number == 2:
            buffer.finish_path(0.0, 1)
    buffer.sample(np.arange(8))
    batch = buffer.engine.get(np.arange(8))
    assert batch.terminated.reshape(4, 2).T.tolist() == [[False, True, False, False], [False] * 4]
    assert batch.truncated.reshape(4, 2).T.tolist() == [[False] * 4, [False, False, True, False]]
    assert batch.next_obs.reshape(4, 2, 2)[:3, 0, 0].tolist() == [1, 2, 3]


def test_errors() -> None:
    buffer = make()
    fill(buffer, 3)
    with pytest.raises(NotEnoughDataError, match="3 of 4"):
        buffer.sample(np.arange(4))
    fill(buffer, 1)
    for wrong in (np.array([8]), np.array([-1]), np.array([0.0]), np.zeros((2, 2), int)):
        with pytest.raises(InputError, match="indexes must be"):
            buffer.sample(wrong)
    wrong_envs: list[Any] = [2, -1, 0.0]
    for wrong_env in wrong_envs:
        with pytest.raises(InputError, match="i must be"):
            buffer.finish_path(0.0, wrong_env)
    for val in ([1.0, 2.0], np.nan):
        with pytest.raises(InputError, match="val must"):
            buffer.finish_path(val, 0)
    assert not buffer.returns.any()
    assert [len(found) for found in buffer.sample(np.array([], int))[:5]] == [0] * 5
    with pytest.raises(InputError, match="gae_lam"):
        make(gae_lam=1.5)
    with pytest.raises(InputError, match="gamma"):
        make(gamma=-0.1)
    with pytest.raises(TypeError):
        make(unknown=1)


def test_a_rollout_without_its_estimates_is_given_up(tmp_path: pathlib.Path) -> None:
    buffer = make(tmp_path / "s")
    fill(buffer)
    buffer._adapter.flush()
    buffer.engine.commit()
    buffer.engine.engine.companion = None  # as a process that dies
    buffer.engine.close()
    reopened = make(tmp_path / "s")
    assert (reopened.size, reopened.ptr, len(reopened.engine)) == (0, 0, 0)
    fill(reopened, 2)
    reopened.close()
    assert make(tmp_path / "s").size == 2


def test_a_crash_goes_back_to_the_last_commit(tmp_path: pathlib.Path) -> None:
    buffer = make(tmp_path / "s", use_advnorm=False)
    fill(buffer, 3)
    buffer.finish_path(2.0, 0)
    buffer.commit()
    names = ("observations", "actions", "rewards", "values", "returns", "advantages", "start_ids")
    wanted = [np.array(getattr(buffer, name)) for name in names]
    assert wanted[4].any()
    fill(buffer, 3)
    buffer.clear()
    fill(buffer, 2)
    die(buffer.engine)
    again = make(tmp_path / "s", use_advnorm=False)
    assert (again.size, again.ptr) == (3, 3)
    for name, values in zip(names, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(getattr(again, name)), values)
    again.close()


def test_other_stores_are_refused(tmp_path: pathlib.Path) -> None:
    buffer = make(tmp_path / "s")
    fill(buffer)
    buffer.close()
    with pytest.raises(InputError, match="other spaces or sizes"):
        DummyOnPolicyBuffer(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), None, 2, 5, path=tmp_path / "s")
    with pytest.raises(InputError, match="other spaces or sizes"):
        DummyOnPolicyBuffer(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), None, 2, 4, path=tmp_path / "s")
    with pytest.raises(InputError, match="other arguments"):
        make(tmp_path / "s", {"logp": ()})
    box = spaces.Box(-np.inf, np.inf, (2,))
    action = spaces.Box(-np.inf, np.inf, ())
    with ReplayBuffer.create(tmp_path / "mine", box, action, capacity=8, num_envs=2) as mine:
        mine.add(np.ones((2, 2), "f4"), np.ones(2, "f4"), [1, 1], np.ones((2, 2), "f4"), [False] * 2, [False] * 2)
    with pytest.raises(InputError, match="other spaces or sizes"):
        make(tmp_path / "mine")
    with ReplayBuffer.open(tmp_path / "mine") as mine:
        assert len(mine) == 2
    assert make(tmp_path / "s").returns.shape == (2, 4)
