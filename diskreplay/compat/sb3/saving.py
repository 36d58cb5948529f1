"""A model and the point that its buffer was at, saved and loaded together.

SB3's ``model.save`` leaves the buffer out, and ``load`` makes a new one: over a path that finds the store as it is by
then. Here the zip names a checkpoint of the store, which also keeps the states of the random generators.

1. The checkpoint is made first, then the zip replaces the older one whole; then the checkpoint that the older one named
   is dropped. A process that dies in between leaves a zip and the checkpoint that it names.
2. The checkpoint is named after the zip, and counts on.
"""

from __future__ import annotations

import contextlib
import pathlib
import random
import re
from typing import Any, TypeVar

import numpy as np
import torch
from stable_baselines3.common.save_util import load_from_zip_file

from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.buffers.state import rng_to_json, set_rng
from diskreplay.compat.sb3.replay_buffer import DiskReplayBuffer
from diskreplay.errors import CheckpointError, InputError
from diskreplay.paths import PathLike
from diskreplay.storage.files import LocalFiles

Algorithm = TypeVar("Algorithm")

NAMED = "disk_replay_checkpoint"
"""The model's attribute, and so the zip's, that names the checkpoint."""


def save(model: Any, path: PathLike) -> str:
    """Saves a model as ``model.save(path)`` does, with a checkpoint of its buffer that :func:`load` goes back to.

    Args:
        model: whose ``replay_buffer`` is a :class:`DiskReplayBuffer` with a path.
        path: of the zip; ``.zip`` is added where there is no suffix.

    Returns the checkpoint's name. Its rows stay on disk until the next ``save`` to the same path has ended, or
    ``model.replay_buffer.store.drop_checkpoint(name)``. Raises InputError for another kind of buffer, and for one that
    no step was added to.
    """
    store = _store(model)
    target = pathlib.Path(path)
    target = target if target.suffix else target.with_suffix(".zip")
    older = _numbered(store.checkpoints, target.stem)
    name = f"{target.stem}-{max(older.values(), default=0) + 1}"
    store.checkpoint(name, {"random": _random_state(model)})
    partial = target.with_name(f".{target.name}.partial.zip")
    files = LocalFiles()
    try:
        setattr(model, NAMED, name)
        try:
            model.save(partial)
        finally:
            delattr(model, NAMED)  # a plain save later must not name it
        files.open(str(partial), write=True).sync()
        files.rename(str(partial), str(target))
        files.sync_dir(str(target.absolute().parent))
    except BaseException:
        partial.unlink(missing_ok=True)
        with contextlib.suppress(CheckpointError):
            store.drop_checkpoint(name)
        raise
    for one in older:
        store.drop_checkpoint(one)
    return name


def load(
    algorithm: type[Algorithm], path: PathLike, env: Any = None, *, restore_random: bool = True, **options: Any
) -> Algorithm:
    """The model of :func:`save`, its buffer as it was then: rows that were added since are given up.

    Args:
        algorithm: the model's class, such as ``DQN``.
        path: of the zip.
        env: to train in, as of SB3's ``load``; SB3 resets it.
        restore_random: whether the generators of Python, numpy and torch go on from where they were.
        **options: further ones of SB3's ``load``.

    Raises InputError for a zip that :func:`save` did not write, and CheckpointError where its checkpoint is gone, or a
    later one needs rows that would be given up: drop that first.
    """
    source = pathlib.Path(path)
    source = source if source.suffix or source.exists() else source.with_suffix(".zip")
    data, _, _ = load_from_zip_file(source, device="cpu", custom_objects=options.get("custom_objects"))
    if not data or NAMED not in data:
        raise InputError(
            f"{str(source)!r} names no checkpoint of a buffer: diskreplay.compat.sb3.save(model, path) writes one that "
            f"does; {algorithm.__name__}.load(path) opens the buffer as it is now"
        )
    given = {**data["replay_buffer_kwargs"], **options.pop("replay_buffer_kwargs", {})}
    at = {**given, "checkpoint": data[NAMED]}
    kind: Any = algorithm
    model: Any = kind.load(source, env, replay_buffer_kwargs=at, **options)
    model.replay_buffer_kwargs = given
    delattr(model, NAMED)
    if restore_random:
        _restore_random(model, _store(model).checkpoint_metadata(data[NAMED])["random"], data[NAMED])
    loaded: Algorithm = model
    return loaded


def _store(model: Any) -> Store:
    buffer = getattr(model, "replay_buffer", None)
    if not isinstance(buffer, DiskReplayBuffer):
        raise InputError(
            f"the model's replay_buffer must be a DiskReplayBuffer, got {type(buffer).__name__}: give "
            f"replay_buffer_class=DiskReplayBuffer to {type(model).__name__}"
        )
    if buffer.path is None:
        raise InputError(
            'the buffer has no path, and goes away with the model: give replay_buffer_kwargs={"path": ...}'
        )
    if buffer.store is None:
        raise InputError("the buffer is empty; add some steps")
    return buffer.store


def _numbered(names: list[str], stem: str) -> dict[str, int]:
    """The checkpoints that are named after a zip, and their numbers."""
    matches = {name: re.fullmatch(re.escape(stem) + r"-([0-9]+)", name) for name in names}
    return {name: int(match[1]) for name, match in matches.items() if match}


def _random_state(model: Any) -> dict[str, Any]:
    """Of the generators that SB3 draws from, as JSON can hold it."""
    state: Any = np.random.get_state(legacy=True)
    kind, keys, *rest = state
    version, internal, gauss_next = random.getstate()
    return {
        "numpy": [kind, keys.tolist(), *rest],
        "python": [version, list(internal), gauss_next],
        "torch": torch.get_rng_state().numpy().tobytes().hex(),
        "actions": rng_to_json(model.action_space.np_random),
    }


def _restore_random(model: Any, state: dict[str, Any], name: str) -> None:
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["torch"]), dtype=torch.uint8))
    set_rng(model.action_space.np_random, {"rng": state["actions"]}, name)
