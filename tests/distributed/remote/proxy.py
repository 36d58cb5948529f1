"""Between a client and a server of S3's protocol: it passes requests on, late, or answers them itself, or never."""

from __future__ import annotations

import dataclasses
import http.client
import http.server
import threading
import time
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Asked:
    """A request: its method, who asks, and on which condition."""

    method: str
    authorization: str
    if_match: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """Instead of the server's.

    Attributes:
        status, headers, body: of the answer.
    """

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Late:
    """The server's own answer, ``seconds`` late; its body in so many ``pieces``, with as long before each."""

    seconds: float
    pieces: int = 1


class Cut:
    """The server's own answer, up to the middle of its body, where the connection ends."""


class Mute:
    """No answer, as long as the proxy is there."""


class Proxy:
    """Listens on loopback as long as it is entered.

    Attributes:
        endpoint: of it.
        decide: asked at each request; None passes it on.
    """

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream.partition("://")[2]
        self._ended = threading.Event()
        self.decide: Callable[[Asked], Answer | Late | Cut | Mute | None] = lambda asked: None
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def heal(self) -> None:
        """Passes everything on from here on."""
        self.decide = lambda asked: None

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, at: http.server.BaseHTTPRequestHandler) -> None:
        body = at.rfile.read(int(at.headers.get("Content-Length") or 0))
        decided = self.decide(
            Asked(at.command, *(at.headers.get(name) or "" for name in ("Authorization", "If-Match")))
        )
        if isinstance(decided, Mute):
            self._ended.wait()
            at.close_connection = True
            return
        if isinstance(decided, Answer):
            self._send(at, decided.status, list(decided.headers), decided.body, Late(0))
            return
        server = http.client.HTTPConnection(self._upstream)
        server.request(at.command, at.path, body, dict(at.headers))
        answer = server.getresponse()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP]
        body, length = answer.read(), answer.getheader("Content-Length")
        if isinstance(decided, Cut):
            self._send(at, answer.status, [*headers, ("Content-Length", str(len(body)))], body[: len(body) // 2], None)
        else:
            self._send(at, answer.status, headers, body, decided or Late(0), length)
        server.close()

    def _send(
        self, at: http.server.BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes,
        late: Late | None, length: str | None = None,
    ) -> None:  # fmt: skip
        cut, late = late is None, late or Late(0)
        at.close_connection = at.close_connection or cut
        try:
            time.sleep(late.seconds)
            at.send_response(status)
            for name, value in headers:
                at.send_header(name, value)
            if status != 204 and not cut:
                at.send_header("Content-Length", str(length if at.command == "HEAD" and length else len(body)))
            at.end_headers()
            if at.command != "HEAD":
                step = -(-len(body) // late.pieces) or 1
                for begin in range(0, len(body), step):
                    if begin:
                        time.sleep(late.seconds)
                    at.wfile.write(body[begin : begin + step])
                    at.wfile.flush()
        except OSError:
            at.close_connection = True  # who asked has gone


HOP = ("connection", "content-length", "date", "server", "transfer-encoding", "keep-alive")
