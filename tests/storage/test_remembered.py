"""Documents that are known are not parsed again."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

import diskreplay as dr
from diskreplay.storage import metadata
from diskreplay.testing import SimulatedDisk

PATH = "/a.replay"


@pytest.mark.parametrize("columns", [3, 30])
def test_opening_parses_the_commit_record_as_often_for_many_columns(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each column that was opened parsed the whole record, twice: of all columns."""
    disk = SimulatedDisk()
    values = {f"c{number}": np.float32(number) for number in range(columns)}
    with dr.ReplayBuffer.create(
        PATH, spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2), capacity=100, files=disk,
        columns=dict.fromkeys(values, np.float32),
    ) as buffer:  # fmt: skip
        buffer.add(np.zeros(2, np.float32), 0, 0.0, np.zeros(2, np.float32), False, False, **values)
    parsed = []
    attributes = metadata.attributes

    def count(directory: str, data: bytes) -> dict[str, object]:
        parsed.append(directory)
        return attributes(directory, data)

    monkeypatch.setattr(metadata, "attributes", count)
    with dr.ReplayBuffer.open(PATH, mode="r", files=disk) as buffer:
        assert buffer.get(buffer.items()).extra["c2"].tolist() == [2.0]
    assert len(parsed) == 3, "of all streams, of this one, and when its first column is opened"
