"""The objects of a checkpoint under a URL: its arrays and files, and the document without which there is none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from diskreplay.remote.documents import KEY
from diskreplay.remote.objects import NEW, Object, Objects, put_over
from diskreplay.storage import files as fs
from diskreplay.storage import metadata
from diskreplay.storage.store import CHECKPOINTS, Checkpoint, checkpoint_files


def document_key(name: str) -> str:
    return f"{CHECKPOINTS}/{name}/{metadata.NAME}"


def in_order_of_removal(name: str, there: Iterable[str]) -> list[str]:
    """Return the keys of a checkpoint among others: its document first, without which there is none."""
    document = document_key(name)
    return [document, *(key for key in there if key.startswith(f"{CHECKPOINTS}/{name}/") and key != document)]


def checkpoint_name(key: str) -> str | None:
    """Return the checkpoint whose document has this key, or None."""
    parts = key.split("/")
    return parts[1] if len(parts) == 3 and parts[0] == CHECKPOINTS and parts[2] == metadata.NAME else None


def put_checkpoint(
    objects: Objects, files: fs.Files, folder: str, checkpoint: Checkpoint, beside: dict[str, Any],
    there: Mapping[str, Object],
) -> dict[str, str]:  # fmt: skip
    """Upload a checkpoint from a local directory, its arrays and files, then its document; return their tags.

    Args:
        objects: the objects of the remote store.
        files, folder: the place of the checkpoint.
        checkpoint: the checkpoint at that place.
        beside: the entries beside the checkpoint's attributes.
        there: the objects that are known to be there, by key. Only these are replaced: a maker that died left them.

    TakenError where there is one of that name, or another is making it.
    """
    made = {}
    for file in checkpoint_files(files, folder, checkpoint):
        key, data = f"{CHECKPOINTS}/{checkpoint.name}/{file}", files.read(os.path.join(folder, file))
        made[key] = put_over(objects, key, data, there[key].tag if key in there else NEW)
    document = json.loads(files.read(os.path.join(folder, metadata.NAME)))
    document["attributes"][KEY] = beside
    put_over(objects, document_key(checkpoint.name), metadata.dump(document), NEW)
    return made
