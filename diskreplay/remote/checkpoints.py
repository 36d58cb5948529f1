"""Checkpoints that a reader of a remote store makes: a trainer's own priorities and random state, over all streams.

The document is put last, where there is none of its name. Then it is looked whether every shard of the cut is still
there, for `gc` may have been at work, and whether no stream has gone back to a checkpoint meanwhile. What a checkpoint
names is not removed any more, and a stream whose rows it needs does not go back.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from typing import Any

from numpy.typing import NDArray

from diskreplay.errors import CheckpointError, RemoteError
from diskreplay.remote.collect import going
from diskreplay.remote.files import RemoteFiles
from diskreplay.remote.needed import shards
from diskreplay.remote.objects import TakenError
from diskreplay.remote.push import document_key, in_order_of_removal, put_checkpoint
from diskreplay.storage import attachments, metadata
from diskreplay.storage.attachments import Staged
from diskreplay.storage.files import LocalFiles, clear
from diskreplay.storage.store import Checkpoint, Store, checkpoint_document, lay_out_checkpoint


def write(
    store: Store, files: RemoteFiles, checkpoint: Checkpoint, values: dict[str, NDArray[Any]], staged: Staged | None,
    scratch: str,
) -> bool:  # fmt: skip
    """Makes a checkpoint of a remote store; False where shards that it needs are gone: then there is none.

    It is laid out in the local directory ``scratch``, where its files are ``staged``, and stay.

    Raises CheckpointError where there is one of its name, RemoteError where it is not known whether there is one now.
    """
    files.refresh()  # another may have made one of that name
    store.check_new_checkpoint(checkpoint.name)
    store.checkpoints()  # others' numbers
    checkpoint = checkpoint.numbered(store.next_number(), None)
    made: dict[str, str] = {}
    document = checkpoint_document(checkpoint, values)
    checkpoint = dataclasses.replace(checkpoint, arrays=document["attributes"][metadata.KEY]["arrays"])
    write_id = secrets.token_hex(16)
    folder = os.path.join(scratch, "checkpoint")
    lay_out_checkpoint(LocalFiles(), folder, document, values, staged)
    try:
        beside = {"write": write_id}
        made = put_checkpoint(files.objects, LocalFiles(), folder, checkpoint, beside, files.listed())
    except (TakenError, RemoteError, FileNotFoundError) as error:
        try:
            files.refresh()
            data = files.read(f"{files.url}/{document_key(checkpoint.name)}")
        except (FileNotFoundError, RemoteError):
            data = b""
        if write_id.encode() not in data:  # else only the answer was lost
            if isinstance(error, RemoteError):
                raise
            raise CheckpointError(
                f"there is a checkpoint {checkpoint.name!r} already; drop it first, or choose another name"
            ) from None
    finally:
        if staged is not None:
            os.rename(os.path.join(folder, attachments.GROUP), staged.directory)
        clear(LocalFiles(), folder)
    files.refresh()
    there = files.listed()
    if _is_whole(store, files, checkpoint) and all(key in there and there[key].tag == tag for key, tag in made.items()):
        return True
    drop(store, files, checkpoint.name)
    return False


def _is_whole(store: Store, files: RemoteFiles, checkpoint: Checkpoint) -> bool:
    """Whether all that it needs is there, and is not about to go, and its streams have not gone back."""
    doomed = going(files)
    return all(
        store.newest_commit(name).timeline == cut.timeline
        and all(
            files.size(f"{files.url}/{key}") is not None and key not in doomed
            for key in shards(store.schema, name, cut)
        )
        for name, cut in checkpoint.cut.items()
    )


def drop(store: Store, files: RemoteFiles, name: str) -> None:
    """Removes a checkpoint of a remote store; CheckpointError where there is none."""
    files.refresh()
    store.checkpoint(name)
    files.objects.delete(in_order_of_removal(name, files.listed()))
    files.refresh()
