"""The rules that turn the arguments of ``add`` into arrays of the right shape and dtype, before anything changes.

1. A value of another dtype is converted if no bit of information is lost, and refused otherwise, so the store holds
   what was given. Python's floats, and lists of them, are rounded to the column's precision, as everywhere in numpy.
   But a finite number never becomes infinite.
2. Values of discrete spaces must lie in them. A Box's bounds are not checked, because many environments leave them.
3. NaN and infinity are accepted, unless the store was made with ``finite=True``.
4. Rules 2 and 3 hold only for transitions. A row that is not a transition may hold anything that its dtype can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Text

from diskreplay.checks import Array, arrays, check_array
from diskreplay.errors import InputError
from diskreplay.schema import spaces
from diskreplay.schema.columns import Column, RaggedColumn, Schema
from diskreplay.schema.ragged import Lists, Padded, rows_of
from diskreplay.video import wrong as wrong_video


class InputExceptions(NamedTuple):
    """The exceptions from this module's rules that a kind of buffer allows.

    Attributes:
        anything: True to accept, for copies, all values that an existing store may hold: those outside of discrete
            spaces, which older versions accepted, and NaN with ``finite=True``, which ``unknown`` allows.
        unknown: a column in which NaN means that a value is not known yet, also with ``finite=True``.
        alive: the column, bool ``(num_envs, n_agents)``, that says which agents act. The other agents' actions are not
            checked. Nor are the discrete observations of any agent, because an agent out of the game has none.
        agents: the observation leaf of the agents, or the group of their leaves.
    """

    anything: bool = False
    unknown: str | None = None
    alive: str | None = None
    agents: str | None = None

    def finite(self, schema: Schema, column: str = "") -> bool:
        """Tell whether the values of a column must be finite."""
        return schema.finite and not self.anything and (not column or column != self.unknown)

    def looks_at(self, leaf: str) -> bool:
        """Tell whether the values of an observation leaf must lie in its discrete space."""
        return not self.anything and (self.agents is None or not f"{leaf}/".startswith(f"{self.agents}/"))


NO_EXCEPTIONS = InputExceptions()


class Slot:
    """The rule for one argument: ``(num_envs, *shape)``, or ``shape`` when there is one environment.

    Args:
        name: the argument's name, for messages.
        shape, dtype: the shape and dtype of one value.
        num_envs: the number of environments.
        lossy: True if values are rounded to the dtype.
        finite: True if values must be finite.
        choices: the least and the largest value, one pair for all elements or for each; None for any.
    """

    def __init__(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], num_envs: int, lossy: bool = False,
        finite: bool = False, choices: tuple[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.value_shape = shape
        self.shape = shape if num_envs == 1 else (num_envs, *shape)
        self.dtype = dtype
        self.num_envs = num_envs
        self.lossy = lossy
        self.finite = finite and dtype.kind in "fc"
        self.choices = choices
        self.least: Any = None
        self.most: Any = None
        self.unsigned: np.dtype[Any] | None = None
        if choices is not None:
            self.least, self.most = (_bound(bound, dtype) for bound in choices)
            if not np.any(self.least):
                # As unsigned integers, negative numbers are larger than all others: one comparison checks both bounds.
                self.unsigned = np.dtype(f"u{dtype.itemsize}")
                self.most = self.most.view(self.unsigned)
        self.bounds: dict[type, tuple[Any, Any]] = {}
        """The bounds, by type, within which a number needs no conversion."""
        if self.shape == () and dtype.kind in "bfiu":
            python: type = {"b": bool, "f": float}.get(dtype.kind, int)
            bounds: tuple[Any, Any] = (False, True)
            if dtype.kind != "b":
                limits: Any = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
                bounds = (limits.min, limits.max) if choices is None else tuple(_bound(each, dtype) for each in choices)
            low, high = bounds
            kinds = python, dtype.type, *([np.float64] if lossy and python is float else [])
            self.bounds = {kind: (kind(low), kind(high)) for kind in kinds}

    def check(self, value: Any, counts: Any = True) -> Any:
        """Return ``value`` as an array of the slot's shape and dtype, itself if it is one; raise InputError otherwise.

        Args:
            counts: True where the value belongs to a transition: a bool, or an array of the value's first axes.
        """
        bounds = self.bounds.get(type(value))
        if bounds is not None and bounds[0] <= value <= bounds[1]:
            return value
        fits = type(value) is np.ndarray and value.dtype == self.dtype and value.shape == self.shape
        array = value if fits else self._convert(value, self.shape)
        if self.finite or self.choices is not None:
            self._check_values(array, counts)
        return array

    def check_steps(self, values: Any, steps: int, counts: Any = True) -> Array:
        """Return ``values`` of several steps, ``(steps, *shape)``, checked as :meth:`check` does for one step."""
        array = self._convert(values, (steps, *self.shape))
        if self.finite or self.choices is not None:
            self._check_values(array, counts)
        return array

    def _remedy(self, given: tuple[int, ...]) -> str:
        """Return advice if the value has an axis of environments too many, or lacks it."""
        if self.shape == self.value_shape and len(given) > 1 and given[1:] == self.shape:
            return f"; for {given[0]} environments in lockstep create the store with num_envs={given[0]}"
        if self.shape != self.value_shape and given == self.value_shape and given[:1] == self.shape[:1]:
            return "; spaces are those of one environment: single_observation_space, single_action_space"
        return ""

    def _convert(self, value: Any, shape: tuple[int, ...]) -> Array:
        own = type(value) is np.ndarray and value.dtype.isbuiltin == 1
        array = value if own else check_array(self.name, value)
        if array.dtype.kind not in "biufc":
            raise InputError(f"{self.name}: must be numbers of dtype {self.dtype}, got {array.dtype} ({value!r:.80})")
        if array.dtype.kind == "c" and self.dtype.kind != "c":
            raise InputError(f"{self.name}: must be real numbers of dtype {self.dtype}, got {array.dtype}")
        if shape == self.value_shape and array.shape == (1, *shape):
            array = array[0]  # the first axis is the one environment
        if array.shape != shape:
            remedy = self._remedy(array.shape) if shape == self.shape else ""
            raise InputError(f"{self.name}: must have shape {shape}, got {array.shape}{remedy}")
        if array.dtype == self.dtype:
            return array
        with np.errstate(all="ignore"):
            converted = array.astype(self.dtype)
            check_range(self.name, array, converted)
            if self.lossy:
                return converted
            weak = isinstance(value, list | tuple | float) and self.dtype.kind == "f"
            if not weak and not _same_values(converted, array):
                raise InputError(
                    f"{self.name}: must have dtype {self.dtype}; the {array.dtype} values do not fit without loss: "
                    f"convert them with .astype, or declare the space with that dtype"
                )
        return converted

    def _check_values(self, array: Array, counts: Any) -> None:
        """Raise InputError if an element that counts is not finite, or not one of the choices."""
        if self.choices is None:
            wrong = ~np.isfinite(array)
        elif self.unsigned is not None:
            wrong = array.view(self.unsigned) > self.most
        else:
            wrong = (array < self.least) | (array > self.most)
        if not np.count_nonzero(wrong):
            return
        counts = np.asarray(counts)
        at = np.argwhere(wrong & counts.reshape(counts.shape + (1,) * (wrong.ndim - counts.ndim)))
        if not len(at):
            return
        place = tuple(at[0].tolist())
        value, where = array[place], f" at {list(place)}" if place else ""
        if self.choices is None:
            raise InputError(
                f"{self.name}: must be finite, as the store was made with finite=True, got {value}{where} of dtype "
                f"{self.dtype}; nothing was added: leave the step out, or add it with valid=False"
            )
        element = place[len(place) - len(self.value_shape) :]
        bounds = (_bound(bound, self.dtype) for bound in self.choices)
        low, high = (np.broadcast_to(bound, self.value_shape)[element] for bound in bounds)
        raise InputError(
            f"{self.name}: must lie in its space, which goes from {low} to {high} ({self.dtype}), got {value}{where}; "
            "nothing was added: correct it, add the step with valid=False, or make the store with a wider space"
        )


class ItemsSlot:
    """The rule for one argument of a ragged column: a row is ``(n, *item_shape)``, or a text.

    Args:
        name: of the argument, for messages.
        ragged: the column.
        item: the rule for one item.
        num_envs: environments; of several the rows are given as a list.
        text: the space of texts, if the rows are texts.
    """

    def __init__(self, name: str, ragged: RaggedColumn, item: Slot, num_envs: int, text: Text | None) -> None:
        self.name = name
        self.num_envs = num_envs
        self._most = ragged.most
        self._video = ragged.video
        self._item = item
        self._text = text
        self._wanted = f"(n, {', '.join(map(str, item.value_shape))})" if item.value_shape else "(n,)"

    def check(self, value: Any, counts: Any = True) -> Any:
        """Return a row as an array ``(n, *item_shape)``, of several environments a list of them; raise InputError."""
        if self.num_envs == 1:
            return self._row(value, bool(np.all(counts)))
        rows = self._rows(value, self.num_envs, "environments")
        each = np.broadcast_to(counts, self.num_envs).tolist()
        return [self._row(row, valid) for row, valid in zip(rows, each, strict=True)]

    def check_steps(self, values: Any, steps: int, counts: Any = True) -> list[Any]:
        """Return the rows of several steps, as :meth:`check` takes those of one."""
        if self.num_envs > 1 and isinstance(values, Lists | Padded):
            flat = self._rows(values, steps * self.num_envs, "steps and environments")
            values = [flat[at : at + self.num_envs] for at in range(0, len(flat), self.num_envs)]
        each = np.broadcast_to(counts, (steps, *np.shape(counts)[1:]))
        return [self.check(*one) for one in zip(self._rows(values, steps, "steps"), each, strict=True)]

    def _rows(self, given: Any, count: int, what: str) -> Sequence[Any]:
        if isinstance(given, Lists | Padded):
            given = rows_of(given, self.name)
        given = arrays(self.name, given)
        if _is_single(given):
            raise InputError(f"{self.name}: must be {count} rows, one of each of the {what}, got {given!r:.80}")
        if len(given) != count:
            raise InputError(f"{self.name}: must be {count} rows, one of each of the {what}, got {len(given)}")
        return list(given)

    def _row(self, value: Any, counts: bool) -> Array:
        shape, dtype = self._item.value_shape, self._item.dtype
        value = arrays(self.name, value)
        if self._video is not None:
            value = self._packets(value, counts)
        if value is None:  # as the edges of a graph without any
            return np.empty((0, *shape), dtype)
        if self._text is not None and isinstance(value, str):
            if counts and value not in self._text:
                raise InputError(f"{self.name}: must be a text of {self._text}, got {value!r:.80}; nothing was added")
            value = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), "<i4").astype(dtype)
        if _is_single(value):
            coded = "; of a text give the code points" if isinstance(value, str) else ""
            raise InputError(f"{self.name}: must be an array {self._wanted} of {dtype}, got {value!r:.80}{coded}")
        if isinstance(value, np.ndarray) and value.shape[1:] != shape:
            raise InputError(f"{self.name}: must have shape {self._wanted}, its items one by one, got {value.shape}")
        if len(value) > self._most:
            raise InputError(
                f"{self.name}: a row may have {self._most:,} items, got {len(value):,}; nothing was added: cut it, or "
                "make the store with a longer one"
            )
        if not len(value):
            return np.empty((0, *shape), dtype)
        return self._item.check_steps(value, len(value), counts)

    def _packets(self, value: Any, counts: bool) -> Array:
        """Return the records of a row of a video column, which must be one group's, up to the row's frame."""
        assert self._video is not None
        if isinstance(value, bytes | bytearray | memoryview):
            value = np.frombuffer(value, np.uint8)
        if np.shape(value)[-3:] == self._video.shape:
            raise InputError(
                f"{self.name}: holds video, so that a row is the records of its packets, and not the frame itself: "
                "encode frames with diskreplay.VideoEncoder, or have diskreplay.Record do it"
            )
        if value is None or (isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1):
            row: Array = np.empty(0, np.uint8) if value is None else value
            if counts and not len(row):
                raise InputError(f"{self.name}: a transition must have a frame, got no packets; nothing was added")
            if (problem := wrong_video(self._video, row)) is not None:
                raise InputError(f"{self.name}: {problem}; nothing was added")
            return row
        raise InputError(f"{self.name}: must be bytes, or an array (n,) of uint8, of records, got {value!r:.80}")


def _is_single(value: Any) -> bool:
    """Tell whether a value is no row of items: a text, a number, or an array without axes, which has no length."""
    return isinstance(value, str) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0


def _bound(bound: Any, dtype: np.dtype[Any]) -> Any:
    """Return a bound of the choices in the values' own dtype, in which numpy compares fastest."""
    limits = np.iinfo(dtype)
    return np.clip(np.asarray(bound), limits.min, limits.max).astype(dtype)[()]


AnySlot = Slot | ItemsSlot


def _slot(
    schema: Schema, prefix: str, column: Column, shape: tuple[int, ...], num_envs: int, finite: bool, space: Any,
    looks: bool,
) -> AnySlot:  # fmt: skip
    """Return the rule for a column; that of a ragged one is for its items. ``looks``: values must lie in ``space``."""
    name, choices = f"{prefix}{column.name}", spaces.choices(space) if looks else None
    ragged = schema.ragged.get(column.name)
    if ragged is None:
        return Slot(name, shape, column.dtype, num_envs, finite=finite, choices=choices)
    item = Slot(name, ragged.items.shape, ragged.items.dtype, 1, finite=finite, choices=choices)
    return ItemsSlot(name, ragged, item, num_envs, space if isinstance(space, Text) else None)


def obs_slots(
    schema: Schema, shapes: list[tuple[int, ...]], num_envs: int, allowed: InputExceptions
) -> tuple[list[AnySlot], list[AnySlot]]:
    """Return the rules for an observation and for the next one, whose leaves are given with ``shapes``."""
    leaves = spaces.leaf_spaces(schema.observation_space)

    def slots(prefix: str) -> list[AnySlot]:
        return [
            _slot(
                schema, prefix, column, shape, num_envs, allowed.finite(schema), space, allowed.looks_at(column.name)
            )
            for column, shape, space in zip(schema.obs_columns, shapes, leaves, strict=True)
        ]  # fmt: skip

    return slots(""), slots("next_")


def action_slots(schema: Schema, num_envs: int, allowed: InputExceptions) -> list[AnySlot]:
    """Return the rules for the leaves of an action."""
    leaves = spaces.leaf_spaces(schema.action_space)
    return [
        _slot(schema, "", column, column.shape, num_envs, allowed.finite(schema), space, looks=not allowed.anything)
        for column, space in zip(schema.action_columns, leaves, strict=True)
    ]


def column_slots(schema: Schema, num_envs: int, allowed: InputExceptions) -> dict[str, AnySlot]:
    """Return the rules for the user's own columns, by name."""
    return {
        column.name: _slot(
            schema, "", column, column.shape, num_envs, allowed.finite(schema, column.name), None, looks=False
        )
        for column in schema.extra_columns
    }  # fmt: skip


def rounded(name: str, given: Any, dtype: Any = np.float32) -> Array:
    """Return numbers rounded to a float dtype; raise InputError for other values, or if a number becomes infinite."""
    array = check_array(name, given)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name}: must be real numbers, got {array.dtype} ({given!r:.80})")
    if array.dtype == dtype:
        return array
    with np.errstate(all="ignore"):
        converted: Array = array.astype(dtype)
        check_range(name, array, converted)
    return converted


def check_range(name: str, given: Array, converted: Array) -> None:
    """Raise InputError if a finite number of ``given``, which broadcasts to ``converted``, is infinite there."""
    if converted.dtype.kind not in "fc" or given.dtype.kind not in "biufc" or np.isfinite(converted).all():
        return
    given = np.broadcast_to(given, converted.shape)
    lost = ~np.isfinite(converted) & np.isfinite(given)
    if lost.any():
        dtype = converted.dtype
        raise InputError(
            f"{name}: {given[lost][0]} is too large for {dtype}, which goes up to {np.finfo(dtype).max:.3g}, and would "
            f"become infinite; scale the values down, or store them with a wider dtype"
        )


def _same_values(converted: Array, given: Array) -> bool:
    if not np.array_equal(converted, given, equal_nan=given.dtype.kind in "fc"):
        return False
    # numpy compares integers and floats as floats, to which neighbouring large integers round alike.
    inexact = given.dtype.kind in "iu" and converted.dtype.kind in "fc" and given.itemsize > 4
    return not inexact or np.array_equal(converted.astype(given.dtype), given)


def check_reward(reward: Any, largest: float) -> None:
    """Raise InputError if a reward is not finite, or is above the largest number of its column."""
    if type(reward) is not np.ndarray or reward.ndim == 0:
        if not abs(reward) <= largest:
            raise InputError(f"reward must be finite, and at most {largest:.3g}, got {reward}; nothing was added")
    elif not np.isfinite(reward).all():
        env = int(np.flatnonzero(~np.isfinite(reward))[0])
        raise InputError(f"reward of environment {env} must be finite, got {reward[env]}; nothing was added")
