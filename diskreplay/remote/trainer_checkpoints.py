"""The checkpoints that a reader of a remote store makes: a trainer's priorities and random state over all streams.

The document is put last, where there is none of its name. Then it is looked whether everything that the cut names is
still there, for `gc` may have been at work, or a push that removes tails, and whether no stream has gone back to a
checkpoint meanwhile. What a checkpoint names is not removed any more, and no stream gives up rows that it needs. The
checkpoint is not pending until that look: docs/design/0043 says why.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from typing import Any

from numpy.typing import NDArray

from diskreplay.errors import CheckpointError, RemoteError
from diskreplay.remote.checkpoint_objects import document_key, in_order_of_removal, put_checkpoint
from diskreplay.remote.collect import going
from diskreplay.remote.needed import needed_objects
from diskreplay.remote.objects import TakenError
from diskreplay.remote.remote_files import RemoteFiles
from diskreplay.storage import attachments
from diskreplay.storage.attachments import Given, Staged
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.store import Checkpoint, Store, checkpoint_document, lay_out_checkpoint


def remote_checkpoints(store: Store) -> RemoteCheckpoints | None:
    """Return what makes and drops checkpoints of a store read under a URL, or None for a local store."""
    return RemoteCheckpoints(store, store.files) if isinstance(store.files, RemoteFiles) else None


class RemoteCheckpoints:
    """The checkpoints of a remote store, as a reader makes and drops them.

    Args:
        store: the remote one.
        files: the files by which the store is read.
    """

    def __init__(self, store: Store, files: RemoteFiles) -> None:
        self._store = store
        self._files = files
        self._catalog = files.catalog
        self._local = LocalFiles()

    @contextlib.contextmanager
    def staging(self, given: Given) -> Iterator[Staged]:
        """Write the files of a checkpoint that is to be made into a local directory."""
        with self._files.mirror.scratch() as scratch, attachments.staged(self._local, scratch, given) as staged:
            yield staged

    def write(self, checkpoint: Checkpoint, values: dict[str, NDArray[Any]], staged: Staged | None) -> bool:
        """Make a checkpoint; return False, with none made, if shards that it needs are gone.

        Its files, where they are ``staged``, stay.

        Raises CheckpointError where there is one of its name, RemoteError where it is not known whether there is one
        now.
        """
        self._catalog.refresh()  # another may have made one of that name
        self._store.check_new_checkpoint(checkpoint.name)
        self._store.checkpoints()  # others' numbers
        checkpoint = checkpoint.numbered(self._store.next_number(), None, values)
        document = checkpoint_document(checkpoint)
        with self._files.mirror.scratch() as scratch:
            folder = os.path.join(scratch, "checkpoint")
            lay_out_checkpoint(self._local, folder, document, values, staged)
            try:
                made = self._put(folder, checkpoint)
            finally:
                if staged is not None:
                    os.rename(os.path.join(folder, attachments.GROUP), staged.directory)
        self._catalog.refresh()
        listed = self._catalog.listing.there
        if self._is_whole(checkpoint) and all(key in listed and listed[key].tag == tag for key, tag in made.items()):
            return True
        self.drop(checkpoint.name)
        return False

    def _put(self, folder: str, checkpoint: Checkpoint) -> dict[str, str]:
        """Upload a checkpoint that is laid out in a local directory, and return the tags of its objects."""
        write_id = secrets.token_hex(16)
        try:
            listed = self._catalog.listing.there
            return put_checkpoint(self._catalog.objects, self._local, folder, checkpoint, {"write": write_id}, listed)
        except (TakenError, RemoteError, FileNotFoundError) as error:
            try:
                self._catalog.refresh()
                data = self._catalog.read(document_key(checkpoint.name)) or b""
            except (FileNotFoundError, RemoteError):
                data = b""
            if write_id.encode() in data:  # only the answer was lost
                return {}
            if isinstance(error, RemoteError):
                raise
            raise CheckpointError(
                f"there is a checkpoint {checkpoint.name!r} already; drop it first, or choose another name"
            ) from None

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        """Tell whether all that it needs is there, is not about to go, and its streams have not gone back.

        A tail that a stream's writer left may be about to go, if no other checkpoint keeps it.
        """
        doomed, listed = going(self._catalog), self._catalog.listing.there
        others = [one.cut for one in self._store.checkpoints() if one.id != checkpoint.id]
        for name, cut in checkpoint.cut.items():
            newest, number = self._store.newest_commit(name), cut.tail.number
            kept = number in (0, *(other[name].tail.number for other in others if name in other))
            needed = [one.key for one in needed_objects(self._store.schema, name, cut)]
            if newest.timeline != cut.timeline or (number < newest.tail.oldest and not kept):
                return False
            if any(key not in listed or key in doomed for key in needed):
                return False
        return True

    def drop(self, name: str) -> None:
        """Remove a checkpoint; raise CheckpointError if there is none."""
        self._catalog.refresh()
        self._store.checkpoint(name)
        self._catalog.objects.delete(in_order_of_removal(name, self._catalog.listing.there))
        self._catalog.refresh()
