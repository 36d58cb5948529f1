"""``diskreplay view``: the page from a local server, for every episode of a store, beside a possible writer.

What a browser, or anything else on the machine, may ask of it:

1. It listens on the loopback interface alone.
2. Every address begins with a random token, which only who started it is told.
3. The ``Host`` must be the server's own, so that no name of an attacker's can stand for it (DNS rebinding); ``Origin``
   and ``Sec-Fetch-Site``, where a browser sends them, must be the page's.
4. Addresses are looked up in a short list; none is a path of a file. Only GET is answered, and nothing is written.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from diskreplay.checks import check_count
from diskreplay.errors import DiskReplayError, InputError, StateError
from diskreplay.process.locks import Lock
from diskreplay.report.document import document, policy, to_text
from diskreplay.report.episode import cameras, episode_values, strip
from diskreplay.report.overview import overview
from diskreplay.report.source import Found, Snapshot
from diskreplay.storage.paths import PathLike

LOOPBACK = "127.0.0.1"
NAMES = (LOOPBACK, "localhost")
REFRESH_SECONDS = 1.0
"""The seconds between two looks at the store."""
REQUEST_SECONDS = 30.0
"""The seconds in which a browser may send a request."""
MOST_STEPS = 1 << 48


class Refused(Exception):
    """Raised for a request that is not answered, with its status and the reason."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Viewer:
    """The answers of the server, one request at a time."""

    def __init__(self, path: PathLike) -> None:
        """Open the store, with errors as when it is opened otherwise."""
        self._source = Snapshot(path)
        self._lock = Lock("the page")
        self._refreshed = time.monotonic()

    def page(self) -> str:
        """Return the page without data, which it asks for."""
        return document("diskreplay", to_text({"live": True}), live=True)

    def answer(self, route: str, query: dict[str, str]) -> Any:
        """Return facts for JSON; raise Refused for what is not there, DiskReplayError for what cannot be read."""
        with self._lock:
            try:
                return self._answer(route, query)
            except StateError as error:  # evicted between two looks
                self._source.refresh()
                raise Refused(HTTPStatus.GONE, "this episode has left the store meanwhile") from error

    def _answer(self, route: str, query: dict[str, str]) -> Any:
        if route in ("overview", "stamp") and time.monotonic() - self._refreshed >= REFRESH_SECONDS:
            self._source.refresh()
            self._refreshed = time.monotonic()
        match route:
            case "overview":
                return overview(self._source).to_json()
            case "stamp":
                return {"stamp": self._source.stamp}
            case "episode":
                return episode_values(self._source, self._found(query)).to_json()
            case "strip":
                return self._strip(query)
        raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _strip(self, query: dict[str, str]) -> Any:
        found = self._found(query)
        camera = next((one for one in cameras(self._source) if one.name == query.get("camera")), None)
        if camera is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such camera")
        first, every = _whole(query, "first", 0, MOST_STEPS), _whole(query, "every", 1, MOST_STEPS)
        return strip(self._source, found, camera.name, first, every, camera.part_frames).to_json()

    def _found(self, query: dict[str, str]) -> Found:
        found = self._source.by_key(query.get("key", ""))
        if found is None:
            raise Refused(HTTPStatus.GONE, "this episode has left the store meanwhile")
        return found


def _whole(query: dict[str, str], name: str, least: int, most: int) -> int:
    text = query.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 16 and least <= int(text) <= most):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number from {least} on")
    return int(text)


class Server(ThreadingHTTPServer):
    """The server of one store, whose ``url`` is told only to the one who started it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, path: PathLike, port: int = 0) -> None:
        """Listen on a port of the loopback interface, a free one if 0, with errors as when the store is opened."""
        self.viewer = Viewer(path)
        self.token = secrets.token_urlsafe(24)
        super().__init__((LOOPBACK, port), Handler)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print a defect, but not that a browser went away."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The handler of one request."""

    server: Server
    timeout = REQUEST_SECONDS
    server_version, sys_version = "diskreplay", ""

    def do_GET(self) -> None:
        try:
            self._check()
            route, query = self._asked()
            if not route:
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", self.server.viewer.page())
            else:
                self._send(HTTPStatus.OK, "application/json", to_text(self.server.viewer.answer(route, query)))
        except Refused as error:
            self._fail(error.status, str(error))
        except (DiskReplayError, OSError) as error:
            if not isinstance(error, ConnectionError | TimeoutError):
                self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        except Exception:
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, "a defect of diskreplay: the terminal says more")
            raise

    def _check(self) -> None:
        """Raise Refused if the request is not that of our own page."""
        hosts = [f"{name}:{self.server.server_port}" for name in NAMES]
        if self.headers.get_all("Host") not in [[host] for host in hosts]:
            raise Refused(HTTPStatus.FORBIDDEN, "the Host is not this server's")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in hosts]:
            raise Refused(HTTPStatus.FORBIDDEN, "the Origin is not this server's")
        if self.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
            raise Refused(HTTPStatus.FORBIDDEN, "only the page itself may ask")

    def _asked(self) -> tuple[str, dict[str, str]]:
        """Return the route behind the token, empty for the page, and the arguments."""
        try:
            address = urllib.parse.urlsplit(self.path)
        except ValueError as error:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here") from error
        parts = address.path.split("/")
        if len(parts) != 3 or parts[0] or not secrets.compare_digest(parts[1].encode(), self.server.token.encode()):
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            return parts[2], dict(urllib.parse.parse_qsl(address.query, max_num_fields=8))
        except ValueError as error:
            raise Refused(HTTPStatus.BAD_REQUEST, "too many arguments") from error

    def _fail(self, status: HTTPStatus, why: str) -> None:
        self._send(status, "application/json", json.dumps({"error": why}))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the address has the token in it."""


def view(path: PathLike, *, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve the page of the store at ``path`` until KeyboardInterrupt, which ends it without an error.

    Args:
        path: the path of the store.
        port: the port of the loopback interface; a free one if 0.
        ready: a function that is told the address.

    Raises InputError for a port that cannot be had, and what opening the store raises.
    """
    check_count("port", port, least=0, most=65535)
    try:
        server = Server(path, port)
    except OSError as error:
        if isinstance(error, DiskReplayError):
            raise
        raise InputError(f"port {port} cannot be listened on: {error.strerror}; choose another") from error
    with server:
        try:
            ready(server.url)
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            pass
