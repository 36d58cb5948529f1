"""What tests with Ray share: one cluster of two processors for all of them; and which versions they ran with."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import pathlib
from collections.abc import Iterator

import pytest
from distributed.servers import serving

ROOT = pathlib.Path(__file__).parents[2]
OBJECT_STORE_BYTES = 256 << 20


def pytest_report_header() -> list[str]:
    names = ("ray", "torch", "gymnasium", "pyarrow", "numpy")
    return ["distributed: " + ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray, pandas and torch warn of each other and of sockets that Ray leaves open; none of that is ours."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server of S3's protocol on loopback, with the bucket ``bucket``."""
    with serving("moto", tmp_path_factory.mktemp("moto")) as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray in processes of this machine; they import the package from where the tests do."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0", RAY_DEDUP_LOGS="0")
    import ray

    paths = os.pathsep.join([str(ROOT), str(ROOT / "cli"), str(ROOT / "tests"), *_given()])
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES,
        runtime_env={"env_vars": {"PYTHONPATH": paths, "RAY_USAGE_STATS_ENABLED": "0"}},
    )  # fmt: skip
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    gc.collect()  # RLlib's iterators tell Ray when they end, also of their own cycles
    ray.shutdown()


def _given() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
