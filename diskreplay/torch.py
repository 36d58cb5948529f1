"""A store as a dataset of PyTorch, and a sampler that goes through it once an epoch, over any number of ranks.

``DataLoader(dataset, sampler=PassSampler(dataset, 256), batch_size=None, num_workers=4)``: the sampler gives the
numbers of a batch's items, and a worker reads them at once. Needs torch: ``pip install 'diskreplay[torch]'``.
"""

from __future__ import annotations

import dataclasses
import operator
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.distributed
import torch.utils._pytree
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from diskreplay.buffers.loader import Loader, loading
from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer
from diskreplay.buffers.multi_agent_layout import KEY as AGENTS
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.checks import check_array, check_count
from diskreplay.errors import InputError, NotEnoughDataError
from diskreplay.sampling.ranked import RankedPass
from diskreplay.storage.paths import PathLike
from diskreplay.views.batch import Arrays, kinds_of_batches, map_arrays
from diskreplay.views.view import View


class Tensors(dict[str, Any]):
    """The fields of a batch, or of one item, as torch tensors: ``batch.obs`` is ``batch["obs"]``.

    A dict, because that is what torch collates, pins and moves.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this batch has no {name!r}; it has {', '.join(self)}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Items(Sequence[Tensors]):
    """The items of a batch that was read at once, as a ``collate_fn`` gets them; torch's own gives back the batch.

    Args:
        batch: tensors whose first axis is that of the items.
    """

    def __init__(self, batch: Tensors) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["index"])

    def __getitem__(self, at: Any) -> Any:
        numbers = range(len(self))[at]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return Tensors(map_arrays(operator.itemgetter(numbers), self.batch))


def _collated(items: Sequence[Tensors], *, collate_fn_map: Any = None) -> Tensors:
    """Return items as one batch: what torch's ``collate_fn`` calls for :class:`Tensors`."""
    if isinstance(items, Items):
        return items.batch
    parts = {name: [item[name] for item in items] for name in items[0]}
    return Tensors({name: collate(each, collate_fn_map=collate_fn_map) for name, each in parts.items()})


default_collate_fn_map.update({Tensors: _collated})


class DiskDataset(Dataset[Tensors]):  # type: ignore[misc]
    """The items of a view over a store, as it stands when it is opened: a map-style dataset.

    ``dataset[i]`` is one item, without the batch's axis; ``dataset[positions]``, integers ``(B,)``, is the batch of
    those items, with the fields of :class:`diskreplay.Batch`, or of the view's own batch, read at once. What the
    batches of a ``DataLoader`` of its own ask for is read at once, too.

    It is pickled by path: each worker opens the store for itself, and forked ones use what was open. Items have numbers
    from 0 on, in the order of their ids. As a writer moves the window on, items leave it, and reading one raises
    EvictedError; a checkpoint keeps its rows.

    Args:
        path, view, checkpoint, cache_bytes, reward_column: as in :meth:`diskreplay.ReplayBuffer.open`. Views that
            choose, such as ``Hindsight``, show items as they were recorded.

    Raises NotEnoughDataError where the store holds no item of the view, and what ``open`` raises.
    """

    def __init__(
        self, path: PathLike, *, view: View | None = None, checkpoint: str | None = None,
        cache_bytes: int | None = None, reward_column: str | None = None,
    ) -> None:  # fmt: skip
        shown = {} if reward_column is None else {"reward_column": reward_column}  # which not every class takes
        self._reader = _opened(path, view=view, checkpoint=checkpoint, cache_bytes=cache_bytes, **shown)
        try:
            self._ids: NDArray[np.int64] = self._reader.items()
            if not len(self._ids):
                raise NotEnoughDataError(
                    f"the store {self._reader.path!r} holds no item of {self._reader.view!r}: record more steps, or "
                    "open it with another view"
                )
        except BaseException:
            self._reader.close()
            raise
        self.fingerprint = zlib.crc32(self._ids.tobytes())
        """A number that stands for the items; a state of a pass is good for the same items."""

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: Any) -> Tensors:
        positions = self._positions(index)
        batch = _tensors(self._reader.get(self._ids[np.atleast_1d(positions)]))
        return Items(batch)[0] if positions.ndim == 0 else batch

    def __getitems__(self, indices: Any) -> Items:
        """Return the items of a batch, read at once, for a ``collate_fn``."""
        positions = check_array("indices", indices)
        if positions.ndim > 1:
            raise InputError("the sampler gives whole batches: give the DataLoader batch_size=None")
        return Items(self[positions])

    def _positions(self, index: Any) -> NDArray[np.int64]:
        positions: NDArray[np.int64] = check_array("index", index)
        if positions.dtype.kind not in "iu" or positions.ndim > 1:
            raise InputError(
                f"items are named by an integer, or by integers of shape (B,), got {positions.dtype} {positions.shape}"
            )
        wrong = np.atleast_1d((positions < 0) | (positions >= len(self)))
        if wrong.any():
            raise IndexError(f"items are numbered 0 to {len(self) - 1}, got {np.atleast_1d(positions)[wrong][0]}")
        return positions

    @property
    def index(self) -> NDArray[np.int64]:
        """A copy of the ``index`` of each item in batches of the store, int64 ``(len,)``."""
        return self._ids.copy()

    def close(self) -> None:
        """Close the store; the copies of workers are their own."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DiskDataset {self._reader.path!r}: {len(self):,} items of {self._reader.view!r}>"


class PassSampler(RankedPass, Sampler[NDArray[np.int64]]):  # type: ignore[misc]
    """Batches of a dataset's items for ``DataLoader(..., batch_size=None)``: each item once an epoch over all ranks.

    The order is a function of ``seed`` and the epoch alone. :meth:`state_dict` says where the pass stands, and
    :meth:`load_state_dict` goes on from there with any number of ranks, workers, and any batch size.

    Args:
        dataset: the dataset whose items are numbered.
        batch_size: the items of each rank; the last steps of an epoch are dealt out evenly, so that all ranks have
            equally many.
        rank, world_size: the numbers of ``torch.distributed`` where it is initialized, else 0 and 1, if None.
        seed: the same for all ranks.
        drop_last: end an epoch where there is no whole batch for each rank.

    Raises InputError for arguments that break a rule.
    """

    def __init__(
        self, dataset: DiskDataset, batch_size: int, *, rank: int | None = None, world_size: int | None = None,
        seed: int = 0, drop_last: bool = False,
    ) -> None:  # fmt: skip
        if not isinstance(dataset, DiskDataset):
            raise InputError(f"dataset must be a DiskDataset, got {type(dataset).__name__}; open the store as one")
        if (rank is None) != (world_size is None):
            raise InputError(f"give rank and world_size both, or neither; got {rank} and {world_size}")
        if rank is None or world_size is None:
            grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
            rank, world_size = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if grouped else (0, 1)
        super().__init__(len(dataset), batch_size, rank, world_size, seed, drop_last, dataset.fingerprint)


def _register(kind: Any) -> None:
    """Tell torch what a batch of a class consists of, as ``torch.compile`` and ``torch.func`` want it."""
    names = [field.name for field in dataclasses.fields(kind)]
    torch.utils._pytree.register_pytree_node(
        kind,
        lambda batch: ([getattr(batch, name) for name in names], None),
        lambda leaves, _: kind(**dict(zip(names, leaves, strict=True))),
    )


for _kind in kinds_of_batches():
    _register(_kind)


def to_device(batches: Iterable[Any], device: Any, *, prefetch: int = 2) -> Loader[Any]:
    """Batches on a device, copied by a thread of their own while the program learns from those before.

    As ``loader(n, device=...)`` of a buffer, for what gives batches otherwise: a ``DataLoader`` over a
    :class:`DiskDataset`, which needs no ``pin_memory`` then, or ``buffer.shuffled(n)``. Gone through once, in that
    thread. What is given: close it, or leave its ``with`` block, where it is left early.

    Args:
        batches: batches of :class:`Tensors` on the CPU, or of this package.
        device: a device of torch, such as ``"cuda"``.
        prefetch: batches on the device that may wait.

    Raises InputError for a device that torch cannot use.
    """
    check_count("prefetch", prefetch, most=1 << 16)
    if device is None:
        raise InputError("device must be one of torch's, such as 'cuda', got None")
    return loading(lambda: iter(batches), prefetch, device)


def _opened(path: PathLike, **options: Any) -> Any:
    """Return a reader of the store, of whichever class made it."""
    reader = ReplayBuffer.open(path, mode="r", **options)
    if AGENTS not in reader.engine.store.settings:
        return reader
    reader.close()
    return MultiAgentReplayBuffer.open(path, mode="r", **options)


def _tensors(batch: Arrays) -> Tensors:
    return Tensors({name: value for name, value in vars(batch.torch()).items() if value is not None})
