"""Work that is done in a forked process."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from helpers.patience import PATIENCE

from diskreplay.storage import local_files


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


WRITES = {
    local_files.LocalFile: ("pwrite", "truncate", "sync"),
    local_files.LocalFiles: ("mkdir", "rename", "unlink", "rmdir", "sync_dir"),
}
"""The operations by which a store is written."""


def dies(work: Callable[[], Any], at: int) -> bool:
    """Does the work in a child that ends at its operation ``at``, as if it were killed; False if there are fewer."""
    child = fork()
    if not child:
        try:
            _limit(at)
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def _limit(operations: int) -> None:
    left = [operations]

    def counted(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(*given: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return method(*given, **named)

        return wrapper

    for kind, methods in WRITES.items():
        for name in methods:
            setattr(kind, name, counted(getattr(kind, name)))
