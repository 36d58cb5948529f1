"""`compat.notebook` with real torch: its tensors, and a learner that its errors steer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diskreplay.compat.notebook import Proportion_Replay_Buffer, Rank_Replay_Buffer, Replay_Buffer

torch = pytest.importorskip("torch", reason="torch is in the interop extra")

BUFFERS: dict[str, Any] = {
    "uniform": Replay_Buffer, "proportion": Proportion_Replay_Buffer, "rank": Rank_Replay_Buffer
}  # fmt: skip


@pytest.mark.parametrize("name", BUFFERS)
@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (3, 4, 2)])
def test_tensors(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    buffer, held = BUFFERS[name](7, 3, seed=0), {}
    for number in range(20):
        state, following = rng.normal(size=(2, *shape))
        given = state, rng.integers(0, 4, 1), number, following, np.bool_(number % 5 == 0)
        buffer.remember(*given)
        held[number] = given
    found = buffer.sample(3)
    if name != "uniform":
        index, *found, probs = found
        assert isinstance(index, list)
        assert (probs.dtype, probs.shape) == (torch.float32, (3, 1))
        assert [int(reward) % 7 for reward in found[2]] == index
    numbers = [int(reward) for reward in found[2]]
    dtypes = torch.float32, torch.int64, torch.float32, torch.float32, torch.float32
    for at, (tensor, dtype) in enumerate(zip(found, dtypes, strict=True)):
        stacked = np.vstack([held[number][at] for number in numbers])
        assert torch.equal(tensor, torch.from_numpy(stacked.astype(float)).to(dtype))
        assert tensor.dtype == dtype
        tensor.zero_()  # they are the caller's
    assert [int(reward) for reward in (buffer.memory[number % 7][2] for number in numbers)] == numbers


@pytest.mark.parametrize("name", ["proportion", "rank"])
def test_errors_steer_what_is_learned(name: str) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    states = rng.normal(size=(200, 4)).astype(np.float32)
    true = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    buffer = BUFFERS[name](200, 32, seed=0)
    for state in states:
        buffer.remember(state, 0, state @ true, state, True)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(200):
        index, state, _, reward, _, done, probs = buffer.sample(32)
        errors = reward + (1 - done) * 0 - model(state)
        weights = 1 / (len(buffer) * probs)
        optimizer.zero_grad()
        (weights / weights.max() * errors**2).mean().backward()
        optimizer.step()
        for place, error in zip(index, errors.detach(), strict=True):
            buffer.insert(error, place)
    np.testing.assert_allclose(model.weight.detach().numpy()[0], true, atol=0.05)
    if name == "rank":
        assert -buffer.errors[-1][0] < -buffer.errors[0][0]
    else:
        assert min(buffer.weights.vals[199:]) < 0.3 < 1.05**0.5  # sqrt(0.05) is the least
