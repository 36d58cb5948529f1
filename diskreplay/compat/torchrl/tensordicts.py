"""The rows of a store as tensordicts: whole, or lazily, so that only the leaves that somebody looks at are read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Never, Self

import numpy as np
import torch
from tensordict import TensorDict

from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import Array
from diskreplay.compat.rows import read_part
from diskreplay.compat.torchrl.tensor_layout import Key, Leaf, TensorLayout
from diskreplay.errors import ReadOnlyError
from diskreplay.reading.samples import Samples
from diskreplay.schema.columns import TERMINATED, TRUNCATED
from diskreplay.schema.ids import Ids
from diskreplay.views.batch import Batch


class TensorDictReader:
    """A reader of rows by their ids.

    Args:
        store: open, with a view of single transitions.
        layout: the layout of its tensordicts.
        device: the device that tensors are moved to.
    """

    def __init__(self, store: ReplayBuffer, layout: TensorLayout, device: torch.device) -> None:
        self.store = store
        self.layout = layout
        self.device = device

    def whole(self, ids: Ids, slots: Ids) -> TensorDict:
        """Return the rows with all leaves, ``(n, ...)``; ``slots`` are the values of leaves that show their numbers."""
        batch = self.store.get(ids)
        return in_layout(
            self.layout, len(ids), lambda leaf: self._tensor(leaf, _shown(leaf, batch, slots)), self.device
        )

    def lazy(self, ids: Ids, slots: Ids) -> LazyRows:
        """Return rows whose leaves are read when first asked for, which raises EvictedError if a row is gone by then.

        They cannot be written through.
        """
        leaves: dict[Key, dict[str, Callable[[], Any]]] = {node.key: {} for node in self.layout.nodes}
        nodes: dict[Key, Callable[[], LazyRows]] = {}
        for node in self.layout.nodes:
            nodes[node.key] = functools.partial(LazyRows.of, leaves[node.key], [len(ids), *node.batch], self.device)
            if node.key:
                leaves[node.key[:-1]][node.key[-1]] = nodes[node.key]
        for leaf in self.layout.leaves:
            leaves[leaf.key[:-1]][leaf.key[-1]] = functools.partial(self._read, leaf, ids, slots)
        return nodes[()]()

    def _read(self, leaf: Leaf, ids: Ids, slots: Ids) -> torch.Tensor:
        if leaf.source == "slot":
            return self._tensor(leaf, slots)
        return self._tensor(leaf, read_part(self.store, ids, functools.partial(self._draft, leaf)))

    def _draft(self, leaf: Leaf, samples: Samples) -> Array:
        schema = self.store.schema
        if leaf.source in ("obs", "next_obs"):
            at = [column.name for column in schema.obs_columns].index(leaf.name)
            return samples.current(at) if leaf.source == "obs" else samples.observe_next(at)
        if leaf.source == "none":
            return np.zeros(samples.size, bool)
        if leaf.source == "done":
            return samples.resident(TERMINATED) | samples.resident(TRUNCATED)
        if leaf.source == "later":
            return samples.extra()[leaf.name]
        return samples.values(schema.column(leaf.name or leaf.source))

    def _tensor(self, leaf: Leaf, values: Array) -> torch.Tensor:
        return torch.from_numpy(leaf.shaped(values)).to(self.device)


def in_layout(
    layout: TensorLayout, count: int, tensor: Callable[[Leaf], torch.Tensor], device: torch.device | None = None
) -> TensorDict:
    """Return ``count`` rows with the tensor ``(count, ...)`` that a function gives for each leaf, in their order."""
    found = TensorDict({}, [count], device=device)
    for node in layout.nodes:
        if node.key:
            found[node.key] = TensorDict({}, [count, *node.batch], device=device)
    for leaf in layout.leaves:
        found[leaf.key] = tensor(leaf)
    found.batch_size = [count, *layout.nodes[0].batch]
    return found


def _shown(leaf: Leaf, batch: Batch, slots: Ids) -> Any:
    match leaf.source:
        case "slot":
            return slots
        case "none":
            return np.zeros(len(batch), bool)
        case "done":
            return batch.terminated | batch.truncated
        case "column" | "later":
            return batch.extra[leaf.name]
    values = getattr(batch, leaf.source)
    for part in leaf.name.split("/")[1:]:  # of a nested value, as in ``obs/camera``
        values = values[int(part)] if isinstance(values, tuple) else values[part]
    return values


class _Leaves(dict[str, Any]):
    """The values that are read when they are first asked for; until then None stands in their place."""

    def __init__(self, reads: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__(dict.fromkeys(reads))
        self._reads = reads

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if value is None:
            value = self._reads[name]()
            super().__setitem__(name, value)
        return value

    def __iter__(self) -> Any:
        """Iterate over the keys; defined so that ``dict(self)`` asks for each value, too."""
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  # dict's own would not read

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def copy(self) -> dict[str, Any]:
        return dict(self.items())


def _itself(rows: TensorDict) -> TensorDict:
    return rows


class LazyRows(TensorDict):  # type: ignore[misc]  # tensordict is not followed by mypy
    """The rows of a store, whose leaves are read when first asked for; what is made of them is a TensorDict.

    Leaves may be added, and replaced by ``set``, as transforms do. What would write values in place is refused: it
    would not reach the store.
    """

    @classmethod
    def of(cls, reads: Mapping[str, Callable[[], Any]], batch_size: list[int], device: torch.device) -> Self:
        """Return the rows whose leaves are read by functions, given by name."""
        rows = cls({}, batch_size, device=device)
        rows._tensordict = _Leaves(reads)
        return rows

    @classmethod
    def _new_unsafe(cls, *args: Any, **kwargs: Any) -> TensorDict:
        return TensorDict._new_unsafe(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return a pickle that holds the values."""
        return _itself, (self.to_tensordict(),)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Add a leaf; refuse to replace one, or to write into rows as ``rb[key] = ...`` does."""
        if not isinstance(key, str | tuple) or any(not isinstance(part, str) for part in key) or key in self.keys(True):
            self._refuse()
        self.set(key, value)

    def _refuse(self, *args: Any, **kwargs: Any) -> Never:
        raise ReadOnlyError(
            "rows of a store are never overwritten; change a copy (rb[:].clone()), or add the rows anew with extend"
        )

    set_ = set_at_ = update_ = update_at_ = copy_ = copy_at_ = fill_ = zero_ = _refuse
