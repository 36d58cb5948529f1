"""A store as a dataset of torchrl: a replay buffer that nobody writes to."""

from __future__ import annotations

from typing import Any

import torch
from torchrl.data import TensorDictReplayBuffer
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter

from diskreplay.buffers.multi_agent_layout import KEY as AGENTS
from diskreplay.buffers.replay import ReplayBuffer as Store
from diskreplay.compat.rows import by_episodes
from diskreplay.compat.stores import closed_on_failure
from diskreplay.compat.torchrl.storage import DiskStorage
from diskreplay.compat.torchrl.tensor_layout import standard, stored_layout
from diskreplay.compat.torchrl.tensordicts import TensorDictReader
from diskreplay.errors import InputError, NotEnoughDataError, ReadOnlyError
from diskreplay.sampling.uniform import Uniform
from diskreplay.schema.ids import Ids
from diskreplay.storage.paths import PathLike
from diskreplay.views.transition import Transition


class DiskReplayDataset(TensorDictReplayBuffer):  # type: ignore[misc]  # torchrl is not followed by mypy
    """The transitions of any store in torchrl's TED layout: observations, action, and what follows under ``next``.

    Episodes follow each other, each in the order of time, and ``("collector", "traj_ids")`` numbers them: torchrl's
    samplers, ``SliceSampler`` too, draw from it as from its own datasets. A store that
    :class:`~diskreplay.compat.torchrl.DiskReplayStorage` made has the leaves that were put into it, in their order.

    Args:
        path: the path of the store, which is read as it stands now; a writer may go on beside. As it moves its window
            on, rows leave it, and reading one raises EvictedError; a checkpoint keeps its rows.
        checkpoint: the checkpoint of the store.
        device: the device of the tensors.
        cache_bytes: RAM for values, as in :meth:`diskreplay.ReplayBuffer.open`.
        **kwargs: further ones of ``TensorDictReplayBuffer``: ``batch_size``, ``sampler``, ``transform``, ``prefetch``.

    Attributes:
        store: the ``diskreplay.ReplayBuffer``, opened for reading.

    Raises NotEnoughDataError where the store holds no transition, InputError for a store of several agents, and what
    ``diskreplay.ReplayBuffer.open`` raises.
    """

    def __init__(
        self, path: PathLike, *, checkpoint: str | None = None, device: Any = "cpu", cache_bytes: int | None = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        store = Store.open(
            path,
            mode="r",
            checkpoint=checkpoint,
            cache_bytes=cache_bytes,
            view=Transition(),
            sampler=Uniform(),
            ragged=None,
        )
        with closed_on_failure(store):
            storage = DatasetStorage(store, torch.device(device))
            super().__init__(storage=storage, writer=ImmutableDatasetWriter(), **kwargs)
        self.store = store

    def close(self) -> None:
        """Close the store."""
        self.store.close()


class DatasetStorage(DiskStorage):
    """The transitions of a store that is open for reading, episode by episode."""

    def __init__(self, store: Store, device: torch.device) -> None:
        if AGENTS in store.engine.store.settings:
            raise InputError(
                f"the store at {store.path!r} is of several agents, which the dataset does not show; open it with "
                "MultiAgentReplayBuffer"
            )
        layout = stored_layout(store.provenance)
        self._of_slots, self._episodes = by_episodes(store)
        self._numbers_slots = layout is not None
        if not len(self._of_slots):
            raise NotEnoughDataError(f"the store at {store.path!r} holds no transition: record more steps")
        super().__init__(len(self._of_slots), device)
        self._rows = TensorDictReader(store, layout or standard(store.schema), self.device)

    def _reader(self) -> TensorDictReader:
        return self._rows

    def _ids(self, slots: Ids) -> Ids:
        return self._of_slots[slots]

    def _values(self, slots: Ids) -> Ids:
        """Return the numbers of slots if such a leaf was put into the store, else the numbers of episodes."""
        return slots if self._numbers_slots else self._episodes[slots]

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Raise ReadOnlyError: a dataset is only read."""
        raise ReadOnlyError("a DiskReplayDataset is read; add rows by a DiskReplayStorage, or diskreplay.ReplayBuffer")

    def _empty(self) -> None:
        self.set(0, None)

    def __len__(self) -> int:
        return len(self._of_slots)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dict: the store is where it was."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing."""

    def dumps(self, path: Any) -> None:
        """Write nothing."""

    def loads(self, path: Any) -> None:
        """Do nothing."""

    def __repr__(self) -> str:
        return f"DatasetStorage({self._rows.store.path!r}, len={len(self)})"
