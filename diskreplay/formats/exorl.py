"""NPZ files of one episode each, of ExORL, URLB and DrQ-v2, and of DreamerV2: what came in is written step by step.

Entry ``t`` is a time step of dm_env: the action that was taken before, the reward and discount it brought, and the
observation that it led to. So a transition is ``observation[t - 1], action[t], reward[t], observation[t]``. Entry 0 is
of the reset: its action and reward count for nothing.

===================================  ===============================================================================
key                                  becomes
===================================  ===============================================================================
``observation``                      ``obs``; in DreamerV2 every array without another meaning, such as ``image``
``action``, ``reward``               ``action``, ``reward``
``discount``                         terminated if it is 0 in the last entry, else truncated
``is_terminal``                      terminated, in DreamerV2
``is_first``, ``is_last``            ends, in DreamerV2
others, such as ``physics``          columns, of the same entry as the action
===================================  ===============================================================================

The file's name ends in the number of its steps, entries less one: that tells the layout. It follows
``ReplayBufferStorage._store_episode`` of DrQ-v2 (github.com/facebookresearch/drqv2), its copies in URLB and ExORL, and
``save_episode`` of DreamerV2 (github.com/danijar/dreamerv2).
"""

from __future__ import annotations

import pathlib
import re

from diskreplay.errors import InputError
from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import Convention
from diskreplay.formats.core.ends import DISCOUNT
from diskreplay.formats.files.npz_archive import KIND
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED


def is_named_by_steps(path: pathlib.Path, container: Container) -> bool:
    """Tell whether the last number of a file's name is that of its steps."""
    numbers = re.findall(r"\d+", path.stem)
    rows = next((container.array(name).shape for name in ("action", "actions") if name in container.names()), ())
    return bool(numbers and rows) and numbers[-1].lstrip("0") == str(rows[0] - 1).lstrip("0")


def _check(container: Container, where: str) -> None:
    if not is_named_by_steps(pathlib.Path(where), container):
        count = container.array("action").shape[0]
        raise InputError(
            f"{where}: its name must end in its number of steps, {count - 1}, as ExORL, DrQ-v2 and DreamerV2 name "
            "their files; else read it as npz-episodes, with --align next or --align previous"
        )


EXORL = Convention(
    {"observation": OBS, "action": ACTION, "reward": REWARD, "discount": DISCOUNT},
    marks=frozenset({"observation", "action", "reward", "discount"}), absent=frozenset({"is_first"}),
    named=is_named_by_steps, columns=True, closed=True, align="previous", check=_check,
)  # fmt: skip
DREAMER = Convention(
    {"action": ACTION, "reward": REWARD, "discount": DISCOUNT, "is_first": "/first", "is_last": "/last",
     "is_terminal": TERMINATED, "*": OBS},
    marks=frozenset({"action", "reward"}), tells=True, named=is_named_by_steps, closed=True, align="previous",
    check=_check,
)  # fmt: skip


FORMATS = (
    array_format(
        "exorl", "ExORL, URLB, DrQ-v2, DreamerV2: a directory with an NPZ file for each episode", "directory", KIND,
        (EXORL, DREAMER),
    ),
)  # fmt: skip
