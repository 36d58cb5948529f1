"""The HDF5 layout of ALOHA and ACT: a file an episode, of a robot that was steered by hand.

It is of Zhao et al. 2023, "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", as
``record_sim_episodes.py`` of ACT (github.com/tonyzhaozh/act) and ``record_episodes.py`` of ALOHA write it.

===================================  ===============================================================================
key                                  becomes
===================================  ===============================================================================
``observations/qpos``, ``qvel``      ``obs/qpos``, ``obs/qvel``; likewise ``effort``
``observations/images/<camera>``     ``obs/images/<camera>``
``action``                           ``action``, taken at the observation of its entry
others with an entry a step          columns, such as ``base_action``
===================================  ===============================================================================

There is no reward: it is 0. An episode ends with its file, truncated, and has no final observation: its last step is
left out. Pictures that ``compress_data.py`` made JPEG of (attribute ``compress``) are decoded, with the channels in the
order that OpenCV gives them back in.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.container import Container
from diskreplay.formats.core.convention import Convention
from diskreplay.formats.core.flat import ArrayLike
from diskreplay.formats.files import hdf5, images
from diskreplay.schema.columns import ACTION, OBS

COMPRESSED, LENGTHS = ".attrs/compress", "compress_len"


class Jpegs(images.EncodedImages):
    """Pictures ``(N, height, width, 3)`` of JPEGs ``(N, bytes)`` that are padded with zeros."""

    def __init__(self, where: str, base: ArrayLike) -> None:
        super().__init__(where, lambda start, stop: [bytes(one) for one in base[start:stop]], base.shape[0])

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return super().__getitem__(rows)[..., ::-1]


def _prepared(arrays: dict[str, ArrayLike], container: Container) -> dict[str, ArrayLike]:
    names = set(container.names())
    if COMPRESSED not in names or not container.value(COMPRESSED):
        return arrays
    if LENGTHS in names:
        container.array(LENGTHS)  # it repeats how long each one is before its zeros
    return {
        name: Jpegs(name, array) if name.startswith(f"{OBS}/images/") and len(array.shape) == 2 else array
        for name, array in arrays.items()
    }


TABLE = Convention(
    {"observations": OBS, "action": ACTION}, marks=frozenset({"observations/qpos", "action"}), columns=True,
    closed=True, prepared=_prepared,
)  # fmt: skip
FORMATS = (
    array_format(
        "aloha", "ALOHA and ACT: a directory with an HDF5 file for each episode", "directory", hdf5.KIND, (TABLE,)
    ),
)
