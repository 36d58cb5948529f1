"""Writing a dataset beside its name, and giving it the name when it is whole."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator

from diskreplay.errors import InputError

Recognise = Callable[[pathlib.Path], bool]


def final_name(temporary: pathlib.Path) -> str:
    """The name that will be given to what is written at a path of :func:`replacing`, for formats that mention it."""
    match = re.fullmatch(r"\.(.+)\.tmp-\d+", temporary.name)
    return match[1] if match else temporary.name


@contextlib.contextmanager
def replacing(
    target: pathlib.Path, kind: str, *, overwrite: bool = False, recognise: Recognise | None = None
) -> Iterator[pathlib.Path]:
    """A free name beside ``target``: what is there at the end takes its place, and goes away after an error.

    Args:
        target: the file or directory to be.
        kind: "file" or "directory".
        overwrite: whether a dataset that is there may be replaced.
        recognise: whether a directory is such a dataset; others are never replaced, unless they are empty.

    Raises InputError when something is there that is not to be replaced, or no directory to write into.
    """
    _check(target, kind, overwrite, recognise)
    temporary = target.with_name(f".{target.name}.tmp-{os.getpid()}")
    _remove(temporary)
    try:
        yield temporary
        _sync(temporary)
        _check(target, kind, overwrite, recognise)
        if kind == "directory" and target.exists():
            old = target.with_name(f".{target.name}.old-{os.getpid()}")
            target.replace(old)
            temporary.replace(target)
            _remove(old)
        else:
            temporary.replace(target)
    except BaseException:
        _remove(temporary)
        raise


def _check(target: pathlib.Path, kind: str, overwrite: bool, recognise: Recognise | None) -> None:
    if not target.parent.is_dir():
        raise InputError(f"there is no directory {str(target.parent)!r} to write {target.name!r} into")
    if not os.path.lexists(target):
        return
    if kind == "file" and target.is_dir():
        raise InputError(f"{str(target)!r} is a directory; name the file to write")
    if kind == "directory" and target.is_dir() and not any(target.iterdir()):
        return
    if not overwrite:
        raise InputError(
            f"{str(target)!r} exists; choose another name, or say that it may be overwritten (--overwrite)"
        )
    if kind == "directory" and not (target.is_dir() and recognise is not None and recognise(target)):
        raise InputError(f"{str(target)!r} is no dataset of this format, and stays; choose another name")


def _sync(path: pathlib.Path) -> None:
    """fsync of a file, or of all in a directory."""
    for entry in [path] if path.is_file() else [path, *path.rglob("*")]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: pathlib.Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
