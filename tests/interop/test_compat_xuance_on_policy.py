"""XuanCe's own PPO, with our on-policy buffer in the place of its own: it learns the very same parameters."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.stand_ins import XUANCE, stand_ins
from interop.xuance_learning import check_same, learned

from diskreplay.compat.xuance import DummyOnPolicyBuffer

pytest.importorskip("torch", reason="torch is in the interop extra")

with stand_ins(XUANCE):
    pytest.importorskip("xuance.torch.agents", reason="XuanCe is installed by the target interop of the Makefile")
    from xuance.common import memory_tools as theirs
    from xuance.environment import make_envs
    from xuance.torch.agents import PPO_Agent, PPOKL_Agent
    from xuance.torch.agents.core import on_policy

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_torch_thread")]

CONFIG = {
    "dl_toolbox": "torch", "logger": "tensorboard", "render": False, "render_mode": "rgb_array", "fps": 50,
    "device": "cpu", "distributed_training": False, "env_name": "Classic Control", "env_id": "CartPole-v1",
    "env_seed": 1, "vectorize": "DummyVecEnv", "policy": "Categorical_AC", "representation": "Basic_MLP",
    "runner": "DRL", "representation_hidden_size": [32], "actor_hidden_size": [32], "critic_hidden_size": [32],
    "activation": "leaky_relu", "seed": 1, "parallels": 4, "horizon_size": 64, "n_epochs": 4, "n_minibatch": 4,
    "learning_rate": 0.002, "vf_coef": 0.25, "ent_coef": 0.01, "target_kl": 0.25, "kl_coef": 1.0, "clip_range": 0.2,
    "gamma": 0.98, "use_gae": True, "gae_lambda": 0.95, "use_advnorm": True, "use_grad_clip": False,
    "grad_clip_norm": 0.5, "use_actions_mask": False, "use_obsnorm": True, "use_rewnorm": True, "obsnorm_range": 5,
    "rewnorm_range": 5, "running_steps": 4000, "eval_interval": 5000, "test_episode": 1,
}  # fmt: skip


CASES = {
    "PPO": (PPO_Agent, {"agent": "PPO", "learner": "PPO_Learner"}),
    "PPO, one environment": (
        PPO_Agent,
        {"agent": "PPO", "learner": "PPO_Learner", "use_advnorm": False, "parallels": 1},
    ),
    "PPO-KL, with objects": (PPOKL_Agent, {"agent": "PPO_KL", "learner": "PPOKL_Learner"}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_learners_learn_the_same(case: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    agent_class, options = CASES[case]
    config = {**CONFIG, **options}
    expected, memory = learned(agent_class, config, make_envs, 800, tmp_path, least=0.02)
    assert type(memory) is theirs.DummyOnPolicyBuffer
    monkeypatch.setattr(on_policy, "DummyOnPolicyBuffer", DummyOnPolicyBuffer)
    found, memory = learned(agent_class, config, make_envs, 800, tmp_path, least=0.02)
    assert type(memory) is DummyOnPolicyBuffer
    assert memory.engine.stats()["streams"]["0"]["end"] > 700
    check_same(found, expected)
    memory.close()
