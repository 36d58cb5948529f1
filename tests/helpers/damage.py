"""Bytes of files, damaged and compared."""

from __future__ import annotations

import pathlib


def flip(file: str | pathlib.Path, at: int, mask: int = 0x10) -> bytes:
    """Other bits in a file's byte; what the file holds then."""
    data = bytearray(pathlib.Path(file).read_bytes())
    data[at] ^= mask
    pathlib.Path(file).write_bytes(data)
    return bytes(data)


def files_below(folder: str | pathlib.Path) -> dict[str, bytes]:
    """All files below a folder, by their paths in it."""
    files = (file for file in pathlib.Path(folder).rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}
