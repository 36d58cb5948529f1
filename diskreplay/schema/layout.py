"""The layout of the array of a column in a stream: rows and environments of a chunk, rows of a shard, and the codec.

It is fixed when the array gets its first chunk, and stands in the stream's record from then on. Before that it is what
:func:`laid_out` gives when the stream is opened. It does not say whether values are held in RAM: who opens decides.
"""

from __future__ import annotations

import math

from diskreplay.schema.columns import ITEMS, LOGS, Codec, Column, StoredColumn

SMALL_BYTES = 256
"""The bytes of a value up to which a chunk holds all environments."""
CHUNK_BYTES, MAX_CHUNK_ROWS = 128 << 10, 4096
"""The decoded bytes of a chunk, few enough for a CPU's second-level cache, and its rows."""
LONG_CHUNK_BYTES = 16 << 10
"""The decoded bytes of a chunk of small values whose window is too long to be held in RAM: samples decode chunks."""
LOG_CHUNK_BYTES, ITEMS_CHUNK_BYTES = 64 << 10, 32 << 10
"""The decoded bytes of a chunk of a log, and of items, as a short row decodes one chunk."""
FLOAT_ROWS, DISK_ROWS = 4, 16
"""The most rows of a chunk of larger values: of floats, which hardly shrink, and of others."""
WINDOW_CHUNKS = 4
"""A chunk of rows is at most this part of the window."""
MOST_SHARD_BYTES, MOST_SHARD_CHUNKS, LEAST_SHARD_BYTES = 1 << 30, 1024, 64 << 10
"""The limits of a shard: its decoded bytes, and the chunks of each group of environments, as each commit that appends
to a shard writes its index anew."""
SHARD_BYTES, WINDOW_SHARDS, MOST_SHARDS = 64 << 20, 16, 4096
"""A shard has at most so many decoded bytes, and this part of the window, unless that has too many shards."""
SHARD_WINDOWS = 16
"""So many windows are the most of a shard: of short ones it would have a long index, and each closing appends one."""


def laid_out(column: Column, rows: bool, num_envs: int, window: int) -> StoredColumn:
    """Return a column with its layout; what the user gave for it stays.

    Args:
        column: a column of the schema.
        rows: True for the table of rows, False for any other.
        num_envs: the environments of the array.
        window: the rows of the array that are kept, as far as is known.
    """
    given, item = column.given, column.item_bytes
    held = not rows or column.is_small(window * num_envs)
    chunk_envs = num_envs if item <= SMALL_BYTES else 1
    chunk_rows, shard_rows = given.chunk_rows, given.shard_rows
    if chunk_rows is None:
        wanted = _chunk_rows(column, rows, item * chunk_envs, held)
        if rows:
            wanted = min(wanted, window // WINDOW_CHUNKS, MOST_SHARD_BYTES // (item * num_envs))
        chunk_rows = math.gcd(_power_of_two(wanted), shard_rows or 0) or 1
    if shard_rows is None:
        shard_rows = chunk_rows * _shard_chunks(chunk_rows, item * num_envs, window)
    return StoredColumn.of(column, chunk_rows, shard_rows, chunk_envs, given.codec or _codec(column, held))


def _chunk_rows(column: Column, rows: bool, row_bytes: int, held: bool) -> int:
    """Return how many rows a chunk should have, of ``row_bytes`` each."""
    if not rows and column.name in LOGS:
        return LOG_CHUNK_BYTES
    if not rows and column.name.startswith(f"{ITEMS}/"):
        return ITEMS_CHUNK_BYTES // row_bytes
    if column.item_bytes <= SMALL_BYTES:
        return min(MAX_CHUNK_ROWS, (CHUNK_BYTES if held else LONG_CHUNK_BYTES) // row_bytes)
    if not rows:  # patches, each of which is read alone
        return 1
    return min(FLOAT_ROWS if column.dtype.kind in "fc" else DISK_ROWS, CHUNK_BYTES // row_bytes)


def _shard_chunks(chunk_rows: int, row_bytes: int, window: int) -> int:
    """Return how many chunks, of all environments, a shard has: a power of two. Earlier limits win over later ones."""
    chunk = chunk_rows * row_bytes
    wanted = _power_of_two(min(SHARD_BYTES // chunk, window // (WINDOW_SHARDS * chunk_rows)))
    wanted = max(wanted, _power_of_two_from(-(-window // (MOST_SHARDS * chunk_rows))))
    least = _power_of_two_from(-(-LEAST_SHARD_BYTES // chunk))
    wanted = max(wanted, min(least, _power_of_two(SHARD_WINDOWS * window // chunk_rows)))
    return min(wanted, _power_of_two(min(MOST_SHARD_CHUNKS, MOST_SHARD_BYTES // chunk)))


def _codec(column: Column, held: bool) -> Codec:
    if column.name.startswith(f"{ITEMS}/"):
        return Codec("lz4hc", 4)
    if column.item_bytes <= SMALL_BYTES and held:
        return Codec("zstd", 1)
    return Codec("lz4", 9) if column.dtype.kind in "fc" else Codec("lz4hc", 4)


def _power_of_two(most: int) -> int:
    """Return the greatest power of two up to a number, 1 at least."""
    return 1 << max(0, most.bit_length() - 1)


def _power_of_two_from(least: int) -> int:
    """Return the least power of two from a number on."""
    return 1 << max(0, least - 1).bit_length()
