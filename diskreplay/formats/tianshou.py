"""The HDF5 files that ``ReplayBuffer.save_hdf5`` of Tianshou writes: the buffer's ring, whole.

===================================  ===============================================================================
key                                  becomes
===================================  ===============================================================================
``_meta/obs``, ``_meta/act``         ``obs``, ``action``
``_meta/rew``                        ``reward``
``_meta/terminated``, ``truncated``  the same; ``done`` is either
``_meta/obs_next``                   next observations, which a buffer may lack
``_meta/info/*``, ``policy/*``       columns
===================================  ===============================================================================

The arrays have as many entries as the buffer has places. Its attributes say where the ring's oldest entry stands, and
how many there are; of a ``VectorReplayBuffer`` its arrays say so for each of its buffers, which come one after another.
An episode that a buffer's newest entry leaves open ends there, in neither flag. Tianshou's pickled parts are not read.
It follows ``tianshou/data/buffer/buffer_base.py`` and ``manager.py`` (github.com/thu-ml/tianshou, 2.0.1).

Flat files with Tianshou's labels (``obs``, ``act``, ``rew``, ``done``, ``obs_next``) come in as ``d4rl`` and ``npz``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diskreplay.errors import InputError
from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import EXTRA, NEXT_OBS, Convention
from diskreplay.formats.core.ends import DONE
from diskreplay.formats.core.episodes import array_slice
from diskreplay.formats.core.flat import ArrayLike, Joined, check_length
from diskreplay.formats.core.untrusted import declared_count
from diskreplay.formats.files import hdf5
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

SIZE, PLACES = ".attrs/_size", ".attrs/maxsize"


def _prepared(arrays: dict[str, ArrayLike], container: Container) -> dict[str, ArrayLike]:
    """Return the arrays in the order of time, and how many entries each buffer has."""
    places = declared_count(container.value(PLACES), "maxsize")
    spans = list(_buffers(container, places))
    for name, array in arrays.items():
        check_length("_meta", name, array, places, "places")
    if any(not 0 <= start <= stop <= places for each in spans for start, stop in each):
        raise InputError(f"its buffers have entries outside of their {places:,} places")
    wanted = [span for each in spans for span in each] or [(0, 0)]
    stops = np.cumsum([sum(stop - start for start, stop in each) for each in spans])
    return {
        **{
            name: Joined(name, [array_slice(array, start, stop) for start, stop in wanted])
            for name, array in arrays.items()
        },
        "/stops": stops[np.diff(stops, prepend=0) > 0],
    }


def _buffers(container: Container, size: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the places of each buffer's entries, oldest first: one span, or two where the ring has gone round."""
    names = set(container.names())
    if "_offset" not in names:
        insertion = next((f".attrs/{name}" for name in ("_insertion_idx", "_index") if f".attrs/{name}" in names), SIZE)
        begin = declared_count(container.value(insertion), "the place of the next entry")
        yield _spans(0, size, declared_count(container.value(SIZE), "_size"), begin)
        return
    offsets, counts, newest = (
        np.asarray(container.value(name)).tolist() for name in ("_offset", "_lengths", "last_index")
    )
    for number, (offset, count, last) in enumerate(zip(offsets, counts, newest, strict=True)):
        places = (offsets[number + 1] if number + 1 < len(offsets) else size) - offset
        yield _spans(offset, places, count, (last - offset + 1) % max(1, places))


def _spans(offset: int, places: int, count: int, begin: int) -> list[tuple[int, int]]:
    if count < places:
        return [(offset, offset + count)]
    return [(offset + begin, offset + places), (offset, offset + begin)]


TABLE = Convention(
    {"_meta/obs": OBS, "_meta/act": ACTION, "_meta/rew": REWARD, "_meta/terminated": TERMINATED,
     "_meta/truncated": TRUNCATED, "_meta/done": DONE, "_meta/obs_next": NEXT_OBS, "_meta/info": EXTRA,
     "_meta/policy": EXTRA},
    marks=frozenset({SIZE, PLACES}), prepared=_prepared,
)  # fmt: skip
FORMATS = (array_format("tianshou", "Tianshou: the HDF5 file of a replay buffer", "file", hdf5.KIND, (TABLE,)),)
