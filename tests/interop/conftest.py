"""Says which versions of other libraries the tests ran with."""

from __future__ import annotations

import importlib.metadata

READERS = (
    "numpy", "h5py", "zarr", "tensorstore", "pyarrow", "pandas", "polars", "minari", "d3rlpy", "robomimic",
    "dopamine-rl", "datasets", "tensorflow-datasets", "tfrecord", "stable-baselines3", "tianshou", "torch", "torchrl",
    "xuance", "gymnasium", "gymnasium-robotics", "mpe2",
)  # fmt: skip


def pytest_report_header() -> list[str]:
    return ["read by: " + ", ".join(f"{name} {version(name)}" for name in READERS)]


def version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
