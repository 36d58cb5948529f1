"""The options that the buffers' ``create`` and ``open`` share: names, types and defaults, once.

What each means is said at :meth:`diskreplay.ReplayBuffer.create` and :meth:`diskreplay.ReplayBuffer.open`.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

import gymnasium
import numpy as np

from diskreplay.checks import check_count
from diskreplay.errors import InputError
from diskreplay.paths import PathLike
from diskreplay.remote.objects import checked_url
from diskreplay.schema import Codec, Continuity
from diskreplay.storage.files import Files

Given = ParamSpec("Given")
Made = TypeVar("Made")

CACHE_BYTES = 256 << 20
COMMIT_ROWS = 10_000
COMMIT_SECONDS = 10.0
PUSH_SECONDS = 40.0
"""What still grows is sent whole by each push: at 1,000 steps a second a sixth more bytes than the store has."""


class RunOptions(TypedDict, total=False):
    """Of a buffer that is open; nothing of them is stored."""

    cache_bytes: int
    commit_rows: int
    commit_seconds: float
    seed: int | None
    remote: str | None
    push_seconds: float


class LayoutOptions(TypedDict, total=False):
    """Of a new store: what it holds beside observations, actions and rewards, and how it is cut and compressed."""

    columns: Mapping[str, Any] | None
    later: Mapping[str, Any] | None
    codec: str | Codec | Mapping[str, str | Codec] | None
    chunk_rows: int | Mapping[str, int] | None
    shard_rows: int | Mapping[str, int] | None
    finite: bool
    continuity: Continuity


class FrameOptions(TypedDict, total=False):
    """Of a new store: frame stacks, and the reward's dtype."""

    frame_stack: int | Mapping[str, int]
    stack_axis: Literal["auto", 0, -1] | None
    stack_padding: Literal["zero", "reset"]
    reward_dtype: Any


class StoreOptions(TypedDict, total=False):
    """Of a new store: where its steps come from, the name of its first stream, and what it is written through."""

    provenance: Mapping[str, Any] | None
    stream: str | None
    files: Files | None


class ResumeOptions(TypedDict, total=False):
    """Of a store that is opened, or made where there is none."""

    checkpoint: str | None
    take_over: bool


class CreateOptions(FrameOptions, LayoutOptions, StoreOptions, RunOptions, total=False):
    """Of a new store."""


class EitherOptions(CreateOptions, ResumeOptions, total=False):
    """Of a store that is opened, or made where there is none."""


class AgentOptions(TypedDict, total=False):
    """Of a new store of several agents: what each step holds; see :meth:`diskreplay.MultiAgentReplayBuffer.create`."""

    state_space: gymnasium.Space[Any] | None
    available_actions: bool
    rewards: Literal["team", "agent"]
    mean_action_shape: tuple[int, ...] | None


class AgentsCreateOptions(AgentOptions, LayoutOptions, StoreOptions, RunOptions, total=False):
    """Of a new store of several agents."""


class AgentsEitherOptions(AgentsCreateOptions, ResumeOptions, total=False):
    """Of a store of several agents that is opened, or made where there is none."""


class PlaceOptions(TypedDict, total=False):
    """Where in a store a buffer stands when it is opened."""

    mode: Literal["r", "r+", "a"]
    stream: str | None
    checkpoint: str | None
    or_last_commit: bool
    take_over: bool


class OpenOptions(PlaceOptions, RunOptions, total=False):
    """Of a store that is opened."""

    files: Files | None
    mirror: PathLike | None
    mirror_bytes: int | None


RUN_DEFAULTS: RunOptions = {
    "cache_bytes": CACHE_BYTES, "commit_rows": COMMIT_ROWS, "commit_seconds": COMMIT_SECONDS, "seed": None,
    "remote": None, "push_seconds": PUSH_SECONDS,
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    **RUN_DEFAULTS,
    "columns": None, "later": None, "codec": None, "chunk_rows": None, "shard_rows": None, "finite": False,
    "continuity": "observations", "provenance": None,
    "state_space": None, "available_actions": False, "rewards": "team", "mean_action_shape": None,
    "frame_stack": 1, "stack_axis": "auto", "stack_padding": "zero", "reward_dtype": np.float32,
    "files": None, "mode": "r+", "stream": None, "checkpoint": None, "or_last_commit": False, "take_over": False,
    "mirror": None, "mirror_bytes": None,
}  # fmt: skip


def shared(options: type) -> Callable[[Callable[Given, Made]], Callable[Given, Made]]:
    """Decorates a function with ``**options`` of a TypedDict: it is called with all of them, defaults filled in.

    Help and completion show them one by one. Another name is refused with TypeError, and the option it may be for.
    """
    names = list(options.__annotations__)

    def decorate(function: Callable[Given, Made]) -> Callable[Given, Made]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS[name], annotation=annotation.__forward_arg__
            )
            for name, annotation in options.__annotations__.items()
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
            given: Any = {**{name: DEFAULTS[name] for name in names}, **kwargs}
            return function(*args, **given)

        shown: Any = called
        shown.__signature__ = signature.replace(parameters=[*own, *more])
        return called

    return decorate


def pick(options: Mapping[str, Any], *kinds: type) -> dict[str, Any]:
    """Those of the options that are of some kinds."""
    return {name: value for name, value in options.items() if any(name in kind.__annotations__ for kind in kinds)}


def check_run(options: Mapping[str, Any]) -> None:
    """InputError where one of the run's options breaks its rule."""
    check_count("cache_bytes", options["cache_bytes"], least=0)
    check_count("commit_rows", options["commit_rows"])
    for name, least in (("commit_seconds", "above 0"), ("push_seconds", "from 0 on")):
        seconds = options[name]
        number = isinstance(seconds, int | float | np.integer | np.floating)
        if not number or not (seconds > 0 or (seconds == 0 and name == "push_seconds")):
            raise InputError(f"{name} must be a number {least}, got {seconds!r}")
    if options["remote"] is not None:
        checked_url(options["remote"])
    if options["seed"] is not None:
        check_count("seed", options["seed"], least=0, most=1 << 128)
