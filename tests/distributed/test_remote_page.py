"""docs/remote.md from its lines alone, and the commands, over a real S3 protocol on loopback."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
URL = "s3://bucket/cartpole.replay"
SECRET = "a-secret-that-nothing-may-say"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server in a process of its own, with the bucket of the page, and the variables of the page."""
    import boto3

    folder = tmp_path_factory.mktemp("server")
    code = (
        "from moto.server import ThreadedMotoServer as S; s = S(port=0, verbose=False); s.start(); "
        "print(s.get_host_and_port()[1], flush=True); input()"
    )
    paths = os.pathsep.join([str(ROOT), str(ROOT / "cli"), *filter(None, [os.environ.get("PYTHONPATH")])])
    session = boto3.Session(aws_access_key_id="any", aws_secret_access_key=SECRET, region_name="us-east-1")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        session.client("s3", endpoint_url=endpoint).create_bucket(Bucket="bucket")
        yield {
            **os.environ, "AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1", "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": paths,
        }  # fmt: skip
        server.kill()


def program(number: int) -> str:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "remote.md").read_text(), re.DOTALL)[number]


def run(environment: dict[str, str], *words: str, status: int = 0) -> str:
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stdout + done.stderr


def command(environment: dict[str, str], *words: str, status: int = 0) -> str:
    return run(environment, "-m", "diskreplay_cli", *words, status=status)


@pytest.fixture(scope="module")
def collected(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two collectors of the page, one beside the other, and a trainer beside both."""
    folder = tmp_path_factory.mktemp("machines")
    (folder / "collector.py").write_text(program(0))
    (folder / "trainer.py").write_text(program(1))
    first = run(environment, str(folder / "collector.py"), str(folder / "one"))
    assert "'pushed_rows': 3000" in first
    assert "'failures': 0" in first
    second = subprocess.Popen(
        [sys.executable, str(folder / "collector.py"), str(folder / "two")], env=environment,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    monitor = folder / "beside"
    monitor.mkdir()
    done = subprocess.run(
        [sys.executable, str(folder / "trainer.py")], env=environment, cwd=monitor, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "trainer-50', 'trainer-100" in done.stdout
    assert second.wait(300) == 0
    return folder


def test_the_page_s_trainer_goes_on_on_another_machine(
    environment: dict[str, str], collected: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    done = subprocess.run(
        [sys.executable, str(collected / "trainer.py")], env=environment, cwd=tmp_path, capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6000 ")
    assert "trainer-150" in done.stdout


def test_commands_on_urls(environment: dict[str, str], collected: pathlib.Path, tmp_path: pathlib.Path) -> None:
    facts = json.loads(command(environment, "inspect", URL, "--json"))
    assert (facts["path"], facts["transitions"], len(facts["streams"])) == (URL, 6000, 2)
    assert not facts["health"]
    listed = json.loads(command(environment, "episodes", URL, "--json", "--limit", "3"))
    assert len(listed["episodes"]) == 3
    assert "no problem in 2 streams" in command(environment, "verify", URL)
    assert "trainer-50" in command(environment, "checkpoints", "list", URL)
    copy = str(tmp_path / "copy.replay")
    assert "6,000" not in command(environment, "pull", URL, copy)  # two streams of 3,000
    assert "no difference" in command(environment, "diff", copy, URL)
    assert "no problem" in command(environment, "verify", copy)
    assert "exists" in command(environment, "pull", URL, copy, status=2)
    assert "6,000 transitions" in command(environment, "export", URL, str(tmp_path / "a.hdf5"), "--format", "d4rl")
    command(environment, "report", URL, "-o", str(tmp_path / "a.html"))
    assert "not the one of" in command(environment, "push", copy, URL, status=2)
    other = "s3://bucket/other.replay"
    assert "3,000" in command(environment, "push", str(collected / "one"), other)
    assert "0 B sent" in command(environment, "push", str(collected / "one"), other)
    assert "no difference" in command(environment, "diff", str(collected / "one"), other)
    assert "removed 0 objects" in command(environment, "gc", URL)
    command(environment, "checkpoints", "drop", URL, "trainer-50")
    assert "trainer-50" not in command(environment, "checkpoints", "list", URL)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket/nothing.replay", "there is no store at"),
        ("s3://nobody-has-this/x", "NoSuchBucket|404"),
        ("s3://bucket", "name a place in the bucket"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(environment: dict[str, str], url: str, said: str) -> None:
    found = command(environment, "inspect", url, status=2)
    assert re.search(said, found), found
    assert found.count("\n") == 1, found


def test_no_secret_is_stored(environment: dict[str, str], collected: pathlib.Path) -> None:
    for path in collected.rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_zarr_and_tensorstore_read_it(environment: dict[str, str], collected: pathlib.Path) -> None:
    code = f"""
import os, warnings
import numpy as np, tensorstore, zarr
from obstore.store import from_url
from zarr.storage import ObjectStore
import diskreplay as dr
local = dr.ReplayBuffer.open({str(collected / "one")!r}, mode="r").zarr()["streams/0/obs"][:3000]
with warnings.catch_warnings():
    warnings.simplefilter("error")
    store = ObjectStore(from_url({URL!r}, client_options={{"allow_http": True}}), read_only=True)
    group = zarr.open_group(store, mode="r")
    assert len(list(group["streams"].keys())) == 2
    assert np.array_equal(group["streams/0/obs"][:3000], local)
spec = {{"driver": "zarr3", "kvstore": {{"driver": "s3", "bucket": "bucket", "path": "cartpole.replay/streams/0/obs/",
    "endpoint": os.environ["AWS_ENDPOINT_URL"], "aws_region": "us-east-1"}}}}
assert np.array_equal(tensorstore.open(spec, open=True).result()[:3000].read().result(), local)
"""
    run(environment, "-c", code)
