"""Bad input into one buffer of another library, and not into its twin: both stay alike.

What is spoiled is one argument of a good call, each in its turn: another shape, another type, numbers that do not fit,
a key too many or too few. What is refused must be refused by an error of this package, and must have changed nothing;
what is taken all the same goes into the twin too.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import pathlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diskreplay.errors import DiskReplayError

Call = tuple[str, list[Any]]
"""The name of a call, and its arguments."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A buffer, and how it is used.

    Attributes:
        make: opens the buffer at a path, or makes it.
        steps: good calls, from a random generator and a buffer.
        look: all that can be seen of a buffer, nested.
        call: does a call; a method of that name if None.
        open_ended: whether the first call says what all others must be like: then what it takes is left out there.
        taken: numbers of arguments by the name of a call of which nothing is refused.
    """

    make: Callable[[pathlib.Path | None], Any]
    steps: Callable[[np.random.Generator, Any], list[Call]]
    look: Callable[[Any], Any]
    call: Callable[[Any, str, list[Any]], Any] | None = None
    open_ended: bool = False
    taken: Mapping[str, set[int]] = dataclasses.field(default_factory=dict)

    def do(self, buffer: Any, name: str, arguments: list[Any]) -> Any:
        given = copy.deepcopy(arguments)
        return getattr(buffer, name)(*given) if self.call is None else self.call(buffer, name, given)

    def seen(self, buffer: Any) -> Any:
        np.random.seed(7)
        random.seed(7)
        return self.look(buffer)


def check(case: Case, folder: pathlib.Path, seed: int, rounds: int, each: int) -> None:
    """Plays ``rounds`` of good calls, with ``each`` bad ones for each argument before; opens both again half-way."""
    rng = np.random.default_rng(seed)
    paths = folder / "spoiled", folder / "twin"
    buffers = [case.make(path) for path in paths]
    refused: collections.Counter[tuple[str, int]] = collections.Counter()
    tried: collections.Counter[tuple[str, int]] = collections.Counter()
    for number in range(rounds):
        if number == rounds // 2:
            buffers = _again(case, buffers, paths)
        for name, arguments in case.steps(rng, buffers[1]):
            for place in range(len(arguments)):
                for _ in range(each):
                    bad = [*arguments]
                    bad[place] = spoiled(rng, copy.deepcopy(arguments[place]))
                    scratch = folder / f"scratch-{len(list(folder.iterdir()))}"
                    if number == 0 and case.open_ended and not _is_refused(case, scratch, name, bad):
                        continue
                    tried[name, place] += 1
                    try:
                        result = case.do(buffers[0], name, bad)
                    except DiskReplayError:
                        refused[name, place] += 1
                    except Exception as error:
                        raise AssertionError(f"{name}, argument {place}: {bad[place]!r:.200} gave {error!r}") from error
                    else:
                        alike(result, case.do(buffers[1], name, bad), f"{name} with {bad[place]!r:.200}")
            alike(*[case.do(buffer, name, arguments) for buffer in buffers], name)
        alike(*map(case.seen, buffers), f"after round {number}")
    _again(case, buffers, paths)
    never = [at for at in tried if not refused[at] and at[1] not in case.taken.get(at[0], ())]
    assert not never, f"of these nothing was refused: {never}"


def _again(case: Case, buffers: list[Any], paths: tuple[pathlib.Path, ...]) -> list[Any]:
    """The buffers, closed and opened again; both are as they were to each other."""
    for buffer in buffers:
        buffer.close()
    buffers.clear()
    found = [case.make(path) for path in paths]
    alike(*map(case.seen, found), "opened again")
    return found


def _is_refused(case: Case, path: pathlib.Path, name: str, arguments: list[Any]) -> bool:
    buffer = case.make(path)
    try:
        case.do(buffer, name, arguments)
    except Exception:
        return True
    finally:
        buffer.close()
    return False


# Bad values

JUNK: tuple[Any, ...] = (
    None,
    "abc",
    [],
    {},
    [[1.0], [2.0, 3.0]],
    object,
    {"a": 1},
    1j,
    float("nan"),
    1e300,
    -7,
    10**25,
)


def spoiled(rng: np.random.Generator, value: Any) -> Any:
    """Something else than a value."""
    if rng.random() < 0.2:
        return JUNK[rng.integers(len(JUNK))]
    if isinstance(value, dict) and value:
        return _spoiled_dict(rng, value)
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        at = int(rng.integers(len(value)))
        ways = [value[:-1], [*value, value[0]], [*value[:at], spoiled(rng, value[at]), *value[at + 1 :]]]
        return ways[rng.integers(len(ways))]
    return _spoiled_array(rng, np.asarray(value))


def _spoiled_dict(rng: np.random.Generator, value: dict[Any, Any]) -> Any:
    key = list(value)[rng.integers(len(value))]
    if rng.random() < 0.3:
        return {name: part for name, part in value.items() if name != key}
    return {**value, key: spoiled(rng, value[key])}


def _spoiled_array(rng: np.random.Generator, array: np.ndarray) -> Any:
    some = np.array(array, copy=True)
    ways: list[Callable[[], Any]] = [
        lambda: np.stack([array, array]),
        lambda: np.zeros((7, 7), array.dtype),
        lambda: np.broadcast_to(array[..., None], (*array.shape, 3)),
        lambda: array.astype(str),
        lambda: array.astype(complex) + 1j,
        lambda: np.full(array.shape, None),
        lambda: _with(some, np.nan),
        lambda: _with(some, np.inf),
        lambda: _with(some, 1e300),
        lambda: _with(some, -3),
        lambda: _with(some, 0.5),
        lambda: _with(some, 99_999),
    ]
    if array.ndim:
        ways += [lambda: array[:-1], lambda: np.concatenate([array, array]), lambda: array[:0], lambda: array.tolist()]
    return ways[rng.integers(len(ways))]()


def _with(array: np.ndarray, number: float) -> np.ndarray:
    changed = array.astype(np.float64)
    changed.flat[:1] = number
    return changed


# Alike


def alike(one: Any, other: Any, where: str) -> None:
    """AssertionError where two nested values differ."""
    if isinstance(one, Mapping):
        assert one.keys() == other.keys(), where
        for key in one:
            alike(one[key], other[key], f"{where}: {key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), f"{where}: {len(one)} and {len(other)}"
        for number, pair in enumerate(zip(one, other, strict=True)):
            alike(*pair, f"{where}: {number}")
    elif dataclasses.is_dataclass(one) and not isinstance(one, type):
        alike(vars(one), vars(other), where)
    else:
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other), where)


def rows_of(store: Any) -> Any:
    """All that a store holds: its rows, episodes and checkpoints; None for no store."""
    if store is None:
        return None
    items = store.items()
    rows = vars(store.get(items)) if len(items) else {}
    episodes = [(e.start, e.stop, e.env, e.ended, e.total_reward, sorted(e.facts.items())) for e in store.episodes]
    return {"items": items, "rows": _arrays(rows), "episodes": [repr(each) for each in episodes]}


def _arrays(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _arrays(part) for key, part in value.items() if part is not None}
    return value
