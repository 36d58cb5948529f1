"""The copies of open buffers that pickle, deepcopy and spawned processes make: by path, and opened there.

A copy of a buffer with ``mode="r"`` stands at its checkpoint, or at the last commit; its view, and its sampler with its
priorities, are copies too. It draws batches of its own, as the child of a fork does: see
:mod:`diskreplay.engine.lifetime`. A buffer that writes has no copy: a stream has one writer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diskreplay.engine import lifetime
from diskreplay.engine.engine import Engine
from diskreplay.schema.columns import REWARD


def reduce(kind: Any, engine: Engine, options: dict[str, Any]) -> tuple[Any, ...]:
    """Return what pickle keeps of a buffer of a class; ``options`` are those that only its ``open`` has.

    Raises ClosedError for a closed buffer, TypeError for one that cannot be opened a second time.
    """
    with engine.lock:
        engine.check_open()
        if engine.streams.writer is not None:
            raise TypeError(
                f"a {kind.__name__} that writes cannot be copied or pickled: the stream has one writer. Open "
                f"{engine.path!r} there: with mode='r', or with stream='...' to write beside this one"
            )
        if (there := engine.store.files.elsewhere()) is None:
            raise TypeError(
                f"a {kind.__name__} over files of one's own (files=...) cannot be copied or pickled; open it where "
                "it is used"
            )
        checkpoint = None if engine.stays_at is None else engine.stays_at.name
        forms: dict[str, Any] = {"ragged": engine.forms} if engine.schema.ragged else {}
        reward = engine.streams.reward
        forms |= {"reward_column": reward} if reward != REWARD else {}
        forms["cache_bytes"] = engine.cache_bytes
        options = {**there, "mode": "r", "checkpoint": checkpoint, **forms, **options}
        return _open, (kind, engine.path, options, lifetime.next_generator(engine))


def _open(kind: Any, path: str, options: dict[str, Any], rng: np.random.Generator) -> Any:
    buffer = kind.open(path, **options)
    buffer.engine.rng.bit_generator.state = rng.bit_generator.state
    return buffer
