"""A user's own code: a file system, a view, a sampler, functions. Errors are raised at its lines.

Each passes on what it is asked, with a line before and a line after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import view_model

import diskreplay as dr
from diskreplay.storage import files

FILES = "read", "list", "size", "kind", "mkdir", "rename", "unlink", "rmdir", "sync_dir", "lock", "lock_holder"
FILE = "pread", "pwrite", "truncate", "sync", "size"


def _passed_on(name: str) -> Callable[..., Any]:
    def operation(self: Any, *arguments: Any, **options: Any) -> Any:
        given = getattr(self.inner, name)(*arguments, **options)
        return given  # an interrupt may come between

    return operation


class File(files.File):
    def __init__(self, inner: Any) -> None:
        self.inner = inner


class Files(files.Files):
    """Another file system below, and lines of one's own around each of its operations."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def open(self, path: str, *, write: bool = False) -> File:
        file = self.inner.open(path, write=write)
        return File(file)


for _name in FILES:
    setattr(Files, _name, _passed_on(_name))
for _name in FILE:
    setattr(File, _name, _passed_on(_name))


class View(dr.Transition):
    def standing(self, part: Any, ids: Any) -> Any:
        found = super().standing(part, ids)
        return found

    def draft(self, *arguments: Any) -> Any:
        batch = super().draft(*arguments)
        reads = arguments[-1]
        reads.then(finished)
        return batch


def finished() -> None:
    """The last that is read of a batch of :class:`View`."""
    return


class Sampler:
    """A plain class, which the store keeps as what it is made of."""

    def __init__(self) -> None:
        self.inner = dr.Uniform()

    def sample(self, *arguments: Any) -> Any:
        found = self.inner.sample(*arguments)
        return found

    def probability(self, *arguments: Any) -> Any:
        return self.inner.probability(*arguments)

    def to_json(self) -> Any:
        return self.inner.to_json()


def reward_fn(achieved: Any, desired: Any, info: Any) -> Any:
    found = view_model.reward_fn(achieved, desired, info)
    return found


def value_fn(obs: Any) -> Any:
    found = np.asarray(obs).reshape(len(obs), -1).mean(axis=1, dtype=np.float64)
    return found
