"""RLlib's offline algorithms (BC, MARWIL, CQL) over stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray.data
from ray.rllib.core.columns import Columns
from ray.rllib.offline.offline_data import OfflineData

from diskreplay.errors import InputError
from diskreplay.ray.columns import NEXT
from diskreplay.ray.data import EPISODE, DiskReplayDatasource
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

NAMES: Mapping[str, str] = {
    OBS: Columns.OBS,
    ACTION: Columns.ACTIONS,
    REWARD: Columns.REWARDS,
    NEXT: Columns.NEXT_OBS,
    TERMINATED: Columns.TERMINATEDS,
    TRUNCATED: Columns.TRUNCATEDS,
    EPISODE: Columns.EPS_ID,
}
"""The names that RLlib gives to the columns."""
OWN = "episodes", "checkpoint", "mirror", "mirror_bytes"
"""The entries of ``input_read_method_kwargs`` that are the datasource's; others go to ``read_datasource``."""


class DiskOfflineData(OfflineData):  # type: ignore[misc]
    """A source for ``config.offline_data(offline_data_class=DiskOfflineData, input_=["cartpole.replay"])``.

    Each step is an item, as RLlib has it where it reads rows. ``input_`` is one path or several;
    ``input_read_method_kwargs`` may have ``episodes``, ``checkpoint``, ``mirror`` and ``mirror_bytes``, as of
    :class:`DiskReplayDatasource`.

    Raises InputError where RLlib is told to read episodes or sample batches, and for observations or actions that are
    nested.
    """

    def __init__(self, config: Any) -> None:
        given = config.input_
        paths = list(given) if isinstance(given, list | tuple) else [given]
        if config.input_read_episodes or config.input_read_sample_batches:
            raise InputError(
                "a store is read step by step: leave input_read_episodes and input_read_sample_batches out"
            )
        options = dict(config.input_read_method_kwargs)
        own = {name: options.pop(name) for name in OWN if name in options}
        sources = [DiskReplayDatasource(path, **own) for path in paths]
        for path, source in zip(paths, sources, strict=True):
            missing = [name for name in NAMES if name not in source.columns]
            if missing:
                raise InputError(
                    f"RLlib's offline data has plain observations and actions; the store {path!r} has no columns "
                    f"{missing}, only {', '.join(source.columns)}"
                )
        # RLlib's own __init__ reads a dataset of its own from input_: nothing, here.
        nothing = config.copy(copy_frozen=False)
        nothing.input_, nothing.input_read_method, nothing.input_read_method_kwargs = ["-"], "from_items", {}
        nothing.input_filesystem, nothing.materialize_data = None, False
        super().__init__(nothing)
        self.config, self.path, self.materialize_data = config, paths, config.materialize_data
        read = [
            ray.data.read_datasource(DiskReplayDatasource(path, list(NAMES), **own), **options).rename_columns(
                dict(NAMES)
            )
            for path in paths
        ]
        self.data = read[0].union(*read[1:]) if len(read) > 1 else read[0]
        if self.materialize_data:
            self.data = self.data.materialize()
