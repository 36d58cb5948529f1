"""What tests with Ray share: one cluster of two processors for all of them; and which versions they ran with."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import pathlib
import subprocess
import sys
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


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    """The port of a server of S3's protocol, in a process of its own, with a bucket ``bucket``; variables name it."""
    code = (
        "import logging; logging.getLogger('werkzeug').setLevel(logging.ERROR)\n"
        "from moto.server import ThreadedMotoServer as S; s = S(port=0, verbose=False); s.start()\n"
        "print(s.get_host_and_port()[1], flush=True); input()"
    )
    with pytest.MonkeyPatch.context() as patch, subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for name, value in (
            ("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test"), ("AWS_REGION", "us-east-1"),
            ("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}"),
        ):  # fmt: skip
            patch.setenv(name, value)
        import boto3

        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield port
        process.kill()
