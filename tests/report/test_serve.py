"""The local server: what it answers, and all that it refuses."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from helpers.patience import PATIENCE
from helpers.threads import beside
from report import episodes as made

import diskreplay as dr
from diskreplay.errors import InputError, StateError, StoreNotFoundError
from diskreplay.report import serve


class Asked:
    """A server in a thread, and one way to ask it."""

    def __init__(self, server: serve.Server) -> None:
        self.server = server
        self.host = f"127.0.0.1:{server.server_port}"

    def get(
        self, address: str = "", method: str = "GET", token: str | None = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """The answer to a request for what stands behind the token; ``Host`` and the like may be given."""
        sent = {"Host": self.host, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.putrequest(method, f"/{self.server.token if token is None else token}/{address}", skip_host=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return answer, answer.read()

    def json(self, route: str, **query: Any) -> Any:
        answer, body = self.get(f"{route}?{urlencode(query)}")
        assert answer.status == 200, body
        return json.loads(body)


@contextlib.contextmanager
def serving(path: str) -> Iterator[Asked]:
    with serve.Server(path) as server, beside(functools.partial(server.serve_forever, 0.01)):
        try:
            yield Asked(server)
        finally:
            server.shutdown()


@pytest.fixture
def asked(path: str) -> Iterator[Asked]:
    made.make(path)
    with serving(path) as one:
        yield one


def test_the_page_asks_for_its_facts(asked: Asked) -> None:
    answer, body = asked.get()
    assert answer.status == 200
    assert b'{"live":true}' in body
    assert asked.server.token.encode() not in body
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'sha256-")
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert (answer.headers["Cache-Control"], answer.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Access-Control-Allow-Origin"] is None


def test_every_episode_can_be_asked_for(asked: Asked) -> None:
    table = asked.json("overview")["episodes"]
    assert table["length"] == [4, 6, 2, 4, 3]
    for at, key in enumerate(table["key"]):
        episode = asked.json("episode", key=key)
        assert (episode["number"], episode["length"]) == (at, table["length"][at])
        for camera in episode["cameras"]:
            strip = asked.json("strip", key=key, camera=camera["name"], first=0, every=1)
            assert strip["count"] == episode["length"] + 1  # all frames in one request
            assert strip["src"].startswith("data:image/png;base64,")


def test_it_follows_a_writer(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REFRESH_SECONDS", 0.0)
    with made.create(path) as buffer, serving(path) as asked:
        stamp = asked.json("stamp")["stamp"]
        assert asked.json("overview")["episodes"]["key"] == []
        made.play(buffer, 0, 5)
        buffer.commit()
        assert asked.json("stamp")["stamp"] != stamp
        assert asked.json("overview")["episodes"]["length"] == [5]


def test_a_store_that_is_made_anew(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the page went on with the one that had been removed."""
    monkeypatch.setattr(serve, "REFRESH_SECONDS", 0.0)
    made.make(path)
    with serving(path) as asked:
        before = asked.json("stamp")["stamp"]
        shutil.rmtree(path)
        with made.create(path) as buffer:
            made.play(buffer, 7, 2, reward=5.0)
        assert asked.json("stamp")["stamp"] != before
        assert asked.json("overview")["episodes"]["total_reward"] == [10]


@pytest.mark.long
def test_an_episode_that_has_left(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REFRESH_SECONDS", 0.0)
    with made.create(path, capacity=30) as buffer, serving(path) as asked:
        made.play(buffer, 0, 10)
        buffer.commit()
        asked.json("stamp")
        for number in range(1, 20):
            made.play(buffer, number, 10)
            buffer.commit()
        query = urlencode({"key": "0.0.0", "camera": "obs/camera", "first": 0, "every": 1})
        answer, body = asked.get(f"strip?{query}")  # what is open can still be read, or it is gone
        assert answer.status == 410 or json.loads(body)["damaged"] == []
        asked.json("stamp")
        answer, body = asked.get(f"strip?{query}")
        assert (answer.status, json.loads(body)) == (410, {"error": "this episode has left the store meanwhile"})
        assert asked.json("episode", key=asked.json("overview")["episodes"]["key"][-1])["length"] == 10


def test_rows_that_are_evicted_while_they_are_read(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def evicted(*args: Any) -> Any:
        raise StateError("the stream evicted rows while they were read")

    monkeypatch.setattr(serve, "episode_values", evicted)
    assert asked.get("episode?key=0.0.0")[0].status == 410


REFUSED: list[tuple[int, str, dict[str, str]]] = [
    *[(403, "", {"Host": host})
      for host in ("evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:80", "")],
    *[(403, "overview", {"Origin": origin})
      for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1")],
    *[(403, "overview", {"Sec_Fetch_Site": site}) for site in ("cross-site", "same-site")],
    *[(404, "overview", {"token": quote(token, safe="%")})
      for token in ("", "wrong", "x" * 32, "..", "%2e%2e", "ü".encode().decode("latin-1"))],
    *[(404, route, {})
      for route in ("zarr.json", "../zarr.json", "..%2fzarr.json", "%2e%2e/%2e%2e/etc/passwd", "streams/0/zarr.json",
                    "overview/", "/overview", "page.js", "/etc/passwd", "overview%00", "__class__", "_lock")],
    *[(501, "overview", {"method": method})
      for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE")],
]  # fmt: skip
"""Another host, origin, page, token, route or method than its own."""


@pytest.mark.parametrize(("status", "route", "given"), REFUSED)
def test_other_requests_are_refused(asked: Asked, status: int, route: str, given: dict[str, Any]) -> None:
    answer, body = asked.get(route, **given)
    assert answer.status == status
    assert b"transitions" not in body


def test_two_hosts_or_none_are_refused(asked: Asked) -> None:
    for lines in (["Host: " + asked.host, "Host: evil.example"], []):
        with socket.create_connection(("127.0.0.1", asked.server.server_port), timeout=PATIENCE) as connection:
            request = "\r\n".join([f"GET /{asked.server.token}/ HTTP/1.0", *lines, "", ""])
            connection.sendall(request.encode())
            assert connection.recv(64).startswith(b"HTTP/1.0 403")


def test_localhost_is_the_same_host(asked: Asked) -> None:
    assert asked.get(Host=f"localhost:{asked.server.server_port}")[0].status == 200


def test_its_own_origin_is_not(asked: Asked) -> None:
    assert asked.get("overview", Origin=f"http://{asked.host}", Sec_Fetch_Site="same-origin")[0].status == 200


def test_the_token_is_new_each_time(path: str) -> None:
    made.make(path)
    with serve.Server(path) as one, serve.Server(path) as other:
        assert one.token != other.token
        assert len(one.token) >= 32
        assert one.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({}, 410),
        ({"key": "9.9.9"}, 410),
        ({"key": "../zarr.json"}, 410),
        ({"key": "0.0.0"}, 404),
        ({"key": "0.0.0", "camera": "../../etc/passwd"}, 404),
        ({"key": "0.0.0", "camera": "obs/state", "first": 0, "every": 1}, 404),
        ({"key": "0.0.0", "camera": "obs/camera"}, 400),
        ({"key": "0.0.0", "camera": "obs/camera", "first": -1, "every": 1}, 400),
        ({"key": "0.0.0", "camera": "obs/camera", "first": 0, "every": 0}, 400),
        ({"key": "0.0.0", "camera": "obs/camera", "first": "1e3", "every": 1}, 400),
        ({"key": "0.0.0", "camera": "obs/camera", "first": "9" * 40, "every": 1}, 400),
        ({"key": "0.0.0", "camera": "obs/camera", "first": "²", "every": 1}, 400),
        ({str(number): 1 for number in range(50)}, 400),
    ],
)
def test_arguments_are_checked(asked: Asked, query: dict[str, Any], status: int) -> None:
    answer, body = asked.get(f"strip?{urlencode(query)}")
    assert answer.status == status
    assert json.loads(body)["error"]


def test_frames_that_are_not_there_are_none(asked: Asked) -> None:
    assert asked.json("strip", key="0.0.0", camera="obs/camera", first=10**9, every=10**9)["count"] == 0


def test_it_changes_nothing(path: str) -> None:
    made.make(path)
    before = {file: file.stat().st_mtime_ns for file in pathlib.Path(path).rglob("*")}
    with serving(path) as asked:
        for key in asked.json("overview")["episodes"]["key"]:
            asked.json("strip", key=key, camera="obs/camera", first=0, every=1)
    assert {file: file.stat().st_mtime_ns for file in pathlib.Path(path).rglob("*")} == before


def test_a_store_that_goes_away_is_an_error_with_words(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "REFRESH_SECONDS", 0.0)
    made.make(path)
    with serving(path) as asked:
        pathlib.Path(path).rename(f"{path}.moved")
        answer, body = asked.get("overview")
        assert answer.status == 500
        assert "there is no store" in json.loads(body)["error"]


def test_misuse(path: str) -> None:
    with pytest.raises(StoreNotFoundError):
        serve.view(path, ready=print)
    made.make(path)
    with pytest.raises(InputError, match="port must be"):
        serve.view(path, port=70_000, ready=print)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} cannot be listened on"):
            serve.view(path, port=port, ready=print)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_it(path: str, number: int) -> None:
    made.make(path)
    command = [sys.executable, "-m", "diskreplay_cli", "view", path]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert process.stdout is not None
        url = urlsplit(process.stdout.readline().strip())
        assert url.hostname == "127.0.0.1"
        connection = http.client.HTTPConnection(url.hostname, url.port or 0, timeout=PATIENCE)
        connection.request("GET", f"{url.path}overview")
        assert connection.getresponse().status == 200
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert said == "Ctrl-C stops\n"
    assert process.returncode == 0


def test_a_reader_of_a_store_holds_no_lock(path: str) -> None:
    made.make(path)
    with serving(path) as asked:
        asked.json("overview")
        with dr.ReplayBuffer.open(path) as buffer:
            made.play(buffer, 5, 3)


def test_an_address_that_is_none(asked: Asked) -> None:
    """Regression: a defect of this package, and its traceback, before the token was looked at."""
    with socket.create_connection(("127.0.0.1", asked.server.server_port), timeout=PATIENCE) as connection:
        connection.sendall(f"GET http://[x/ HTTP/1.1\r\nHost: {asked.host}\r\nConnection: close\r\n\r\n".encode())
        assert b" 404 " in connection.makefile("rb").readline()
