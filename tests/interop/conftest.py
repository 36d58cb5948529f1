"""What tests beside other libraries share; and says which versions of these they ran with."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

import pytest

READERS = (
    "numpy", "h5py", "zarr", "tensorstore", "pyarrow", "pandas", "polars", "minari", "d3rlpy", "robomimic",
    "dopamine-rl", "datasets", "tensorflow-datasets", "tfrecord", "stable-baselines3", "tianshou", "torch", "torchrl",
    "xuance", "gymnasium", "gymnasium-robotics", "mpe2",
)  # fmt: skip


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """The networks of these tests are so small that threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_report_header() -> list[str]:
    return ["read by: " + ", ".join(f"{name} {version(name)}" for name in READERS)]


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
