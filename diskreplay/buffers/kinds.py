"""The search for the class that a store was made with."""

from __future__ import annotations

from typing import Any, Literal

from diskreplay.buffers import multi_agent_layout
from diskreplay.buffers.comparing import found_under
from diskreplay.buffers.multi_agent import MultiAgentReplayBuffer, MultiAgentRolloutBuffer
from diskreplay.buffers.on_policy import AGENTS_ROLLOUT, ROLLOUT
from diskreplay.buffers.replay import ReplayBuffer
from diskreplay.buffers.rollout import RolloutBuffer
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike, checked_url, full_path, is_url
from diskreplay.storage.store import Store

KINDS: dict[str, Any] = {
    ROLLOUT: RolloutBuffer,
    AGENTS_ROLLOUT: MultiAgentRolloutBuffer,
    multi_agent_layout.KEY: MultiAgentReplayBuffer,
}
"""The classes by the entry of a store's settings that only they make."""


def open(path: PathLike, mode: Literal["r", "r+", "a"] = "r", **options: Any) -> Any:
    """Open the store at ``path`` to read it, as a buffer of the class that made it.

    That is a :class:`ReplayBuffer`, :class:`RolloutBuffer`, :class:`MultiAgentReplayBuffer` or
    :class:`MultiAgentRolloutBuffer`. A live writer of the store is not disturbed.

    Args:
        path: the path of the store, or a URL (``s3://bucket/name``).
        mode: "r" to read; "r+" to write and "a" to append as with :meth:`ReplayBuffer.open`.
        **options: the options of that class's ``open``, such as ``view``, ``checkpoint`` and ``seed``.

    Raises what :meth:`ReplayBuffer.open` raises.
    """
    if is_url(path):
        there = found_under(checked_url(path))
        settings = {} if there is None else there[1]
    else:
        settings = Store(full_path(path), options.get("files") or LocalFiles()).settings
    kind = next((KINDS[name] for name in KINDS if name in settings), ReplayBuffer)
    return kind.open(path, mode=mode, **options)
