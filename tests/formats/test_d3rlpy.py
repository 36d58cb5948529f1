"""The d3rlpy file, as h5py finds it, and files that come in."""

from __future__ import annotations

import pathlib
from typing import Any

import h5py
import numpy as np
import pytest
from formats.foreign import files
from formats.roundtrip import CASES, read, refused

from diskreplay.ops.convert import export

LENGTHS = [4, 1, 6, 3]


def dumped(path: pathlib.Path, **changes: Any) -> None:
    """A file as d3rlpy dumps it: vectors, discrete actions, every other episode terminated."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {"columns": ["observations", "actions", "rewards", "terminated"], "num_episodes": 4}
    for number, count in enumerate(LENGTHS):
        arrays |= {
            f"observations_{number}": rng.normal(size=(count, 3)).astype(np.float32),
            f"actions_{number}": rng.integers(0, number + 2, (count, 1)),
            f"rewards_{number}": rng.normal(size=(count, 1)).astype(np.float32),
            f"terminated_{number}": number % 2 == 0,
        }
    arrays |= {"version": "2.1", **changes}
    files.write(path, {key: values for key, values in arrays.items() if values is not None})


def test_the_layout(path: str, tmp_path: pathlib.Path) -> None:
    next(case for case in CASES if case.columns).make(path)
    episodes = read(path)
    result = export(path, tmp_path / "a.h5", "d3rlpy", allow_loss=True)
    assert result.lost == {"final observations": len(episodes)}
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["version"][()] == b"2.1"
        assert file["num_episodes"][()] == len(episodes)
        columns = [name.decode() for name in file["columns"][()]]
        assert columns[:5] == ["observations", "actions", "rewards", "terminated", "truncated"]
        assert columns[5:] == ["extra/hidden", "extra/log_prob", "extra/valid_move"] or len(columns) == 8
        for number, episode in enumerate(episodes):
            np.testing.assert_array_equal(file[f"observations_{number}"], episode.obs["obs"][:, 0])
            np.testing.assert_array_equal(file[f"actions_{number}"], episode.action["action"])
            np.testing.assert_array_equal(file[f"rewards_{number}"], episode.reward[:, None])
            assert file[f"terminated_{number}"][()] == episode.terminated[-1]
            assert file[f"truncated_{number}"][()] == episode.truncated[-1]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"version": "2.0"}, "version '2.0'; 2.1 and 1.x are read"),
    ({"columns": None}, "the array 'columns' is missing"),
    ({"num_episodes": 5}, "the array 'rewards_4' is missing"),
    ({"num_episodes": 0}, "there is no episode"),
    ({"observations_2": None}, "episode 2: the array 'observations_2' is missing"),
    ({"actions_2": None}, "episode 2: the array 'actions_2' is missing"),
    ({"terminated_2": None}, "episode 2: the array 'terminated_2' is missing"),
    ({"terminated_2": 7}, "episode 2: terminated_2 must be 1 flags"),
    ({"observations_2": np.zeros((5, 3), np.float32)}, "episode 2: ragged lengths: obs has 5 entries for 6 steps"),
    ({"observations_2": np.zeros((6, 4), np.float32)}, "episode 2: obs holds"),
    (
        {"observations_2": None, "observations_2_0": np.zeros((6, 3)), "observations_2_1": np.zeros((6, 3))},
        "episode 2: obs is missing",
    ),
    ({"rewards_2": np.zeros((6, 2))}, "episode 2: rewards"),
    ({"actions_2": np.zeros((6, 2), np.int64)}, "episode 2: action holds"),
]


@pytest.mark.parametrize(("changes", "said"), BAD, ids=[said for _, said in BAD])
def test_bad_sources_leave_nothing(changes: dict[str, Any], said: str, tmp_path: pathlib.Path) -> None:
    dumped(tmp_path / "a.h5", **changes)
    refused(tmp_path / "a.h5", said, "d3rlpy")
