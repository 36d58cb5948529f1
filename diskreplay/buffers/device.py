"""Batches on a device of torch, copied while the program learns from the ones before.

The loader's thread copies each array into pinned memory, which a GPU reads by itself, and asks for the copies to the
GPU on a CUDA stream of its own. Whoever takes the batch has the current stream wait for them; the program does not
wait. torch keeps pinned memory until it has been read, and uses it again.

This module imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from diskreplay.errors import InputError
from diskreplay.schema.ragged import Lists
from diskreplay.views.batch import rebuilt


@dataclasses.dataclass(frozen=True)
class Sent:
    """A batch of tensors that hold their values once the device has come to the event; None: they hold them now."""

    batch: Any
    tensors: list[Any]
    event: Any


class Sender:
    """Sends batches to a device. One thread sends, another takes."""

    def __init__(self, device: Any) -> None:
        """Raise InputError if torch cannot use the device."""
        try:
            self._device = torch.empty(0, device=torch.device(device)).device
        except Exception as error:  # of many kinds: AssertionError where torch was built without CUDA
            reason = str(error).strip().partition("\n")[0]
            raise InputError(f"device {device!r} cannot be used: {reason}") from error
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def sent(self, batches: Iterable[Any]) -> Iterator[Sent]:
        """Begin to send each batch when it is asked for: one of this package, or a mapping of tensors on the CPU."""
        return (self._send(batch) for batch in batches)

    def _send(self, batch: Any) -> Sent:
        tensors: list[Any] = []

        def tensor(value: Any) -> Any:
            found = torch.as_tensor(value)
            pinned = found if self._stream is None else found.pin_memory()
            tensors.append(pinned.to(self._device, non_blocking=self._stream is not None))
            return tensors[-1]

        with torch.cuda.stream(self._stream):  # which does nothing for None
            moved = rebuilt(batch, lambda value: value.nested(tensor) if isinstance(value, Lists) else tensor(value))
            return Sent(moved, tensors, None if self._stream is None else self._stream.record_event())

    def take(self, sent: Sent) -> Any:
        """Return the batch for the calling thread."""
        if sent.event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(sent.event)
            for tensor in sent.tensors:
                tensor.record_stream(stream)
        return sent.batch
