"""Against servers of S3's protocol on loopback: kills, and programs that know nothing of diskreplay."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from distributed.remote import collector
from distributed.servers import CONDITIONAL, lead_to, serving
from helpers import effort
from remote.world import lived, rows_of, seen

import diskreplay as dr
from diskreplay.errors import RemoteError
from diskreplay.remote.objects import NEW, ObjectStore, TakenError

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'diskreplay[remote]'")


@pytest.fixture(scope="module", params=CONDITIONAL)
def bucket(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with (
        serving(request.param, tmp_path_factory.mktemp(request.param)) as endpoint,
        pytest.MonkeyPatch.context() as patch,
    ):
        lead_to(endpoint, patch)
        yield "s3://bucket"


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_puts_on_conditions(scheme: str, bucket: str, tmp_path: pathlib.Path) -> None:
    objects = ObjectStore(f"{bucket}/conditions" if scheme == "s3" else f"file://{tmp_path}/x")
    first = objects.put("a/b", b"1", NEW)
    with pytest.raises(TakenError):
        objects.put("a/b", b"2", NEW)
    second = objects.put("a/b", b"22", first)
    with pytest.raises(TakenError):
        objects.put("a/b", b"3", first)
    with pytest.raises(TakenError):
        objects.put("a/missing", b"3", first)
    assert [(one.key, one.size, one.tag) for one in objects.list("a/")] == [("a/b", 2, second)]
    assert objects.head("a/missing") is None
    objects.delete(["a/b", "a/missing"])
    assert objects.list("") == []


def test_an_object_that_cannot_be_listed_is_in_nobodys_way(bucket: str, tmp_path: pathlib.Path) -> None:
    """Regression: no listing of the store succeeded, whatever the object was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import boto3

        client = boto3.client("s3")
    url = f"{bucket}/strange.replay"
    life = lived(tmp_path / "a", 30, remote=url)
    life.buffer.push(60)
    for key in "/x", "//x", "streams /x", "x//y", "streams/0/x//y":
        client.put_object(Bucket="bucket", Key=f"strange.replay/{key}", Body=b"x")
    life.add(9)
    life.buffer.push(60)
    assert seen(url, tmp_path / "m") == sorted(life.window())
    life.buffer.close()
    client.put_object(Bucket="bucket", Key="strange.replay/streams//x", Body=b"x")
    with pytest.raises(RemoteError, match=r"a name that no store has.*streams//.*remove it"):
        dr.ReplayBuffer.open(url, mode="r", mirror=tmp_path / "m")


def test_kills_of_collectors_lose_nothing_that_was_pushed(bucket: str, tmp_path: pathlib.Path) -> None:
    url = f"{bucket}/kills.replay"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path]), "PYTHONWARNINGS": "ignore"}
    pushed: dict[str, int] = {}
    for number in range(effort.places(40, "kills of collectors", least=6)):
        writer = number % 2
        path = tmp_path / f"{writer}.replay"
        process = subprocess.Popen(
            [sys.executable, collector.__file__, str(path), url, str(writer)], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said == "begun\n", said + process.stdout.read()
        for _ in range(number % 3):
            assert process.stdout.readline() == "pushed\n"
        time.sleep(0.03 * (number % 7))
        process.kill()
        process.communicate()
        try:
            buffer = dr.ReplayBuffer.open(url, mode="r", mirror=tmp_path / "m")
        except dr.errors.StoreNotFoundError:
            assert not pushed
            continue
        with buffer:
            rows_of(buffer)  # each is what it says
            for name, facts in buffer.stats()["streams"].items():
                assert facts["end"] >= pushed.get(name, 0)
                pushed[name] = facts["end"]
    assert pushed
    for writer in range(2):
        with dr.ReplayBuffer.open(tmp_path / f"{writer}.replay", remote=url) as buffer:
            buffer.push(60)
            local = sorted(rows_of(buffer))
        with dr.ReplayBuffer.open(url, mode="r", mirror=tmp_path / "m") as buffer:
            assert sorted(row for row in rows_of(buffer) if row[0] == writer) == local


def test_zarr_and_tensorstore_read_it_without_a_warning(bucket: str, tmp_path: pathlib.Path) -> None:
    zarr = pytest.importorskip("zarr")
    from obstore.store import from_url
    from zarr.storage import ObjectStore as ZarrObjects

    url = f"{bucket}/plain.replay"
    life = lived(tmp_path / "a", 50, "c", remote=url, stream="actor")
    life.buffer.push(60)
    other = lived(tmp_path / "b", 20, writer=1, remote=url)
    other.buffer.push(60)
    local = np.asarray(life.buffer.zarr()["streams/actor/obs"][:48, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(
            ZarrObjects(from_url(url, client_options={"allow_http": True}), read_only=True), mode="r"
        )
        assert sorted(group["streams"].keys()) == sorted(["actor", other.buffer.stream])
        assert {"streams/actor/obs", "checkpoints/c"} <= {name for name, _ in group.members(max_depth=None)}
        assert np.array_equal(group["streams/actor/obs"][:48, 0], local)
    tensorstore = pytest.importorskip("tensorstore", reason="tensorstore is not installed")
    kvstore = {
        "driver": "s3", "bucket": "bucket", "path": "plain.replay/streams/actor/obs/", "aws_region": "us-east-1",
        "endpoint": os.environ["AWS_ENDPOINT_URL"], "aws_credentials": {"type": "environment"},
    }  # fmt: skip
    array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}, read=True, open=True).result()
    assert np.array_equal(array[:48, 0].read().result(), local)
    life.buffer.close()
    other.buffer.close()
