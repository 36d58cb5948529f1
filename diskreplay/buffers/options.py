"""The options that the buffers' ``create`` and ``open`` share.

What each means is said at :meth:`diskreplay.ReplayBuffer.create` and :meth:`diskreplay.ReplayBuffer.open`.

1. An option is a field of the frozen dataclass of what it is about, with its type and its default:
   :class:`~diskreplay.schema.spec.StoreSpec`, :class:`AgentsSpec`, :class:`Opening` or
   :class:`~diskreplay.engine.run.Run`.
2. Type checkers learn from a TypedDict here which options a call takes; ``tests/buffers/test_options.py`` holds its
   types to those of the fields.
3. :func:`shared` shows them to ``help``; :func:`of` gives each dataclass its own.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

import gymnasium

from diskreplay.engine.run import Run
from diskreplay.schema.columns import Codec, Continuity
from diskreplay.schema.ragged import Forms
from diskreplay.schema.spec import StoreSpec
from diskreplay.storage.files import Files
from diskreplay.storage.paths import PathLike
from diskreplay.video import Video

Given = ParamSpec("Given")
Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True)
class AgentsSpec:
    """The parts of each step of several agents; see :meth:`diskreplay.MultiAgentReplayBuffer.create`."""

    state_space: gymnasium.Space[Any] | None = None
    available_actions: bool = False
    rewards: Literal["team", "agent"] = "team"
    mean_action_shape: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Opening:
    """The place of a buffer in a store, and the files through which it reaches the store."""

    mode: Literal["r", "r+", "a"] = "r+"
    stream: str | None = None
    checkpoint: str | None = None
    or_last_commit: bool = False
    take_over: bool = False
    files: Files | None = None
    mirror: PathLike | None = None
    mirror_bytes: int | None = None


class RunOptions(TypedDict, total=False):
    """The options of a buffer that is open; the store keeps none of them."""

    cache_bytes: int | None
    commit_rows: int
    commit_seconds: float
    seed: int | None
    remote: str | None
    push_seconds: float
    ragged: Forms | None


class StoreOptions(RunOptions, total=False):
    """The options of a new store, for one agent or several."""

    columns: Mapping[str, Any] | None
    later: Mapping[str, Any] | None
    codec: str | Codec | Mapping[str, str | Codec] | None
    chunk_rows: int | Mapping[str, int] | None
    shard_rows: int | Mapping[str, int] | None
    finite: bool
    continuity: Continuity
    provenance: Mapping[str, Any] | None
    stream: str | None
    files: Files | None


class CreateOptions(StoreOptions, total=False):
    """The options of a new store of one agent."""

    video: Mapping[str, Video] | None
    frame_stack: int | Mapping[str, int]
    stack_axis: Literal["auto", 0, -1] | None
    stack_padding: Literal["zero", "reset"]
    reward_dtype: Any


class EitherOptions(CreateOptions, total=False):
    """The options of a store of one agent that is opened, or made if there is none."""

    checkpoint: str | None
    take_over: bool


class AgentsCreateOptions(StoreOptions, total=False):
    """The options of a new store of several agents."""

    state_space: gymnasium.Space[Any] | None
    available_actions: bool
    rewards: Literal["team", "agent"]
    mean_action_shape: tuple[int, ...] | None


class AgentsEitherOptions(AgentsCreateOptions, total=False):
    """The options of a store of several agents that is opened, or made if there is none."""

    checkpoint: str | None
    take_over: bool


class OpenOptions(RunOptions, total=False):
    """The options of a store that is opened."""

    mode: Literal["r", "r+", "a"]
    stream: str | None
    checkpoint: str | None
    or_last_commit: bool
    take_over: bool
    files: Files | None
    mirror: PathLike | None
    mirror_bytes: int | None


class ReplayOpenOptions(OpenOptions, total=False):
    """The options of a store of one agent that is opened."""

    reward_column: str | None


FIELDS = {field.name: field for kind in (AgentsSpec, StoreSpec, Opening, Run) for field in dataclasses.fields(kind)}
"""The fields of all options, in the order in which ``help`` shows them."""


def shared(options: type) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Decorate a function with ``**options`` of a TypedDict, so that it is called with all of them, defaults too.

    Help and completion show them one by one. Another name is refused with TypeError, and the option it may be for.
    """
    fields = [field for name, field in FIELDS.items() if name in options.__annotations__]
    defaults = {field.name: field.default for field in fields}

    def decorate(function: Callable[Given, Made]) -> Callable[Given, Made]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in fields
        ]
        known = [one.name for one in (*own, *more)]

        @functools.wraps(function)
        def called(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            for name in kwargs:
                if name not in known:
                    near = difflib.get_close_matches(name, known, 1)
                    raise TypeError(
                        f"{function.__qualname__}() has no argument {name!r}"
                        + (f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known[1:])}")
                    )
            given: Any = {**defaults, **kwargs}
            return function(*args, **given)

        shown: Any = called
        shown.__signature__ = signature.replace(parameters=[*own, *more])
        return called

    return decorate


def of(kind: Callable[..., Made], options: Mapping[str, Any], *first: Any, **more: Any) -> Made:
    """Return a dataclass made of its first fields, of ``more``, and of those options that are fields of it."""
    known: Any = kind
    names = [field.name for field in dataclasses.fields(known)]
    return kind(*first, **{**{name: options[name] for name in names if name in options}, **more})
