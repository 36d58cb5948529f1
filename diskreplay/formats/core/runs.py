"""From the arrays of a run of steps, by our names, to its steps: where they end, and how the arrays lie.

A run is one set of arrays: a file, a numbered episode in one, or files that go on in each other.

1. What tells ends is read whole, and :func:`~diskreplay.formats.core.ends.ends_of` makes flags of it.
2. Observations with one entry more than the actions have the final one. Where only the run's last step ends an episode,
   it is that step's next observation; else every step's next observation is the next entry.
3. Where entries are what a step led to, the arrays that a step has later are moved to it, and the last entry of an
   episode is its final observation, no step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import numpy as np

from diskreplay.checks import Array
from diskreplay.errors import InputError
from diskreplay.formats.core.choice import Choice
from diskreplay.formats.core.convention import FINAL_OBS, NEXT_OBS, OFFSETS, TOLD, Convention, is_column
from diskreplay.formats.core.ends import CUT, DISCOUNT, DONE, Ends, ends_of
from diskreplay.formats.core.episodes import array_slice, later, reshaped, single_integers
from diskreplay.formats.core.flat import ArrayLike, FlatArrays, ListedArray, check_length, flags, leaves_of, length
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.rewards import check_finite
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

Arrays = Mapping[str, ArrayLike]

FLAGS = (TERMINATED, TRUNCATED, DONE)


def steps_of(
    where: str, given: Arrays, keys: Mapping[str, str], convention: Convention, choice: Choice, layout: Layout | None,
    unclear: bool = False,
) -> tuple[FlatArrays, tuple[str, ...]]:  # fmt: skip
    """Return the steps of a run, and what was taken for granted, in sentences.

    Args:
        where: the name of the run in errors.
        given: its arrays, by our names.
        keys: how the dataset calls them.
        convention, choice: what the layout, and the caller, say.
        layout: of the steps; it is being inferred if None.
        unclear: the layout can be that of ``next``, and that of ``previous``, by all that is known.

    Raises InputError for arrays that do not belong together.
    """
    arrays = _shaped(_with_lists(where, given), layout)
    action, obs = leaves_of(arrays, ACTION), leaves_of(arrays, OBS)
    count = length(where, ACTION, next(iter(action.values())))
    told = {
        name: _told(where, name, keys[name], arrays[name], count, convention.closed) for name in TOLD if name in arrays
    }
    longer = bool(obs) and all(array.shape[:1] == (count + 1,) for array in obs.values())
    moved = convention.align != "next" and not longer
    if unclear and not moved and not longer and choice.align is None and not leaves_of(arrays, NEXT_OBS):
        raise InputError(
            f"{where}: an entry of it may be a step, or what a step led to; say which: --align next (action and reward "
            "belong to the observation of their entry, as in flat files), or --align previous (they led to it, as in "
            "ExORL, DrQ-v2 and DreamerV2)"
        )
    closed = convention.closed or (longer and not told)
    ends = ends_of(where, told, keys, count, closed=closed, choice=choice)
    ends.last[-1:] = True  # the run ends here, whether its episode does or not
    if CUT in arrays:
        ends = _without_flag(where, keys[CUT], arrays[CUT], ends)
    reward = arrays.get(REWARD)
    if reward is not None and not choice.allow_loss:
        check_finite(where, keys[REWARD], reward, ends.last, moved)
    following, finals = (
        {name.replace(root, OBS, 1): array for name, array in leaves_of(arrays, root).items()} or None
        for root in (NEXT_OBS, FINAL_OBS)
    )
    finals = finals and {name: _at_ends(array, ends.last) for name, array in finals.items()}
    columns = {name: array for name, array in arrays.items() if is_column(name)}
    if longer:
        every, obs = obs, {name: array_slice(array, 0, count) for name, array in obs.items()}
        if following is None and not np.array_equal(np.flatnonzero(ends.last), [count - 1]):
            # what is read forwards only is opened again, for it is read beside itself
            beside = {name: getattr(array, "again", lambda array=array: array)() for name, array in every.items()}
            following = {name: array_slice(array, 1, count + 1) for name, array in beside.items()}
        elif following is None:
            finals = {name: array_slice(array, count, count + 1) for name, array in every.items()}
    terminated, truncated = ends.terminated, ends.truncated
    if moved:
        terminated, truncated = (np.append(each[1:], False)[:count] for each in (terminated, truncated))
        reward = None if reward is None else later(where, keys[REWARD], reward)
        if convention.align == "previous":
            action, columns = (
                {name: later(where, keys[name], array) for name, array in each.items()} for each in (action, columns)
            )
    found = FlatArrays(
        where, obs, action, terminated, truncated, ends.last, reward, columns, following, finals, layout, bare=moved
    )
    return found, ends.notes


def _with_lists(where: str, arrays: Arrays) -> dict[str, ArrayLike]:
    found = dict(arrays)
    for name in leaves_of(arrays, OFFSETS):
        key = name.removeprefix(f"{OFFSETS}/").removeprefix("extra/")
        offsets = found.pop(name)
        if key in found:
            found[key] = ListedArray(f"{where}: {key}", found[key], np.asarray(offsets[slice(None)]))
    return found


def _shaped(arrays: dict[str, ArrayLike], layout: Layout | None) -> dict[str, ArrayLike]:
    if layout is None:
        return arrays | single_integers(leaves_of(arrays, ACTION))
    shapes = {**layout.step_shapes}
    for root in (NEXT_OBS, FINAL_OBS):
        shapes |= {name.replace(OBS, root, 1): shape for name, shape in layout.obs.items()}
    return {name: reshaped(array, shapes[name][0]) if name in shapes else array for name, array in arrays.items()}


def _at_ends(array: ArrayLike, last: Array) -> ArrayLike:
    """Return final observations, one an episode: of an array with a place for each row those at the ends."""
    among = getattr(array, "among", None)
    return array if among is None else cast(ArrayLike, among(last))


def _told(where: str, name: str, key: str, array: ArrayLike, count: int, closed: bool) -> Array:
    """Return an array that tells ends: flags as ``(count,)`` bool, of which a single one is meant for the last step."""
    if name == DISCOUNT:
        check_length(where, key, array, count)
    if name not in FLAGS:
        return np.asarray(array[slice(None)]) if array.shape else _single(array)
    if array.shape or not closed:
        return flags(where, key, array, count)
    found = np.zeros(count, bool)
    found[-1:] = flags(where, key, _single(array), 1)
    return found


def _single(array: ArrayLike) -> Array:
    value = getattr(array, "value", None)
    return np.asarray(array if value is None else value()).reshape(-1)


def _without_flag(where: str, key: str, array: ArrayLike, ends: Ends) -> Ends:
    count = len(ends.last)
    cuts = np.asarray(array[slice(0, count)]) if len(array.shape) == 1 else np.empty(0)
    if cuts.dtype.kind not in "iu" or (cuts < 0).any() or (cuts >= count).any() or not ends.last[cuts].all():
        raise InputError(f"{where}: {key} names entries that end no episode")
    truncated = ends.truncated.copy()
    truncated[cuts] = False
    return dataclasses.replace(ends, truncated=truncated)
