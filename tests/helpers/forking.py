"""Work that is done in a forked process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from helpers.patience import PATIENCE


def fork() -> int:
    """As ``os.fork``, and says nothing of threads: the child takes none of their locks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def forked(work: Callable[[], Any]) -> Any:
    """What ``work`` gives in a child, as JSON knows it, or the name of its error; the test fails where it hangs."""
    reader, writer = os.pipe()
    child = fork()
    if not child:
        try:
            signal.alarm(int(PATIENCE))
            try:
                said = work()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writer, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child hung, or died"
    return json.loads(text)


def start(role: Callable[..., None], *arguments: Any, method: str = "forkserver") -> tuple[Any, Connection]:
    """A process and this side of its pipe, whose other side is the last argument of its role."""
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["diskreplay.buffers.replay"])  # once, so that a start takes milliseconds
    here, there = context.Pipe()
    process = context.Process(target=role, args=(*arguments, there), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads: the child takes none of their locks
        process.start()
    there.close()
    return process, here
