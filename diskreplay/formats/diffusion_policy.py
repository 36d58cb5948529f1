"""The Zarr layout of diffusion_policy.

It is that of Chi et al. 2023, "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion": a Zarr v2 hierarchy,
one entry a step, episodes one after another:

======================  =======================  ======================================================
array                   shape                    from
======================  =======================  ======================================================
``data/obs``            ``(N, *obs_shape)``      ``obs``; of nested spaces ``data/<name>``
``data/action``         ``(N, *action_shape)``   ``action``; of nested spaces ``data/action.<name>``
``data/reward``         ``(N,)``                 ``reward``
``data/terminated``     ``(N,)`` bool            ``terminated``
``data/truncated``      ``(N,)`` bool            ``truncated``
``data/<name>``         ``(N, *shape)``          the user's own columns
``meta/episode_ends``   ``(episodes,)`` int64    one past the last step of each episode
======================  =======================  ======================================================

Every array below ``data`` has the same length, so that there is no place for final observations. What comes in needs
``data/action``, one more array, and ``meta/episode_ends``: every array that has no other meaning is an observation.
Rewards that are missing are 0; without flags, an episode's end is a truncation.
"""

from __future__ import annotations

import json
import pathlib

from diskreplay.formats.core.array_reader import array_format
from diskreplay.formats.core.array_writer import write_flat
from diskreplay.formats.core.convention import LAYOUT, Convention
from diskreplay.formats.core.format import Holds
from diskreplay.formats.core.layout import Layout
from diskreplay.formats.core.names import free
from diskreplay.formats.core.transitions import Source
from diskreplay.formats.files import zarr_arrays
from diskreplay.schema.columns import ACTION, OBS, REWARD, TERMINATED, TRUNCATED

ATTRIBUTE = "diskreplay"


def write(source: Source, target: pathlib.Path, compression: str) -> None:
    """Write a source to a new directory, as the module's docstring says."""
    layout = source.layout
    with zarr_arrays.created(target, compression) as out:
        out.put(f".attrs/{ATTRIBUTE}", {"layout": json.dumps(layout.to_json()), "keys": _keys(layout)})
        write_flat(layout, source.blocks(), out, _written(layout))


def _keys(layout: Layout) -> dict[str, str]:
    keys: dict[str, str] = {}
    first = [name for name in layout.action if name == ACTION]
    for name in dict.fromkeys([*first, REWARD, TERMINATED, TRUNCATED, *layout.obs, *layout.action, *layout.columns]):
        keys[name] = free(name.removeprefix(f"{OBS}/").replace("/", "."), keys.values())
    return keys


def _written(layout: Layout) -> dict[str, str]:
    return {**{name: f"data/{key}" for name, key in _keys(layout).items()}, "/stops": "meta/episode_ends"}


TABLE = Convention(
    {"data/action": ACTION, "data/reward": REWARD, "data/terminated": TERMINATED, "data/truncated": TRUNCATED,
     "data/*": OBS, "meta/episode_ends": "/stops", f".attrs/{ATTRIBUTE}": LAYOUT},
    named=lambda path, container: any(name.startswith("data/") for name in container.names()),
    required=(OBS, ACTION, "/stops"), single=OBS,
    written=_written,
)  # fmt: skip


FORMATS = (
    array_format(
        "diffusion-policy", "diffusion_policy: a Zarr v2 hierarchy of flat arrays", "directory", zarr_arrays.KIND,
        (TABLE,), Holds(final_obs=False, next_obs=False), write, zarr_arrays.COMPRESSIONS,
    ),
)  # fmt: skip
