"""The program of ``helpers/learning.py`` with networks: a DQN of transitions, and R2D2 of sequences."""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

import torch
from helpers import learning
from helpers.learning import ACTIONS, BURN_IN, MEMORY, SEED
from torch import nn


class Network(nn.Module):
    """Values ``(B, T, ACTIONS)`` of observations ``(B, T, 4)``, and the memory ``(1, B, MEMORY)`` after them."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.GRU(4, MEMORY, batch_first=True), nn.Linear(MEMORY, ACTIONS)

    def forward(self, obs: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, state = self.memory(obs, state)
        return self.head(hidden), state


class Networks:
    """A learner, as ``learning.Linear``, that draws from torch's own generator."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.online, self.target = Network(), Network()
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-2)
        self.parts: dict[str, Any] = {"online": self.online, "target": self.target, "optimizer": self.optimizer}

    @torch.no_grad()
    def act(self, obs: Any, state: Any) -> tuple[int, Any]:
        values, after = self.online(torch.from_numpy(obs)[None, None], torch.from_numpy(state)[None, None])
        explore = torch.rand(()) < 0.2
        return int(torch.randint(ACTIONS, ()) if explore else values.argmax()), after[0, 0].numpy()

    def learn(self, batch: Any) -> Any:
        batch = batch.torch()
        obs, next_obs, action, reward, discount, mask, state = learning.as_sequences(batch)
        start, burnt = state[:, 0][None].contiguous(), BURN_IN if mask.shape[1] > 1 else 0
        with torch.no_grad():
            following = self.target(torch.cat([obs[:, :1], next_obs], 1), start)[0][:, 1:].max(-1).values
            goal = reward + discount * following
        chosen = self.online(obs, start)[0].gather(-1, action[..., None]).squeeze(-1)
        errors = ((goal - chosen) * mask)[:, burnt:]
        self.optimizer.zero_grad()
        (batch.weight * errors.square().sum(1)).mean().backward()
        self.optimizer.step()
        sizes = errors.detach().abs()
        return (0.9 * sizes.amax(1) + 0.1 * sizes.mean(1)).numpy()

    def follow(self) -> None:
        self.target.load_state_dict(self.online.state_dict())

    def save(self, file: BinaryIO) -> None:
        state = {name: part.state_dict() for name, part in self.parts.items()}
        torch.save({**state, "random": torch.get_rng_state()}, file)

    def load(self, file: BinaryIO) -> None:
        saved = torch.load(file)
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        torch.set_rng_state(saved["random"])


if __name__ == "__main__":
    learning.run(Networks(), *sys.argv[1:])
