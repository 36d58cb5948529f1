"""d3rlpy's replay buffer over a store on disk.

``algo.fit(DiskDataset("pong.replay"), n_steps=...)`` trains on any store. ``algo.fit_online(env, buffer)`` with
``DiskDataset("run.replay", limit=1_000_000, env=env)`` writes one. Observations are read as they are drawn, never all
at once.
"""

try:
    import d3rlpy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"diskreplay.compat.d3rlpy needs d3rlpy 2.8: pip install 'd3rlpy>=2.8,<3' ({error})"
    ) from error

from diskreplay.compat.d3rlpy.dataset import DiskDataset
from diskreplay.compat.d3rlpy.episodes import DiskEpisode

__all__ = ["DiskDataset", "DiskEpisode"]
