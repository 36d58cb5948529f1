"""An open store in a forked process, and one that the program does not close.

In the child of a fork, a store with ``mode="r"`` draws batches of its own. Its generator is seeded from the state of
the parent's generator and from the number of forks of that store so far. So children differ from each other and from
their parent. The same seed, calls and forks give the same draws again. A store that was opened to write refuses there:
it would not notice what its parent commits and evicts later. Processes that are started without Python's fork (spawn,
forkserver, subprocess) have no copy of any open store.

The rows of a store that nobody closes are committed when its buffer or the interpreter ends
(:mod:`diskreplay.process.lifecycle`). The engine outlives the buffer, so no part of it, such as a lock or a thread, is
garbage before the rows are committed. A ResourceWarning, which Python does not show by default, says that the buffer
should have been closed, or how many rows are lost: if the store was moved or removed, or if a thread holds
``write_lock`` while the interpreter ends. Python prints in any case how many rows are lost by an error of the disk,
also if the program was told of that before.
"""

from __future__ import annotations

import functools
import warnings
from typing import NoReturn

import numpy as np

from diskreplay.engine.engine import Engine
from diskreplay.engine.generator import reseeded
from diskreplay.errors import SamplerWarning, StateError
from diskreplay.process import lifecycle

EXIT_SECONDS = 10.0
"""The most seconds for which the end of the interpreter waits for a thread that adds or commits."""


def watch(owner: object, engine: Engine) -> None:
    """Make forks safe for an open store, and have its rows committed when its buffer, ``owner``, ends unclosed."""
    lifecycle.inherit(engine, (engine.lock, engine.streams.cache.lock), _forked)
    if engine.streams.writer is not None:
        engine.call_off = lifecycle.when_forgotten(owner, functools.partial(_end, engine))


def opened() -> list[Engine]:
    """Return the engines of this process that are open."""
    return [engine for engine in lifecycle.inherited() if not engine.gate.closed]


def next_generator(engine: Engine) -> np.random.Generator:
    """Return the generator for the next copy of a store; the copy counts as a fork."""
    engine.copies += 1
    return reseeded(engine.rng, lifecycle.forks + engine.copies)


def give_up(engine: Engine) -> None:
    """Close a store that is about to be removed, without a commit."""
    with engine.write_lock:
        if not engine.gate.closed:
            engine.finish()


def _forked(engine: Engine, whole: bool) -> None:
    """Make a store usable in a forked child, or have it refuse."""
    if not engine.write_lock.owned:
        engine.write_lock.renew()
    if engine.streams.writer is not None:
        _refuse(engine, "this process was forked from the one that writes the stream")
    elif not whole:
        _refuse(engine, "this process was forked while another thread was using the buffer")
    else:
        engine.rng.bit_generator.state = reseeded(engine.rng, lifecycle.forks + engine.copies).bit_generator.state
    engine.copies = -lifecycle.forks


def _refuse(engine: Engine, why: str) -> None:
    """Have every later call raise StateError, and also every read from disk of a pass that has begun."""
    engine.gate.refused = True
    engine.refused = f"{why}: open the store {engine.path!r} here, with mode='r' or a stream of its own"

    def refuse() -> NoReturn:
        raise StateError(engine.refused)

    for stream in engine.streams:
        for column in stream.disk.columns.values():
            column.still_current = refuse


def _end(engine: Engine, ending: bool) -> None:
    writer = engine.streams.writer
    if engine.gate.closed or engine.gate.ending or writer is None or not writer.held:
        return
    # No other thread can hold the locks of a forgotten buffer.
    if not engine.write_lock.acquire(timeout=EXIT_SECONDS if ending else 0):
        _warn_of_loss(engine, "a thread still holds the buffer's lock")
        return
    try:
        engine.commits.wait()
        if not ending or writer.failure is not None:
            engine.close()
            _warn(f"the buffer {engine.path!r} was not closed; now it is, and its rows are committed")
        else:
            engine.commit()  # the store stays open, for threads and exit handlers that still run
            if engine.companion is None and (why := engine.save_sampler()):
                warnings.warn(why, SamplerWarning, stacklevel=2)
    except StateError as error:
        _warn_of_loss(engine, str(error))
    finally:
        engine.write_lock.release()


def _warn_of_loss(engine: Engine, why: str) -> None:
    writer = engine.streams.writer
    rows = writer.end - writer.commit_record.end if writer else 0
    _warn(f"the buffer {engine.path!r} was not closed, and {rows} rows are lost: {why}")


def _warn(text: str) -> None:
    warnings.warn(text, ResourceWarning, stacklevel=3)
