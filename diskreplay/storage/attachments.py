"""Files that belong to a checkpoint, such as a learner's weights: arrays of bytes in a group beside its own arrays.

The group ``attachments`` of a checkpoint holds an array ``(rows, 1)`` of uint8 for each file; its first ``length`` rows
are the file's bytes. They are written once, in order, before the checkpoint has its name, and are read in any order.
Each chunk has a CRC-32C that is checked when it is read; the checkpoint's document has one of the whole file.
"""

from __future__ import annotations

import contextlib
import io
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, cast

import google_crc32c
import numpy as np

from diskreplay.checks import check_count, check_key
from diskreplay.errors import CorruptionError, InputError
from diskreplay.schema.columns import CHOSEN, Codec, StoredColumn
from diskreplay.storage import checkpoint_arrays, metadata
from diskreplay.storage import files as fs
from diskreplay.storage.checkpoint_arrays import ArrayWriter
from diskreplay.storage.column import ColumnReader, array_reader

GROUP = "attachments"
SHARD_BYTES = 1 << 24
"""The bytes of a shard, 16 MB: one file of the store, and one put of a remote one."""
READ_BYTES = 1 << 20
"""The bytes that are read at once of a file that is read in small pieces."""

Reading = Callable[[], contextlib.AbstractContextManager[None]]
Given = Mapping[str, Callable[[BinaryIO], object] | bytes | bytearray | memoryview]
"""The files by name: a function that writes to a binary file, or the bytes."""


def _column(name: str) -> StoredColumn:
    dtype = np.dtype(np.uint8)
    return StoredColumn(name, (), dtype, CHOSEN, checkpoint_arrays.CHUNK_ROWS, SHARD_BYTES, 1, Codec("lz4", 1))


class Attachment(NamedTuple):
    """A file of a checkpoint.

    Attributes:
        name: the name of the attachment.
        length: bytes.
        crc32c: CRC-32C of them.
    """

    name: str
    length: int
    crc32c: int


def from_json(stored: Any) -> dict[str, Attachment]:
    """Return the attachments of a checkpoint's document, by name; raise ValueError and its kin for anything else."""
    return {
        check_key(name, "attachment"): Attachment(
            name, check_count("length", facts["length"], 0), check_count("crc32c", facts["crc32c"], 0, (1 << 32) - 1)
        )
        for name, facts in dict(stored).items()
    }


def to_json(attachments: Mapping[str, Attachment]) -> dict[str, Any]:
    """Return the field of a checkpoint's document."""
    return {name: {"length": one.length, "crc32c": one.crc32c} for name, one in attachments.items()}


class AttachmentWriter(io.BufferedIOBase):
    """A binary file that is written in order and becomes an attachment; it can neither be read nor moved in.

    Where the file system refuses a write, raises WriteFailedError.

    Args:
        files: the files by which it is written.
        directory: the directory of the group of attachments.
        name: the name of the attachment.
    """

    def __init__(self, files: fs.Files, directory: str, name: str) -> None:
        super().__init__()
        self._name, self._path = name, os.path.join(directory, name)
        with self._translated():
            self._array = ArrayWriter(files, self._path, _column(name))

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return fs.translate("writing the attachment", self._path, kept="")

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        """Add bytes, or what has them as a buffer, and return how many."""
        if self.closed:
            raise ValueError(f"the attachment {self._name!r} is written to no more: its writer has returned")
        given = memoryview(data).cast("B")
        with self._translated():
            self._array.append(np.frombuffer(given, np.uint8))
        return given.nbytes

    def finish(self) -> Attachment:
        """Make the attachment durable."""
        self.close()
        with self._translated():
            self._array.finish()
        return Attachment(self._name, self._array.length, self._array.crc32c)


class _Reader(io.RawIOBase):
    """A reader of the bytes of an attachment, chunk by chunk, each checked."""

    def __init__(self, column: ColumnReader, length: int, reading: Reading) -> None:
        super().__init__()
        self._column, self._length, self._at, self._reading = column, length, 0, reading

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        starts = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}
        if whence not in starts or starts[whence] + offset < 0:
            raise ValueError(f"a file has no place {offset} from {whence}")
        self._at = starts[whence] + offset
        return self._at

    def readinto(self, out: Any, /) -> int:
        into = memoryview(out).cast("B")
        stop = min(self._at + into.nbytes, self._length)
        read = max(0, stop - self._at)
        if read:
            with self._reading():
                into[:read] = self._column.read_rows(self._at, stop)[:, 0].data
            self._at = stop
        return read

    def close(self) -> None:
        self._column.close_files()
        super().close()


def open_attachment(
    files: fs.Files, checkpoint: str, attachment: Attachment, reading: Reading = contextlib.nullcontext
) -> BinaryIO:
    """Open an attachment of the checkpoint whose directory is ``checkpoint`` to be read, in any order.

    Bytes are read within ``reading``. That raises CorruptionError with the place of damage; so does opening where its
    shards cannot hold its bytes.
    """
    path = os.path.join(checkpoint, GROUP, attachment.name)
    metadata.check_no_link(files, os.path.dirname(path), path)
    column = _column(attachment.name)
    with fs.translate_reads(path):
        reader = array_reader(files, path, os.path.basename(checkpoint), column, attachment.length)
    return cast(BinaryIO, io.BufferedReader(_Reader(reader, attachment.length, reading), READ_BYTES))


def verify(files: fs.Files, checkpoint: str, attachment: Attachment) -> None:
    """Read all of an attachment; raise CorruptionError if it is not what was written."""
    found = 0
    with open_attachment(files, checkpoint, attachment) as file:
        while data := file.read(READ_BYTES):
            found = google_crc32c.extend(found, data)
    if found != attachment.crc32c:
        path = os.path.join(checkpoint, GROUP, attachment.name)
        raise CorruptionError(f"the bytes of {path!r} are not those that were written", file=path)


class Staged(NamedTuple):
    """The files that are durable and wait for their checkpoint.

    Attributes:
        directory: the directory of the group that becomes the checkpoint's; it is gone once a checkpoint has taken it.
        attachments: the attachments by name.
    """

    directory: str
    attachments: dict[str, Attachment]


def checked(given: Given) -> Given:
    """Return the files; raise InputError if a checkpoint cannot have them."""
    if not isinstance(given, Mapping):
        raise InputError(f"attachments must be a mapping of names to functions or bytes, got {type(given).__name__}")
    for name, one in given.items():
        check_key(name, "attachment")
        if not (callable(one) or isinstance(one, bytes | bytearray | memoryview)):
            raise InputError(
                f"attachments[{name!r}] must be bytes, or a function that writes to the binary file that it is given, "
                f"such as lambda file: torch.save(state, file); got {type(one).__name__}"
            )
    return dict(given)


@contextlib.contextmanager
def staged(files: fs.Files, parent: str, given: Given) -> Iterator[Staged]:
    """Write the files into a temporary directory below ``parent``, each once.

    Removes at the end what no checkpoint took. Raises what a function raises, and WriteFailedError where the file
    system refuses; neither stops the store's writer.
    """
    directory = os.path.join(parent, f".tmp-attachments-{secrets.token_hex(4)}")
    try:
        with fs.translate("making", directory, kept=""):
            metadata.make(files, directory, metadata.group_document())
        attachments = {name: _written(files, directory, name, one) for name, one in given.items()}
        with fs.translate("making", directory, kept=""):
            files.sync_dir(directory)
        yield Staged(directory, attachments)
    finally:
        with contextlib.suppress(OSError):  # the next opening of the stream removes it
            fs.clear(files, directory)


def _written(files: fs.Files, directory: str, name: str, given: Any) -> Attachment:
    """Write one file; raise InputError where a function was called in vain."""
    file = AttachmentWriter(files, directory, name)
    if not callable(given):
        file.write(given)
        return file.finish()
    returned = given(file)
    made = file.finish()
    if isinstance(returned, bytes | bytearray | memoryview | str) or not made.length:
        raise InputError(
            f"attachments[{name!r}] must write its bytes to the file that it is given, as lambda file: "
            f"torch.save(state, file) or lambda file: file.write(data); it wrote {made.length:,} bytes and returned "
            f"{type(returned).__name__}"
        )
    return made
