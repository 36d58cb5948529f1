"""Stores that older versions wrote are read for ever."""

import hashlib
import importlib.util
import pathlib

import numpy as np

import diskreplay as dr
from diskreplay.ops.verify import verify

DATASETS = pathlib.Path(__file__).parent.parent.parent / "datasets"
DIGEST = "4fbd217554e18cb61869ad7c43bcc53040f954c460ab36b842e56455d679865c"
"""SHA-256 of all transitions of the store, as they were added."""


def digest(rb: dr.ReplayBuffer) -> str:
    batch = rb.get(np.arange(400))
    parts = (batch.obs, batch.action, batch.reward, batch.next_obs, batch.terminated, batch.truncated)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


def recipe():
    spec = importlib.util.spec_from_file_location("make_datasets", DATASETS / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_checksums():
    assert recipe().checksums(DATASETS) == (DATASETS / "SHA256SUMS").read_text()


def test_format_version_1():
    assert not verify(DATASETS / "pong-v1.replay").problems
    with dr.ReplayBuffer.open(DATASETS / "pong-v1.replay", mode="r") as rb:
        assert [episode.length for episode in rb.episodes] == [150, 150, 100]
        assert digest(rb) == DIGEST
    with dr.ReplayBuffer.open(DATASETS / "pong-v1.replay", mode="r", checkpoint="half-way") as rb:
        assert len(rb) == rb.checkpoint_metadata("half-way")["step"] + 1 == 201


def test_the_recipe_still_runs(tmp_path):
    """Pixels may differ with the emulator's and OpenCV's versions."""
    recipe().pong(tmp_path)
    with dr.ReplayBuffer.open(tmp_path / "pong-v1.replay", mode="r") as rb:
        assert [episode.length for episode in rb.episodes] == [150, 150, 100]
        assert rb.checkpoints == ["half-way"]
