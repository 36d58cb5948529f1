"""docs/remote.md from its lines alone, and the commands, over S3's protocol on loopback."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from distributed.servers import CONDITIONAL, CREDENTIALS, SECRET, serving

import diskreplay as dr

ROOT = pathlib.Path(__file__).parents[2]
URL = "s3://bucket/cartpole.replay"


@pytest.fixture(scope="module", params=CONDITIONAL)
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server with the bucket of the page, and the variables of the page."""
    folder = tmp_path_factory.mktemp(request.param)
    paths = os.pathsep.join(
        [str(ROOT), str(ROOT / "cli"), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    with serving(request.param, folder) as endpoint:
        yield {
            **os.environ, **CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": paths,
        }  # fmt: skip


def program(number: int) -> str:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "remote.md").read_text(), re.DOTALL)[number]


def run(environment: dict[str, str], *words: str, status: int = 0) -> str:
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stdout + done.stderr


def command(environment: dict[str, str], *words: str, status: int = 0) -> str:
    return run(environment, "-m", "diskreplay_cli", *words, status=status)


def same(environment: dict[str, str], one: str, other: str) -> bool:
    program = "import sys; from helpers.diff import diff; print(diff(*sys.argv[1:]))"
    return run(environment, "-c", program, one, other) == "None\n"


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
    assert same(environment, copy, URL)
    assert "no problem" in command(environment, "verify", copy)
    assert "exists" in command(environment, "pull", URL, copy, status=2)
    assert "6,000 transitions" in command(environment, "export", URL, str(tmp_path / "a.hdf5"), "--format", "d4rl")
    command(environment, "report", URL, "-o", str(tmp_path / "a.html"))
    assert "not the one of" in command(environment, "push", copy, URL, status=2)
    other = "s3://bucket/other.replay"
    assert "3,000" in command(environment, "push", str(collected / "one"), other)
    assert "0 B sent" in command(environment, "push", str(collected / "one"), other)
    assert same(environment, str(collected / "one"), other)
    assert "removed 0 objects" in command(environment, "gc", URL)
    command(environment, "checkpoints", "drop", URL, "trainer-50")
    assert "trainer-50" not in command(environment, "checkpoints", "list", URL)


def test_view_shows_a_url_beside_its_collectors(
    environment: dict[str, str], collected: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    url = "s3://bucket/viewed.replay"
    collector = tmp_path / "collector.py"
    collector.write_text((collected / "collector.py").read_text().replace(URL, url))
    run(environment, str(collector), str(tmp_path / "one"))
    with subprocess.Popen(
        [sys.executable, "-m", "diskreplay_cli", "view", url],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as viewing:  # fmt: skip
        assert viewing.stdout is not None
        page = viewing.stdout.readline().strip()
        assert page.startswith("http://127.0.0.1:"), page

        def ask(route: str) -> Any:
            with urllib.request.urlopen(page + route, timeout=120) as answer:
                return json.loads(answer.read())

        try:
            overview = ask("overview")
            assert (overview["path"], overview["facts"]["transitions"]) == (url, 3000)
            assert SECRET not in json.dumps(overview)
            with dr.ReplayBuffer.open(tmp_path / "one", mode="r") as local:
                first = local.episodes[3]
            shown = ask(f"episode?key={first.stream}.{first.env}.{first.start}")
            rewards = next(series for series in shown["series"] if series["name"] == "reward")
            assert rewards["curves"][0]["values"] == [1] * first.length
            assert not shown["damaged"]
            run(environment, str(collector), str(tmp_path / "two"))
            stop = time.monotonic() + 120
            while ask("stamp")["stamp"] == overview["stamp"]:  # it looks again once a second
                assert time.monotonic() < stop
                time.sleep(0.1)
            assert ask("overview")["facts"]["transitions"] == 6000
        finally:
            viewing.send_signal(signal.SIGINT)
        assert viewing.wait(120) == 0


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
