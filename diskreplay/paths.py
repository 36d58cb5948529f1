"""Paths as callers give them: text that the system takes, or InputError."""

from __future__ import annotations

import os

from diskreplay.errors import InputError

PathLike = str | os.PathLike[str]


def checked_path(path: PathLike, what: str = "path") -> str:
    """``path`` as text; InputError where no file can have that name."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InputError(f"{what} must be a non-empty text or path, got {path!r}")
    if "\0" in text:
        raise InputError(f"{what} must not have a NUL character, got {text!r}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        bad = text[error.start : error.end]
        raise InputError(f"{what} must be text that the system can encode, got {text!r}; leave out {bad!r}") from error
    return text


def full_path(path: PathLike) -> str:
    """``path`` from the root on; links stay as they are, so that the user may move them."""
    return os.path.abspath(checked_path(path))  # noqa: PTH100  # resolve() would follow links
