"""Lets each allocation of each kernel's call fail once, in a process that has no other thread to which it could happen.

Prints how many allocations of each call failed.
"""

from __future__ import annotations

import _testcapi
import gc
import json
import sys

import numpy as np
from helpers.kernel_calls import CALLS, KernelCall

MOST = 40
"""More allocations than any call makes."""
TIMES = 100


def called_without(number: int, call: KernelCall) -> tuple[object, bool]:
    """What a call returns for whose allocation of this number there is no memory, and whether it said so."""
    function, arguments = call.function, tuple(call.given.values())
    refuse, restore = _testcapi.set_nomemory, _testcapi.remove_mem_hooks
    found, refused = None, False
    refuse(number, number + 1)
    try:
        found = function(*arguments)
    except MemoryError:
        refused = True
    finally:
        restore()
    return found, refused


def flat(found: object) -> object:
    """What a call returned, to be compared."""
    if isinstance(found, np.ndarray):
        return found.tobytes()
    return [flat(part) for part in found] if isinstance(found, tuple) else found


def references(call: KernelCall) -> list[int]:
    return [sys.getrefcount(array) for array in call.arrays().values()]


def check_unchanged(call: KernelCall, before: dict[str, object]) -> None:
    """Nothing changed, but for a batch that nobody sees."""
    after = call.contents()
    changed = {what for what in before if before[what] != after[what]}
    assert not changed or (call.new and changed <= set(call.writes)), f"{changed} changed"


def refusals(number: int, call: KernelCall, expected: object, done: dict[str, object]) -> int:
    """How often a call says that there is no memory for its allocation of this number, up to `TIMES`."""
    before, known, blocks = call.contents(), references(call), 0
    for times in range(2 * TIMES):
        if times == TIMES:  # until here the interpreter has kept what it keeps once
            gc.collect()
            blocks = sys.getallocatedblocks()
        found, refused = called_without(number, call)
        if not refused:  # which may come later, where the interpreter has room that was freed before
            assert flat(found) == expected
            assert done.items() <= call.contents().items(), "half of it was done"
            return times
        check_unchanged(call, before)
    gc.collect()
    assert sys.getallocatedblocks() - blocks < TIMES // 2, "it keeps memory"
    assert references(call) == known, "it keeps an array"
    return TIMES


def failures(name: str) -> int:
    """How many allocations of a call there was no memory for."""
    one, other = CALLS[name](), CALLS[name]()
    expected = flat(one())
    other()
    done = {what: content for what, content in one.contents().items() if other.contents()[what] == content}
    return sum(refusals(number, CALLS[name](), expected, done) > 0 for number in range(MOST))


if __name__ == "__main__":
    gc.freeze()  # what was imported is looked through by no collection
    print(json.dumps({name: failures(name) for name in CALLS}))
