"""Each kernel's call where something is missing: an array that may be written to, or memory."""

from __future__ import annotations

import importlib.util
import inspect

import pytest
from helpers.fuzzing import fuzzed
from helpers.kernel_calls import CALLS, TWICE, WITHOUT

from diskreplay.native import core


def test_each_kernel_is_called() -> None:
    names = {name for name, value in vars(core).items() if inspect.isbuiltin(value) and name[0] != "_"}
    for kind in filter(inspect.isclass, vars(core).values()):
        calls = {name for name, value in vars(kind).items() if inspect.ismethoddescriptor(value)}
        names |= {f"{kind.__name__.lower()}_{name}" for name in calls if not name.startswith("_")}
    assert set(CALLS) - TWICE | WITHOUT == names


@pytest.mark.parametrize("name", CALLS)
def test_a_call_changes_nothing_but_what_is_said(name: str) -> None:
    call = CALLS[name]()
    before = call.contents()
    call()
    after = call.contents()
    changed = {array for array in before if before[array] != after[array]} - {"beside"}
    assert changed <= set(call.writes)
    assert changed or not call.writes


@pytest.mark.parametrize(
    ("name", "array"), [(name, array) for name, make in CALLS.items() for array in make().arrays()]
)
def test_a_read_only_array_is_refused_where_it_would_be_written_to(name: str, array: str) -> None:
    call = CALLS[name]()
    call.arrays()[array].flags.writeable = False
    before = call.contents()
    if array not in call.writes:
        call()
        return
    with pytest.raises(TypeError, match=r"^a read-only array of \S+ .* is not what the kernel takes$"):
        call()
    assert call.contents() == before


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("_testcapi") is None, reason="this Python has no _testcapi, by which allocations fail"
)
def test_without_memory_a_call_changes_nothing_or_does_it_all() -> None:
    failed = fuzzed("hostile.no_memory")
    assert failed.keys() == CALLS.keys()
    assert sum(failed.values()) >= 30
