"""The chunks of DreamerV3's replay: NPZ files that go on in each other.

Entry ``t`` has what the environment gave, and the action that was then taken: a transition is
``obs[t], action[t], reward[t + 1], obs[t + 1]``. It follows ``embodied/core/chunk.py`` and ``driver.py`` of DreamerV3
(github.com/danijar/dreamerv3).

===================================  ===============================================================================
key                                  becomes
===================================  ===============================================================================
``action``                           ``action``
``reward``                           the reward of the step before
``is_first``, ``is_last``            ends of episodes, which may go on in the next chunk
``is_terminal``                      terminated
others, such as ``image``            ``obs``; what the agent added (``dyn/deter``, ``stepid``) is not read
===================================  ===============================================================================

A chunk is called ``TIME-UUID-SUCCESSOR-LENGTH.npz``. One whose successor is not there ends its chain, as the newest one
does. The chains of several environments come one after another. An episode that ends in no flag is truncated.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Sequence

from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.convention import Convention
from diskreplay.formats.files.npz_archive import KIND
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED

CHUNK = re.compile(r"(?P<time>[^-]+)-(?P<uuid>[^-]+)-(?P<successor>[^-]+)-(?P<length>\d+)\.npz")


def _chains(files: Sequence[pathlib.Path]) -> list[list[pathlib.Path]]:
    """Return the chunks of each chain in order; a file of another name is a chain of its own."""
    matches = {file: CHUNK.fullmatch(file.name) for file in files}
    by_uuid = {match["uuid"]: file for file, match in matches.items() if match is not None}
    after = {file: by_uuid.get(match["successor"]) for file, match in matches.items() if match is not None}
    begun = set(files) - {file for file in after.values() if file is not None}
    found, seen = [], set[pathlib.Path]()
    for first in [*(file for file in files if file in begun), *files]:  # the second: chunks in a circle
        chain: list[pathlib.Path] = []
        file: pathlib.Path | None = first
        while file is not None and file not in seen:
            seen.add(file)
            chain.append(file)
            file = after.get(file)
        found += [chain] if chain else []
    return found


TABLE = Convention(
    {"action": ACTION, "reward": REWARD, "is_first": "/first", "is_last": "/last", "is_terminal": TERMINATED,
     "stepid": "", "*": OBS},
    marks=frozenset({"action", "reward", "is_first"}), named=lambda path, container: bool(CHUNK.fullmatch(path.name)),
    closed=True, align="later", chains=_chains,
)  # fmt: skip
FORMATS = (
    array_format("dreamer", "DreamerV3: a directory with an NPZ file for each chunk", "directory", KIND, (TABLE,)),
)
