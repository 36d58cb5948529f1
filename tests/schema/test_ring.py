"""Rings of values by ids that only grow, beside a plain dict."""

from __future__ import annotations

import numpy as np
from helpers.effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from diskreplay.schema.ring import Ring

operations = st.lists(
    st.tuples(st.sampled_from(["extend", "trim", "restart"]), st.integers(0, 9)), min_size=1, max_size=40
)


@given(operations, st.integers(1, 8))
@settings(max_examples=examples(200), deadline=None)
def test_values_stay_with_their_ids(steps: list[tuple[str, int]], length: int) -> None:
    ring, held, begin, end, fresh = Ring((2,), np.int64, length), {}, 0, 0, 0
    for operation, count in steps:
        if operation == "extend":
            ring.extend(np.arange(fresh, fresh + 2 * count).reshape(count, 2))
            for at in range(count):
                held[end + at] = [fresh + 2 * at, fresh + 2 * at + 1]
            end, fresh = end + count, fresh + 2 * count
        elif operation == "trim":
            begin = min(begin + count, end)
            ring.trim(begin)
        else:
            begin = end = end + count
            ring.restart(end)
        assert (ring.begin, ring.end) == (begin, end)
        ids = np.arange(begin, end)
        want = [held[at] for at in range(begin, end)]
        assert ring.take(ids).tolist() == want == ring.span(begin, end).tolist()
