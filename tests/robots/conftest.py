"""Datasets that LeRobot made, once for all tests."""

from __future__ import annotations

import pathlib

import pytest
from robots.lerobot_datasets import DATASETS, EVERY


@pytest.fixture(scope="session", params=EVERY)
def dataset(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Each dataset of :mod:`robots.lerobot_datasets`."""
    return _made(request.param, tmp_path_factory)


@pytest.fixture(scope="session", params=DATASETS)
def windowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Each dataset of which LeRobot makes windows."""
    return _made(request.param, tmp_path_factory)


@pytest.fixture(scope="session")
def two_cameras(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return _made("two cameras", tmp_path_factory)


def _made(name: str, factory: pytest.TempPathFactory) -> pathlib.Path:
    root = factory.getbasetemp() / name.replace(" ", "-")
    if not root.exists():
        EVERY[name](root)
    return root
