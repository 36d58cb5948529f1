"""RLlib's algorithms with their replay buffer on disk, which their checkpoints bring back.

1. An algorithm's state names a checkpoint of the store: no row is copied, and restoring goes back to it.
2. RLlib writes an algorithm as a directory of files, some of them into the place of older ones. The other way round a
   checkpoint of the store has that directory as a file: both are there, whole, or neither is.
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Mapping
from typing import Any, BinaryIO

from ray.rllib.algorithms.dqn import DQN
from ray.rllib.algorithms.sac import SAC

from diskreplay.errors import InputError
from diskreplay.ray.rllib import DiskEpisodeReplayBuffer, DiskPrioritizedEpisodeReplayBuffer

COMPONENT = "local_replay_buffer"
"""The name of the replay buffer in an algorithm's state."""

ALGORITHM = "algorithm.tar"
"""The attachment that has the files of an algorithm."""

KINDS: dict[str, type[DiskEpisodeReplayBuffer]] = {
    "EpisodeReplayBuffer": DiskEpisodeReplayBuffer,
    "PrioritizedEpisodeReplayBuffer": DiskPrioritizedEpisodeReplayBuffer,
}
"""The buffers here that replace RLlib's, by the names that its configurations take."""


class KeepsReplay:
    """A base put before an algorithm's class: its buffer is on disk, and ``save`` and ``restore`` bring it back.

    ``class DiskDQN(KeepsReplay, DQN)``; ``DQNConfig(algo_class=DiskDQN)``. Of ``replay_buffer_config``, ``type`` stays
    RLlib's own name, ``EpisodeReplayBuffer`` or ``PrioritizedEpisodeReplayBuffer``; ``path`` names the store, and
    further entries are options of :class:`DiskEpisodeReplayBuffer`.
    """

    def _create_local_replay_buffer_if_necessary(self, config: Any) -> DiskEpisodeReplayBuffer | None:
        given = config.get("replay_buffer_config")
        if not given or given.get("no_local_replay_buffer"):
            return None
        options = {name: value for name, value in given.items() if name not in ("type", "no_local_replay_buffer")}
        kind = _kind(given.get("type"))
        parallel = max(1, config.num_env_runners or 0) * max(1, config.num_envs_per_env_runner or 1)
        settings = {
            "num_envs": parallel, "metrics_num_episodes_for_smoothing": config.metrics_num_episodes_for_smoothing,
        }  # fmt: skip
        if kind is DiskEpisodeReplayBuffer:
            options.pop("alpha", None)
        return kind(**{**settings, **options})

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Return the algorithm's state, with the name of a checkpoint of its buffer."""
        this: Any = self
        state: dict[str, Any] = super().get_state(components, not_components=not_components, **kwargs)  # type: ignore[misc]
        buffer = this.local_replay_buffer
        if buffer is not None and this._check_component(COMPONENT, components, not_components):
            state[COMPONENT] = buffer.get_state()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go back to a state, with the buffer if the state names it."""
        this: Any = self
        super().set_state(state)  # type: ignore[misc]
        if COMPONENT in state and this.local_replay_buffer is not None:
            this.local_replay_buffer.set_state(state[COMPONENT])

    def save_to_store(self) -> str:
        """Save the algorithm in a checkpoint of its buffer's store, whole or not at all; return the checkpoint's name.

        The newest ``keep_checkpoints`` stay, of these and of those that ``save`` made. Raises InputError where the
        buffer has no path or no step yet.
        """
        buffer = self._buffer()
        this: Any = self
        if buffer.store is None:
            raise InputError("the buffer is empty; train for an iteration first")
        with tempfile.TemporaryDirectory() as folder:
            # The state without the buffer, whose own would name another checkpoint.
            this.save_to_path(folder, state=super().get_state())  # type: ignore[misc]

            def write(file: BinaryIO) -> None:
                with tarfile.open(fileobj=file, mode="w|") as archive:
                    archive.add(folder, ".")

            name = buffer.checkpoint({ALGORITHM: write})
        assert name is not None
        return name

    def restore_from_store(self, checkpoint: str | None = None) -> bool:
        """Go back to what :meth:`save_to_store` saved: the algorithm, its buffer and the buffer's priorities.

        Args:
            checkpoint: its name; the newest if None.

        Returns whether there is one. RLlib unpickles what it restores: do this with stores of your own alone. Raises
        CheckpointError, with nothing changed, where it cannot go back to the checkpoint or that has no algorithm.
        """
        buffer = self._buffer()
        this: Any = self
        name = buffer.newest_with(ALGORITHM) if checkpoint is None else checkpoint
        if name is None or buffer.store is None:
            return False
        with tempfile.TemporaryDirectory() as folder:
            with (
                buffer.store.attachment(ALGORITHM, name) as file,
                tarfile.open(fileobj=file, mode="r|") as archive,
            ):
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4 on
                archive.extractall(folder)
            buffer.set_state({"checkpoint": name})
            this.restore_from_path(folder)
        return True

    def _buffer(self) -> DiskEpisodeReplayBuffer:
        found = getattr(self, "local_replay_buffer", None)
        if not isinstance(found, DiskEpisodeReplayBuffer):
            raise InputError("the algorithm has no buffer on disk: give replay_buffer_config a 'type' and a 'path'")
        return found

    def cleanup(self) -> None:
        """Close the buffer, and stop the algorithm."""
        buffer = getattr(self, "local_replay_buffer", None)
        if buffer is not None:
            buffer.close()
        super().cleanup()  # type: ignore[misc]


def _kind(wanted: Any) -> type[DiskEpisodeReplayBuffer]:
    if isinstance(wanted, type) and issubclass(wanted, DiskEpisodeReplayBuffer):
        return wanted
    name = wanted.__name__ if isinstance(wanted, type) else str(wanted)
    kind = KINDS.get(name.rpartition(".")[2]) or {each.__name__: each for each in KINDS.values()}.get(
        name.rpartition(".")[2]
    )
    if kind is None:
        raise InputError(f"no buffer on disk takes the place of {name!r}; those of {', '.join(KINDS)} are there")
    return kind


class DiskDQN(KeepsReplay, DQN):  # type: ignore[misc]
    """RLlib's DQN with its buffer on disk: ``DQNConfig(algo_class=DiskDQN)``."""


class DiskSAC(KeepsReplay, SAC):  # type: ignore[misc]
    """RLlib's SAC with its buffer on disk: ``SACConfig(algo_class=DiskSAC)``."""
