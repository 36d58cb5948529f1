"""Where a store is: URLs and paths, without a network."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from typing import Any

import pytest
from gymnasium import spaces
from helpers.commands import command
from remote.world import pushed, read, under

import diskreplay as dr
from diskreplay.errors import DiskReplayError, InputError, RemoteWarning
from diskreplay.ops import remote as commands
from diskreplay.ops.verify import verify
from diskreplay.remote.place import MIRROR_BYTES, default_mirror, local, locate_store
from diskreplay.storage.paths import checked_url, is_url, named


@pytest.mark.parametrize("url", [
    "s3://bucket/a", "gs://b/c/d.replay", "az://box/x", "file:///tmp/x", "s3://bucket/x@y", "s3://bucket/a:b@c/x",
    "file:///tmp/a@b/x",
])  # fmt: skip
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


MISTYPED = [
    "s3:/KEY:hunter2@bucket/x", "s3://KEY:hunter2@bucket/x", "s3://KEY:hun/ter2@bucket/x", "s3:/KEY:hun/ter2@bucket/x",
    "s3//KEY:hunter2@bucket/x", "S3://KEY:hunter2@bucket/x", "s3;//KEY:hunter2@bucket/x", "s3 ://KEY:hunter2@bucket/x",
    " s3://KEY:hunter2@bucket/x", "s3:KEY:hunter2@bucket/x", "s3:/hunter2@bucket/x", "az:/box/x?sig=hunter2",
    "az://box/x?sig=hunter2", "gs:///KEY:hunter2@bucket/x", "http://KEY:hunter2@host/x", "https:/KEY:hunter2@host/x",
    "//KEY:hunter2@bucket/x", "://KEY:hunter2@bucket/x", "s4://KEY:hunter2@bucket/x", "file:/KEY:hunter2@bucket/x",
    "s3:\\\\KEY:hunter2@bucket\\x", "s3:/KEY:hunter2@bucket/\0", "s3:/KEY:hunter2@bucket/\udcff",
]  # fmt: skip
PLAIN = [
    "s3:/b/x", "C:/a:b@c", "run:12@seed.replay", "exp:lr=0.1:seed@3.replay", "data/run:12@x", "/data/a:b@c/x",
    "me@work/x", "really?",
]  # fmt: skip
"""Paths on this machine, with the characters of addresses in them."""
SPACES = spaces.Box(0, 1, (2,)), spaces.Discrete(2)
WAYS: dict[str, Callable[[str], Any]] = {
    "open": lambda it: dr.ReplayBuffer.open(it),
    "open to read": lambda it: dr.ReplayBuffer.open(it, mode="r"),
    "open with a mirror": lambda it: dr.ReplayBuffer.open("s3://bucket/x", mode="r", mirror=it),
    "create": lambda it: dr.ReplayBuffer.create(it, *SPACES, capacity=5),
    "open or create": lambda it: dr.ReplayBuffer.open_or_create(it, *SPACES, capacity=5),
    "remote": lambda it: dr.ReplayBuffer.create("a.replay", *SPACES, capacity=5, remote=it),
    "join": lambda it: dr.ReplayBuffer.open("a.replay", remote=it),
    "mixture": lambda it: dr.Mixture.open([it, "a.replay"]),
    "verify": verify,
    "push from": lambda it: commands.push(it, "s3://bucket/x"),
    "push to": lambda it: commands.push("a.replay", it),
    "pull": lambda it: commands.pull(it, "b.replay"),
    "pull into": lambda it: commands.pull("s3://bucket/x", it),
    "gc": lambda it: commands.gc(it, 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_address_with_credentials_is_repeated_by_no_error(
    way: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in MISTYPED:
        with pytest.raises(DiskReplayError) as caught:
            WAYS[way](address)
        error: BaseException | None = caught.value
        while error is not None:
            assert not re.search("hun|ter2", f"{error!r} {vars(error)}"), address
            error = error.__cause__ or error.__context__
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "{}"), ("verify", "{}"), ("episodes", "{}"), ("head", "{}"), ("push", "{}", "s3://bucket/x"),
        ("push", "a.replay", "{}"), ("pull", "{}", "b.replay"), ("gc", "{}"), ("resize", "{}", "--capacity", "9"),
        ("export", "{}", "b.npz"), ("import", "{}", "b.replay"), ("checkpoints", "list", "{}"), ("report", "{}"),
        ("merge", "b.replay", "{}"), ("split", "{}", "0.5", "0.5"), ("edit", "{}", "b.replay", "--steps", "0"),
        ("edit", "a.replay", "{}", "--steps", "0"), ("relabel", "{}", "--reward", "math:sqrt"),
    ],
)  # fmt: skip
def test_a_command_repeats_no_credentials(
    words: tuple[str, ...], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for address in MISTYPED[:3]:
        result = command(*[word.format(address) for word in words])
        assert result.exit_code
        assert not re.search("hun|ter2", result.output + result.stderr + repr(result.exception)), result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", PLAIN)
def test_paths_with_the_characters_of_addresses_are_paths(
    path: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if path.startswith("/"):
        path = f"{tmp_path}{path}"
    with dr.ReplayBuffer.create(path, *SPACES, capacity=5):
        pass
    assert verify(path).ok


# Objects that are none of the store's


def test_objects_with_names_like_a_stores_are_named_once(tmp_path: pathlib.Path) -> None:
    life, objects = pushed(tmp_path / "a", 10)
    objects.data |= dict.fromkeys(
        ["", "streams/", "streams/0/", "streams/new/", "README.md", "streams/README.md", "streams/0/obs/notes.txt"], b""
    )
    assert read(objects, tmp_path / "m") == sorted(life.window())
    with under(objects):
        assert verify(objects.url).ok
    for strange in "zarr (1).json", "streams/0/zarr.json.bak", "streams/0/obs/C.0.0.0", "streams copy/0/zarr.json":
        objects.data[strange] = b"x"
        with pytest.warns(RemoteWarning, match=re.escape(repr(strange))):
            assert read(objects, tmp_path / "m") == sorted(life.window())
        del objects.data[strange]
    for number in range(5):
        objects.data[f"zarr ({number}).json"] = b"x"
    with pytest.warns(RemoteWarning, match="and 2 more"):
        read(objects, tmp_path / "m")


def test_a_mirror_is_for_urls(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="for stores under a URL"):
        locate_store(tmp_path, mirror=tmp_path)
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
    for make in (dr.ReplayBuffer.create, dr.ReplayBuffer.open_or_create):
        with pytest.raises(InputError, match=r"remote='s3://bucket/x'"):
            make("s3://bucket/x", *SPACES, capacity=5)
    with pytest.raises(InputError, match="opened with mode='r'"):
        dr.ReplayBuffer.open("s3://bucket/x")
    with pytest.raises(InputError, match="to read a remote store, open its URL"):
        dr.ReplayBuffer.open("a.replay", mode="r", remote="s3://bucket/x")
    with pytest.raises(InputError, match="read only"):
        local("s3://bucket/x", "resizing")


def test_push_needs_a_remote(tmp_path: pathlib.Path) -> None:
    with dr.ReplayBuffer.create(tmp_path / "a", *SPACES, capacity=5) as buffer:
        with pytest.raises(InputError, match="open the buffer with remote="):
            buffer.push()
        assert "remote" not in buffer.stats()


@pytest.mark.parametrize(
    "words",
    [
        ("resize", "s3://bucket/x", "--capacity", "9"), ("push", "s3://bucket/x", "s3://b/y"),
        ("gc", "a.replay"), ("pull", "a.replay", "b.replay"), ("gc", "s3://bucket/x", "--older-than", "soon"),
        ("import", "s3://bucket/x", "y.replay"), ("split", "s3://bucket/x", "0.5", "0.5"),
    ],
)  # fmt: skip
def test_commands_refuse_in_one_line(words: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    result = command(*words)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("diskreplay: "), result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
