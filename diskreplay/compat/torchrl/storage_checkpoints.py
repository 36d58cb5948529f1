"""The way in which torchrl's checkpoints hold a store: by the name of a checkpoint of it, without copying rows.

1. A state says where the store is, the checkpoint's name, and the slot of the next row.
2. ``dumps`` writes it to a file, and then drops the checkpoint that the file named before: a crash in between leaves
   one of the two in the file, and the other to the next call.
3. A state in a file of a checkpoint names that checkpoint: ``storage.checkpoint(name, attachments=...)``.
4. A temporary store has no name that outlives the process: its rows are copied, into a store in the directory, or as
   tensors into the state.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.compat.torchrl.tensor_layout import TensorLayout, stored_layout
from diskreplay.compat.torchrl.tensordicts import TensorDictReader, in_layout
from diskreplay.errors import CheckpointError, InputError
from diskreplay.sampling.uniform import Uniform
from diskreplay.storage.files import replace, translate
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import checked_path, full_path
from diskreplay.views.transition import Transition

FILE = "diskreplay.json"
COPIES = "store-a", "store-b"
"""The copies of a temporary store in a directory of ``dumps``: one is there while the other is made."""
COPY = "copy"
"""The name of the checkpoint of such a copy."""
STATES = "torchrl-state-"
"""The prefix of the names of checkpoints that ``state_dict`` makes."""
STATE_KEYS = {"path", "checkpoint", "pos", "max_size"}
"""The keys of every state."""
COPY_ROWS = 1024
"""The number of rows that are copied at a time."""


Storage = Any
"""A :class:`~diskreplay.compat.torchrl.DiskReplayStorage`, whose module imports this one; to mypy its base is Any."""


class Checkpointer(StorageCheckpointerBase):  # type: ignore[misc]  # torchrl is not followed by mypy
    """The work of ``rb.dumps`` and ``rb.loads`` with a :class:`~diskreplay.compat.torchrl.DiskReplayStorage`."""

    def dumps(self, storage: Storage, path: Any) -> None:
        """Name a checkpoint of the store, and write that name to a file in ``path``."""
        folder = pathlib.Path(checked_path(path)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / FILE
        before = json.loads(file.read_text()) if file.exists() else {}
        if storage.store is None:
            _write(file, _state(storage, None))
        elif storage.temporary:
            _write(file, _copy_of(storage, folder, before.get("copy")))
            if "copy" in before:
                shutil.rmtree(folder / before["copy"], ignore_errors=True)
        else:
            _drop(storage.store, _beside(storage.store, folder, before.get("checkpoint")))
            name = _new_name(_prefix(folder))
            storage.store.checkpoint(name)
            _write(file, _state(storage, name))
            _drop(storage.store, _beside(storage.store, folder, name))

    def loads(self, storage: Storage, path: Any) -> None:
        """Go back to the checkpoint that the file in ``path`` names."""
        file = pathlib.Path(checked_path(path)).absolute() / FILE
        if not file.exists():
            raise CheckpointError(f"there is no {FILE} in {str(path)!r}: rb.dumps of a DiskReplayStorage makes it")
        state = json.loads(file.read_text())
        if "copy" in state:
            state["path"] = str(file.parent / state["copy"])
        elif storage.store is not None and storage.path == state["path"]:  # what a crash has left there is no promise
            _drop(storage.store, _beside(storage.store, file.parent, state["checkpoint"]))
        load_state(storage, state)


def _prefix(folder: pathlib.Path) -> str:
    return f"torchrl-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}-"


def _new_name(prefix: str) -> str:
    """Return a name never given before: an old copy, or a state that somebody kept, must not name other rows."""
    return prefix + uuid.uuid4().hex[:16]


def _beside(store: Store, folder: pathlib.Path, name: str | None) -> list[str]:
    return [other for other in store.checkpoints if other.startswith(_prefix(folder)) and other != name]


def state_of(storage: Storage) -> dict[str, Any]:
    """Return what ``state_dict`` gives."""
    if storage.making is not None:  # no path: wherever the store is that has this file
        return {**_state(storage, storage.making), "path": ""}
    if storage.store is None:
        return _state(storage, None)
    if storage.temporary:
        layout, pos, count = storage.layout, storage.pos, len(storage)
        rows = storage.get(np.arange(pos, pos + count) % count if count else [])  # oldest first
        tensors = [rows[leaf.key].cpu() for leaf in layout.leaves]
        return {**_state(storage, None), "layout": layout.to_json(), "tensors": tensors}
    made = [name for name in storage.store.checkpoints if name.startswith(STATES)]
    name = _new_name(STATES)
    storage.store.checkpoint(name)
    _drop(storage.store, made[: len(made) + 1 - storage.keep_checkpoints])
    return _state(storage, name)


def load_state(storage: Storage, state: dict[str, Any]) -> None:
    """Bring back what a state describes; raise InputError for a state that another storage gave."""
    keys = list(state) if isinstance(state, Mapping) else type(state).__name__
    if not STATE_KEYS.issubset(keys):
        raise InputError(
            f"the state must be one that state_dict of a DiskReplayStorage gave, with the keys {sorted(STATE_KEYS)}; "
            f"got {keys}. To take over rows of another storage, read them there and extend a buffer with them"
        )
    if state["max_size"] != storage.max_size:
        raise InputError(
            f"the checkpoint is of a storage of max_size {state['max_size']}; give this one, of "
            f"{storage.max_size}, the same"
        )
    name = state["checkpoint"]
    if "tensors" in state:
        layout = TensorLayout.from_json(state["layout"])
        tensors = iter(state["tensors"])
        rows = in_layout(layout, len(state["tensors"][0]), lambda leaf: next(tensors))
        _replace(storage, layout, iter([rows]), state["pos"])
    elif name is None:
        storage.clear()
    elif (state["path"] and full_path(state["path"]) != storage.path) or not _gone_back(storage, name, state["pos"]):
        with Store.open(
            state["path"] or storage.path, mode="r", checkpoint=name, view=Transition(), sampler=Uniform()
        ) as source:
            found = stored_layout(source.provenance)
            if found is None:
                raise InputError(
                    f"the store at {source.path!r} was not made from tensordicts; read it with ReplayBuffer.open"
                )
            _replace(storage, found, _blocks(source, found), state["pos"])


def _gone_back(storage: Storage, name: str, pos: int) -> bool:
    """Go back to a checkpoint of the storage's own store; return False if a later one needs rows that this discards.

    Raises CheckpointError where there is none of that name.
    """
    if storage.store is None or name not in storage.store.checkpoints:
        raise CheckpointError(f"the store at {storage.path!r} has no checkpoint {name!r} any more")
    try:
        storage.open_store(name, pos)
    except CheckpointError:
        storage.open_store()
        return False
    return True


def _state(storage: Storage, name: str | None) -> dict[str, Any]:
    return {"path": storage.path, "checkpoint": name, "pos": storage.pos, "max_size": storage.max_size}


def _drop(store: Store, names: list[str]) -> None:
    for name in names:
        if name in store.checkpoints:
            store.drop_checkpoint(name)


def _write(file: pathlib.Path, state: dict[str, Any]) -> None:
    """Replace a file at once, and durably; raise WriteFailedError if the file system refuses."""
    with translate("write", str(file), kept=""):
        replace(LocalFiles(), str(file), json.dumps(state).encode())


# Rows that are copied


def _replace(storage: Storage, layout: TensorLayout, blocks: Iterator[TensorDict], pos: int) -> None:
    """Replace the rows that are there; the next row is in slot ``pos``."""
    storage.clear()
    if storage.store is None:
        storage.make_store(layout)
    for rows in blocks:
        storage.set((storage.pos + torch.arange(len(rows))) % storage.max_size, rows)
    storage.restart(pos)


def _blocks(source: Store, layout: TensorLayout) -> Iterator[TensorDict]:
    reader, ids = TensorDictReader(source, layout, torch.device("cpu")), source.items()
    for start in range(0, len(ids), COPY_ROWS):
        block = ids[start : start + COPY_ROWS]
        yield reader.whole(block, block)


def _copy_of(storage: Storage, folder: pathlib.Path, before: str | None) -> dict[str, Any]:
    """Copy a temporary store into a directory, beside the copy that is there, and return the new one's state."""
    name = next(name for name in COPIES if name != before)
    shutil.rmtree(folder / name, ignore_errors=True)
    copy = storage.empty_copy(folder / name)
    _replace(copy, storage.layout, _blocks(storage.store, storage.layout), storage.pos)
    copy.store.checkpoint(COPY)
    copy.close()
    return {**_state(storage, COPY), "copy": name}
