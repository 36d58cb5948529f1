"""The writing of a dataset beside its name, which it is given when it is whole."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterator

from diskreplay.errors import DiskFullError, InputError
from diskreplay.storage import temporaries
from diskreplay.storage.local_files import LocalFiles

Recognise = Callable[[pathlib.Path], bool]


def final_path(temporary: pathlib.Path) -> pathlib.Path:
    """Return where the output at a path of :func:`replacing` will be, for formats that mention it."""
    folder = temporary.parent
    return folder.parent / temporary.name if temporaries.name_of(folder.name) == temporary.name else temporary


@contextlib.contextmanager
def replacing(
    target: pathlib.Path, kind: str, *, overwrite: bool = False, recognise: Recognise | None = None
) -> Iterator[pathlib.Path]:
    """Yield a free path near ``target``: what is there at the end takes its place, and goes away after an error.

    What a process left that was killed goes away when the same target is written again. Where ``target`` is a symbolic
    link, it stays, and what it leads to is replaced.

    Args:
        target: the file or directory to be.
        kind: "file" or "directory".
        overwrite: True if a dataset that is there may be replaced.
        recognise: tells whether a directory is such a dataset; others are never replaced, unless they are empty.

    Raises InputError when something is there that is not to be replaced, or no directory to write into; DiskFullError,
    which names the target, whatever a format's library says of a full disk.
    """
    check_target(target, kind, overwrite, recognise)
    if target.is_symlink():
        target = _led_to(target)
        check_target(target, kind, overwrite, recognise)
    files, parent, name = LocalFiles(), str(target.parent), target.name
    with _room_for(target):
        temporaries.sweep(files, parent, name)
        folder, lock = temporaries.take(files, parent, name)
        temporary = pathlib.Path(folder, name)
        try:
            yield temporary
            _sync(temporary)
            check_target(target, kind, overwrite, recognise)
            if kind == "directory" and target.exists():
                _exchange(temporary, target)
            else:
                temporary.replace(target)
            files.sync_dir(parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.release()


@contextlib.contextmanager
def _room_for(target: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        if _is_full(error):
            said = f"there is no room for {str(target)!r}; nothing was written: make room, and try again"
            raise DiskFullError(errno.ENOSPC, said) from error
        raise


def _is_full(error: BaseException | None) -> bool:
    return error is not None and (
        (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
        or re.search(rf"errno (= )?({errno.ENOSPC}|{errno.EDQUOT})\b", str(error)) is not None
        or _is_full(error.__cause__ or error.__context__)
    )


def _led_to(link: pathlib.Path) -> pathlib.Path:
    with contextlib.suppress(OSError, RuntimeError):  # Python 3.13 gives back a link that leads in a circle
        found = link.resolve()
        if not found.is_symlink():
            return found
    raise InputError(f"{str(link)!r} is a symbolic link that leads in a circle")


def _exchange(temporary: pathlib.Path, target: pathlib.Path) -> None:
    """Replace a directory in two steps: the old one waits under another name, and comes back if the second fails."""
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    try:
        target.replace(old)
        temporary.replace(target)
    finally:
        if old.exists() and not target.exists():
            old.replace(target)
        elif old.exists():
            shutil.rmtree(old)


def check_target(
    target: pathlib.Path, kind: str, overwrite: bool = False, recognise: Recognise | None = None
) -> None:  # fmt: skip
    """Raise what :func:`replacing` would, for callers with much to do before."""
    if not target.parent.is_dir():
        raise InputError(f"there is no directory {str(target.parent)!r} to write {target.name!r} into")
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{str(target.parent)!r} may not be written to; choose another directory for {target.name!r}")
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
    for entry in [path] if path.is_file() else [path, *path.rglob("*")]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
