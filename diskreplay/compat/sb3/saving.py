"""A model and the point that its buffer was at, saved and loaded together.

SB3's ``model.save`` leaves the buffer out, and ``load`` makes a new one: over a path that finds the store as it is by
then. Here both are of one point, with the states of the random generators.

1. Without a path, ``save`` makes a checkpoint of the store that has SB3's zip as an attachment: both are there, or
   neither.
2. With the path of a zip, that names a checkpoint. The checkpoint is made first, then the zip replaces the older one
   whole; then the checkpoint that the older one named is dropped. A process that dies in between leaves a zip and the
   checkpoint that it names.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import pathlib
import random
from collections.abc import Iterator
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.save_util import load_from_zip_file

from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.checks import check_count
from diskreplay.compat.sb3.replay_buffer import DiskReplayBuffer
from diskreplay.compat.stores import numbered
from diskreplay.engine.generator import rng_to_json, set_rng
from diskreplay.errors import CheckpointError, InputError
from diskreplay.storage.attachments import Given
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_path, full_path
from diskreplay.storage.store import FIRST_STREAM, newest
from diskreplay.storage.store import Store as StoredFiles

Algorithm = TypeVar("Algorithm")

NAMED = "disk_replay_checkpoint"
"""The model's attribute, and so the zip's, that names the checkpoint."""


MODEL, RANDOM = "model.zip", "random.json"
"""The attachments of a checkpoint that holds a model."""


def save(model: Any, path: PathLike | None = None, *, attachments: Given | None = None, keep: int | None = 1) -> str:
    """Save a model and its buffer in one checkpoint of the store, which :func:`load` goes back to.

    Args:
        model: a model whose ``replay_buffer`` is a :class:`DiskReplayBuffer` with a path.
        path: the path of a zip file, as for ``model.save``. It is to hold the model in the store's place, and names the
            checkpoint; ``.zip`` is added where there is no suffix. The next ``save`` to the same path drops the
            checkpoint.
        attachments, keep: as in ``diskreplay.ReplayBuffer.checkpoint``; not with a path.

    Returns the checkpoint's name, ``step-`` with the model's ``num_timesteps``, or the zip's name with a number. Raises
    InputError for another kind of buffer, and for one that no step was added to.
    """
    store = _store(model)
    if path is not None:
        if attachments is not None:
            raise InputError("a zip takes no attachments; leave out its path, and the store keeps the model")
        return _save_zip(model, store, pathlib.Path(checked_path(path)))

    def write(file: BinaryIO) -> None:
        buffered: Any = io.BufferedWriter(file)  # SB3 writes to files of Python's own alone
        try:
            model.save(buffered)
        finally:
            buffered.detach()

    name = next(name for name in _names(model) if name not in store.checkpoints)
    files = {**(attachments or {}), MODEL: write, RANDOM: json.dumps(_random_state(model)).encode()}
    store.checkpoint(name, {"num_timesteps": model.num_timesteps}, attachments=files, keep=keep)
    return name


def _names(model: Any) -> Iterator[str]:
    yield f"step-{model.num_timesteps}"
    yield from (f"step-{model.num_timesteps}-{number}" for number in itertools.count(2))


def _save_zip(model: Any, store: Store, target: pathlib.Path) -> str:
    target = target if target.suffix else target.with_suffix(".zip")
    older = numbered(store.checkpoints, f"{target.stem}-")
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


def saved(path: PathLike) -> str | None:
    """Return the newest checkpoint of the store at a path that :func:`save` put a model into, or None."""
    if not _is_store(path):
        return None
    every = StoredFiles(full_path(path), LocalFiles()).checkpoints()
    found = newest((one for one in every if MODEL in one.attachments), FIRST_STREAM)
    return None if found is None else found.name


def load(
    algorithm: type[Algorithm], path: PathLike, env: Any = None, *, checkpoint: str | None = None,
    restore_random: bool = True, **options: Any,
) -> Algorithm:  # fmt: skip
    """Return the model of :func:`save`, its buffer as it was then: rows that were added since are given up.

    Args:
        algorithm: the model's class, such as ``DQN``.
        path: the path of the store, or of the zip.
        env: an environment to train in, as for SB3's ``load``; SB3 resets it.
        checkpoint: the checkpoint of the store; the newest that has a model if None.
        restore_random: True if the generators of Python, numpy and torch go on from where they were.
        **options: further ones of SB3's ``load``.

    Raises InputError for a zip that :func:`save` did not write, and CheckpointError where its checkpoint is gone or has
    no model, or a later one needs rows that would be given up: drop that first.
    """
    if _is_store(path):
        stored = StoredFiles(full_path(path), LocalFiles())
        name = saved(path) if checkpoint is None else checkpoint
        if name is None:
            raise CheckpointError(
                f"no checkpoint of the store at {full_path(path)!r} has a model: save(model) makes one"
            )
        found = stored.checkpoint(name)
        with stored.open_attachment(found, MODEL) as file, stored.open_attachment(found, RANDOM) as kept:
            state = json.load(kept)
            given = {**_data(file, options)["replay_buffer_kwargs"], "path": str(path)}
            file.seek(0)
            model = _load(algorithm, file, env, name, given, options)
    else:
        source = pathlib.Path(checked_path(path))
        source = source if source.suffix or source.exists() else source.with_suffix(".zip")
        data = _data(source, options)
        if NAMED not in data:
            raise InputError(
                f"{str(source)!r} names no checkpoint of a buffer: diskreplay.compat.sb3.save(model, path) writes one "
                f"that does; {algorithm.__name__}.load(path) opens the buffer as it is now"
            )
        name = data[NAMED]
        model = _load(algorithm, source, env, name, data["replay_buffer_kwargs"], options)
        delattr(model, NAMED)
        state = _store(model).checkpoint_metadata(name)["random"]
    if restore_random:
        _restore_random(model, state, name)
    return model


def _is_store(path: PathLike) -> bool:
    return pathlib.Path(checked_path(path), "zarr.json").exists()


def _data(source: Any, options: dict[str, Any]) -> dict[str, Any]:
    data, _, _ = load_from_zip_file(source, device="cpu", custom_objects=options.get("custom_objects"))
    return data or {}


def _load(
    algorithm: type[Algorithm], source: Any, env: Any, name: str, given: dict[str, Any], options: dict[str, Any]
) -> Algorithm:
    given = {**given, **options.pop("replay_buffer_kwargs", {})}
    kind: Any = algorithm
    model = kind.load(source, env, replay_buffer_kwargs={**given, "checkpoint": name}, **options)
    model.replay_buffer_kwargs = given
    return cast(Algorithm, model)


class DiskCheckpointCallback(BaseCallback):  # type: ignore[misc]  # SB3 is not followed by mypy
    """A callback that saves the model and its buffer every so many steps, as :func:`save`; SB3's saves one alone.

    It saves between two rollouts, where the model has learned from all that is in the buffer; and before the first one,
    so that a run that was killed before its second has no rows that none of its models knows.

    Args:
        save_freq: calls of ``env.step`` between two saves, at the least.
        attachments, keep: as in ``diskreplay.ReplayBuffer.checkpoint``.
        verbose: 1 prints the name of each checkpoint.
    """

    def __init__(
        self, save_freq: int, *, attachments: Given | None = None, keep: int | None = 1, verbose: int = 0
    ) -> None:
        super().__init__(verbose)
        self.save_freq = check_count("save_freq", save_freq)
        self._attachments, self._keep = attachments, keep
        self._saved_at: int | None = None

    def _on_rollout_start(self) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        if isinstance(buffer, DiskReplayBuffer) and buffer.path is not None and buffer.store is None:
            return  # frames are seen from the first step
        if self._saved_at is None and _store(self.model).restored:
            self._saved_at = self.n_calls
        if self._saved_at is None or self.n_calls >= self._saved_at + self.save_freq:
            name = save(self.model, attachments=self._attachments, keep=self._keep)
            self._saved_at = self.n_calls
            if self.verbose:
                print(f"checkpoint {name}")

    def _on_step(self) -> bool:
        return True


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


def _random_state(model: Any) -> dict[str, Any]:
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
