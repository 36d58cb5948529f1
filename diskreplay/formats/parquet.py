"""Parquet, one row a step, as ``datasets.load_dataset("parquet", ...)`` reads it; columns are named as in LeRobot.

=======================  ===============  =====================================================================
column                   of               from
=======================  ===============  =====================================================================
``observation``          each value       ``obs``; of nested spaces ``observation.<name>``
``action``               each value       ``action``; of nested spaces ``action.<name>``
``next.reward``          number           ``reward``
``next.terminated``      bool             ``terminated``
``next.truncated``       bool             ``truncated``
``next.done``            bool             the step is the last of its episode, in whatever way
``final_observation``    each value       the true next observation of an episode's last step; null in all other rows
``episode_index``        int64            the episode's number
``frame_index``          int64            the step's number in its episode
``index``                int64            the row's number
``<name>``               each value       the user's own columns
=======================  ===============  =====================================================================

1. Single numbers are numbers, arrays are lists of fixed size, nested for more than one axis. In ``final_observation``
   their size is not fixed, because pyarrow before 26 reads no nulls among lists of a fixed size. Earlier versions wrote
   such files, which pyarrow 26 reads. Rows of a ragged column are lists of any size of its items.
2. Images, uint8 with 1, 3 or 4 channels as the last axis or with none, are PNG, as Hugging Face's ``Image`` has them:
   a struct of ``bytes`` and ``path``. With the compressions "zstd" and "none" they are raw bytes in C order.
3. The schema's metadata hold the layout (``diskreplay``), and what ``datasets`` is to decode (``huggingface``).
4. Texts are strings.

What comes in is a file, or a directory of them, read in the natural order of their names; those below ``data`` where
there is such a directory. It needs ``action``, observations, and ``episode_index``, ``frame_index`` or flags. The first
two must ascend without gaps, over all files. Texts in observations and actions are Text spaces of the characters that
occur; others are ragged columns of code points, with their names in ``provenance["parquet"]["text"]``.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import FINAL_OBS, LAYOUT, Convention
from diskreplay.formats.core.ends import DONE
from diskreplay.formats.core.flat import FlatArrays
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout, infer_text
from diskreplay.formats.core.names import free
from diskreplay.formats.core.transitions import Source, Transitions, no_steps
from diskreplay.formats.files import images, parquet_table
from diskreplay.formats.files.arrow import number_array, picture_array, text_array
from diskreplay.formats.files.parquet_array import ParquetArray
from diskreplay.formats.files.parquet_table import DESCRIPTION, METADATA, check_order, whole_numbers
from diskreplay.schema.columns import ACTION, DTYPES, OBS, REWARD, TERMINATED, TRUNCATED
from diskreplay.schema.ragged import Lists

GROUP_BYTES = 32 << 20
"""The number of decoded bytes of a row group."""
COMPRESSIONS = {"png": "zstd", "zstd": "zstd", "none": "none"}
EPISODE, FRAME, INDEX = "/episode", "/frame", "/index"
"""The names here of what is not a column of a store: no column can have such a name."""
PLACES = {EPISODE: "episode_index", FRAME: "frame_index", INDEX: parquet_table.INDEX, DONE: "next.done"}
FLAGS = {REWARD: "next.reward", TERMINATED: "next.terminated", TRUNCATED: "next.truncated"}


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new file, as the module's docstring says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    layout, keys, png = source.layout, _keys(source.layout), compression == "png"
    schema = _schema(layout, keys, png)
    waiting: list[Any] = []
    size = at = episode = first = 0
    with pq.ParquetWriter(target, schema, compression=COMPRESSIONS[compression]) as out:
        for steps in source.blocks():
            columns = _arrow(steps, layout, keys, png)
            rows, number = at + np.arange(len(steps)), np.cumsum(steps.last) - steps.last
            starts = np.append(first, rows[steps.last] + 1)
            told = {EPISODE: episode + number, FRAME: rows - starts[number], INDEX: rows, DONE: steps.last}
            columns |= {PLACES[name]: pa.array(values) for name, values in told.items()}
            at, episode, first = at + len(steps), episode + int(steps.last.sum()), int(starts[-1])
            waiting.append(pa.table([columns[field.name] for field in schema], schema=schema))
            lists = [values.values.nbytes for values in steps.columns().values() if isinstance(values, Lists)]
            size += len(steps) * layout.step_bytes + sum(lists)
            if size >= GROUP_BYTES:
                out.write_table(pa.concat_tables(waiting), row_group_size=1 << 30)
                waiting, size = [], 0
        if waiting:
            out.write_table(pa.concat_tables(waiting), row_group_size=1 << 30)


def _final(name: str) -> str:
    """Return our name of the final observations of a leaf: ``.final_obs/camera`` for ``obs/camera``."""
    return name.replace(OBS, FINAL_OBS, 1)


def _keys(layout: Layout) -> dict[str, str]:
    """Return the Parquet column of each of ours; names that meet get a dot."""
    roots = {OBS: "observation", FINAL_OBS: "final_observation"}
    keys = dict(PLACES)
    for name in [*layout.obs, *layout.action, *FLAGS, *map(_final, layout.obs), *layout.columns]:
        root, _, rest = name.partition("/")
        key = FLAGS.get(name) or ".".join([roots.get(root, root), *filter(None, rest.split("/"))])
        keys[name] = free(name if name in layout.columns else key, keys.values())
    return keys


def _schema(layout: Layout, keys: Mapping[str, str], png: bool) -> Any:
    import pyarrow as pa

    kinds = {key: array.type for key, array in _arrow(no_steps(layout), layout, keys, png).items()}
    kinds |= {key: pa.bool_() if name == DONE else pa.int64() for name, key in PLACES.items()}
    metadata = {METADATA: json.dumps({"layout": layout.to_json(), "keys": dict(keys)}).encode()}
    if pictures := {key: {"_type": "Image"} for key, kind in kinds.items() if pa.types.is_struct(kind)}:
        metadata[b"huggingface"] = json.dumps({"info": {"features": pictures}}).encode()
    ordered = [*(key for name, key in keys.items() if name not in PLACES), *PLACES.values()]
    return pa.schema([(key, kinds[key]) for key in ordered], metadata)


def _arrow(steps: Transitions, layout: Layout, keys: Mapping[str, str], png: bool) -> dict[str, Any]:
    import pyarrow as pa

    ends = np.flatnonzero(steps.last)
    at = np.full(len(steps), -1)
    at[ends] = np.arange(len(ends))
    places = pa.array(at, mask=at < 0)
    texts = layout.texts
    found = {keys[name]: _values(values, png, name in texts) for name, values in steps.columns().items()}
    for name in layout.obs:
        finals = _values(steps.next_obs[name][ends], png, name in texts, sized=False)
        found[keys[_final(name)]] = finals.take(places)
    return found


def _values(values: Any, png: bool, text: bool, sized: bool = True) -> Any:
    """Return values ``(n, *shape)``, or Lists, as an Arrow array; lists of arrays are of a fixed size if ``sized``."""
    import pyarrow as pa

    if text:
        return text_array("a text", values)
    if isinstance(values, Lists):
        return pa.ListArray.from_arrays(values.offsets.astype(np.int32), number_array(values.values, sized))
    if not images.is_image(values.shape[1:], values.dtype):
        return number_array(values, sized)
    if not png:
        return pa.array([value.tobytes() for value in values], pa.binary())
    return picture_array(values)


def _prepared(arrays: dict[str, Any], container: Container) -> dict[str, Any]:
    """Return the arrays, whose rows must be in order; where only steps are numbered, the first ones begin episodes."""
    episode, frame = arrays.get(EPISODE), arrays.get(FRAME)
    check_order(episode, frame)
    return arrays if episode is not None or frame is None else {"/first": whole_numbers(frame) == 0, **arrays}


def _with_texts(layout: Layout, arrays: FlatArrays) -> Layout:
    """Return an inferred layout with spaces of texts, and with the names of columns of texts in its provenance."""
    found = {}
    for name, array in {**arrays.obs, **arrays.action}.items():
        each = [one.texts for one in (array, (arrays.finals or {}).get(name)) if isinstance(one, ParquetArray)]
        if texts := [one for one in each if one is not None]:
            found[name] = infer_text("".join(one.charset for one in texts), max(one.longest for one in texts))
    columns = [name for name, array in arrays.extra.items() if isinstance(array, ParquetArray) and array.texts]
    provenance = {"parquet": {"text": columns}} if columns else {}
    return dataclasses.replace(layout.with_texts(found), provenance=provenance)


TABLE = Convention(
    {"observation": OBS, "observations": OBS, OBS: OBS, "action": ACTION, "actions": ACTION,
     "final_observation": FINAL_OBS, **dict.fromkeys(("next.reward", "reward", "rewards"), REWARD),
     **dict.fromkeys(("next.terminated", "terminated", "terminals", "terminal", "terminations"), TERMINATED),
     **dict.fromkeys(("next.truncated", "truncated", "timeouts", "truncations"), TRUNCATED),
     **dict.fromkeys(("next.done", "done", "dones"), DONE),
     "episode_index": EPISODE, "frame_index": FRAME, "index": "", DESCRIPTION: LAYOUT},
    separator=".", columns=True, written=_keys, prepared=_prepared, described=_with_texts,
)  # fmt: skip


FORMATS = (
    array_format(
        "parquet", "Parquet for Hugging Face datasets: one row a step", "file", parquet_table.KIND, (TABLE,),
        Holds(
            next_obs=False, dtypes=frozenset(name for name in DTYPES if not name.startswith("complex")), ragged=True
        ), write, tuple(COMPRESSIONS), requires=("pyarrow",), extra="arrow",
    ),
)  # fmt: skip
