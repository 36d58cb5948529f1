"""Batches on a device, copied while the program learns from the ones before.

1. The loader's thread writes a batch into a *block*: memory that the system keeps in place (pinned), so that the device
   reads it by itself. To pin memory takes long, so there are two blocks, which are used again.
2. The copies go into a stream of their own, and an event after them. Before a block is written again, its event is
   waited for: until then the device reads it.
3. Whoever takes the batch has its own stream wait for the event, and not the program; and tells the memory of the batch
   that this stream uses it, too.

Of an observation and the next one that are stacks of consecutive frames, each frame is sent once, and both are made on
the device. That they are is seen by their bits, so that it holds whatever the view, padding or writer was.

This module imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from diskreplay.errors import InputError
from diskreplay.ragged import Lists, in_parts
from diskreplay.views.batch import Arrays, map_arrays, rebuilt

Array = NDArray[Any]
Tensor = Any


def sender_to(device: Any) -> Sender | Mover:
    """Return what sends batches to a device; raise InputError if torch cannot use it."""
    try:
        found = torch.empty(0, device=torch.device(device)).device
    except Exception as error:  # of many kinds: AssertionError where torch was built without CUDA
        raise InputError(f"device {device!r} cannot be used: {str(error).strip().partition(chr(10))[0]}") from error
    return Sender(Cuda(found)) if found.type == "cuda" else Mover(found)


class Mover:
    """Moves batches to a device that has no stream for it: the loader's thread waits for each array."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def sent(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Move batches as they are asked for."""
        return (_tensors(batch, lambda value: torch.as_tensor(value).to(self._device)) for batch in batches)

    def take(self, sent: Any) -> Any:
        """Return the batch."""
        return sent


class Event(Protocol):
    """A point in a device's work."""

    def synchronize(self) -> None:
        """Wait until the device has come there."""


class Link(Protocol):
    """The way to a device. What is asked for here is done later, in this order."""

    def block(self, size: int) -> Tensor:
        """Bytes ``(size,)`` in memory that the device reads by itself."""

    def copy(self, host: Tensor) -> Tensor:
        """Return a copy on the device of this tensor, which lies in a block."""

    def part(self, tensor: Tensor, axis: int, start: int, count: int) -> Tensor:
        """Return a copy of some entries along an axis of a tensor on the device."""

    def mark(self) -> Event:
        """Return the point after all that was asked for so far."""

    def hand_over(self, tensors: Iterable[Tensor], event: Event) -> None:
        """Let the calling thread use the tensors: the device does what it asks for after that point."""


class Cuda:
    """A device of CUDA or ROCm."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def block(self, size: int) -> Tensor:
        with torch.cuda.stream(self._stream):
            return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def copy(self, host: Tensor) -> Tensor:
        with torch.cuda.stream(self._stream):
            return host.to(self._device, non_blocking=True)

    def part(self, tensor: Tensor, axis: int, start: int, count: int) -> Tensor:
        with torch.cuda.stream(self._stream):
            return tensor.narrow(axis, start, count).clone(memory_format=torch.contiguous_format)

    def mark(self) -> Event:
        event: Event = torch.cuda.Event(blocking=True)
        self._stream.record_event(event)
        return event

    def hand_over(self, tensors: Iterable[Tensor], event: Event) -> None:
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for tensor in tensors:
            tensor.record_stream(stream)


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A batch of tensors that hold their values once the device has come to the event."""

    batch: Any
    tensors: list[Tensor]
    event: Event


class Sender:
    """Sends batches over a link. One thread sends, another takes."""

    BLOCKS = 2
    """One is written while the device reads the other."""
    ALIGNED = 64
    """Each array in a block begins at a multiple of so many bytes."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._blocks: list[tuple[Tensor, Event | None]] = [(torch.empty(0, dtype=torch.uint8), None)] * self.BLOCKS

    def send(self, batch: Any) -> Transfer:
        """Begin to send a batch: one of this package, or a mapping of tensors on the CPU."""
        batch = rebuilt(batch, in_parts(np.asarray))
        loads = _loads(batch)
        offsets = np.cumsum([0, *(-(-load.bytes // self.ALIGNED) * self.ALIGNED for load in loads)]).tolist()
        block = self._free_block(offsets[-1])
        tensors: dict[int, Tensor] = {}
        for load, offset in zip(loads, offsets, strict=False):
            host = block[offset : offset + load.bytes].view(torch.from_numpy(np.empty(0, load.dtype)).dtype)
            host = host.view(load.shape)
            load.write(host.numpy())
            tensors.update(load.arrive(self._link.copy(host), self._link))
        event = self._link.mark()
        self._blocks.append((block, event))
        return Transfer(_tensors(batch, lambda array: tensors[id(array)]), list(tensors.values()), event)

    def _free_block(self, size: int) -> Tensor:
        """Return a block of at least so many bytes, which the device does not read any more."""
        block, busy = self._blocks.pop(0)
        if busy is not None:
            busy.synchronize()
        return block if len(block) >= size else self._link.block(1 << (size - 1).bit_length())

    def sent(self, batches: Iterable[Any]) -> Iterator[Transfer]:
        """Send batches as they are asked for; at the end wait until the blocks are free."""
        try:
            for batch in batches:
                yield self.send(batch)
        finally:
            for _, busy in self._blocks:
                if busy is not None:
                    busy.synchronize()

    def take(self, sent: Transfer) -> Any:
        """Return the batch for the calling thread."""
        self._link.hand_over(sent.tensors, sent.event)
        return sent.batch


@dataclasses.dataclass(frozen=True)
class _Whole:
    """An array that is sent as it is."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype

    @property
    def bytes(self) -> int:
        return self.array.nbytes

    def write(self, out: Array) -> None:
        out[...] = self.array

    def arrive(self, tensor: Tensor, link: Link) -> dict[int, Tensor]:
        """Return the tensors for arrays, by the arrays' ids."""
        return {id(self.array): tensor}


@dataclasses.dataclass(frozen=True)
class _Stacks(_Whole):
    """Stacks of frames of which the next ones are the same, but for the oldest, and one more."""

    following: Array
    axis: int

    @property
    def count(self) -> int:
        return int(self.array.shape[self.axis])

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.array.shape)
        shape[self.axis] += 1
        return tuple(shape)

    @property
    def bytes(self) -> int:
        return self.array.nbytes // self.count * (self.count + 1)

    def write(self, out: Array) -> None:
        frames, newest = np.moveaxis(out, self.axis, 0), np.moveaxis(self.following, self.axis, 0)[-1]
        frames[:-1] = np.moveaxis(self.array, self.axis, 0)
        frames[-1] = newest

    def arrive(self, tensor: Tensor, link: Link) -> dict[int, Tensor]:
        obs, following = (link.part(tensor, self.axis, start, self.count) for start in (0, 1))
        return {id(self.array): obs, id(self.following): following}


def _loads(batch: Any) -> list[_Whole]:
    """Return what is to be sent of a batch of arrays."""
    fields = vars(batch) if isinstance(batch, Arrays) else batch
    loads: list[_Whole] = []
    for obs, following in zip(_leaves(fields.get("obs")), _leaves(fields.get("next_obs")), strict=False):
        axis = next((axis for axis in (1, -1) if _follow(obs, following, axis)), None)
        if axis is not None:
            loads.append(_Stacks(obs, following, axis))
    there = {id(array) for load in loads if isinstance(load, _Stacks) for array in (load.array, load.following)}
    return loads + [_Whole(array) for array in _leaves(fields) if id(array) not in there]


def _follow(obs: Array, following: Array, axis: int) -> bool:
    """Tell whether ``following`` is ``obs`` moved on by one entry along an axis, to the bit; both are ``(B, ...)``."""
    if obs.shape != following.shape or obs.dtype != following.dtype or obs.ndim < 3 or not obs.size:
        return False
    if obs.shape[axis] < 2 or obs.dtype.itemsize not in (1, 2, 4, 8):
        return False
    bits = f"u{obs.dtype.itemsize}"
    older, newer = np.moveaxis(obs.view(bits), axis, 1)[:, 1:], np.moveaxis(following.view(bits), axis, 1)[:, :-1]
    return np.array_equal(older[0], newer[0]) and np.array_equal(older, newer)  # most that differ do so at once


def _leaves(value: Any) -> list[Array]:
    """Return the arrays of a nested value."""
    found: list[Array] = []
    map_arrays(in_parts(found.append), value)
    return found


def _tensors(batch: Any, tensor: Any) -> Any:
    """Return a batch of tensors, nested ones for lists."""
    return rebuilt(batch, lambda value: value.nested(tensor) if isinstance(value, Lists) else tensor(value))
