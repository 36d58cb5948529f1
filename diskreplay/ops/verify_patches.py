"""The check of patches against rows: a patch of the next observation of a row equals the row that continues it.

What cannot be read is left out: :mod:`diskreplay.ops.verify_chunks` reports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diskreplay.errors import EvictedError
from diskreplay.ops.problems import DAMAGE, Findings
from diskreplay.schema.columns import PATCH_TABLE, PLACES, START, VALID, Start
from diskreplay.storage.column import ColumnReader

Array = NDArray[Any]


class ValueReader:
    """A reader of single values of a column, which keeps the last one's chunk.

    Args:
        reader: the reader of the column.
        read: reads a chunk of a group into an array; as the reader does if None.
    """

    def __init__(self, reader: ColumnReader, read: Callable[[int, int, Array], object] | None = None) -> None:
        self.reader = reader
        self._read = reader.read_chunk if read is None else read
        self._chunk = np.empty(reader.chunk_shape, reader.column.dtype)
        self._at = -1, -1

    def __call__(self, row: int, env: int = 0) -> Array:
        """Return a row of one environment, ``(*shape,)``, with errors as reading."""
        chunk, at = divmod(row, self.reader.column.chunk_rows)
        group, of = divmod(env, self.reader.group_envs)
        if self._at != (chunk, group):
            self._at = -1, -1
            self._read(chunk, group, self._chunk)
            self._at = chunk, group
        value: Array = self._chunk[at, of]
        return value


def check_patches(
    stream: str, readers: dict[str, ColumnReader], leaves: list[str], patches: tuple[int, int], end: int,
    found: Findings,
) -> None:  # fmt: skip
    """Check patches of the numbers ``patches``, half-open, of a commit of rows below ``end``.

    Args:
        readers: the readers by path, with their indexes loaded; a leaf whose index cannot be read is missing.
        leaves: names of the observation leaves.
    """
    values = {path: ValueReader(reader) for path, reader in readers.items()}
    try:
        places = readers[PLACES].read_rows(*patches)[:, 0]
    except DAMAGE:
        return
    following = np.flatnonzero((places[:, 2] == 1) & (places[:, 0] + 1 < end) & (places[:, 0] >= 0))
    bad: dict[str, list[int]] = {}
    for at in following[np.lexsort((places[following, 0], places[following, 1]))].tolist():
        row, env = places[at, :2].tolist()
        if not 0 <= env < readers[START].num_envs:
            continue
        for leaf in leaves:
            path = f"{PATCH_TABLE}/{leaf}"
            try:
                continues = values[START](row + 1, env) == Start.CONTINUES and values[VALID](row + 1, env)
                if not continues or not {leaf, path} <= values.keys():
                    continue
                if values[leaf](row + 1, env).tobytes() != values[path](patches[0] + at).tobytes():
                    bad.setdefault(path, []).append(patches[0] + at)
            except (EvictedError, *DAMAGE):
                continue
    for path, numbers in bad.items():
        row, env, _ = places[min(numbers) - patches[0]].tolist()
        count = f", the first of {len(numbers)} such" if len(numbers) > 1 else ""
        found.add(
            f"patch {min(numbers)} (row {row}, environment {env}, offset 1){count}: the next row continues this one, "
            f"but holds another frame",
            stream=stream, column=path, rows=(min(numbers), max(numbers) + 1),
            file=readers[path].shard_path(min(numbers) // readers[path].column.shard_rows),
        )  # fmt: skip
