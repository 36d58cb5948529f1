"""Environments that are not quite Gymnasium's: final observations without a mask, tensors, specs, lists of infos."""

from __future__ import annotations

import contextlib
import enum
import pathlib
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from helpers.pool import SPACES, Pool, check_places, garbled, places, shown, step_on

import diskreplay as dr
from diskreplay.buffers.autoreset import AutoresetMode
from diskreplay.errors import InputError, MisuseWarning

SAME, NEXT = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP
pytestmark = pytest.mark.filterwarnings("error::diskreplay.errors.MisuseWarning")


# Final observations


def under_the_old_name(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
    return {f"{name}ervation"[:17]: value for name, value in garbled(pool, final, ended).items()}


def at_each_step(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
    return {"final_obs": pool.shown(final), "final_info": {}}


def entries(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
    """An object array, as Gymnasium's, but without its mask."""
    finals = np.full(pool.num_envs, None, object)
    for env in np.flatnonzero(ended):
        one = pool.shown(final[env : env + 1])
        finals[env] = map_first(one)
    return {"final_obs": finals} if ended.any() else {}


def map_first(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: map_first(part) for key, part in value.items()}
    return tuple(map(map_first, value)) if isinstance(value, tuple) else value[0]


def masked(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
    found = garbled(pool, final, ended)
    return {**found, "_final_obs": pool.made(ended)} if found else {}


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("info", [garbled, under_the_old_name, at_each_step, entries, masked])
def test_final_observations_with_and_without_a_mask(path: str, info: Any, space: str, num_envs: int) -> None:
    envs = dr.VectorRecord(Pool(SAME, space, num_envs, info), path, view=dr.Transition(n_step=3, gamma=1.0))
    envs.reset()
    step_on(envs, 60)
    check_places(envs.buffer, 58 * num_envs)
    assert sum(episode.ended for episode in envs.buffer.episodes) > 4 * num_envs
    envs.close()


@pytest.mark.parametrize("space", SPACES)
def test_whole_arrays_of_a_program_that_adds_itself(space: str) -> None:
    after, final = (shown(space, np.full((3, 1), place, np.float32)) for place in (7, 3))
    for done in ([False, True, False], np.array([0, 1, 0], np.uint8)):
        true = dr.final_observations(after, {"final_obs": final}, done)
        assert (places(true).tolist(), places(after).tolist()) == ([7, 3, 7], [7, 7, 7])
    assert dr.final_observations(after, {"final_obs": final}, [False] * 3) is after
    with pytest.warns(MisuseWarning, match=r"no '_final_obs' that says .* terminated \| truncated"):
        assert places(dr.final_observations(after, {"final_obs": final})).tolist() == [3, 3, 3]
    mask = {"final_obs": final, "_final_obs": np.array([True, True, False])}
    assert places(dr.final_observations(after, mask)).tolist() == [3, 3, 7]
    assert places(dr.final_observations(after, mask, [False, True, False])).tolist() == [7, 3, 7]


WRONG_FINALS: list[tuple[Any, str]] = [
    ({}, r"lacks the final observations of the environments \[1\]"),
    ({"final_obs": np.ones((3, 1)), "_final_obs": np.array([True, False, True])}, r"of the environments \[1\]"),
    ({"final_obs": np.array([np.ones(1), None, None], object)}, r"'final_obs'\]: .* environments \[1\] must be"),
    ({"final_obs": np.ones((3, 2))}, r"environments \[1\] must be arrays of shape \(1,\)"),
    ({"final_obs": np.ones((2, 1))}, "an entry for each of 3 environments"),
    ({"final_obs": 3.0}, "an entry for each of 3 environments"),
    ({"final_obs": {"here": np.ones((3, 1))}}, "final_obs"),
    ({"final_obs": np.ones((3, 1)), "_final_obs": np.array([True])}, "of the environments all"),
    ([{}, {"terminal_observation": np.ones(1)}, {}], r"terminal_observation'.* of the environments \[1\]"),
    ([{}, {}, {}], "got list.*'terminal_observation'"),
    (None, "must be a mapping .* got NoneType"),
]


@pytest.mark.parametrize(("info", "error"), WRONG_FINALS)
def test_final_observations_that_cannot_be_used(path: str, info: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        dr.final_observations(np.zeros((3, 1), np.float32), info, [False, True, False])
    gone = Pool(SAME, info=lambda pool, final, ended: info if ended.any() else {})
    gone.reset()
    with contextlib.closing(dr.VectorRecord(gone, path)) as envs:
        envs.reset()
        gone.at[:, 0] = 0, 5, 0
        step_on(envs, 3)
        with pytest.raises(InputError, match=error):
            step_on(envs, 1)
        assert len(envs.buffer) == 9


def test_a_part_of_a_nested_space_that_is_missing() -> None:
    after, done = shown("dict", np.zeros((2, 1), np.float32)), [True, False]
    for finals in ({"here": np.ones((2, 1))}, np.array([{"here": np.ones(1)}, None], object)):
        with pytest.raises(InputError, match="has no 'half', which next_obs has"):
            dr.final_observations(after, {"final_obs": finals}, done)


def test_final_observations_of_another_dtype_lose_nothing(path: str) -> None:
    pixels = np.zeros((2, 1), np.uint8)
    same = dr.final_observations(pixels, {"final_obs": np.full((2, 1), 3, np.int64)}, [True, False])
    assert same.tolist() == [[3], [0]]
    with dr.ReplayBuffer.create(path, Box(0, 255, (1,), np.uint8), Discrete(2), capacity=9, num_envs=2) as buffer:
        wrong = dr.final_observations(pixels, {"final_obs": np.full((2, 1), 3.5)}, [True, False])
        with pytest.raises(InputError, match="next_obs: must have dtype uint8"):
            buffer.add(pixels, [0, 0], [0, 0], wrong, [True, False], [False, False])
    floats = dr.final_observations(np.zeros((2, 1), np.float32), {"final_obs": np.full((2, 1), 0.1)}, [True, False])
    assert floats.dtype == np.float32, "as the environment rounds the others"


# Lists of infos


@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("key", ["terminal_observation", "final_obs"])
def test_a_list_of_infos_that_hides_final_observations(path: str, mode: Any, key: str) -> None:
    def info(pool: Pool, final: np.ndarray, ended: np.ndarray) -> Any:
        return [{key: final[env]} if ended[env] else {} for env in range(pool.num_envs)]

    with contextlib.closing(dr.VectorRecord(Pool(mode, info=info), path)) as envs:
        envs.reset()
        envs.unwrapped.at[:, 0] = 0, 5, 0
        with pytest.raises(InputError, match=r"'terminal_observation'.*DiskReplayBuffer") as told:
            step_on(envs, 9)
        if mode is NEXT:
            assert "[1]" in str(told.value)
        assert len(envs.buffer) == (9 if mode is NEXT else 0), "before anything was wrong"


def test_a_mapping_that_hides_them_under_another_name(path: str) -> None:
    def info(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
        return {"terminal_observation": final} if ended.any() else {}

    with contextlib.closing(dr.VectorRecord(Pool(NEXT, info=info), path)) as envs:
        envs.reset()
        with pytest.raises(InputError, match=r"info has 'terminal_observation', .* the mode is NEXT_STEP"):
            step_on(envs, 9)


def test_a_list_that_hides_nothing(path: str) -> None:
    def info(pool: Pool, final: np.ndarray, ended: np.ndarray) -> Any:
        return [{"at": place} for place in final[:, 0]]

    with contextlib.closing(dr.VectorRecord(Pool(NEXT, info=info), path)) as envs:
        envs.reset()
        step_on(envs, 30)
        check_places(envs.buffer, 70)
    with contextlib.closing(dr.VectorRecord(Pool(NEXT, info=info), f"{path}-2", columns={"at": float})) as envs:
        envs.reset()
        with pytest.raises(InputError, match="got list"):
            step_on(envs, 1)


# Tensors


def tensors(kind: str) -> Any:
    torch = pytest.importorskip("torch", reason="tensors need torch")

    def made(array: np.ndarray) -> Any:
        tensor = torch.from_numpy(np.array(array))
        if array.dtype == bool:
            return tensor.to(torch.uint8) if kind == "bytes" else tensor
        return tensor.requires_grad_() * 1 if kind == "grad" else tensor

    return made


@pytest.mark.parametrize("kind", ["plain", "grad", "bytes"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("mode", [SAME, NEXT])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_tensors_from_and_to_vector_environments(path: str, mode: Any, space: str, kind: str, num_envs: int) -> None:
    made = tensors(kind)

    def info(pool: Pool, final: np.ndarray, ended: np.ndarray) -> dict[str, Any]:
        told = {"at": made(pool.at[:, 0])}
        if not ended.any() or mode is not SAME:
            return told
        ends = {"final_info": {"at": made(final[:, 0])}, "_final_info": made(ended)}
        return {
            **told,
            **garbled(pool, final, ended),
            **({"_final_obs": made(ended)} if space == "box" else {}),
            **ends,
        }

    columns = {"at": np.float32}
    envs = dr.VectorRecord(Pool(mode, space, num_envs, info, made), path, columns=columns, view=dr.Transition(n_step=1))
    obs, _ = envs.reset()
    assert type(places(obs)).__name__ == "Tensor", "what passes is not changed"
    step_on(envs, 60, made(np.ones(num_envs, np.int64)) if kind != "grad" else None)
    batch = check_places(envs.buffer, 50 * num_envs)
    np.testing.assert_array_equal(batch.extra["at"], places(batch.next_obs))
    assert batch.action.tolist() == [int(kind != "grad")] * len(batch)
    envs.close()


def test_a_mask_of_resets_may_be_a_tensor(path: str) -> None:
    class Partly(Pool):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if options is None:
                return super().reset()
            self.at, self.waits = self.at + 91 * options["reset_mask"].numpy()[:, None], np.zeros(3, bool)
            return self.shown(self.at), {}

    made = tensors("plain")
    with contextlib.closing(dr.VectorRecord(Partly(AutoresetMode.DISABLED, made=made), path)) as envs:
        envs.reset()
        for _ in range(40):
            ended = envs.step(np.zeros(3, int))[3]
            if ended.any():
                envs.unwrapped.waits[:] = False
                envs.reset(options={"reset_mask": ended})
        check_places(envs.buffer, 110)
        assert sum(episode.truncated for episode in envs.buffer.episodes) > 9


class Lone(gymnasium.Env[Any, Any]):
    """One environment whose values are tensors."""

    observation_space, action_space = SPACES["dict"], Discrete(2)

    def __init__(self, made: Any) -> None:
        self.made, self.at = made, 0

    def _shown(self) -> Any:
        return shown("dict", self.made(np.full(1, self.at, np.float32)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        last = self.made(np.array(self.at == 4))
        return self._shown(), self.made(np.ones(())), last, last, {"at": self.made(np.array([self.at], np.int64))}


@pytest.mark.parametrize("kind", ["plain", "bytes"])
@pytest.mark.parametrize("background", [False, True])
def test_tensors_of_one_environment(path: str, kind: str, background: bool) -> None:
    made = tensors(kind)
    with dr.Record(Lone(made), path, columns={"at": ((1,), np.int32)}, background=background) as env:
        for _ in range(3):
            env.reset()
            for at in range(4):
                assert bool(env.step(made(np.array(1)))[2]) == (at == 3)
        env.flush()
        batch = check_places(env.buffer, 12)
        assert (batch.extra["at"][:, 0].tolist(), batch.terminated.sum()) == ([1, 2, 3, 4] * 3, 3)


# Specs


class Spec:
    """As EnvPool's: it describes its configuration, and has none of Gymnasium's fields."""

    def __init__(self, name: Any) -> None:
        self.id = name

    def __bool__(self) -> bool:
        raise RuntimeError("a spec is no condition")


class Hidden:
    @property
    def id(self) -> str:
        raise RuntimeError("not configured")


class Lacking(gymnasium.Env[Any, Any]):
    observation_space, action_space = SPACES["box"], Discrete(2)


SPECS = {
    "Own-v1": (Spec("Own-v1"), "Own-v1"), "a number": (Spec(7), None), "raises": (Hidden(), None), "none": (None, None),
    "text": ("CartPole-v1", None), "mapping": ({"id": "CartPole-v1"}, None),
    "surrogates": (Spec("\ud800"), "\ud800"),
    "Gymnasium's": (EnvSpec("Given-v3", entry_point="a:b"), "Given-v3"),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.filterwarnings("ignore:.*while copying the environment spec")
def test_a_spec_of_anything(path: str, name: str) -> None:
    spec, known = SPECS[name]
    pool, one = Pool(), Lacking()
    pool.spec = one.spec = spec
    wrapped = gymnasium.wrappers.TransformReward(one, abs)
    for at, (env, kind) in enumerate(((pool, dr.VectorRecord), (one, dr.Record), (wrapped, dr.Record))):
        told = dr.provenance(env)
        assert told["env_id"] == known or (known is None and ":" in told["env_id"])
        assert ("env_spec" in told) == (name == "Gymnasium's" and env is not wrapped)
        made: Any = kind
        with contextlib.closing(made(env, f"{path}-{at}")) as recording:
            assert recording.buffer.provenance == told


# What an environment shows at once


class Modes(enum.Enum):
    NEXT_STEP = "NextStep"


def altered(**attributes: Any) -> Pool:
    pool = Pool()
    for name, value in attributes.items():
        setattr(pool, name, value)
    return pool


SEEN: list[tuple[dict[str, Any], str]] = [
    ({"metadata": {"autoreset_mode": "NextStep"}}, "must be a gymnasium.vector.AutoresetMode, got 'NextStep'"),
    ({"metadata": {"autoreset_mode": None}}, "must be a gymnasium.vector.AutoresetMode, got None"),
    ({"metadata": {"autoreset_mode": Modes.NEXT_STEP}}, "must be a gymnasium.vector.AutoresetMode"),
    ({"num_envs": 0}, "num_envs of envs must be 1 to"),
    ({"num_envs": None}, "num_envs of envs must be an integer, got None"),
    ({"num_envs": 4}, "observation_space of envs must be that of 4 environments .* some environments at a time"),
    ({"single_observation_space": Box(-1, 1, (2,), np.float32)}, "observation_space of envs must be that of 3"),
    ({"single_action_space": SPACES["dict"]}, "action_space of envs must be that of 3 environments"),
    ({"action_space": Discrete(3)}, "action_space of envs must be that of 3 environments"),
    ({"single_observation_space": None, "observation_space": None}, "must be Gymnasium spaces, got NoneType"),
]


@pytest.mark.parametrize(("attributes", "error"), SEEN)
def test_what_an_environment_shows_is_refused_when_it_is_wrapped(path: str, attributes: Any, error: str) -> None:
    with pytest.raises(InputError, match=error):
        dr.VectorRecord(altered(**attributes), path)
    assert not pathlib.Path(path).exists()


@pytest.mark.parametrize("kind", ["unbatched", "no batch", "no metadata"])
def test_what_is_told_in_another_way_is_recorded(path: str, kind: str) -> None:
    """EnvPool has the spaces of one environment under both names."""
    alone: dict[str, Any] = {
        "unbatched": {"observation_space": SPACES["box"], "action_space": Discrete(2)},
        "no batch": {"observation_space": None, "action_space": None},
        "no metadata": {"metadata": None},
    }
    with contextlib.closing(dr.VectorRecord(altered(**alone[kind]), path)) as envs:
        envs.reset()
        step_on(envs, 30)
        check_places(envs.buffer, 70)


def test_a_vector_environment_that_is_also_a_single_one_is_no_single_one(path: str) -> None:
    class Both(Pool, gymnasium.Env[Any, Any]):  # type: ignore[misc]  # as EnvPool's
        pass

    with pytest.raises(InputError, match="VectorRecord records vector environments"):
        dr.Record(Both(), path)  # type: ignore[arg-type]
    assert not pathlib.Path(path).exists()


def test_steps_of_some_environments_are_refused_before_the_store_changes(path: str) -> None:
    class Some(Pool):
        def step(self, actions: Any) -> Any:
            return tuple(part if isinstance(part, dict) else part[:2] for part in super().step(actions))

    with contextlib.closing(dr.VectorRecord(Some(), path)) as envs:
        envs.reset()
        with pytest.raises(InputError, match=r"must have shape \(3,\), got \(2,\)"):
            step_on(envs, 1)
        assert len(envs.buffer) == 0
