"""Batches as pytrees of JAX, once this module is imported. Needs jax: ``pip install 'diskreplay[jax]'``.

``jax.device_put(batch)`` places a batch, and functions under ``jax.jit`` take it. ``index`` is no leaf of it: ids need
64 bits, and JAX's integers have 32 by default. It stays a numpy array, and is None in functions that JAX traces.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

import diskreplay.buffers.multi_agent_view  # noqa: F401  its kinds are registered, too
from diskreplay.schema.ragged import Lists
from diskreplay.views.batch import kinds_of_batches


@dataclasses.dataclass(frozen=True)
class _Ids:
    """A batch's ids. All compare equal: a function is not traced again for other ids."""

    values: Any = dataclasses.field(compare=False)


def _register(kind: Any) -> None:
    names = [field.name for field in dataclasses.fields(kind) if field.name != "index"]
    ids = any(field.name == "index" for field in dataclasses.fields(kind))

    def flatten(value: Any) -> tuple[list[Any], _Ids]:
        return [getattr(value, name) for name in names], _Ids(value.index if ids else None)

    def unflatten(held: _Ids, leaves: Any) -> Any:
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(list(leaves)))
        fields = dict(zip(names, leaves, strict=True))
        return kind(**fields, **({"index": None if traced else held.values} if ids else {}))

    jax.tree_util.register_pytree_node(kind, flatten, unflatten)


for _kind in (*kinds_of_batches(), Lists):
    _register(_kind)
