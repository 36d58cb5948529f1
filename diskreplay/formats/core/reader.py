"""The base of all readers of datasets: errors of one line that name the dataset, and steps that a store takes.

1. A format's reader is decorated with :func:`reader`. A damaged dataset then raises InputError, and a file that the
   system cannot read ReadFailedError; both name the dataset. Pipes and devices, which could block, are refused.
2. Every step is checked here for what a store would refuse, so that the error says which dataset it came from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from diskreplay.engine.inputs import Slot
from diskreplay.errors import DiskReplayError, InputError, ReadFailedError
from diskreplay.formats.core.choice import AS_IT_IS, Choice
from diskreplay.formats.core.format import Read
from diskreplay.formats.core.rewards import first_unfinite, without_unfinite
from diskreplay.formats.core.transitions import Source, Transitions
from diskreplay.formats.core.untrusted import check_regular, check_size, one_line, stored_bytes
from diskreplay.schema import spaces
from diskreplay.schema.ragged import Lists


def reader(read: Callable[[pathlib.Path, Choice], Iterator[Source]]) -> Read:
    """Make a format's ``read`` of a generator that opens a dataset, yields it as a source, and closes it."""
    opened = contextlib.contextmanager(read)

    @functools.wraps(read)
    @contextlib.contextmanager
    def named(path: pathlib.Path, choice: Choice = AS_IT_IS) -> Iterator[Source]:
        with contextlib.ExitStack() as stack:
            with naming(path):
                check_regular(path)
                source = stack.enter_context(opened(path, choice))
                check_size(str(path), (source.steps,), 1, lambda: stored_bytes(path))
                source.layout.create_arguments()
                source = without_unfinite(source) if choice.allow_loss else source
            yield dataclasses.replace(source, blocks=lambda: _checked(path, source))

    return named


@contextlib.contextmanager
def naming(path: pathlib.Path) -> Iterator[None]:
    """Raise the errors of its block again, as InputError or ReadFailedError of one line that names the dataset."""
    try:
        yield
    except InputError as error:
        text = one_line(error)
        raise type(error)(text if path.name in text else f"{path}: {text}") from error
    except DiskReplayError:
        raise
    except OSError as error:
        file = error.filename if isinstance(error.filename, str) else path
        raise ReadFailedError(
            error.errno, f"reading {str(file)!r} failed: {error.strerror or one_line(error)}"
        ) from error


def _checked(path: pathlib.Path, source: Source) -> Iterator[Transitions]:
    layout, blocks = source.layout, source.blocks()
    rewards = Slot("reward", (), layout.reward_dtype, 1)
    choices = {name: spaces.choices(leaf) for name, leaf in layout.leaves.items()}
    while True:
        with naming(path):
            steps = next(blocks, None)
            if steps is None:
                return
            reward = rewards.check_steps(steps.reward, len(steps))
            if not (finite := np.isfinite(reward)).all():
                episode, step = first_unfinite(source)
                raise InputError(
                    f"the rewards must be finite: the reward of step {step:,} of episode {episode:,} is "
                    f"{reward[~finite][0]}; --allow-loss leaves such episodes out"
                )
            steps = dataclasses.replace(
                steps, obs=_values(steps.obs, layout.obs, choices), reward=reward,
                next_obs=_values(steps.next_obs, layout.obs, choices, "next "),
                action=_values(steps.action, layout.action, choices), extra=_values(steps.extra, layout.columns, {}),
            )  # fmt: skip
        yield steps


def _values(
    given: Mapping[str, Any], shapes: Mapping[str, Any], choices: Mapping[str, Any], what: str = ""
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (shape, dtype) in shapes.items():
        slot, rows = Slot(f"{what}{name}", shape, dtype, 1, choices=choices.get(name)), given[name]
        single = rows.values if isinstance(rows, Lists) else rows
        values = slot.check_steps(single, len(single)) if len(single) else single
        if values.dtype.kind == "b" and (values.view(np.uint8) > 1).any():
            raise InputError(f"{what}{name} holds booleans that are neither 0 nor 1")
        found[name] = Lists(values, rows.offsets) if isinstance(rows, Lists) else values
    return found
