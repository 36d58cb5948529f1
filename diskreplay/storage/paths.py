"""Paths and URLs as callers give them: text that the system takes, or that names a remote store, or InputError."""

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
REMOTE_SCHEMES = ("s3", "gs", "az", "file")
"""The first words of URLs of stores."""


def check_no_secret(path: object) -> None:
    """Raise InputError, which repeats nothing, if a path is an address with credentials, mistyped or not."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not ("@" in text or "?" in text):
        return
    found = re.match(r"\s*([A-Za-z][\w+.-]+)?\s*([:;]*)\s*([/\\]*)", text)
    assert found is not None, "all parts may be empty"
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
    if "://" in text and re.match(r"[A-Za-z][\w+.-]+://", text):
        scheme = text.partition("://")[0]
        raise InputError(f"a path on this machine is needed, got a URL of the kind {scheme}://")
    return text


def full_path(path: PathLike) -> str:
    """Return ``path`` from the root on; links stay as they are, so that the user may move them."""
    return os.path.abspath(on_this_machine(path))  # resolve() would follow links


def is_url(path: object) -> bool:
    """Tell URLs (``s3://``, ``gs://``, ``az://``, ``file://``) from paths; raise InputError for secrets in them."""
    check_no_secret(path)
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    return isinstance(text, str) and "://" in text and text.partition("://")[0] in REMOTE_SCHEMES


def checked_url(url: object) -> str:
    """Return a URL without a slash at its end; raise InputError if it names no place for a store."""
    check_no_secret(url)
    text = os.fspath(url) if isinstance(url, str | os.PathLike) else url
    if not isinstance(text, str) or "://" not in text:
        raise InputError(f"a remote store is named by a URL such as s3://bucket/pong.replay, got {url!r}")
    scheme, _, rest = text.partition("://")
    bucket, _, place = rest.strip("/").partition("/")
    if "@" in bucket or "?" in text or "#" in text:
        raise InputError("a URL of a remote store holds no credentials and no query; set them in the environment")
    if scheme not in REMOTE_SCHEMES:
        raise InputError(
            f"URLs of remote stores begin with {', '.join(f'{s}://' for s in REMOTE_SCHEMES)}, got {url!r}"
        )
    if any(part in ("", ".", "..") for part in rest.strip("/").split("/")) or not (place or scheme == "file"):
        raise InputError(
            f"name a place in the bucket, such as {scheme}://{bucket or 'bucket'}/pong.replay, got {url!r}"
        )
    return text.rstrip("/")


def named(path: PathLike) -> str:
    """Return the full name of a store at a path or under a URL."""
    return checked_url(path) if is_url(path) else full_path(path)
