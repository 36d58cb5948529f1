"""How facts of episodes are taken from a program: checked before anything changes, then noted with their episodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diskreplay.checks import arrays, check_count, check_flag
from diskreplay.errors import InputError
from diskreplay.index.episodes import Episode, around, newest
from diskreplay.index.facts import MAX_NAME, MAX_SEED, Facts, Noted, is_name
from diskreplay.index.where import OWN
from diskreplay.schema.columns import VALID
from diskreplay.storage.metadata import plain

if TYPE_CHECKING:
    from diskreplay.engine.appender import Appender

MAX_BYTES = 4096
"""The most bytes of one episode's facts as JSON."""
MAX_DEPTH = 16
"""The most levels of lists and objects in one episode's facts."""


def begin(appender: Appender, env: int | None, given: Mapping[str, Any]) -> None:
    """Have the next steps begin new episodes with these facts."""
    found, envs = checked(given, {}), _environments(appender, env)
    with appender.change:
        appender.cut(np.isin(np.arange(appender.num_envs), envs))
        appender.facts.wait(envs, found)


def annotate(appender: Appender, episode: Episode | None, env: int | None, given: Mapping[str, Any]) -> None:
    """Add facts to an episode, or to the newest episode of one environment, or of every environment."""
    noted = appender.facts
    if episode is not None:
        rows = _rows_of(appender, episode, env)
        found = [_place(appender, episode.env, rows, given)]
    else:
        checked(given, {}, newest=True)
        found = [change_of_newest(appender, each, given) for each in _environments(appender, env)]
    with appender.change:
        for one in found if given else []:
            if one.place is None:
                noted.wait([one.env], one.facts)
            else:
                before, start, stop = one.place
                noted.note(before, start, one.env, stop, one.facts)


Extent = tuple[int, int | None, bool]
"""The rows of an episode, as :func:`around` returns them."""


class Change(NamedTuple):
    """The new facts of an episode of one environment; without a place, of the episode that its next step begins.

    The place is the facts noted before, the episode's first row, and its stop, if it has one.
    """

    env: int
    place: tuple[Noted | None, int, int | None] | None
    facts: Facts


def change_of_newest(appender: Appender, env: int, given: Mapping[str, Any]) -> Change:
    """Return what facts make of the newest episode of an environment; raise InputError if it cannot have them."""
    waiting = appender.facts.waiting(env)
    if waiting is not None:
        return Change(env, None, checked(given, waiting))
    if (row := newest(appender.log, env)) is None:
        raise InputError(f"environment {env} has no episode yet: begin_episode says what one begins with")
    return _place(appender, env, around(appender.log, row, env), given)


def _place(appender: Appender, env: int, rows: Extent, given: Mapping[str, Any]) -> Change:
    start, stop, complete = rows
    before = appender.facts.noted(start, env, complete)
    return Change(env, (before, start, stop), checked(given, before.facts if before else {}))


def _rows_of(appender: Appender, episode: Episode, env: int | None) -> Extent:
    """Return where an episode lies in the written stream, by :func:`around`; raise InputError if it is not there."""
    log = appender.log
    if not isinstance(episode, Episode):
        raise InputError(f"the episode must be one of rb.episodes, got {episode!r:.100}")
    if env not in (None, episode.env):
        raise InputError(f"the episode is of environment {episode.env}, not {env}")
    if episode.stream != log.stream:
        raise InputError(
            f"the episode is of the stream number {episode.stream}; this buffer writes {log.stream}; annotate it "
            "in the process that writes its stream"
        )
    row = max(episode.start, log.begin)
    inside = row < min(episode.stop, log.end) and 0 <= episode.env < log.num_envs
    if not inside or not log.take(VALID, np.array([row]), np.array([episode.env]))[0]:
        raise InputError(f"the episode of rows {episode.start} to {episode.stop} is not in the window (any more)")
    found = start, stop, complete = around(log, row, episode.env)
    end = log.end if stop is None else stop
    same_end = end == episode.stop if episode.ended else end >= episode.stop
    if not same_end or (episode.start != start if complete else episode.start > start):
        raise InputError(
            f"the episode of rows {episode.start} to {episode.stop} is of another store, or out of date; take it "
            "from rb.episodes anew"
        )
    return found


def _environments(appender: Appender, env: int | None) -> list[int]:
    if env is None:
        return list(range(appender.num_envs))
    return [check_count("env", env, least=0, most=appender.num_envs - 1)]


def checked(given: Mapping[str, Any], before: Mapping[str, Any], *, newest: bool = False) -> Facts:
    """Return the facts ``before`` and those given, as JSON has them; raise InputError if they break a rule.

    Scalars and arrays become numbers and lists. Of the newest episode no fact says which episode it is.
    """
    if newest and "episode" in given:
        raise InputError(
            f"annotate_episode(episode={given['episode']!r:.40}) chooses no episode: give the episode first, as "
            "rb.annotate_episode(rb.episodes[0], success=True); begin_episode tells a fact of that name"
        )
    for name in given:
        if not is_name(name):
            raise InputError(
                f"the name of a fact must be a word of at most {MAX_NAME} letters, digits and '_', got {name!r:.100}"
            )
        if name in OWN:
            raise InputError(f"{name!r} is a name of the store's own; choose another")
    try:
        found: Facts = {name: _told(name, _native(arrays(name, value), 0)) for name, value in given.items()}
        facts = plain("the facts of an episode", {**before, **found})
        size = len(json.dumps(facts, separators=(",", ":"), allow_nan=False))
    except RecursionError as error:
        raise _deep() from error
    if size > MAX_BYTES:
        raise InputError(
            f"the facts of an episode would take {size:,} bytes as JSON, and may have {MAX_BYTES:,}: keep more in a "
            "file of your own, and its name here"
        )
    return facts


def _native(value: Any, depth: int) -> Any:
    """Return a value as Python's own numbers, lists and mappings."""
    if depth > MAX_DEPTH:
        raise _deep()
    if isinstance(value, np.generic | np.ndarray):
        if value.size > MAX_BYTES:
            raise InputError(f"a fact of {value.size:,} numbers is too large: {MAX_BYTES:,} bytes are kept an episode")
        return _native(value.tolist(), depth) if value.dtype.kind in "biufUS" else value
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise InputError(f"the names in a fact must be text, got {list(value)!r:.100}")
        for name in value:
            if not name.isprintable() or len(name) > MAX_BYTES:
                raise InputError(f"the names in a fact must be printable text, got {name!r:.100}")
        return {name: _native(part, depth + 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        if len(value) > MAX_BYTES:
            raise InputError(f"a fact of {len(value):,} values is too large: {MAX_BYTES:,} bytes are kept an episode")
        return [_native(part, depth + 1) for part in value]
    if isinstance(value, str):
        if len(value) > MAX_BYTES:
            raise InputError(f"a fact of {len(value):,} characters is too large: {MAX_BYTES:,} bytes are kept")
        if not all(char.isprintable() or char in "\n\t" for char in value):
            raise InputError(f"a text among the facts may have no control characters, got {value!r:.100}")
    return value


def _told(name: str, value: Any) -> Any:
    """Return the value of a fact, in its one form if the fact's meaning is known."""
    if value is None:
        return None
    if name == "seed":
        return check_count("seed", value, least=0, most=MAX_SEED)
    if name == "success":
        return check_flag("success", value)
    if name == "tags":
        if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
            raise InputError(f"tags must be a list of texts, such as ['expert'], got {value!r:.100}")
        return list(dict.fromkeys(value))
    return value


def _deep() -> InputError:
    return InputError(f"a fact may be nested {MAX_DEPTH} deep; flatten it")
