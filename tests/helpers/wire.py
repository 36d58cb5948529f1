"""A wire to a server that is cut after so many bytes: who is killed then is killed in the middle of a request."""

from __future__ import annotations

import contextlib
import math
import socket
import threading

from helpers.patience import PATIENCE

PIECE_BYTES = 1 << 16


class Wire:
    """Passes bytes on between clients and a server, in both directions, until it is cut.

    Then it holds all back and says so by ``held``: a request may be cut anywhere, or done with its answer held back.

    Args:
        port: of the server on loopback.
    """

    def __init__(self, port: int) -> None:
        self._server = port
        self._left: float = math.inf
        """Bytes to pass."""
        self._lock = threading.Lock()
        self.held = threading.Event()
        self._closed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        """Where clients connect."""
        self._start(self._accept)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut_after(self, count: int) -> None:
        """Cuts it when so many more bytes have passed."""
        with self._lock:
            self._left = count

    def close(self) -> None:
        """Ends all connections. The server has done all that reached it, and does no more, when this returns."""
        self._closed.set()
        self.held.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads[:1]:
            thread.join()
        with self._lock:
            sockets = list(self._sockets)
        for one in sockets[::2]:  # the clients' ends
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for one in sockets[1::2]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_WR)
        for one in sockets[1::2]:
            one.settimeout(PATIENCE)
            with contextlib.suppress(OSError):
                while one.recv(PIECE_BYTES):  # until the server is through with what it had got
                    pass
        for one in sockets:
            one.close()
        for thread in list(self._threads):
            thread.join()

    def _start(self, role: object, *arguments: object) -> None:
        thread = threading.Thread(target=role, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._server))
            except OSError:
                return
            with self._lock:
                self._sockets += [client, server]
            self._start(self._pass_on, client, server)
            self._start(self._pass_on, server, client)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE_BYTES):
                with self._lock:
                    now = data[: max(0, int(min(self._left, len(data))))]
                    self._left -= len(data)
                    full = self._left <= 0
                target.sendall(now)
                if full:
                    self.held.set()
                    self._closed.wait()
                    return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
