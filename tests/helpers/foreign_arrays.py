"""Arrays as other libraries hand them over: what a buffer takes as numpy's, and what it must refuse."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import scipy.sparse
import torch
from helpers.refusals import Case, alike

from diskreplay.errors import InputError

Array = np.ndarray


class Elsewhere(torch.Tensor):
    """A tensor that numpy cannot see before it was detached and copied, as those on a GPU that require grad."""

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def numpy(self, *args: Any, **kwargs: Any) -> Array:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        assert not self.requires_grad, "detach first: the copy would be a part of the graph"
        return self.as_subclass(torch.Tensor)


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _read_only(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def _strided(array: Array) -> Array:
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 1] = array
    return wide[..., 1]


def _floats(kind: Callable[[Array], Any]) -> Callable[[Array], Any]:
    return lambda array: kind(array) if array.dtype.kind == "f" else None


TAKEN: dict[str, Callable[[Array], Any]] = {
    "requires grad": _floats(lambda array: _tensor(array).requires_grad_()),
    "in a graph": _floats(lambda array: _tensor(array).requires_grad_() * 1),
    "on a GPU": lambda array: _tensor(array).as_subclass(Elsewhere),
    "on a GPU, requires grad": _floats(lambda array: _tensor(array).as_subclass(Elsewhere).requires_grad_()),
    "bfloat16": _floats(lambda array: _tensor(array).bfloat16()),
    "bfloat16 of JAX": _floats(lambda array: array.astype(ml_dtypes.bfloat16)),
    "read-only": _read_only,
    "not contiguous": _strided,
    "nothing masked": lambda array: np.ma.array(array, mask=np.zeros(array.shape, bool)),
}
"""Values that are taken as the array is; each is None for an array that cannot be such."""
OTHERS = (
    "frame", "obs", "action", "reward", "done", "state", "value", "actions", "rewards", "terminals",
    "avail_actions", "filled", "reward_fn", "terminated_fn", "value_fn", "denormalize",
)  # fmt: skip
"""Names of what is no argument of a call, but an answer, or a part of one."""
RULES = "must be dense", "must have no masked values", "must be a tensor"
REFUSED: dict[str, Callable[[Array], Any]] = {
    "sparse": lambda array: _tensor(array).to_sparse(),
    "sparse, requires grad": _floats(lambda array: _tensor(array).to_sparse().requires_grad_()),
    "sparse rows": lambda array: _tensor(array).to_sparse_csr() if array.ndim == 2 else None,
    "scipy.sparse": lambda array: scipy.sparse.coo_array(array) if 0 < array.ndim < 3 else None,
    "masked": lambda array: np.ma.array(array, mask=np.ones(array.shape, bool)),
    "one masked": lambda array: np.ma.array(array, mask=np.arange(array.size).reshape(array.shape) == 0),
}
"""Values that are refused by the argument's name."""


def as_numpy(value: Any, dtype: Any) -> Array:
    """The array that a value is taken as."""
    if isinstance(value, torch.Tensor):
        value = value.detach().as_subclass(torch.Tensor)
        value = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    return np.array(np.asarray(value), dtype)


def leaves(value: Any) -> Iterator[tuple[Array, Callable[[Any], Any]]]:
    """The arrays in an argument, each with a function that puts another in its place."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            for array, put in leaves(part):
                yield array, lambda new, key=key, put=put: {**value, key: put(new)}
    elif isinstance(value, tuple):
        for at, part in enumerate(value):
            for array, put in leaves(part):
                yield array, lambda new, at=at, put=put: (*value[:at], put(new), *value[at + 1 :])
    elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
        for array, put in leaves(value[0]):
            yield array, lambda new, put=put: [put(new), *value[1:]]
    elif type(value) is float:
        yield np.array(value), lambda new: new
    elif isinstance(value, np.ndarray) and value.size and value.dtype.kind in "biuf":
        yield value, lambda new: new


def check_doors(
    case: Case, folder: pathlib.Path, rounds: int = 1, skip: Callable[..., bool] = lambda *at: False
) -> int:
    """Every array of every good call of a case in every kind, into one buffer; numpy's into its twin.

    Returns the number of doors, which are those arrays. ``skip(name of the call, number of the array in its argument,
    kind)`` leaves some out.
    """
    rng = np.random.default_rng(1)
    buffers = [case.make(folder / name) for name in ("foreign", "twin")]
    run = case.call or (lambda buffer, name, arguments: getattr(buffer, name)(*arguments))
    doors = set()
    for number in range(rounds):
        for kind, make in (*REFUSED.items(), *TAKEN.items()):
            for name, arguments in case.steps(rng, buffers[1]):
                for place, argument in enumerate(arguments):
                    for at, (array, put) in enumerate(leaves(argument)):
                        foreign = None if skip(name, at, kind) else make(array)
                        if foreign is None:
                            continue
                        doors.add((name, arguments[0] if isinstance(arguments[0], str) else "", place, at))
                        given = [*arguments[:place], put(foreign), *arguments[place + 1 :]]
                        where = f"{name}, argument {place}.{at}: {kind} of {array.dtype} {array.shape}"
                        if kind in REFUSED:
                            _refused(run, buffers[0], name, given, where)
                        else:
                            same = [*arguments[:place], put(as_numpy(foreign, array.dtype)), *arguments[place + 1 :]]
                            try:
                                result = run(buffers[0], name, given)
                            except Exception as error:
                                raise AssertionError(f"{where} gave {error!r}") from error
                            alike(result, run(buffers[1], name, same), where)
                if kind in REFUSED:  # what was refused has changed nothing
                    alike(*(run(buffer, name, list(arguments)) for buffer in buffers), name)
            if number == 0:
                alike(*map(case.seen, buffers), f"after {kind}")
        alike(*map(case.seen, buffers), f"after round {number}")
    for buffer in buffers:
        buffer.close()
    return len(doors)


def _refused(run: Any, buffer: Any, name: str, given: list[Any], where: str) -> None:
    known = [*inspect.signature(getattr(buffer, name, run)).parameters, *_keys(given), *OTHERS]
    try:
        run(buffer, name, given)
    except InputError as error:
        said = str(error)
    except Exception as error:
        raise AssertionError(f"{where} gave {error!r}") from error
    else:
        raise AssertionError(f"{where} was taken")
    assert any(one in said for one in known), f"{where}: {said} names no argument"
    assert any(rule in said for rule in RULES), f"{where}: {said}"


def _keys(value: Any) -> Iterator[str]:
    for part in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _keys(part)
    if isinstance(value, Mapping):
        yield from map(str, value)
