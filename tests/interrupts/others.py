"""Programs over what is no replay buffer: rollouts, several agents, other libraries' buffers, operations on stores.

Their rows are stamped: every value of a row says the row's number, so that a row is whole or wrong by itself.
"""

from __future__ import annotations

import itertools
import pathlib
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from interrupts import own
from interrupts.programs import Program

import diskreplay as dr
from diskreplay.compat import frames, notebook, pearl, xuance, xuance_marl
from diskreplay.compat.xuance import EpisodeBuffer
from diskreplay.ops.convert import export, import_dataset
from diskreplay.ops.verify import verify

BOX = spaces.Box(-1e6, 1e6, (2,), np.float32)
CHOICE, LARGE = spaces.Discrete(5), spaces.Box(-1e6, 1e6, (), np.float32)
SMALL: dict[str, Any] = {"chunk_rows": 2, "shard_rows": 4, "codec": "lz4"}


class Stamped(Program):
    """A buffer of stamped rows.

    Attributes:
        buffer: under test.
        log: the stamps that were given, in order.
        doubtful: the stamp whose call was interrupted.
        capacity: of the buffer.
        lag: the newest rows that cannot be read yet, or that closing drops.
    """

    capacity, lag, rows = 8, 0, 13
    operation = "store"
    whole = False
    """Rows that a commit holds are given up where what was saved is of older ones, as those of rollouts."""
    cleared = 0
    """How many stamps had been given before a ``clear`` that may have happened."""

    def __init__(self, folder: pathlib.Path, operation: str = "store") -> None:
        super().__init__(folder)
        self.path = str(folder / "a.replay")
        self.operation = operation
        self.log: list[int] = []
        self.doubtful: int | None = None
        self.buffer: Any = None
        self.make()
        self.stamp = 0
        for _ in range(self.rows):
            self.more(1)
            if self.stamp == 9:
                self.commit()
        self.prepare()
        if operation == "open":
            self.buffer.close()
            self.committed = len(self.log)

    def more(self, count: int) -> None:
        for _ in range(count):
            self.store(self.stamp)
            self.log.append(self.stamp)
            self.stamp += 1

    def prepare(self) -> None:
        """Before the operation."""

    def open(self) -> None:
        """A store that was closed before."""
        self.make()

    def call(self) -> object:
        self.doubtful = self.stamp if self.operation == "store" else None
        work = getattr(self, self.operation)
        if self.operation != "store":
            return work()
        self.stamp += 1
        work(self.doubtful)
        self.log.append(self.doubtful)
        self.doubtful = None
        return None

    @property
    def place(self) -> dict[str, Any]:
        """What its constructor is told of files."""
        return {"path": self.path, **({} if self.log else SMALL)}

    committed = 0

    def clear(self) -> None:
        self.cleared = len(self.log)
        self.buffer.clear()

    def commit(self) -> None:
        self.buffer.commit()
        self.committed = len(self.log)

    @property
    def closed(self) -> bool:
        below = getattr(self.buffer, "store", None)
        below = self.buffer.engine if below is None or callable(below) else below
        return bool(getattr(below, "engine", below).gate.closed)

    def look(self) -> None:
        found = self.read()
        if self.doubtful is not None and self.doubtful not in self.log and self.lag == 0:
            if found[-1:] == [self.doubtful]:
                self.log.append(self.doubtful)
            self.doubtful = None
        self.compare(found, len(self.log) - self.lag)

    def compare(self, found: list[int], least: int) -> None:
        """What was read are the newest rows, of so many at least."""
        logs = [(self.log, least)]
        if self.doubtful is not None:
            logs.append((sorted([*self.log, self.doubtful]), least))
        if self.cleared:
            logs += [(log[self.cleared :], least - self.cleared) for log, _ in logs]
        for log, least in logs:
            for end in range(len(log), max(least, 0) - 1, -1):
                held = min(end, self.capacity) - self.lag - 1 if self.lag else min(end, self.capacity)
                if len(found) >= held and found == log[end - len(found) : end]:
                    return
        raise AssertionError(f"rows {found}; given were {self.log[-12:]}, in doubt is {self.doubtful}")

    def go_on(self) -> None:
        for count in (1, 3, 9):
            self.more(count)
            self.compare(self.read(), len(self.log) - self.lag)
            self.commit()

    def close(self) -> None:
        if self.buffer is not None:
            self.buffer.close()

    def again(self, kept: bool) -> None:
        assert verify(self.path).problems == ()
        self.reopen()
        found = self.read()
        if kept or not self.whole or found:
            self.compare(found, len(self.log) - self.lag if kept else self.committed - self.lag)
        if self.doubtful is not None and self.doubtful in found:
            self.log = sorted({*self.log, self.doubtful})
        self.doubtful = None
        self.log = [each for each in self.log if found and each <= found[-1]]
        if not found:
            self.log, self.cleared = [], 0
        self.more(5)
        self.compare(self.read(), len(self.log) - self.lag)
        self.buffer.close()

    # What subclasses say

    kind: Any = None
    given: tuple[Any, ...] = ()
    options: ClassVar[dict[str, Any]] = {}

    def make(self) -> None:
        self.buffer = self.kind(*self.given, **self.options, **self.place)

    def store(self, stamp: int) -> None:
        raise NotImplementedError

    def read(self) -> list[int]:
        """The stamps of all rows that are held, ascending; AssertionError where a row has several."""
        raise NotImplementedError

    def reopen(self) -> None:
        if self.kind in (dr.RolloutBuffer, dr.MultiAgentReplayBuffer, dr.MultiAgentRolloutBuffer):
            self.buffer = self.kind.open(self.path, seed=1)
        else:
            self.make()


def stamps(*columns: Any) -> list[int]:
    """Of rows whose columns ``(B, ...)`` must all say the same."""
    firsts = [np.asarray(column, np.float64).reshape(len(column), -1) for column in columns]
    for column in firsts:
        assert (column == firsts[0][:, :1]).all(), f"a row has several stamps: {[list(c[:, 0]) for c in firsts]}"
    return sorted(firsts[0][:, 0].astype(int).tolist())


class Rollout(Stamped):
    """Rewards are stamps, too; with gamma and lambda of 1 the returns are the sums of all that follow."""

    kind = dr.RolloutBuffer
    starts = 0, 0
    """The first stamp since the last ``clear``, and since the one before it."""

    def make(self) -> None:
        self.buffer = self.kind.create(
            self.path, BOX, CHOICE, steps=8, gamma=1.0, gae_lambda=1.0, normalize_advantage=False, seed=0, **SMALL
        )

    def store(self, stamp: int) -> None:
        if self.buffer.full:
            self.starts = stamp, self.starts[0]
            self.buffer.clear()
        one = np.float32(stamp)
        ends = {"value": one, "log_prob": one, "final_value": np.nan}
        self.buffer.add(np.full(2, one), stamp % 5, one, np.full(2, one + 1), False, stamp % 4 == 3, **ends)

    def clear(self) -> None:
        self.starts = self.stamp, self.starts[0]
        self.buffer.clear()

    def finish(self) -> None:
        self.buffer.finish(np.zeros(1), own.value_fn)

    def minibatches(self) -> None:
        self.finish()
        for _ in self.buffer.minibatches(3, 2):
            pass

    def read(self) -> list[int]:
        if not len(self.buffer):
            return []
        self.finish()
        batches = list(self.buffer.minibatches(3))
        fields = {
            name: np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("obs", "reward", "value", "log_prob", "returns", "advantage")
        }
        found = stamps(*(fields[name] for name in ("obs", "reward", "value", "log_prob")))
        for stamp, returned in zip(fields["reward"].tolist(), fields["returns"].tolist(), strict=True):
            later = [each for each in found if each >= stamp]
            episode = later[: next((at + 1 for at, each in enumerate(later) if each % 4 == 3), len(later))]
            # what follows an episode's cut is the value of its final observation, which is its stamp and one
            after = episode[-1] + 1 if episode[-1] % 4 == 3 else None
            broken = any(b != a + 1 for a, b in itertools.pairwise(episode))
            if not broken and (after is not None or len(episode) == len(later)):
                np.testing.assert_allclose(returned, sum(episode) + (after or 0))
        return found

    def compare(self, found: list[int], least: int) -> None:
        """All that came after the last ``clear``, if that happened."""
        logs = [self.log] if self.doubtful is None else [self.log, [*self.log, self.doubtful]]
        for log in logs:
            for end in range(len(log), max(least, 0) - 1, -1):
                if any(found == [each for each in log[:end] if each >= start] for start in self.starts):
                    return
        raise AssertionError(f"rows {found}; given were {self.log[-12:]}, cleared before {self.starts}")


class Agents(Stamped):
    """A replay buffer of two agents."""

    kind = dr.MultiAgentReplayBuffer

    def make(self) -> None:
        self.buffer = self.kind.create(
            self.path, BOX, CHOICE, 2, capacity=8, state_space=BOX, available_actions=True, seed=0, **SMALL
        )

    def store(self, stamp: int) -> None:
        def obs(value: int) -> np.ndarray:
            return np.full((2, 2), value, np.float32)

        can = np.ones((2, 5), bool)
        self.buffer.add(
            obs(stamp), np.full(2, stamp % 5), float(stamp), obs(stamp + 1), False, stamp % 4 == 3,
            state=np.full(2, stamp, np.float32), next_state=np.full(2, stamp + 1, np.float32), available_actions=can,
            next_available_actions=can,
        )  # fmt: skip

    def sample(self) -> None:
        batch = self.buffer.sample(5)
        stamps(batch.obs, batch.reward, batch.state, batch.next_obs - 1)

    def read(self) -> list[int]:
        state = self.buffer.stats()["streams"]["0"]
        if state["end"] == state["begin"]:
            return []
        batch = self.buffer.get(np.arange(state["begin"], state["end"]))
        assert (batch.action == (batch.reward.astype(int) % 5)[:, None]).all()
        return stamps(batch.obs, batch.reward, batch.state, batch.next_obs - 1, batch.next_state - 1)


class AgentsRollout(Stamped):
    """A rollout of two agents."""

    kind, rows, capacity = dr.MultiAgentRolloutBuffer, 5, 64

    def make(self) -> None:
        self.buffer = self.kind.create(self.path, BOX, CHOICE, 2, steps=64, normalize_advantage=False, seed=0, **SMALL)

    def store(self, stamp: int) -> None:
        each = np.full(2, stamp, np.float32)
        self.buffer.add(
            np.full((2, 2), stamp, np.float32), np.full(2, stamp % 5), float(stamp),
            np.full((2, 2), stamp + 1, np.float32), False, False, value=each, log_prob=each, final_value=each,
        )  # fmt: skip

    def finish(self) -> None:
        self.buffer.finish(np.zeros((1, 2)))

    def read(self) -> list[int]:
        if not len(self.buffer):
            return []
        self.finish()
        batch = self.buffer.get(np.arange(len(self.buffer)))
        return stamps(batch.obs, batch.reward, batch.value, batch.log_prob)


class FrameHistory(Stamped):
    """The Atari courses' buffer: a frame becomes a transition when the next one is stored."""

    lag = 1

    kind = frames.ReplayBuffer
    given = (9, 2)
    options: ClassVar[dict[str, Any]] = {"seed": 0}

    def store(self, stamp: int) -> None:
        at = self.buffer.store_frame(np.full((3, 4, 1), stamp, np.uint8))
        self.buffer.encode_recent_observation()
        self.buffer.store_effect(at, stamp, float(stamp), stamp % 4 == 3)

    def read(self) -> list[int]:
        count = self.buffer.num_in_buffer
        while count and not self.buffer.can_sample(count):
            count -= 1
        if not count:
            return []
        obs, action, reward, following, done = self.buffer.sample(count)
        found = stamps(obs[..., -1], action, reward)
        for stamp, after, ended in zip(action.tolist(), following[..., -1], done.tolist(), strict=True):
            assert (after == 0).all() if ended else (after > stamp).all() and (after <= stamp + 2).all()
        return found


class Notebook(Stamped):
    """The notebook's prioritised buffers."""

    kind: Any = notebook.Proportion_Replay_Buffer
    options: ClassVar[dict[str, Any]] = {"capacity": 8, "batch_size": 4, "seed": 0}

    def store(self, stamp: int) -> None:
        self.buffer.remember(np.full(2, stamp), stamp, stamp, np.full(2, stamp + 1), stamp % 4 == 3)

    def insert(self) -> None:
        self.buffer.insert(0.5, 3)

    def read(self) -> list[int]:
        held = [each for each in self.buffer.memory if each is not None]
        if not held:
            return []
        state, action, reward, following, _ = (np.stack([np.asarray(one[at]) for one in held]) for at in range(5))
        if isinstance(self.buffer, notebook.Proportion_Replay_Buffer):
            tree = self.buffer.weights
            assert sum(value > 0 for value in tree.vals[7:]) == len(held), "some are never drawn"
            known = [1.05**0.5, 0.55**0.5, 1.0]  # of a first error, of :meth:`insert`, and where they were lost
            assert all(np.isclose(value, known).any() for value in tree.vals[7:] if value), "an error of another row"
        else:
            assert sorted(rank for rank in self.buffer.memory_to_rank if rank is not None) == list(range(len(held)))
        return stamps(state, action, reward, following - 1)


class RankNotebook(Notebook):
    kind = notebook.Rank_Replay_Buffer


class Xuance(Stamped):
    """XuanCe's off-policy buffers."""

    kind = xuance.DummyOffPolicyBuffer
    given = (BOX, CHOICE, None, 2, 8, 6)
    options: ClassVar[dict[str, Any]] = {"seed": 0}
    beta: tuple[float, ...] = ()

    def store(self, stamp: int) -> None:
        obs = np.full((2, 2), stamp, np.float32)
        self.buffer.store(obs, np.full(2, stamp), np.full(2, stamp), np.full(2, stamp % 4 == 3), obs + 1)

    def sample(self) -> None:
        obs, action, reward, _, following = self.buffer.sample(*self.beta)[:5]
        stamps(obs, action, reward, following - 1)

    def read(self) -> list[int]:
        size, places = self.buffer.size, np.arange(self.buffer.size)
        if not size:
            return []
        assert self.buffer.ptr == size % 8 or size == 8
        fields = [
            np.moveaxis(np.asarray(values[:, places]), 0, 1)
            for values in (self.buffer.observations, self.buffer.actions, self.buffer.rewards)
        ]
        following = np.moveaxis(np.asarray(self.buffer.next_observations[:, places]), 0, 1)
        for _ in range(2):
            self.sample()
        found = stamps(*fields, following - 1)
        newest = np.asarray(self.buffer.rewards[0, [(self.buffer.ptr - 1) % 8]])
        assert newest.tolist() == [found[-1]], "the pointer is not behind the newest"
        return found


class XuancePriorities(Xuance):
    kind, beta = xuance.PerOffPolicyBuffer, (0.4,)

    def prepare(self) -> None:
        self.choices = self.buffer.sample(0.4)[6]

    def update(self) -> None:
        self.buffer.update_priorities(self.choices, np.linspace(0.1, 0.9, self.choices.size))


class XuanceRollout(Stamped):
    """XuanCe's on-policy buffers: with values that are stamps, no discount and rewards that are stamps."""

    whole = True

    kind = xuance.DummyOnPolicyBuffer
    given = (BOX, LARGE, {"info": ()}, 2, 8)
    options: ClassVar[dict[str, Any]] = {"gamma": 1.0, "gae_lam": 1.0, "use_advnorm": False}

    def store(self, stamp: int) -> None:
        each = np.full(2, stamp)
        self.buffer.store(np.full((2, 2), stamp), each, each, each, np.zeros(2), {"info": each})

    def finish(self) -> None:
        self.buffer.finish_path(0.0, 0)

    def sample(self) -> None:
        obs, acts, _, values, _, auxiliary = self.buffer.sample(np.arange(16))
        stamps(obs, acts, values, auxiliary["info"])

    def fields(self, places: np.ndarray) -> list[np.ndarray]:
        """Of entries of the ring, ``(places, n_envs, ...)`` each, the returns last."""
        buffer = self.buffer
        arrays = (
            buffer.observations, buffer.rewards, buffer.values, buffer.actions, buffer.auxiliary_infos["info"],
            buffer.returns,
        )  # fmt: skip
        return [np.moveaxis(np.asarray(array[:, places]), 0, 1) for array in arrays]

    def read(self) -> list[int]:
        ptr, size = self.buffer.ptr, self.buffer.size
        if not size:
            return []
        places = (ptr - 1 - np.arange(size)[::-1]) % 8
        *fields, returns = self.fields(places)
        found = stamps(*fields)
        assert stamps(fields[1][-1:]) == found[-1:], "the pointer is not behind the newest"
        for env in range(2):
            count = (ptr - self.buffer.start_ids[env]) % 8
            if found[-1] and not (count == 0 and size == 8):
                assert returns[-1, env].any() == (count == 0), "a path is half finished"
        return found


class AgentsRolloutOfXuance(XuanceRollout):
    """Those of several agents."""

    kind = xuance_marl.MARL_OnPolicyBuffer
    given = (2, (2,), (2,), (), (2, 1), (2,), 2, 16, True, False, 1.0, 1.0)
    options: ClassVar[dict[str, Any]] = {}

    def store(self, stamp: int) -> None:
        each = np.full((2, 2), stamp)
        self.buffer.store(
            {"obs": np.full((2, 2, 2), stamp), "actions": each, "rewards": each[..., None], "values": each[..., None],
             "log_pi_old": each, "terminals": np.zeros((2, 2)), "state": each}
        )  # fmt: skip

    def sample(self) -> None:
        found = self.buffer.sample(np.arange(16))
        stamps(*(found[key] for key in ("obs", "actions", "rewards", "values", "log_pi_old", "state")))

    def fields(self, places: np.ndarray) -> list[np.ndarray]:
        keys = "obs", "rewards", "values", "actions", "log_pi_old", "state", "returns"
        return [np.moveaxis(np.asarray(self.buffer.data[key][:, places]), 0, 1) for key in keys]


class AgentsOfXuance(Stamped):
    """XuanCe's off-policy buffers of several agents."""

    kind = xuance_marl.MARL_OffPolicyBuffer
    given = (2, None, (2,), (), (2, 1), (2,), 2, 16, 6)

    def store(self, stamp: int) -> None:
        obs = np.full((2, 2, 2), stamp)
        self.buffer.store(
            {"obs": obs, "actions": obs[..., 0], "rewards": obs[..., :1], "terminals": np.full((2, 2), stamp % 4 == 3),
             "obs_next": obs + 1}
        )  # fmt: skip

    def sample(self) -> None:
        found = self.buffer.sample()
        stamps(found["obs"], found["actions"], found["rewards"], found["obs_next"] - 1)

    def read(self) -> list[int]:
        ptr, size = self.buffer.ptr, self.buffer.size
        if not size:
            return []
        self.sample()
        places = (ptr - 1 - np.arange(size)) % 8
        fields = {
            key: np.moveaxis(np.asarray(self.buffer.data[key][:, places]), 0, 1)
            for key in ("obs", "actions", "rewards", "obs_next")
        }
        assert (np.diff(fields["rewards"][:, 0, 0, 0]) < 0).all(), "the pointer is not behind the newest"
        return stamps(fields["obs"], fields["actions"], fields["rewards"], fields["obs_next"] - 1)


class EpisodesOfXuance(Stamped):
    """Episodes of three steps: each is a stamp."""

    capacity, rows = 3, 5

    kind = xuance.RecurrentOffPolicyBuffer
    given = (BOX, LARGE, None, 1, 3, 4, 4, 2)
    options: ClassVar[dict[str, Any]] = {"seed": 0}

    def store(self, stamp: int) -> None:
        episode, each = EpisodeBuffer(), np.full(2, stamp)
        episode.obs.append(each)
        for step in range(3):
            episode.put([each, stamp, stamp, step == 2])
        self.buffer.store(episode)

    def sample(self) -> None:
        obs, acts, rews, _ = self.buffer.sample()
        stamps(obs, acts, rews)

    def read(self) -> list[int]:
        memory = self.buffer.memory
        if not len(memory):
            return []
        self.sample()
        assert all(len(one) == 3 for one in memory)
        assert self.buffer.size == len(memory)
        return stamps([one.obs for one in memory], [one.action for one in memory], [one.reward for one in memory])


class AgentsEpisodesOfXuance(Stamped):
    """Episodes of several agents, off-policy."""

    capacity, rows = 3, 4

    kind = xuance_marl.MARL_OffPolicyBuffer_RNN
    given = (2, (2,), (2,), (), (1,), (2,), 1, 3, 4)
    options: ClassVar[dict[str, Any]] = {"max_episode_length": 4, "dim_act": 5}

    def step(self, stamp: int, step: int) -> None:
        agents = np.full((1, 2), stamp)
        self.buffer.store_transitions(
            step, np.full((1, 2, 2), stamp), self.actions(agents), agents, agents[..., None],
            np.full((1, 2), step == 2), None,
        )  # fmt: skip

    def actions(self, agents: np.ndarray) -> dict[str, np.ndarray]:
        return {"actions_n": agents}

    def finish(self, stamp: int) -> None:
        self.buffer.finish_path(0, 3, np.full((1, 2, 2), stamp), np.full((1, 2), stamp), None, np.ones((1, 4, 1)))

    def store(self, stamp: int) -> None:
        self.buffer.clear_episodes()
        for step in range(3):
            self.step(stamp, step)
        self.finish(stamp)
        self.buffer.store_episodes()

    def sample(self) -> None:
        self.check(self.buffer.sample())

    def check(self, found: dict[str, np.ndarray]) -> list[int]:
        assert found["filled"][:, :3].all(), "an episode is not whole"
        assert not found["filled"][:, 3].any(), "an episode is not whole"
        agents = [found[key][:, :, :3] for key in ("obs", "actions", "rewards", *self.KEYS)]
        return stamps(*agents, found["obs"][:, :, :4], found["state"][:, :4])

    KEYS: tuple[str, ...] = ()

    def read(self) -> list[int]:
        ptr, size = self.buffer.ptr, self.buffer.size
        if not size:
            return []
        places = (ptr - 1 - np.arange(size)) % 3
        found = {key: np.asarray(self.buffer.data[key][places]) for key in self.buffer.data}
        assert (np.diff(found["rewards"][:, 0, 0, 0]) < 0).all(), "the pointer is not behind the newest"
        return self.check(found)


class AgentsRolloutEpisodesOfXuance(AgentsEpisodesOfXuance):
    """Likewise on-policy: with no discount the returns are 3, 2 and 1 times the stamp."""

    whole = True
    KEYS = "values", "log_pi_old"

    kind = xuance_marl.MARL_OnPolicyBuffer_RNN
    given = (2, (2,), (2,), (), (1,), (2,), 1, 3, True, False, 1.0, 1.0)

    def actions(self, agents: np.ndarray) -> dict[str, np.ndarray]:
        return {"actions_n": agents, "values": agents[..., None], "log_pi": agents}

    def sample(self) -> None:
        self.check(self.buffer.sample(np.arange(3)))

    def check(self, found: dict[str, np.ndarray]) -> list[int]:
        stamp = found["rewards"][:, :, :1]
        np.testing.assert_allclose(found["returns"][:, :, :3], stamp * np.array([3, 2, 1])[None, None, :, None])
        return super().check(found)


class Env(gymnasium.Env[Any, Any]):
    observation_space, action_space = BOX, CHOICE


class Pearl(Stamped):
    kind: Any = pearl.ReplayBuffer

    def make(self) -> None:
        self.buffer = self.kind(self.env(), 8, device="cpu", path=self.path, seed=0)

    def env(self) -> Any:
        return Env()

    def obs(self, stamp: int) -> Any:
        return np.full(2, stamp, np.float32)

    def store(self, stamp: int) -> None:
        self.buffer.add_trajectory(self.obs(stamp), stamp % 5, float(stamp), self.obs(stamp + 1), stamp % 4 == 3)

    def commit(self) -> None:
        self.buffer.store.commit()
        self.committed = len(self.log)

    def clear(self) -> None:
        self.cleared = len(self.log)
        self.buffer.reset()

    def sample(self) -> None:
        rows = self.buffer.sample(5)
        stamps(rows.observations, rows.rewards)

    def read(self) -> list[int]:
        pos, full = self.buffer.pos, self.buffer.full
        if not (pos or full):
            return []
        rows = self.buffer.all()
        newest = np.asarray(self.buffer.rewards[[(pos - 1) % 8]]).item()
        assert newest == rows.rewards[-1].item(), "the position is not behind the newest"
        assert len(rows.rewards) == (8 if full else pos)
        return stamps(rows.observations, rows.rewards, rows.next_observations - 1)


class PearlRollout(Pearl):
    kind = pearl.RolloutBuffer


class PearlHindsight(Pearl):
    """Goals are stamps, and so are the rewards of the environment."""

    kind = pearl.HERBuffer

    def env(self) -> Any:
        return GoalEnv()

    def obs(self, stamp: int) -> Any:
        return dict.fromkeys(("observation", "achieved_goal", "desired_goal"), np.full(2, stamp, np.float32))

    def sample(self) -> None:
        rows = self.buffer.sample(5)
        assert (rows.observations["observation"] + 1 == rows.next_observations["observation"]).all()

    def read(self) -> list[int]:
        if not (self.buffer.pos or self.buffer.full):
            return []
        rows = self.buffer.all()
        self.buffer.sample(len(rows.rewards))
        return stamps(rows.observations["observation"], rows.rewards, rows.next_observations["observation"] - 1)


class GoalEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), BOX))
    action_space = CHOICE

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return np.asarray(achieved)[..., 0]


class Converting(Program):
    """A store in a real directory, exported to, or imported from, an archive."""

    def __init__(self, folder: pathlib.Path, operation: str) -> None:
        super().__init__(folder)
        self.store, self.archive = folder / "a.replay", folder / "out" / "a.npz"
        self.copy = folder / "in" / "b.replay"
        self.operation = operation
        for each in (self.archive.parent, self.copy.parent):
            each.mkdir()
        with dr.ReplayBuffer.create(self.store, BOX, CHOICE, capacity=50, seed=0, **SMALL) as buffer:
            for stamp in range(20):
                obs = np.full(2, stamp, np.float32)
                buffer.add(obs, stamp % 5, float(stamp), obs + 1, False, stamp % 5 == 4)
        if operation == "import_":
            self.export()

    def call(self) -> object:
        return getattr(self, self.operation)()

    def export(self) -> None:
        export(self.store, self.archive, "npz", allow_loss=True)

    def import_(self) -> None:
        import_dataset(self.archive, self.copy)

    def look(self) -> None:
        """It is there whole, or not at all; then it can be made again, and nothing else is left."""
        if not self.archive.exists():
            self.export()
        if not self.copy.exists():
            self.import_()
        for made in (self.archive, self.copy):
            assert [each.name for each in made.parent.iterdir()] == [made.name], "something is left over"
        with dr.ReplayBuffer.open(self.copy) as buffer:
            batch = buffer.get(np.arange(20))
            assert stamps(batch.obs, batch.reward, batch.next_obs - 1) == list(range(20))

    def again(self, kept: bool) -> None:
        self.look()
        for store in (self.store, self.copy):
            assert verify(store).ok
