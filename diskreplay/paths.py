"""Paths as callers give them: text that the system takes, or InputError."""

from __future__ import annotations

import os
import re

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
    text = checked_path(path)
    if re.match(r"[A-Za-z][\w+.-]+://", text):
        scheme = text.partition("://")[0]
        raise InputError(f"a path on this machine is needed, got a URL of the kind {scheme}://")
    return os.path.abspath(text)  # noqa: PTH100  # resolve() would follow links
