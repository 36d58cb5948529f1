"""The change of the number of transitions that streams keep.

All streams are locked before the first changes. Then each makes one commit, in the order of their numbers. A crash in
between leaves each stream as it was or as it is to be, and the same call again does the rest.
"""

from __future__ import annotations

import contextlib
import dataclasses

from diskreplay.errors import InputError
from diskreplay.ops.result import Result
from diskreplay.remote import local
from diskreplay.schema.columns import CUT_PLACES, PLACES
from diskreplay.storage import files as fs
from diskreplay.storage.commit import ROWS, Commit, check_size, table_of
from diskreplay.storage.local_files import LocalFiles
from diskreplay.storage.paths import PathLike
from diskreplay.storage.store import Store
from diskreplay.storage.stream import StreamWriter

ROLLOUTS = "rollout", "multi_agent_rollout"
"""The settings of stores whose window is one rollout."""


@dataclasses.dataclass(frozen=True)
class Resized(Result):
    """The transitions that a stream holds.

    Attributes:
        stream: its name.
        before, capacity: transitions that its window held at most, and holds.
        evicted: transitions that were given up.
    """

    stream: str
    before: int
    capacity: int
    evicted: int


def resize(
    path: PathLike, capacity: int, stream_name: str | None = None, files: fs.Files | None = None, *,
    evict: bool = True, dry_run: bool = False,
) -> list[Resized]:  # fmt: skip
    """Resize a stream of the store at ``path``, or each, as the module's docstring says.

    Args:
        path: the path of the store.
        capacity: transitions (rows x environments) that the stream, or each, is to keep; with fewer the oldest go.
        stream_name: the name of the only stream to resize; all if None.
        files: the files to write through.
        evict: False to raise InputError where transitions would be given up.
        dry_run: only say what would be done; the streams may be written meanwhile.

    Raises InputError, LockedError when one is being written, and what opening the store raises; nothing has changed.
    """
    store = Store(local(path, "resizing"), files or LocalFiles())
    if any(kind in store.settings for kind in ROLLOUTS):
        raise InputError(
            f"the store {store.path!r} holds a rollout, which has steps and no capacity: make another with other steps"
        )
    commits = store.newest_commits()
    if stream_name is not None and stream_name not in commits:
        raise InputError(f"there is no stream {stream_name!r}; there are {', '.join(commits)}")
    names = list(commits) if stream_name is None else [stream_name]
    for name in names:
        check_size(commits[name].num_envs, capacity)
    with contextlib.ExitStack() as opened:
        writers = [] if dry_run else [opened.enter_context(store.write_stream(name)) for name in names]
        old = [commits[name] for name in names] if dry_run else [writer.commit_record for writer in writers]
        context = store.schema.context
        gone = [(one.resized(capacity, context).begin - one.begin) * one.num_envs for one in old]
        if any(gone) and not (evict or dry_run):
            raise InputError(
                f"with the capacity {capacity:,} the oldest {sum(gone):,} transitions of {store.path!r} are given up "
                "for good: say so (--evict), or keep more; --dry-run tells what goes of each stream"
            )
        for writer in writers:
            new = writer.commit_record.resized(capacity, context)
            if new != writer.commit_record:
                needed = {table_of(path): _first_entry(writer, path, new) for path in (PLACES, CUT_PLACES)}
                writer.commit(new.begin, needed, contextlib.nullcontext(), capacity, closing=True)
            writer.reclaim(contextlib.nullcontext())
    sizes = ((one.capacity, capacity) for one in old)
    return [Resized(name, *size, count) for name, size, count in zip(names, sizes, gone, strict=True)]


def _first_entry(writer: StreamWriter, path: str, commit: Commit) -> int:
    """Return the first of the patches, or of the cuts, at a ``path`` that is of a row that a commit needs."""
    table = commit.of(path)
    rows = writer.columns[path].read_rows(table.begin, table.end)[:, 0, 0]
    return table.begin + int((rows < commit.table(ROWS).needed_from).cumprod().sum())
