"""Arguments of ``add`` as arrays of just the right shape and dtype, checked before anything changes.

A value of another dtype is taken where no bit of information is lost, and refused otherwise: what was stored is what
was given.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import InputError


class Slot:
    """The rule for one argument: ``(num_envs, *shape)``, or ``shape`` when there is one environment."""

    __slots__ = ("dtype", "high", "lossy", "low", "name", "num_envs", "scalars", "shape", "value_shape")

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], num_envs: int, lossy: bool = False
    ) -> None:
        self.name = name
        self.value_shape = shape
        self.shape = shape if num_envs == 1 else (num_envs, *shape)
        self.dtype = dtype
        self.num_envs = num_envs
        self.lossy = lossy
        # Scalars that need no conversion at all: they make up most calls with one environment.
        self.scalars: tuple[type, ...] = ()
        if self.shape == ():
            # A Python float takes on the column's precision, as everywhere in numpy.
            python = {"b": (bool,), "f": (float,)}.get(dtype.kind, ())
            self.scalars = (dtype.type, *python)
        self.low, self.high = 1, 0  # of Python integers: none
        if self.shape == () and dtype.kind in "iu":
            self.low, self.high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def check(self, value: Any) -> Any:
        """``value`` as an array of the slot's shape and dtype, without a copy where it is one; InputError otherwise."""
        kind = type(value)
        if kind in self.scalars or (kind is int and self.low <= value <= self.high):
            return value
        if type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self.shape:
            return value
        return self._convert(value, self.shape)

    def check_steps(self, values: Any, steps: int) -> NDArray[Any]:
        """``values`` of several steps, ``(steps, *shape)``, as :meth:`check` takes those of one."""
        return self._convert(values, (steps, *self.shape))

    def _convert(self, value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise InputError(f"{self.name}: must be an array of shape {shape}, got a ragged value") from error
        if array.dtype.kind not in "biufc":
            raise InputError(f"{self.name}: must be numbers of dtype {self.dtype}, got {array.dtype} ({value!r:.80})")
        if array.dtype.kind == "c" and self.dtype.kind != "c":
            raise InputError(f"{self.name}: must be real numbers of dtype {self.dtype}, got {array.dtype}")
        if shape == self.value_shape and array.shape == (1, *shape):
            array = array[0]  # one environment, which leads
        if array.shape != shape:
            raise InputError(f"{self.name}: must have shape {shape}, got {array.shape}")
        if array.dtype == self.dtype:
            return array
        with np.errstate(all="ignore"):
            converted = array.astype(self.dtype)
            weak = isinstance(value, list | tuple | float) and self.dtype.kind == "f"
            if not self.lossy and not weak and not _same_values(converted, array):
                raise InputError(
                    f"{self.name}: must have dtype {self.dtype}; the {array.dtype} values do not fit without loss: "
                    f"convert them with .astype, or declare the space with that dtype"
                )
        return converted


def _same_values(converted: NDArray[Any], given: NDArray[Any]) -> bool:
    """Whether a conversion lost nothing."""
    if not np.array_equal(converted, given, equal_nan=given.dtype.kind in "fc"):
        return False
    # numpy compares integers and floats as floats, in which neighbouring large integers are the same number.
    inexact = given.dtype.kind in "iu" and converted.dtype.kind in "fc" and given.itemsize > 4
    return not inexact or np.array_equal(converted.astype(given.dtype), given)


def check_reward(reward: Any, largest: float) -> None:
    """InputError where a reward is not finite, or is above the largest number of its column."""
    if type(reward) is not np.ndarray or reward.ndim == 0:
        if not abs(reward) <= largest:
            raise InputError(f"reward must be finite, and at most {largest:.3g}, got {reward}; nothing was added")
    elif not np.isfinite(reward).all():
        env = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise InputError(f"reward of environment {env} must be finite, got {reward[env]}; nothing was added")
