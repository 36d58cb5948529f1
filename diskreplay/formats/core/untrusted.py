"""The checks of what files declare, before memory is taken or anything is made of it: files are not trusted.

:func:`check_size` comes before any array, so that a small file that declares a huge array costs no memory.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import pathlib
import stat
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from diskreplay.errors import DiskReplayError, InputError

ROWS, ROWS_A_BYTE = 1 << 22, 256
"""The limits of a dataset's steps: any may have ``ROWS``, a larger one ``ROWS_A_BYTE`` for each byte of its files."""
ARRAY_BYTES, BYTES_A_BYTE = 256 << 20, 1 << 16
"""The limits of an array's decoded bytes, likewise; constant values compress very well, so the second is generous."""
VALUE_BYTES = 64 << 20
"""The most decoded bytes of one step's value."""
CHUNK_BYTES = 256 << 20
"""The most decoded bytes of a chunk: all of it is in RAM when one step of it is read."""
DOCUMENT_BYTES = 64 << 20
"""The most bytes of a JSON text."""
LINE = 1000
"""The number of characters of an error that are kept."""


def begins(path: pathlib.Path, magic: bytes) -> bool:
    """Tell whether a path is a file that begins with these bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def one_line(error: Exception) -> str:
    """Return an error's text as one line that is not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= LINE else f"{text[: LINE - 3]}..."


@contextlib.contextmanager
def damage(where: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn what a library raises for damaged bytes into InputError, but leave errors of the system as they are."""
    try:
        yield
    except DiskReplayError:
        raise
    except errors as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{where} is damaged: {one_line(error) or type(error).__name__}") from error


def check_regular(path: pathlib.Path) -> None:
    """Raise InputError if a dataset is or holds anything but files and directories: reading it could hang."""
    for entry in itertools.chain([path], path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # a link that leads nowhere harms only who reads it
            mode = entry.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise InputError(f"{str(entry)!r} is no file that can be read")


def stored_bytes(path: pathlib.Path) -> int:
    """Return the number of bytes of a file, or of all files in a directory."""
    files = [path] if path.is_file() else [entry for entry in path.rglob("*") if entry.is_file()]
    return sum(file.stat().st_size for file in files)


def check_size(where: str, shape: tuple[int, ...], item_bytes: int, size: Callable[[], int]) -> None:
    """Raise InputError for an array that a dataset of ``size()`` bytes cannot hold, however well it is compressed."""
    rows, entry = math.prod(shape[:1]), math.prod(shape[1:]) * item_bytes
    if entry > VALUE_BYTES:
        raise InputError(f"{where}: declares the shape {shape}, of {entry:,} bytes a step; {VALUE_BYTES:,} are read")
    if rows > ROWS or rows * entry > ARRAY_BYTES:
        stored = size()
        if rows > max(ROWS, stored * ROWS_A_BYTE) or rows * entry > max(ARRAY_BYTES, stored * BYTES_A_BYTE):
            raise InputError(f"{where}: declares the shape {shape}, which {stored:,} bytes cannot hold")


def check_chunk(where: str, chunks: tuple[int, ...], item_bytes: int) -> None:
    """Raise InputError for chunks that are too large to be decoded."""
    if math.prod(chunks) * item_bytes > CHUNK_BYTES:
        raise InputError(f"{where}: has chunks of the shape {chunks}; at most {CHUNK_BYTES:,} bytes are read at once")


# Documents


def check_document(path: pathlib.Path) -> None:
    """Raise InputError if there is no file, or one that is too large to be read whole."""
    if not path.is_file():
        raise InputError(f"{str(path)!r} is missing, or no file")
    if path.stat().st_size > DOCUMENT_BYTES:
        raise InputError(f"{str(path)!r} is no description: it has more than {DOCUMENT_BYTES:,} bytes")


def read_text(path: pathlib.Path) -> bytes:
    """Return the text of a document; raise InputError if there is none."""
    check_document(path)
    return path.read_bytes()


def read_json(path: pathlib.Path) -> Any:
    """Return the JSON in a file; raise InputError if there is none."""
    return parse_json(read_text(path), str(path))


def parse_json(text: Any, where: str) -> Any:
    """Return the JSON of a text; raise InputError, naming ``where``, for anything else."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{where}: its JSON cannot be read: {one_line(error)}") from error


def declared_count(value: Any, what: str) -> int:
    """Return a count that a file declares; raise InputError for anything but one whole number."""
    found = np.asarray(value) if isinstance(value, int | float | np.generic | np.ndarray) else np.empty(0)
    number = found.reshape(-1)[0].item() if found.size == 1 and found.dtype.kind in "iuf" else -1
    if not 0 <= number < 1 << 48 or number != int(number):
        raise InputError(f"{what} must be one whole number, got {str(value)[:40]}")
    return int(number)
