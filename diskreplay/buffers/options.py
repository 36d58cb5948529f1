"""The options of the buffers' ``create``, ``open`` and ``open_or_create``: one table.

1. An option is a key of a TypedDict that is about one thing, a line of its docstring, and a default beside it. They
   stand where it is used: :mod:`diskreplay.schema.spec`, :mod:`diskreplay.engine.run`, or here. :data:`TABLE` has all.
2. What a method takes is a TypedDict joined of them, below, from which type checkers know it.
3. :func:`shared` gives the method the defaults, shows each option to ``help``, and refuses others.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, Required, TypedDict, TypeVar

import gymnasium

from diskreplay.engine import run
from diskreplay.engine.run import EngineOptions
from diskreplay.sampling.window import Sampler
from diskreplay.schema import spec
from diskreplay.schema.spec import ColumnOptions, FrameOptions, StoreOptions
from diskreplay.storage.files import Files
from diskreplay.storage.paths import PathLike
from diskreplay.views.view import View

Given = ParamSpec("Given")
Result = TypeVar("Result")
Space = gymnasium.Space[Any]


class WindowOptions(TypedDict, total=False):
    """The window of a new store that is sampled from, and its sampler.

    Attributes:
        capacity: transitions (rows x environments) that can be sampled; older ones are evicted, and their disk space is
            given back shard by shard.
        num_envs: environments that step in lockstep.
        sampler: the sampler, which chooses the transitions of a sample: ``Uniform()``, as if None, ``Recent(...)``,
            ``Proportional(...)``, ``RankBased(...)``, ``SamplerMixture(...)`` or an object of your own class
            (``docs/samplers.md``), one for each buffer. One with priorities that was another's, or still is, is
            refused; after that buffer was closed, ``open`` takes it for the same store, whose priorities it goes on
            with, and ``sampler.clear()`` frees it for any.
    """

    capacity: Required[int]
    num_envs: int
    sampler: Sampler | None


class RolloutOptions(TypedDict, total=False):
    """The size of a new store's rollout, and what is made of its values.

    Attributes:
        steps: the steps of each environment until the rollout is full.
        gamma: discount factor, 0 to 1.
        gae_lambda: the lambda of generalised advantage estimation (Schulman et al. 2016), 0 to 1; 1 gives discounted
            returns.
        normalize_advantage: give each minibatch's advantages mean 0 and standard deviation 1.
    """

    steps: Required[int]
    num_envs: int
    gamma: float
    gae_lambda: float
    normalize_advantage: bool


class AgentsOptions(TypedDict, total=False):
    """The parts of each step of several agents.

    Attributes:
        state_space: the space of the global state; None if there is none.
        available_actions: True if each step says which of the Discrete actions each agent can take.
        rewards: "team", one reward for all, or "agent", one for each.
        mean_action_shape: the shape of the mean-field action probabilities that come with each step, such as
            ``(n_agents, n_actions)``; None where there are none.
    """

    state_space: Space | None
    available_actions: bool
    rewards: Literal["team", "agent"]
    mean_action_shape: tuple[int, ...] | None


class PlaceOptions(TypedDict, total=False):
    """The origin of a new store, its first stream and its files.

    Attributes:
        provenance: the origin of the steps, a mapping of JSON values that the store keeps; such as
            :func:`diskreplay.provenance` makes of an environment.
        stream: name of the first stream, such as that of the actor that writes it; "0" if None.
        files: another file system, for tests.
    """

    provenance: Mapping[str, Any] | None
    stream: str | None
    files: Files | None


class CreateOptions(StoreOptions, PlaceOptions, EngineOptions, total=False):
    """The options of any new store of one agent."""


class ReplayCreateOptions(WindowOptions, CreateOptions, total=False):
    """The options of :meth:`diskreplay.ReplayBuffer.create`."""


class RolloutCreateOptions(RolloutOptions, CreateOptions, total=False):
    """The options of :meth:`diskreplay.RolloutBuffer.create`."""


class AgentsCreateOptions(WindowOptions, AgentsOptions, ColumnOptions, PlaceOptions, EngineOptions, total=False):
    """The options of :meth:`diskreplay.MultiAgentReplayBuffer.create`.

    Attributes:
        view: ``Transition(...)``, as if None, ``Sequence(...)`` or ``PaddedEpisodes(...)``.
    """

    view: View[Any] | None


class AgentsRolloutCreateOptions(
    RolloutOptions, AgentsOptions, ColumnOptions, PlaceOptions, EngineOptions, total=False
):
    """The options of :meth:`diskreplay.MultiAgentRolloutBuffer.create`.

    Attributes:
        td_lambda: 0 to 1: returns are TD(lambda) targets of the values given, as COMA's critic learns them (Foerster et
            al. 2018, "Counterfactual Multi-Agent Policy Gradients"), and advantages are returns less values; None for
            generalised advantage estimation.
    """

    td_lambda: float | None


class OpenOptions(EngineOptions, total=False):
    """The options of any store that is opened.

    Attributes:
        mode: "r+" to write one stream and sample from all; "r" to sample beside a live writer, changing nothing; "a" to
            write one stream of many: only its rows are opened and sampled, so that memory and time to open do not grow
            with those of the others.
        stream: the stream to write, the store's first if None; a new name makes a new stream, for another process.
            Ignored with mode "r".
        checkpoint: name of one to return to: data, sampler and random state are just as they were. With "r+" the rows
            of ``stream`` after it are discarded, unless a later checkpoint needs them. "latest" is, unless one has that
            name, the newest that a writer of ``stream`` made; with mode "r" the newest that a reader of a URL made, and
            where there is none the newest of all.
        or_last_commit: True to open at the last commit if there is no checkpoint "latest" yet.
        take_over: True to first commit and close another buffer of this process that writes the stream, so that a
            notebook's cell can be run again. Other processes, and mode "r", are not concerned.
        files: another file system, for tests.
        mirror: directory for copies of a remote store's shards; one of its own below the user's cache directory if
            None. Several processes may share it.
        mirror_bytes: the most bytes that the copies may take; 16 GiB if None.
    """

    mode: Literal["r", "r+", "a"]
    stream: str | None
    checkpoint: str | None
    or_last_commit: bool
    take_over: bool
    files: Files | None
    mirror: PathLike | None
    mirror_bytes: int | None


class ReplayOpenOptions(OpenOptions, total=False):
    """The options of :meth:`diskreplay.ReplayBuffer.open`.

    Attributes:
        reward_column: a column of the user's own, or a later one, of one real number a step, such as ``relabel``
            writes: every view shows its values as ``reward``, and those that were recorded as
            ``extra["recorded_reward"]``; a column of that name stays. ``episodes`` has the recorded returns.
            InputError, with their number, if transitions have no finite value; a batch with one that was added since
            raises it, too, so that a learner can ``write`` values of new steps and train on them.
    """

    reward_column: str | None


OPEN_DEFAULTS: OpenOptions = {
    **OpenOptions(mode="r+", stream=None, checkpoint=None, or_last_commit=False, take_over=False),
    **OpenOptions(files=None, mirror=None, mirror_bytes=None),
}
TABLE: tuple[tuple[type, Mapping[str, Any]], ...] = (
    (WindowOptions, {"num_envs": 1, "sampler": None}),
    (RolloutOptions, {"num_envs": 1, "gamma": 0.99, "gae_lambda": 0.95, "normalize_advantage": True}),
    (AgentsRolloutCreateOptions, {"td_lambda": None}),
    (AgentsCreateOptions, {"view": None}),
    (AgentsOptions, {"state_space": None, "available_actions": False, "rewards": "team", "mean_action_shape": None}),
    (FrameOptions, spec.FRAME_DEFAULTS),
    (ColumnOptions, spec.COLUMN_DEFAULTS),
    (PlaceOptions, {"provenance": None, "stream": None, "files": None}),
    (OpenOptions, OPEN_DEFAULTS),
    (EngineOptions, run.DEFAULTS),
    (ReplayOpenOptions, {"reward_column": None}),
)
"""The kinds of options, and what each option is that a call leaves out. One that is not among these must be given."""


DEFAULTS: dict[str, Any] = {name: default for _, defaults in TABLE for name, default in defaults.items()}


def shared(options: type) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Decorate a function with ``**options`` of a TypedDict, so that it is called with all of them, defaults too.

    Help and completion show them one by one, with what the table says of them where the docstring has a line for
    ``**options``. Another name is refused with TypeError, and the option it may be for.
    """
    kinds = [(kind, defaults) for kind, defaults in TABLE if {*kind.__annotations__} <= {*options.__annotations__}]
    defaults = {name: default for _, found in kinds for name, default in found.items()}

    def decorate(function: Callable[Given, Result]) -> Callable[Given, Result]:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, inspect.Parameter.empty),
                annotation=re.sub(r"^Required\[(.*)\]$", r"\1", kind.__forward_arg__),
            )
            for name, kind in options.__annotations__.items()
        ]
        known = [one.name for one in (*own, *more)]

        @functools.wraps(function)
        def called(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            for name in kwargs:
                if name not in known:
                    near = difflib.get_close_matches(name, known, 1)
                    raise TypeError(
                        f"{function.__qualname__}() has no argument {name!r}"
                        + (f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known[1:])}")
                    )
            given: Any = {**defaults, **kwargs}
            if missing := [one.name for one in more if one.name not in given]:
                raise TypeError(f"{function.__qualname__}() missing 1 required keyword-only argument: {missing[0]!r}")
            return function(*args, **given)

        shown: Any = called
        shown.__signature__ = signature.replace(parameters=[*own, *more])
        shown.__doc__ = _described(function.__doc__, [kind.__doc__ for kind, _ in kinds])
        return called

    return decorate


def _described(text: str | None, kinds: Sequence[str | None]) -> str | None:
    """Return a docstring whose line for ``**options`` is replaced by the lines of the kinds' own."""
    if text is None:  # with python -OO
        return None
    before, line, after = inspect.cleandoc(text).partition("    **options: as described by their types.\n")
    if not line:
        return text
    own = {name for names in re.findall(r"^    (\w+(?:, \w+)*): ", before, re.M) for name in names.split(", ")}
    told = [inspect.cleandoc(kind or "").partition("Attributes:\n")[2] for kind in kinds]
    entries = [entry for each in told for entry in re.findall(r"^    \S.*(?:\n        .*)*", each, re.M)]
    more = [entry for entry in entries if not own.issuperset(entry.partition(":")[0].split(", "))]
    return before + "".join(f"{entry}\n" for entry in dict.fromkeys(map(str.rstrip, more))) + after
