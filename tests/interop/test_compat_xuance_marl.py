"""XuanCe's own multi-agent learners, with our buffers in the place of theirs: they learn the very same parameters.

XuanCe's buffers hold a dict of arrays for each key, one for each agent, where ours have an axis of agents, as its
documented ones had; that is what the subclasses here translate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from helpers.stand_ins import XUANCE, stand_ins
from interop.xuance_learning import check_same, learned

from diskreplay.compat import xuance_marl as marl

pytest.importorskip("torch", reason="torch is in the interop extra")

with stand_ins(XUANCE):
    pytest.importorskip("xuance.torch.agents", reason="XuanCe is installed by the target interop of the Makefile")
    from xuance.environment import RawMultiAgentEnv, XuanCeMultiAgentEnvWrapper
    from xuance.environment.vector_envs import REGISTRY_VEC_ENV
    from xuance.torch.agents import IPPO_Agents, IQL_Agents, QMIX_Agents, VDN_Agents
    from xuance.torch.agents.core import off_policy_marl, on_policy_marl

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_torch_thread")]

AGENTS = ["a", "b", "c"]
KINDS = 4
STEPS = 12


class Matching(RawMultiAgentEnv):
    """Each agent sees one of four signs, and is rewarded for naming it; where all see the same, the episode ends."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.env_id = "matching"
        self.agents, self.num_agents = AGENTS, len(AGENTS)
        self.agent_groups = [AGENTS]
        self.state_space = spaces.Box(0, 1, (len(AGENTS) * KINDS,), np.float32)
        self.observation_space = {agent: spaces.Box(0, 1, (KINDS,), np.float32) for agent in AGENTS}
        self.action_space = {agent: spaces.Discrete(KINDS, seed=seed + at) for at, agent in enumerate(AGENTS)}
        self.max_episode_steps = STEPS
        self.rng = np.random.default_rng(seed)

    def _look(self) -> dict[str, Any]:
        self.signs = self.rng.integers(KINDS, size=len(AGENTS))
        return {agent: np.eye(KINDS, dtype=np.float32)[sign] for agent, sign in zip(AGENTS, self.signs, strict=True)}

    def state(self) -> np.ndarray:
        return np.eye(KINDS, dtype=np.float32)[self.signs].ravel()

    def reset(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        self.count = 0
        return self._look(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        right = {agent: float(actions[agent] == sign) for agent, sign in zip(AGENTS, self.signs, strict=True)}
        over = bool(np.ptp(self.signs) == 0)
        self.count += 1
        return self._look(), right, dict.fromkeys(AGENTS, over), self.count >= STEPS, {}

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to see."""

    def close(self) -> None:
        """Nothing to close."""


def to_axis(values: Any) -> np.ndarray:
    """XuanCe's dict of agents' arrays as one array with their axis second."""
    return np.stack([values[agent] for agent in AGENTS], axis=1)


def by_agent(values: np.ndarray) -> dict[str, np.ndarray]:
    return {agent: values[:, at] for at, agent in enumerate(AGENTS)}


def shapes(options: dict[str, Any]) -> tuple[Any, ...]:
    state = options["state_space"]
    return (
        len(AGENTS), None if state is None else state.shape, options["obs_space"]["a"].shape,
        options["act_space"]["a"].shape, (len(AGENTS),), (len(AGENTS),), options["n_envs"], options["buffer_size"],
    )  # fmt: skip


def sampled(found: dict[str, np.ndarray], count: int) -> dict[str, Any]:
    out: dict[str, Any] = {k: v if k.startswith("state") else by_agent(v) for k, v in found.items()}
    return {**out, "batch_size": count}


class OffPolicy(marl.MARL_OffPolicyBuffer):
    def __init__(self, **options: Any) -> None:
        super().__init__(*shapes(options), options["batch_size"])

    def store(self, **step: Any) -> None:
        super().store({key: value if key.startswith("state") else to_axis(value) for key, value in step.items()})

    def sample(self, batch_size: int | None = None) -> dict[str, Any]:
        self.batch_size = batch_size or self.batch_size
        return sampled(super().sample(), self.batch_size)


class OnPolicy(marl.MARL_OnPolicyBuffer):
    def __init__(self, **options: Any) -> None:
        super().__init__(*shapes(options), *(options[key] for key in ("use_gae", "use_advnorm", "gamma", "gae_lam")))

    def store(self, **step: Any) -> None:
        super().store({key: value if key == "state" else to_axis(value) for key, value in step.items()})

    def finish_path(self, i_env: int, value_next: dict[str, Any], value_normalizer: Any = None) -> None:
        super().finish_path([value_next[agent] for agent in AGENTS], i_env, value_normalizer)

    def sample(self, indexes: Any) -> dict[str, Any]:
        found = super().sample(indexes)
        return sampled({**found, "values": found["values"][..., 0]}, len(indexes))


class Episodes(marl.MARL_OffPolicyBuffer_RNN):
    """XuanCe stores each environment's episode when it is finished, and goes on with the others'."""

    def __init__(self, **options: Any) -> None:
        n_agents, state, obs, act, _, done, n_envs, size = shapes(options)
        super().__init__(n_agents, state, obs, act, (), done, n_envs, size, options["batch_size"],
                         max_episode_length=options["max_episode_steps"], dim_act=KINDS)  # fmt: skip

    def store(self, **step: Any) -> None:
        given = {key: to_axis(value) for key, value in step.items() if key not in ("state", "episode_steps")}
        self.store_transitions(
            step["episode_steps"], given["obs"], {"actions_n": given["actions"]}, step.get("state"), given["rewards"],
            given["terminals"], None,
        )  # fmt: skip

    def finish_path(self, i_env: int, **last: Any) -> None:
        def of_all(value: Any) -> list[Any]:
            return [value] * self.n_envs

        obs, count = np.stack([last["obs"][agent] for agent in AGENTS]), last["episode_step"]
        filled = np.arange(self.max_eps_len)[:, None] < count
        super().finish_path(i_env, count, of_all(obs), of_all(last.get("state")), None, of_all(filled))
        rest = {key: value.copy() for key, value in self.episode_data.items()}
        self.store_episodes()
        for key, value in self.episode_data.items():
            value[:i_env], value[i_env + 1 :] = rest[key][:i_env], rest[key][i_env + 1 :]

    def sample(self, batch_size: int | None = None) -> dict[str, Any]:
        self.batch_size = batch_size or self.batch_size
        found = {key: value.astype("f4") if value.dtype == "f8" else value for key, value in super().sample().items()}
        filled = found.pop("filled")[..., 0]
        del found["avail_actions"]
        found["terminals"] = np.moveaxis(found["terminals"], 2, 1)
        found["agent_mask"] = np.broadcast_to(filled[:, None], found["terminals"].shape)
        return {**sampled(found, self.batch_size), "filled": filled, "sequence_length": self.max_eps_len}


CONFIG = {
    "dl_toolbox": "torch", "logger": "tensorboard", "render": False, "render_mode": "none", "fps": 50,
    "device": "cpu", "distributed_training": False, "env_name": "matching", "env_id": "matching", "env_seed": 1,
    "vectorize": "DummyVecMultiAgentEnv", "runner": "MARL", "representation": "Basic_MLP", "use_rnn": False,
    "rnn": "GRU", "N_recurrent_layers": 1, "fc_hidden_sizes": [16], "recurrent_hidden_size": 16, "dropout": 0,
    "representation_hidden_size": [16], "q_hidden_size": [16], "actor_hidden_size": [16],
    "critic_hidden_size": [16], "activation": "relu", "activation_action": "sigmoid", "seed": 1, "parallels": 4,
    "learning_rate": 0.003, "gamma": 0.9, "use_parameter_sharing": True, "use_actions_mask": False,
    "use_global_state": False, "use_grad_clip": False,
    "grad_clip_norm": 1.0, "running_steps": 4000, "n_epochs": 1, "eval_interval": 1000, "test_episode": 1,
}  # fmt: skip


def make_envs(config: Any) -> Any:
    seeds = iter(range(1, 99))
    make = [lambda env_seed=None: XuanCeMultiAgentEnvWrapper(Matching(next(seeds)))] * config.parallels
    return REGISTRY_VEC_ENV[config.vectorize](make, config.env_seed)


OFF = {
    "learner": "IQL_Learner", "policy": "Basic_Q_network_marl", "buffer_size": 1200, "batch_size": 32,
    "double_q": True, "start_greedy": 1.0, "end_greedy": 0.05, "decay_step_greedy": 2000, "start_training": 200,
    "training_frequency": 16, "sync_frequency": 50,
}  # fmt: skip
ON = {
    "learner": "IPPO_Learner", "policy": "Categorical_MAAC_Policy", "buffer_size": 256, "n_epochs": 2,
    "n_minibatch": 2, "vf_coef": 0.5, "ent_coef": 0.01, "clip_range": 0.2, "use_linear_lr_decay": False,
    "use_value_clip": False, "value_clip_range": 0.2, "use_value_norm": False, "use_huber_loss": False,
    "huber_delta": 10.0, "use_advnorm": False, "use_gae": True, "gae_lambda": 0.9, "weight_decay": 0,
    "end_factor_lr_decay": 0.5, "initialize": "orthogonal", "gain": 0.01, "target_kl": 0.25,
}  # fmt: skip


@pytest.mark.parametrize("case", ["IQL", "VDN with a global state", "QMIX", "IPPO", "IQL, recurrent"])
def test_learners_learn_the_same(case: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "IPPO":
        agent_class, options, where, name, ours = IPPO_Agents, ON, on_policy_marl, "MARL_OnPolicyBuffer", OnPolicy
    elif case == "IQL, recurrent":
        options = {**OFF, "representation": "Basic_RNN", "use_rnn": True, "buffer_size": 40, "batch_size": 8}
        agent_class, where, name, ours = IQL_Agents, off_policy_marl, "MARL_OffPolicyBuffer_RNN", Episodes
    else:
        agent_class, where, name, ours = IQL_Agents, off_policy_marl, "MARL_OffPolicyBuffer", OffPolicy
        options = OFF
        if case != "IQL":
            agent_class = QMIX_Agents if case == "QMIX" else VDN_Agents
            options = {
                **OFF, "policy": "Mixing_Q_network", "learner": f"{case[:4].strip()}_Learner", "use_global_state": True,
                "hidden_dim_mixing_net": 16, "hidden_dim_hyper_net": 16,
            }  # fmt: skip
    config = {**CONFIG, **options, "agent": agent_class.__name__.partition("_")[0]}
    expected, theirs = learned(agent_class, config, make_envs, 700, tmp_path)
    assert type(theirs).__module__.startswith("xuance.")
    monkeypatch.setattr(where, name, ours)
    found, memory = learned(agent_class, config, make_envs, 700, tmp_path)
    assert isinstance(memory, ours)
    assert memory.engine.stats()["streams"]["0"]["end"] > 500
    check_same(found, expected)
    memory.close()
