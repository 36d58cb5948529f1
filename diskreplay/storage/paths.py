"""Paths as callers give them: text that the system takes, or InputError."""

from __future__ import annotations

import os
import re

from diskreplay.errors import InputError

PathLike = str | os.PathLike[str]
SCHEMES = frozenset((
    "abfs", "abfss", "az", "azure", "file", "ftp", "gcs", "gs", "hdfs", "http", "https", "minio", "oss", "r2", "s3",
    "s3a", "s3n", "sftp", "ssh", "wasb", "wasbs",
))  # fmt: skip
"""The first words of addresses; the rest of one may be mistyped."""


def check_no_secret(path: object) -> None:
    """Raise InputError, which repeats nothing, if a path is an address with credentials, mistyped or not."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    found = re.match(r"\s*([A-Za-z][\w+.-]+)?\s*([:;]*)\s*([/\\]*)", text) if isinstance(text, str) else None
    if not isinstance(text, str) or found is None:
        return
    word, colon, slashes = found.groups("")
    known = word.lower() in SCHEMES
    rest = text[found.end() :]
    authority = re.split(r"[/\\]", rest)[0]
    if colon and known:
        secret = "@" in authority or "?" in rest or (":" in authority and "@" in rest)
    else:
        secret = (len(slashes) > 1 or bool(colon and slashes)) and ":" in authority and "@" in rest
    if secret:
        raise InputError(
            "a path or URL of a store holds no credentials and no query; set them in the environment (it is not "
            "repeated here, since it looks as if it held some)"
        )


def checked_path(path: PathLike, what: str = "path") -> str:
    """Return ``path`` as text, with a leading ``~`` expanded; raise InputError if no file can have that name."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or not text:
        raise InputError(f"{what} must be a non-empty text or path, got {path!r}")
    check_no_secret(text)
    if "\0" in text:
        raise InputError(f"{what} must not have a NUL character, got {text!r}")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        bad = text[error.start : error.end]
        raise InputError(f"{what} must be text that the system can encode, got {text!r}; leave out {bad!r}") from error
    text = os.path.expanduser(text)  # Path(...).expanduser() would make a path of a URL, too
    if text.split("/")[0] == "~":
        raise InputError(f"{what} {text!r} is in a home directory, and there is none: set HOME, or name it from / on")
    return text


def on_this_machine(path: PathLike) -> str:
    """Return ``path`` as text; raise InputError if no file can have that name, or if it is a URL."""
    text = checked_path(path)
    if re.match(r"[A-Za-z][\w+.-]+://", text):
        scheme = text.partition("://")[0]
        raise InputError(f"a path on this machine is needed, got a URL of the kind {scheme}://")
    return text


def full_path(path: PathLike) -> str:
    """Return ``path`` from the root on; links stay as they are, so that the user may move them."""
    return os.path.abspath(on_this_machine(path))  # resolve() would follow links
