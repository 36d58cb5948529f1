"""The store under XuanCe's off-policy buffers.

Steps are rows of a replay buffer, which know the slot of XuanCe's ring, so that the ring is found again in them. What
else must be found again, priorities and random state, is kept by :class:`~diskreplay.compat.kept.Kept`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import DTypeLike, NDArray

from diskreplay.compat.kept import SLOT, Held, Kept
from diskreplay.compat.place import Place, close_with
from diskreplay.compat.xuance.marl.steps import CREATE_OPTIONS, OPEN_OPTIONS
from diskreplay.compat.xuance.memory import Shape, Shapes
from diskreplay.errors import InputError
from diskreplay.sampling.window import Sampler

Array = NDArray[Any]
Ids = NDArray[np.int64]

OPTIONS = ("path", "seed", *CREATE_OPTIONS, *OPEN_OPTIONS)


class Steps(Kept):
    """The rows of one buffer of XuanCe's."""

    def integers(self, most: int, size: int, own: bool) -> Ids:
        """Whole numbers below ``most``, from numpy's global generator or the store's ``own``."""
        found: Ids = self._rng.integers(most, size=size) if own else np.random.choice(most, size)
        return found

    def weighted(self, size: int, own: bool) -> tuple[Ids, NDArray[np.float32]]:
        """Ids and weights by the sampler, with numbers of Python's global generator or the store's ``own``."""
        with self._lock:
            self._check_open()
            rng: Any = self._rng if own else _Global
            return self._sampler.sample(rng, self._streams.windows(), self._standing, size)


class _Global:
    """Python's global generator, as far as samplers ask a generator of numpy."""

    @staticmethod
    def random(size: int) -> NDArray[np.float64]:
        return np.array([random.random() for _ in range(size)])


def open_steps(
    owner: object, observation: spaces.Space[Any], action: spaces.Space[Any], num_envs: int, rows: int,
    columns: Mapping[str, tuple[Shape, Any]], sampler: Sampler, options: Mapping[str, Any], *, frame_stack: int = 1,
    held: Held | None = None,
) -> Steps:  # fmt: skip
    """The store of ``owner``: that at the path, or a new one of ``rows`` rows.

    Args:
        owner: the buffer; the store is closed when it is forgotten.
        observation, action: spaces of one environment.
        num_envs, rows: environments, and rows of each.
        columns: ``(shape, dtype)`` by name, beside the slot.
        sampler: which transitions are drawn.
        options: ``path``, ``seed``, and those of ``CREATE_OPTIONS`` and ``OPEN_OPTIONS``.
        frame_stack: frames of an observation, on its first or last axis.
        held: what else the buffer finds again.

    Raises InputError where the store at the path is that of another buffer.
    """
    unknown = sorted(options.keys() - set(OPTIONS))
    if unknown:
        raise InputError(f"unknown option {unknown[0]!r}; the options are {', '.join(OPTIONS)}")
    place = Place(options.get("path"), owner)
    opening = {name: options[name] for name in (*OPEN_OPTIONS, "seed") if name in options}
    columns = {SLOT: ((), np.int32), **columns}
    if place.exists:
        steps = Steps.open(place.path, **opening)
    else:
        making = {name: options[name] for name in CREATE_OPTIONS if name in options}
        steps = Steps.create(
            place.path, observation, action, num_envs=num_envs, capacity=rows * num_envs, columns=columns,
            sampler=sampler, frame_stack=frame_stack, **making, **opening,
        )  # fmt: skip
    assert isinstance(steps, Steps)
    with steps.opening():
        difference = _difference(steps, observation, action, num_envs, rows, columns, sampler, frame_stack)
        if difference:
            raise InputError(f"the store at {place.path!r} is not of such a buffer: {difference}; choose another path")
        steps.held = held
        steps.take_back()
        close_with(owner, steps)
    return steps


def _difference(
    steps: Steps, observation: Any, action: Any, num_envs: int, rows: int, columns: Mapping[str, tuple[Shape, Any]],
    sampler: Sampler, frame_stack: int,
) -> str:  # fmt: skip
    """What a store has that differs from the arguments; empty for nothing."""
    schema = steps.schema
    extras = {column.name: (column.shape, column.dtype) for column in schema.extra_columns}
    wanted = {
        "observations": (schema.observation_space, observation),
        "actions": (schema.action_space, action),
        "environments": (steps.num_envs, num_envs),
        "steps of an environment": (schema.capacity // steps.num_envs, rows),
        "auxiliary values": (extras, {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in columns.items()}),
        "sampler": (_drawing(steps.sampler), _drawing(sampler)),
        "frames of an observation": (max(stack.frames for stack in schema.stacks), frame_stack),
    }
    return "; ".join(f"{what} {theirs}, not {ours}" for what, (theirs, ours) in wanted.items() if theirs != ours)


def _drawing(sampler: Sampler) -> dict[str, Any]:
    """What a sampler was made with, less what may be set later."""
    return {name: value for name, value in sampler.to_json().items() if name != "beta"}


def stored_space(shape: Shapes, dtype: DTypeLike) -> spaces.Space[Any]:
    """The space of any values of a shape and dtype, or of a dict of shapes."""
    if isinstance(shape, dict):
        return spaces.Dict([(key, stored_space(part, dtype)) for key, part in shape.items()])
    kind = np.dtype(dtype)
    limits: Any = (-np.inf, np.inf) if kind.kind == "f" else (np.iinfo(kind).min, np.iinfo(kind).max)
    return spaces.Box(limits[0], limits[1], shape, kind.type)
