"""Where a store is: URLs and paths, without a network."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from click.testing import CliRunner
from diskreplay_cli.main import main
from gymnasium import spaces

import diskreplay as dr
from diskreplay.errors import InputError
from diskreplay.remote.objects import checked_url, is_url
from diskreplay.remote.place import MIRROR_BYTES, default_mirror, local, named, place


@pytest.mark.parametrize("url", ["s3://bucket/a", "gs://b/c/d.replay", "az://box/x", "file:///tmp/x"])
def test_urls(url: str) -> None:
    assert is_url(url)
    assert checked_url(url + "/") == url
    assert named(url) == url


@pytest.mark.parametrize("path", ["a.replay", "/tmp/s3:/b", "http://x/y", "s3:/b/x", pathlib.Path("a"), "C://x"])
def test_paths(path: Any) -> None:
    assert not is_url(path)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://bucket", "name a place in the bucket"),
        ("s3://", "name a place"),
        ("s3://key:secret@bucket/x", "no credentials"),
        ("s3://bucket/x?versionId=1", "no credentials and no query"),
        ("s3://bucket/../x", "name a place"),
        ("s3://bucket//x", "name a place"),
        ("http://bucket/x", "begin with"),
        ("bucket/x", "such as s3://"),
        (7, "such as s3://"),
    ],
)
def test_bad_urls_are_refused(url: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        checked_url(url)


def test_secrets_in_a_url_are_not_printed() -> None:
    with pytest.raises(InputError) as caught:
        checked_url("s3://key:hunter2@bucket/x")
    assert "hunter2" not in str(caught.value)


def test_a_mirror_is_for_urls(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="for stores under a URL"):
        place(tmp_path, mirror=tmp_path)
    with pytest.raises(InputError, match="for stores under a URL"):
        dr.ReplayBuffer.open(tmp_path, mode="r", mirror_bytes=5)


def test_the_environment_names_mirrors(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DISKREPLAY_MIRROR", raising=False)
    assert default_mirror("s3://bucket/a.replay").startswith(str(tmp_path / "cache" / "diskreplay" / "a.replay-"))
    assert default_mirror("s3://bucket/a.replay") != default_mirror("s3://other/a.replay")
    monkeypatch.setenv("DISKREPLAY_MIRROR", str(tmp_path / "mine"))
    assert pathlib.Path(default_mirror("s3://bucket/a.replay")).parent == tmp_path / "mine"
    assert MIRROR_BYTES == 16 << 30


def test_rows_are_added_to_local_stores() -> None:
    arguments = spaces.Box(0, 1, (2,)), spaces.Discrete(2)
    for make in (dr.ReplayBuffer.create, dr.ReplayBuffer.open_or_create):
        with pytest.raises(InputError, match=r"remote='s3://bucket/x'"):
            make("s3://bucket/x", *arguments, capacity=5)
    with pytest.raises(InputError, match="opened with mode='r'"):
        dr.ReplayBuffer.open("s3://bucket/x")
    with pytest.raises(InputError, match="to read a remote store, open its URL"):
        dr.ReplayBuffer.open("a.replay", mode="r", remote="s3://bucket/x")
    with pytest.raises(InputError, match="read only"):
        local("s3://bucket/x", "compacting")


def test_push_needs_a_remote(tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(tmp_path / "a", spaces.Box(0, 1, (2,)), spaces.Discrete(2), capacity=5) as buffer:
        with pytest.raises(InputError, match="open the buffer with remote="):
            buffer.push()
        assert "remote" not in buffer.stats()


@pytest.mark.parametrize(
    "words",
    [
        ("compact", "s3://bucket/x"), ("verify", "--repair", "s3://bucket/x"), ("push", "s3://bucket/x", "s3://b/y"),
        ("gc", "a.replay"), ("pull", "a.replay", "b.replay"), ("gc", "s3://bucket/x", "--older-than", "soon"),
        ("import", "s3://bucket/x", "y.replay"), ("split", "s3://bucket/x", "0.5", "0.5"),
    ],
)  # fmt: skip
def test_commands_refuse_in_one_line(words: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("diskreplay: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
