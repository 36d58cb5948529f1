"""The memory of what documents of groups said: one that has the same bytes is not parsed again.

Bytes alone say so. A name does not: what was dropped may have been made again under it. Nor does a time or a file's
number, which a file system gives again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

from diskreplay.storage import files as fs
from diskreplay.storage import metadata

Said = TypeVar("Said")


class KnownDocuments(Generic[Said]):
    """The groups in a directory, by name.

    Args:
        files: that they are read by.
        folder: the directory.
        parse: makes what is remembered of a group's directory and its attributes.
    """

    def __init__(self, files: fs.Files, folder: str, parse: Callable[[str, dict[str, Any]], Said]) -> None:
        self._files = files
        self._folder = folder
        self._parse = parse
        self._known: dict[str, tuple[bytes, Said]] = {}
        """The digest of a document's bytes, and what it says, by the group's name; replaced as a whole."""

    def read(self) -> dict[str, Said]:
        """Read every document that is there now; a group that goes meanwhile is left out."""
        with fs.translate_reads(self._folder):
            names = self._files.list(self._folder)
        found = {}
        for name in names:
            if name != metadata.NAME:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # being dropped right now
                    found[name] = self._read(name)
        self._known = found
        return {name: said for name, (_, said) in found.items()}

    def same(self, names: Collection[str]) -> bool:
        """Tell whether the documents of these groups still have the bytes that the last :meth:`read` found."""
        known = self._known
        try:
            return all(name in known and self._digest(self._bytes(name)) == known[name][0] for name in names)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _read(self, name: str) -> tuple[bytes, Said]:
        data = self._bytes(name)
        digest, known = self._digest(data), self._known.get(name)
        if known is not None and known[0] == digest:
            return known
        directory = os.path.join(self._folder, name)
        metadata.check_no_link(self._files, self._folder, directory)
        return digest, self._parse(directory, metadata.attributes(directory, data))

    def _bytes(self, name: str) -> bytes:
        return metadata.read_bytes(self._files, os.path.join(self._folder, name))

    @staticmethod
    def _digest(data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=16).digest()
