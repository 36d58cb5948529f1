"""Where the episodes of flat arrays end, and how: from what the dataset or its reader says, never guessed.

What tells it is of one of these kinds, each one array for all rows:

=============  ================================================================================================
``last``       a flag for each row, or the numbers of the last rows
``first``      a flag for each row, or the numbers of the first rows
``stops``      one past the last row of each episode
``ends``       either of ``last`` and ``stops``: the final number says which
``lengths``    the number of rows of each episode
``episode``    a number for each row, which changes with the episode
``step_type``  for each row as dm_env has it: 0 is the first of an episode, 2 the last
=============  ================================================================================================

1. Flags ``terminated`` and ``truncated`` end episodes, too. Where nothing says how an episode ended, it is truncated.
2. ``done`` ends episodes. Where ``terminated`` is missing, it ends them as terminated.
3. Rows after the last end are an episode that still goes on.
4. Flat arrays of which nothing tells where episodes end are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import AS_IT_IS, KINDS, WHOLE, Choice
from diskreplay.schema.columns import TERMINATED, TRUNCATED

DONE, DISCOUNT, CUT = "/done", "/discount", "/cut"
TELLING = tuple(f"/{kind}" for kind in (*KINDS, "ends"))
"""Our names of the arrays that tell where episodes end; no column has a slash in front."""
WHOLE_EPISODES = ("/stops", "/ends", "/lengths", "/episode")
"""Those that tell all of them."""


class EndsUnknown(InputError):
    """Nothing tells where episodes end."""


@dataclasses.dataclass(frozen=True)
class Ends:
    """The ends of episodes.

    Attributes:
        terminated, truncated, last: ``(rows,)`` bool; ``last`` marks the last row of each episode that ended.
        notes: sentences about what was taken for granted.
    """

    terminated: Array
    truncated: Array
    last: Array
    notes: tuple[str, ...] = ()


def ends_of(
    where: str, told: Mapping[str, Array], keys: Mapping[str, str], count: int, *, closed: bool = False,
    choice: Choice = AS_IT_IS,
) -> Ends:  # fmt: skip
    """Return the ends of episodes among ``count`` rows.

    Args:
        where: the name of the dataset in errors.
        told: the arrays that tell ends, by our names; flags as ``(count,)`` bool.
        keys: how the dataset calls them.
        count: the number of rows.
        closed: the rows are one episode, or several of which the last one ends with the rows.
        choice: what the caller says.

    Raises InputError where nothing tells the ends, or what tells them cannot be.
    """
    closed = closed or choice.ends == WHOLE
    terminated, truncated, done = (told.get(name) for name in (TERMINATED, TRUNCATED, DONE))
    tells = [name for name in TELLING if name in told and choice.ends != WHOLE]
    parts = {name: last_rows(f"{where}: {keys[name]}", name[1:], told[name], count) for name in tells}
    last = np.any([np.zeros(count, bool), *parts.values()], axis=0)
    if any((rows != last).any() for name, rows in parts.items() if name in WHOLE_EPISODES):
        raise InputError(f"{where}: {', '.join(keys[name] for name in tells)} tell different ends of episodes")
    last[-1:] |= closed
    notes = []
    alone = truncated is None and not tells and not closed and (TERMINATED in told or DISCOUNT not in told)
    if DISCOUNT in told and terminated is None:
        terminated = last & (told[DISCOUNT].reshape(-1) == 0)
    if terminated is None and done is not None:
        terminated = done if truncated is None else done & ~truncated
        if truncated is None:
            notes.append(
                f"{keys[DONE]!r} alone ends episodes: as terminated; --map truncated={keys[DONE]} says otherwise"
            )
    elif done is not None:
        last |= done
    if terminated is None and truncated is None and not tells:
        if not closed and choice.max_episode_steps is None:
            raise EndsUnknown(f"{where}: {_NOTHING}")
        notes.append("no flags say how episodes end: each ends truncated")
    ended = np.zeros(count, bool) if terminated is None else terminated
    if alone:
        key = keys.get(TERMINATED) or keys.get(DONE)
        if choice.max_episode_steps is not None:
            last |= time_limits(ended, choice.max_episode_steps)
        elif not ended.any() and count:
            raise EndsUnknown(f"{where}: {key!r} is never set, and there are no timeouts: {_NOTHING}")
        elif TERMINATED in told:
            notes.append(f"{key!r} alone ends episodes: there are no timeouts (--max-episode-steps N makes them)")
    elif choice.max_episode_steps is not None:
        notes.append("no time limit was needed (--max-episode-steps): the dataset tells all ends")
    last |= ended
    if truncated is None:
        truncated = last & ~ended
    last = last | truncated
    if count and not last.any():
        notes.append("no end of an episode is set: all is one episode that goes on")
    return Ends(ended, truncated, last, tuple(notes))


_NOTHING = (
    "nothing tells where episodes end; name what does (--ends KIND=NAME, with a KIND of "
    f"{', '.join(KINDS)}), or a time limit (--max-episode-steps N), or say that all is one episode (--ends {WHOLE})"
)


def last_rows(where: str, kind: str, values: Array, count: int) -> Array:
    """Return which of ``count`` rows are the last of an episode, ``(count,)`` bool, by an array of a kind.

    Raises InputError for values that cannot be of that kind.
    """
    numbers = _whole_numbers(where, values)
    flags = len(numbers) == count and bool(np.isin(numbers, (0, 1)).all())
    match kind:
        case "step_type" | "episode":
            if len(numbers) != count:
                raise InputError(f"{where}: ragged lengths: has {len(numbers):,} entries for {count:,} steps")
            return _by_type(where, numbers) if kind == "step_type" else _by_number(where, numbers)
        case "lengths":
            if (numbers < 0).any() or numbers.sum() != count:
                raise InputError(f"{where}: ragged lengths: {int(numbers.sum()):,} rows in all, for {count:,} steps")
            rows = np.cumsum(numbers[numbers > 0]) - 1
        case _ if flags:
            return np.append(numbers[1:] == 1, True)[:count] if kind == "first" else np.equal(numbers, 1)
        case _:
            rows = _numbered(where, kind, numbers, count)
    last = np.zeros(count, bool)
    last[rows] = True
    return last


def _numbered(where: str, kind: str, numbers: Array, count: int) -> Array:
    if (np.diff(numbers) < 1).any():
        raise InputError(f"{where}: must grow from episode to episode")
    begin, end = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, 0)
    if kind == "first":
        if count and (begin != 0 or end >= count):
            raise InputError(f"{where}: first rows must go from 0 to at most {count - 1:,}, got {begin:,} to {end:,}")
        return np.append(numbers[1:], count)[: len(numbers)] - 1
    if begin >= 0 and end == count and kind != "last":
        return numbers[numbers > 0] - 1
    if begin >= 0 and end == count - 1 and kind != "stops":
        return numbers
    raise InputError(f"{where}: ragged lengths: the last episode ends at {end:,}, and there are {count:,} steps")


def _by_type(where: str, types: Array) -> Array:
    if not np.isin(types, (0, 1, 2)).all():
        raise InputError(f"{where}: must be 0, 1 or 2 for the first, middle and last step of an episode")
    last: Array = types == 2
    last[:-1] |= types[1:] == 0
    return last


def _by_number(where: str, numbers: Array) -> Array:
    last = np.append(numbers[1:] != numbers[:-1], True)[: len(numbers)]
    starts = np.flatnonzero(np.append(True, last[:-1])) if len(last) else np.empty(0, np.int64)
    _, first = np.unique(numbers[starts], return_index=True)
    if len(first) < len(starts):
        again = int(starts[np.setdiff1d(np.arange(len(starts)), first)[0]])
        raise InputError(
            f"{where}: the rows of episode {int(numbers[again])} do not stand together: it begins again at row "
            f"{again:,}; sort the rows by it and their order in the episode"
        )
    return last


def time_limits(terminated: Array, steps: int) -> Array:
    """Return the rows ``(n,)`` bool that are the ``steps``-th since the last end.

    They end an episode, as in D4RL's ``qlearning_dataset`` where a file has no timeouts.
    """
    cuts = np.zeros(len(terminated), bool)
    start = 0
    for stop in [*(np.flatnonzero(terminated) + 1).tolist(), len(terminated)]:
        cuts[start + steps - 1 : stop : steps] = True
        start = stop
    return cuts


def _whole_numbers(where: str, values: Array) -> Array:
    flat = np.asarray(values).reshape(-1)
    with np.errstate(invalid="ignore"):
        numbers: Array = flat.astype(np.int64) if flat.dtype.kind in "biuf" else np.empty(0, np.int64)
    if flat.dtype.kind not in "biuf" or (numbers != flat).any():
        raise InputError(f"{where}: must be whole numbers, got {flat.dtype}")
    return numbers
