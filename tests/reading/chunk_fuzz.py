"""Random damage to chunks that are whole by their checksums, read by compiled code; a process that might die of it.

Arguments: a folder of its own, a seed, how many. Prints how many ended how.
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys

import numpy as np

from diskreplay.native import core
from diskreplay.reading import compiled
from diskreplay.schema.columns import Codec
from diskreplay.storage import chunks

CODECS = [Codec("lz4hc", 4), Codec("lz4", 1), Codec("zstd", 1), Codec("none")]
GUARD = 64
"""Bytes around all that is written to, which nobody may touch."""
MARK = 0xA5


def guarded(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Room for ``size`` bytes, and all around it."""
    around = np.full(size + 2 * GUARD, MARK, np.uint8)
    return around[GUARD:-GUARD], around


def intact(around: np.ndarray) -> bool:
    return bool((around[:GUARD] == MARK).all() and (around[-GUARD:] == MARK).all())


def mutate(body: bytes, rng: np.random.Generator) -> bytes:
    """The chunk without its checksum, damaged."""
    data = bytearray(body)
    for _ in range(rng.integers(1, 4)):
        match rng.integers(7):
            case 0:  # a bit of anything
                data[rng.integers(len(data))] ^= 1 << rng.integers(8)
            case 1:  # a byte of the headers
                data[rng.integers(min(24, len(data)))] = rng.integers(256)
            case 2:  # a number of the headers
                at = 4 * rng.integers(6)
                value = int(rng.choice([0, 1, -1, 16, 20, 24, 1 << 30, -(1 << 31), len(data), len(data) - 24]))
                data[at : at + 4] = value.to_bytes(4, "little", signed=True)
            case 3:
                del data[rng.integers(1, len(data) + 1) :]
            case 4:
                data += rng.bytes(rng.integers(1, 40))
            case 5:  # the LZ4 data
                at = rng.integers(min(24, len(data) - 1), len(data))
                data[at : at + rng.integers(1, 9)] = rng.bytes(rng.integers(1, 9))
            case _:
                data[:] = rng.bytes(rng.integers(1, len(data) + 1))
        if len(data) < 2:
            return bytes(data)
    if rng.random() < 0.6 and len(data) >= 16:  # with sizes that fit
        data[12:16] = len(data).to_bytes(4, "little")
        if len(data) >= 24 and rng.random() < 0.7:
            data[20:24] = (len(data) - 24).to_bytes(4, "little")
    return bytes(data)


def main() -> None:
    folder, seed, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ended: collections.Counter[str] = collections.Counter()
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        codec = CODECS[rng.integers(len(CODECS))]
        rows, width = int(rng.integers(1, 9)), int(rng.integers(1, 200))
        values = rng.integers(0, rng.integers(1, 256), (rows, width), np.uint8)
        values[:, : width // 2] = 0
        data = chunks.seal(mutate(chunks.encode(codec, values)[: -chunks.CRC_BYTES], rng))
        file = folder / "chunk"
        file.write_bytes(data)
        row = int(rng.integers(rows))
        taken = int(rng.integers(1, rows - row + 1))
        encoded, around_encoded = guarded(values.nbytes + chunks.OVERHEAD_BYTES)
        decoded, around_decoded = guarded(values.nbytes)
        batch, around_batch = guarded(taken * width)
        out = batch.reshape(1, -1)
        with file.open("rb") as opened:
            done = core.read(
                compiled.CALLS, np.array([opened.fileno()]),
                np.array([[0, 0, row, taken, 0, 0, 0, 0, 0, len(data), 1, 0, 0]]),
                0, 1, rows, width, codec.name == "none", encoded, decoded, out,
            )  # fmt: skip
        assert intact(around_encoded), f"{number}: it wrote beside the encoded chunk"
        assert intact(around_decoded), f"{number}: it wrote beside the decoded chunk"
        assert intact(around_batch), f"{number}: it wrote beside the batch"
        expected = np.empty_like(values)
        try:
            if len(data) > values.nbytes + chunks.OVERHEAD_BYTES:
                raise chunks.DamagedError("more bytes than any chunk has: the index says so")
            chunks.decode(codec, data, expected)
        except chunks.DamagedError:
            # Decoded to the last row that is wanted; what follows it is not looked at.
            assert not done or (row + taken < rows and codec.name.startswith("lz4")), (
                f"{number}: it read what is damaged"
            )
            ended["prefix" if done else "refused"] += 1
        else:
            same = np.array_equal(out.reshape(taken, width), expected[row : row + taken])
            assert not done or same, f"{number}: it read something else"
            ended["read" if done else "left to Python"] += 1
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
