"""Servers of S3's protocol on loopback, each in a process of its own: what one of them does may be its own habit.

Two do puts on conditions, as S3 itself does; the others do not, or half.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import pytest

SECRET = "a-secret-that-nothing-may-say"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}


def lead_to(endpoint: str, patch: pytest.MonkeyPatch) -> None:
    """What the environment says leads to this server."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint}.items():
        patch.setenv(name, value)


CONDITIONAL = ("moto", "ministack")
"""Their puts keep conditions."""
UNCONDITIONAL = ("nanio", "localbucket")
"""nanio puts whatever the condition is; localbucket knows ``If-None-Match`` alone."""

MOTO = (
    "import sys; from moto.server import ThreadedMotoServer as S; "
    "s = S(port=int(sys.argv[1]), verbose=False); s.start(); input()"
)
STARTS = 5
"""Another process may take the port first."""
START_SECONDS = 120.0


@contextlib.contextmanager
def serving(name: str, folder: pathlib.Path, bucket: str = "bucket") -> Iterator[str]:
    """The endpoint of a server that has a bucket; the test is skipped where the server is not installed.

    Args:
        name: of ``CONDITIONAL`` or ``UNCONDITIONAL``.
        folder: of its own.
    """
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed: pip install -c constraints-distributed.txt '.[distributed]'")
    for _ in range(STARTS):
        process, endpoint = _start(name, folder)
        if _answers(process, endpoint):
            break
    else:
        pytest.fail(f"{name} does not start: {(folder / 'log').read_text()}")
    try:
        make_bucket(endpoint, bucket)
        yield endpoint
    finally:
        process.kill()
        process.communicate()


def make_bucket(endpoint: str, bucket: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import boto3

        session = boto3.Session(aws_access_key_id="any", aws_secret_access_key=SECRET, region_name="us-east-1")
        session.client("s3", endpoint_url=endpoint).create_bucket(Bucket=bucket)


def _start(name: str, folder: pathlib.Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    data.mkdir(exist_ok=True)
    words, own = {
        "moto": ([sys.executable, "-c", MOTO, str(port)], {}),
        "ministack": (
            [sys.executable, "-m", "ministack"],
            {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3", "IOT_MTLS_ENABLED": "0"},
        ),
        "nanio": (
            [_program("nanio"), "serve", "--host", "127.0.0.1", "--port", str(port), "--data-dir", str(data)],
            {"NANIO_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"], "NANIO_SECRET_KEY": SECRET},
        ),
        "localbucket": ([_program("localbucket"), "--port", str(port), str(data)], {}),
    }[name]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            words, env={**os.environ, **own}, cwd=folder, stdin=subprocess.PIPE, stdout=log, stderr=log
        )
    return process, f"http://127.0.0.1:{port}"


def _program(name: str) -> str:
    """A command of the environment that the tests run in."""
    return str(pathlib.Path(sys.executable).parent / name)


def _answers(process: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Whether the server takes connections, once it does; False where it ended."""
    port = int(endpoint.rpartition(":")[2])
    stop = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < stop:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    return False
