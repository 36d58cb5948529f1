"""Buffers in square brackets and in loops: what works, and a sentence for what does not."""

from __future__ import annotations

from typing import Any, NoReturn


class Subscripted:
    """A class with ``get`` that also takes ``rb[ids]``, and says what to use in place of ``for x in rb``."""

    _walked_by = (
        "rb.sample(256) gives a random batch, rb.shuffled(256) batches of all transitions, each once, and rb.items() "
        "the ids of all in order, as in rb[rb.items()[:8]]"
    )
    """The methods that go through a buffer of this class, in words."""

    def get(self, index: Any) -> Any:
        """Return the transitions that ``index``, int64 ``(B,)`` of some batch, names."""
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        """Return the same as ``get(index)``; raise TypeError for a slice or a name."""
        if isinstance(index, slice | str | tuple):
            raise TypeError(
                f"a {type(self).__name__} takes ids, as rb[batch.index], and not {index!r:.80}: {self._walked_by}"
            )
        return self.get(index)

    def __iter__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} is not iterated: {self._walked_by}")
