"""The columns that come from ``info``, and what stands where the info of a step does not have one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.checks import Mask, arrays, first_axis
from diskreplay.engine.inputs import NO_EXCEPTIONS, InputExceptions, column_slots
from diskreplay.errors import InputError, MisuseWarning, warn_outside
from diskreplay.schema.columns import Schema

SEED = "seed"
"""The name of the column of ``seeds=True``, which does not come from ``info``."""
UNSEEN = (
    "no info of the first episode had {}: these columns hold their defaults, as at each step whose info lacks them. "
    "Mend the names in columns= if they are wrong; other values for such steps are defaults={{name: value}}"
)
NO_FINALS = (
    "info has {0!r}, but no 'final_info', and that of an environment which has reset in the same step is of its new "
    "episode: {0!r} of the last step of each episode is the default"
)


class InfoColumns:
    """The values of one store's columns that come from ``info``.

    Args:
        schema: the store's.
        seeds: True if the column :data:`SEED` is not one of them.
        defaults: values for the steps whose info lacks a column, by its name; if there is none NaN, 0, False, or a row
            without items.

    Raises InputError if a default does not fit its column, or has none.
    """

    def __init__(self, schema: Schema, seeds: bool, defaults: Mapping[str, Any] | None) -> None:
        if not isinstance(defaults, Mapping | None):
            raise InputError(f"defaults must be a mapping of columns to values, got {defaults!r:.100}")
        rules, given = column_slots(schema, 1, NO_EXCEPTIONS), dict(defaults or {})
        self._ragged = schema.ragged
        self._slots = column_slots(schema, 1, InputExceptions(anything=True))  # add looks for NaN
        self._defaults: dict[str, Any] = {}
        for column in schema.extra_columns:
            name = column.name
            if name in given and not (seeds and name == SEED):
                try:
                    value = rules[name].check(self._plain(name, given.pop(name)))
                except InputError as error:
                    raise InputError(f"defaults of {error}") from error
                self._defaults[name] = np.array(value, None if name in self._ragged else column.dtype)
            elif name in self._ragged:
                items = self._ragged[name].items
                self._defaults[name] = np.empty((0, *items.shape), items.dtype)
            elif not (seeds and name == SEED):
                self._defaults[name] = np.full(column.shape, np.nan if column.dtype.kind in "fc" else 0, column.dtype)
        self.names = list(self._defaults)
        if given:
            raise InputError(f"defaults has {list(given)}, but the columns that come from info are {self.names}")
        self._unseen = set(self.names)
        """The columns that no info had, until an episode has ended."""
        self._stepped = self._told = False

    def of_step(self, info: Any) -> dict[str, Any]:
        """Return the values of one environment's step; raise InputError if ``info`` is no mapping."""
        if not self.names:
            return {}
        if not isinstance(info, Mapping):
            raise InputError(f"info of a step must be a mapping, from which {self.names} come, got {info!r:.80}")
        self._stepped = True
        if self._unseen:
            self._unseen.difference_update(info)
        return {
            name: self._plain(name, info[name]) if name in info else blank for name, blank in self._defaults.items()
        }

    def of_steps(self, info: Mapping[str, Any], valid: Mask, finals: Mask) -> dict[str, Any]:
        """Return the values ``(num_envs, *shape)`` of a vector environment's step; lists of those of ragged columns.

        Args:
            info: the infos, each value with a mask beside it that tells which environments have it, or without.
            valid: which environments made a transition, bool ``(num_envs,)``.
            finals: which environments have reset themselves in this step, so that ``final_info`` has their values.

        Raises InputError for values that are not one for each environment, or do not fit the column.
        """
        self._stepped = True
        return {name: self._values(info, name, valid, finals) for name in self.names}

    def end_episode(self) -> None:
        """Note that an episode is over. After the first one a MisuseWarning names the columns that no info had."""
        if self._stepped:
            unseen, self._unseen = sorted(self._unseen), set()
            if unseen:
                warn_outside(UNSEEN.format(unseen), MisuseWarning)

    def _values(self, info: Mapping[str, Any], name: str, valid: Mask, finals: Mask) -> Any:
        values, has = self._info_values(info, name, len(valid))
        if finals.any():
            if has.any() and "final_info" not in info and not self._told:
                self._told = True
                warn_outside(NO_FINALS.format(name), MisuseWarning)
            final = info.get("final_info")
            last, there = self._info_values({} if final is None else final, name, len(valid))
            has = np.where(finals, there, has)
            if values.shape != last.shape:
                values, last = (np.fromiter(one, object, len(valid)) for one in (values, last))
            values = np.where(finals.reshape(-1, *[1] * (values.ndim - 1)), last, values)
        has = has & valid
        if has.any():
            self._unseen.discard(name)
        if name in self._ragged:
            return [
                self._plain(name, value) if there else self._defaults[name]
                for value, there in zip(values.tolist(), has.tolist(), strict=True)
            ]
        default = self._defaults[name]
        filled = np.broadcast_to(default, (len(valid), *default.shape)).copy()
        if has.any():
            given = arrays(name, values[has].tolist()) if values.dtype == object else values[has]
            filled[has] = self._slots[name].check_steps(given, int(np.count_nonzero(has)))
        return filled

    def _info_values(self, info: Any, name: str, num_envs: int) -> tuple[NDArray[Any], Mask]:
        if isinstance(info, Mapping):
            given: Any = [None] * num_envs if name not in info else arrays(name, info[name])
            mask: Any = (
                np.full(num_envs, name in info) if (told := info.get(f"_{name}")) is None else arrays(f"_{name}", told)
            )
        else:  # a mapping for each environment that has one
            each = [one if isinstance(one, Mapping) else {} for one in info] if first_axis(info) > 0 else []
            given, mask = [one.get(name) for one in each], [name in one for one in each]
        has = np.asarray(mask, bool)
        if first_axis(given) != num_envs or has.shape != (num_envs,) or isinstance(given, Mapping | str):
            raise InputError(
                f"info[{name!r}] must have an entry for each of {num_envs} environments, and so must its mask, got "
                f"{given!r:.80}"
            )
        whole = isinstance(given, np.ndarray) and name not in self._ragged
        return given if whole else np.fromiter(given, object, num_envs), has

    def _plain(self, name: str, value: Any) -> Any:
        """Return a value of a column as ``add`` takes it: a text as its code points, a tensor as an array."""
        if isinstance(value, str) and name in self._ragged and self._ragged[name].items.dtype == np.int32:
            return np.frombuffer(value.encode("utf-32-le", "surrogatepass"), "<i4")
        return arrays(name, value)
