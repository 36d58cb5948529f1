"""`compat.sb3.save` and `load`: a model that was killed goes on as one that was loaded without having been killed."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is in the interop extra")
pytest.importorskip("stable_baselines3", reason="stable-baselines3 is in the interop extra")

import gymnasium as gym  # noqa: E402
from gymnasium import spaces  # noqa: E402
from stable_baselines3 import DQN, PPO, SAC  # noqa: E402

import diskreplay as dr  # noqa: E402
from diskreplay.compat import sb3  # noqa: E402
from diskreplay.errors import CheckpointError, InputError  # noqa: E402

CHEAP = {"learning_starts": 20, "batch_size": 16, "buffer_size": 300, "seed": 1, "device": "cpu"}


class Reach(gym.Env):
    """A point on a line that is to reach a goal, with the goal in the observation: for HER."""

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        part = spaces.Box(-10, 10, (1,), np.float32)
        self.observation_space = spaces.Dict({"observation": part, "achieved_goal": part, "desired_goal": part})

    def _observe(self) -> dict[str, Any]:
        here, goal = np.array([self.at], np.float32), np.array([self.goal], np.float32)
        return {"observation": here, "achieved_goal": here, "desired_goal": goal}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.steps, self.goal = 0.0, 0, float(self.np_random.uniform(-1, 1))
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.at, self.steps = self.at + 0.3 * float(action[0]), self.steps + 1
        reached = abs(self.at - self.goal) < 0.1
        return self._observe(), float(reached) - 1, reached, self.steps == 12, {}


def reward(achieved: Any, desired: Any, info: Any) -> Any:
    return -(np.abs(achieved - desired)[..., 0] >= 0.1).astype(np.float64)


def dqn(path: pathlib.Path) -> Any:
    kwargs = {"replay_buffer_class": sb3.DiskReplayBuffer, "replay_buffer_kwargs": {"path": str(path)}}
    return DQN("MlpPolicy", gym.make("CartPole-v1"), target_update_interval=50, **CHEAP, **kwargs)


def sac_her(path: pathlib.Path) -> Any:
    view = dr.Hindsight(reward)
    kwargs = {"replay_buffer_class": sb3.DiskReplayBuffer, "replay_buffer_kwargs": {"path": str(path), "view": view}}
    return SAC("MultiInputPolicy", Reach(), **CHEAP, **kwargs)


MODELS: dict[str, tuple[Any, Any, Any]] = {
    "DQN": (DQN, dqn, lambda: gym.make("CartPole-v1")),
    "SAC and HER": (SAC, sac_her, Reach),
}


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def parameters(model: Any) -> list[np.ndarray]:
    return [value.detach().numpy().copy() for value in model.policy.state_dict().values()]


def go_on(case: str, folder: pathlib.Path) -> tuple[list[np.ndarray], int]:
    """What a loaded model is after 60 more steps: its parameters, and the rows of its buffer."""
    algorithm, _, make = MODELS[case]
    model = sb3.load(algorithm, folder / "model.zip", make())
    model.learn(60, reset_num_timesteps=False)
    found = parameters(model), len(model.replay_buffer.store)
    model.replay_buffer.close()
    return found


def die(case: str, folder: str) -> None:
    """Trains, saves, trains on past a commit, and is killed."""
    torch.set_num_threads(1)
    model = MODELS[case][1](pathlib.Path(folder, "buffer"))
    model.learn(80)
    sb3.save(model, pathlib.Path(folder, "model"))
    model.learn(50, reset_num_timesteps=False)
    model.replay_buffer.store.commit()
    model.learn(7, reset_num_timesteps=False)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("case", MODELS)
def test_killed_and_loaded_it_ends_with_the_same_parameters(
    case: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "killed", tmp_path / "whole"]
    for path in paths:
        path.mkdir()
    here = pathlib.Path(__file__)
    monkeypatch.setitem(sys.modules, here.stem, sys.modules[__name__])  # as the zip names the reward function's module
    code = (
        f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem} as t; t.die({case!r}, sys.argv[1])"
    )
    assert subprocess.run([sys.executable, "-c", code, str(paths[0])]).returncode == -signal.SIGKILL
    with dr.ReplayBuffer.open(paths[0] / "buffer", mode="r", view=dr.Transition()) as buffer:
        assert len(buffer) > 120  # the rows after the save are there, and are given up by the load

    model = MODELS[case][1](paths[1] / "buffer")
    model.learn(80)
    assert sb3.save(model, paths[1] / "model") == "model-1"
    trained = parameters(model)
    model.replay_buffer.close()

    found = [go_on(case, path) for path in paths]
    assert found[0][1] == found[1][1]
    for ours, theirs, before in zip(found[0][0], found[1][0], trained, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.shape == before.shape
    assert any((ours != before).any() for ours, before in zip(found[0][0], trained, strict=True))


def test_a_later_save_to_the_same_path_replaces_the_checkpoint(tmp_path: pathlib.Path) -> None:
    model = dqn(tmp_path / "buffer")
    model.learn(32)
    store = model.replay_buffer.store
    store.checkpoint("mine")
    assert (sb3.save(model, tmp_path / "a"), sb3.save(model, tmp_path / "b.zip")) == ("a-1", "b-1")
    model.learn(12, reset_num_timesteps=False)
    assert sb3.save(model, tmp_path / "a.zip") == "a-2"
    assert sorted(store.checkpoints) == ["a-2", "b-1", "mine"]
    assert sorted(os.listdir(tmp_path)) == ["a.zip", "b.zip", "buffer"]  # noqa: PTH208
    model.replay_buffer.close()
    with pytest.raises(CheckpointError, match=r"rows that \['a-2'\] still need"):
        sb3.load(DQN, tmp_path / "b")
    for name, rows in (("a", 44), ("b", 32)):
        again = sb3.load(DQN, tmp_path / name)
        assert len(again.replay_buffer.store) == rows
        assert again.replay_buffer_kwargs == {"path": str(tmp_path / "buffer")}
        if name == "a":
            again.replay_buffer.store.drop_checkpoint("a-2")
        again.replay_buffer.close()


def test_models_and_stores_are_saved_at_home(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home := tmp_path / "home").mkdir()
    (work := tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    model = dqn(pathlib.Path("~/buffer"))
    model.learn(32)
    sb3.save(model, "~/model")
    sb3.save(model)
    model.replay_buffer.close()
    assert sb3.saved("~/buffer") == "step-32"
    for path in ("~/buffer", "~/model"):
        again = sb3.load(DQN, path)
        assert len(again.replay_buffer.store) == 32
        again.replay_buffer.close()
    assert sorted(os.listdir(home)) == ["buffer", "model.zip"]  # noqa: PTH208
    assert not os.listdir(work)  # noqa: PTH208


def test_a_save_that_fails_leaves_the_older_one(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dqn(tmp_path / "buffer")
    model.learn(32)
    sb3.save(model, tmp_path / "a")
    content = (tmp_path / "a.zip").read_bytes()

    def full(*args: Any, **kwargs: Any) -> None:
        pathlib.Path(args[0]).write_bytes(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(model, "get_parameters", lambda: full(tmp_path / ".a.zip.partial.zip"))
    with pytest.raises(OSError, match="full"):
        sb3.save(model, tmp_path / "a")
    assert model.replay_buffer.store.checkpoints == ["a-1"]
    assert sorted(os.listdir(tmp_path)) == ["a.zip", "buffer"]  # noqa: PTH208
    assert (tmp_path / "a.zip").read_bytes() == content
    model.replay_buffer.close()
    sb3.load(DQN, tmp_path / "a").replay_buffer.close()


def test_plain_save_and_load_take_the_buffer_up_as_it_is(tmp_path: pathlib.Path) -> None:
    model = dqn(tmp_path / "buffer")
    model.learn(32)
    model.save(tmp_path / "a")
    model.learn(12, reset_num_timesteps=False)
    model.replay_buffer.close()
    again = DQN.load(tmp_path / "a")
    assert len(again.replay_buffer.store) == 44
    again.replay_buffer.close()
    with pytest.raises(InputError, match="names no checkpoint of a buffer"):
        sb3.load(DQN, tmp_path / "a")


def test_a_plain_save_after_ours_names_no_checkpoint(tmp_path: pathlib.Path) -> None:
    """Regression: it named the older save's, so that newer networks were loaded with an older buffer."""
    model = dqn(tmp_path / "buffer")
    model.learn(32)
    sb3.save(model, tmp_path / "a")
    model.learn(12, reset_num_timesteps=False)
    model.save(tmp_path / "b")
    model.replay_buffer.close()
    again = sb3.load(DQN, tmp_path / "a")
    again.save(tmp_path / "c")
    again.replay_buffer.close()
    for name in "bc":
        with pytest.raises(InputError, match="names no checkpoint of a buffer"):
            sb3.load(DQN, tmp_path / name)


def test_what_cannot_be_saved_is_named(tmp_path: pathlib.Path) -> None:
    ours = {"replay_buffer_class": sb3.DiskReplayBuffer}
    env = gym.make("CartPole-v1")
    with pytest.raises(InputError, match="replay_buffer_class=DiskReplayBuffer to DQN"):
        sb3.save(DQN("MlpPolicy", env, **CHEAP), tmp_path / "a")
    with pytest.raises(InputError, match="must be a DiskReplayBuffer, got NoneType"):
        sb3.save(PPO("MlpPolicy", env, device="cpu", n_steps=8, batch_size=8), tmp_path / "a")
    with pytest.raises(InputError, match="has no path"):
        sb3.save(DQN("MlpPolicy", env, **CHEAP, **ours), tmp_path / "a")
    assert not (tmp_path / "a.zip").exists()
    model = dqn(tmp_path / "buffer")
    model.learn(32)
    name = sb3.save(model, tmp_path / "a")
    model.replay_buffer.store.drop_checkpoint(name)
    model.replay_buffer.close()
    with pytest.raises(CheckpointError, match="a-1"):
        sb3.load(DQN, tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        sb3.load(DQN, tmp_path / "missing")


def test_priorities_come_back_with_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """Regression: a sampler among the arguments began anew without a word."""

    def buffer(**options: Any) -> Any:
        options = {"path": tmp_path / "a", "sampler": dr.Proportional(), "seed": 0, **options}
        return sb3.DiskReplayBuffer(100, spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(4), **options)

    def draws(made: Any) -> list[Any]:
        return [made.sample(8).observations.tolist() for _ in range(5)]

    first, rng = buffer(), np.random.default_rng(0)
    for _ in range(60):
        obs, following = rng.uniform(-1, 1, (2, 1, 3)).astype(np.float32)
        first.add(obs, following, np.array([[1]]), np.ones(1), np.array([False]), [{}])
    first.store.update_priorities(first.store.items(), np.where(np.arange(60) % 7, 1e-3, 9.0))
    first.store.checkpoint("here")
    expected = draws(first)
    first.store.close()
    again = buffer(checkpoint="here")
    assert draws(again) == expected
    again.store.close()


# In a checkpoint of the store


def test_a_model_is_saved_in_a_checkpoint_of_its_store(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "buffer"
    assert sb3.saved(path) is None
    model = dqn(path)
    assert sb3.saved(path) is None
    model.learn(40)
    assert sb3.save(model, attachments={"notes": b"mine"}) == "step-40"
    assert sb3.save(model, keep=None) == "step-40-2"
    trained, rows = parameters(model), len(model.replay_buffer.store)
    model.replay_buffer.store.checkpoint("mine")
    model.learn(24, reset_num_timesteps=False)
    assert (sb3.saved(path), list(tmp_path.iterdir())) == ("step-40-2", [path])
    model.replay_buffer.close()
    again = sb3.load(DQN, path, gym.make("CartPole-v1"))
    assert (again.num_timesteps, len(again.replay_buffer.store)) == (40, rows)
    assert again.replay_buffer.store.restored.name == "step-40-2"
    assert again.replay_buffer.store.restored.metadata == {"num_timesteps": 40}
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(parameters(again), trained, strict=True))
    with again.replay_buffer.store.attachment("notes", "step-40") as file:
        assert file.read() == b"mine"
    again.learn(8, reset_num_timesteps=False)
    assert sb3.save(again) == "step-48"
    assert again.replay_buffer.store.checkpoints == ["step-40-2", "mine", "step-48"]
    again.replay_buffer.close()
    with pytest.raises(CheckpointError, match=r"rows that \['step-48'\] still need"):
        sb3.load(DQN, path, checkpoint="step-40-2")
    with pytest.raises(CheckpointError, match=r"model\.zip"):
        sb3.load(DQN, path, checkpoint="mine")
    moved = path.rename(tmp_path / "elsewhere")
    again = sb3.load(DQN, moved)
    assert again.replay_buffer.path == str(moved)
    again.replay_buffer.close()


def test_a_store_without_a_model_is_not_loaded(tmp_path: pathlib.Path) -> None:
    model = dqn(tmp_path / "buffer")
    model.learn(20)
    model.replay_buffer.store.checkpoint("mine")
    with pytest.raises(InputError, match="a zip takes no attachments"):
        sb3.save(model, tmp_path / "a", attachments={"notes": b""})
    model.replay_buffer.close()
    with pytest.raises(CheckpointError, match=r"has a model: save\(model\) makes one"):
        sb3.load(DQN, tmp_path / "buffer")


def test_a_model_that_cannot_be_saved_leaves_no_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dqn(tmp_path / "buffer")
    model.learn(32)
    assert sb3.save(model) == "step-32"

    def full() -> None:
        raise OSError("no weights today")

    monkeypatch.setattr(model, "get_parameters", full)
    with pytest.raises(OSError, match="no weights today"):
        sb3.save(model)
    assert model.replay_buffer.store.checkpoints == ["step-32"]
    model.replay_buffer.close()


def train(path: str, steps: int, kill_after: int) -> None:
    """Goes on until there are so many steps; with ``kill_after`` it is killed after so many."""

    class Killer(sb3.DiskCheckpointCallback):
        def _on_step(self) -> bool:
            if self.n_calls == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            return True

    torch.set_num_threads(1)
    model = sb3.load(DQN, path, gym.make("CartPole-v1")) if sb3.saved(path) else dqn(pathlib.Path(path))
    callback = Killer(24, verbose=1)
    model.learn(steps - model.num_timesteps, callback=callback, reset_num_timesteps=False)
    print("ended", model.num_timesteps, len(model.replay_buffer.store), flush=True)


def test_the_callback_saves_and_a_killed_run_goes_on(tmp_path: pathlib.Path) -> None:
    here = pathlib.Path(__file__)
    printed = []
    for kill_after in (50, 30, 0):
        code = (
            f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem} as t; "
            f"t.train({str(tmp_path / 'buffer')!r}, 100, {kill_after})"
        )
        run = subprocess.run([sys.executable, "-u", "-c", code], capture_output=True, text=True)
        assert run.returncode == (-signal.SIGKILL if kill_after else 0), run.stderr
        printed.append(run.stdout.splitlines())
    assert printed == [
        ["checkpoint step-0", "checkpoint step-24", "checkpoint step-48"],
        ["checkpoint step-72"],
        ["checkpoint step-96", "ended 100 100"],
    ]


def test_the_callback_says_what_it_cannot_save() -> None:
    callback = sb3.DiskCheckpointCallback(10)
    env = gym.make("CartPole-v1")
    with pytest.raises(InputError, match="must be a DiskReplayBuffer, got NoneType"):
        PPO("MlpPolicy", env, device="cpu", n_steps=8, batch_size=8).learn(16, callback=callback)
    with pytest.raises(InputError, match="has no path"):
        DQN("MlpPolicy", env, replay_buffer_class=sb3.DiskReplayBuffer, **CHEAP).learn(16, callback=callback)
    with pytest.raises(InputError, match="save_freq"):
        sb3.DiskCheckpointCallback(0)


def test_a_full_disk_within_a_model_leaves_no_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = dqn(tmp_path / "buffer")
    model.learn(32)
    save = type(model).save

    def half(self: Any, file: Any) -> None:
        file.write(b"half")
        raise OSError("the disk is full")

    monkeypatch.setattr(type(model), "save", half)
    with pytest.raises(OSError, match="the disk is full"):
        sb3.save(model)
    monkeypatch.setattr(type(model), "save", save)
    assert (model.replay_buffer.store.checkpoints, sb3.save(model)) == ([], "step-32")
    model.replay_buffer.close()
