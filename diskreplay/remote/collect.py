"""The removal of what nothing needs any more from a remote store.

A shard is dead when it lies wholly below its stream's window and no checkpoint pins it, and so is a tail that its
stream's writer has left; so are the arrays of a checkpoint without a document. Who reads may be behind: so what is dead
is first noted, with the time, in an object of its own, and removed when it was dead for long enough, by the same tag,
and still is. Checkpoints are looked for again right before, after it was noted what goes; who makes one looks
afterwards whether all that it needs is still there (:mod:`diskreplay.remote.trainer_checkpoints`). Objects that are not
the store's are never touched.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from diskreplay.remote import documents, numbers
from diskreplay.remote.catalog import Catalog
from diskreplay.remote.needed import needed_arrays, needed_objects, tail_number
from diskreplay.remote.objects import Object, read
from diskreplay.remote.remote_files import RemoteFiles
from diskreplay.storage import metadata
from diskreplay.storage.column import shard_number
from diskreplay.storage.commit import Commit
from diskreplay.storage.store import CHECKPOINTS, STREAMS, Store

NOTE = "__dead.json"
"""The note of what was dead since when, beside the first stream's array ``start``, where Zarr readers do not look."""
MAX_NOTE_BYTES = 1 << 30


@dataclasses.dataclass(frozen=True)
class Garbage:
    """The bytes and objects that were removed, and those that wait.

    Attributes:
        removed, removed_bytes: objects that were dead for long enough, or would be removed.
        waiting, waiting_bytes: objects that are dead, not for long enough.
    """

    removed: int
    removed_bytes: int
    waiting: int
    waiting_bytes: int


def collect_garbage(
    files: RemoteFiles, older_than: float, *, dry_run: bool = False, now: float | None = None
) -> Garbage:
    """Remove what has been dead for ``older_than`` seconds, as the module's docstring says.

    Args:
        files: the files of the remote store.
        older_than: seconds; by the clock of who calls this.
        dry_run: note nothing and remove nothing.
        now: seconds since the epoch; the clock's if None.
    """
    moment = time.time() if now is None else now  # noqa: TID251  between machines: docs/remote.md says what may happen
    files.refresh()
    store = Store(files.url, files)
    key = _note_key(files.catalog)
    noted = _noted(files.catalog)
    dead = _dead(store, files.catalog)
    since = {name: min(moment, noted.get(f"{name}\n{one.tag}", moment)) for name, one in dead.items()}
    old = [name for name in dead if moment - since[name] >= older_than]

    def note(names: Iterable[str], going: Iterable[str]) -> None:
        said = {"since": {f"{name}\n{dead[name].tag}": since[name] for name in names}, "going": list(going)}
        files.objects.put(key, json.dumps(said, separators=(",", ":")).encode())

    if old and not dry_run:
        note(dead, old)  # before checkpoints are looked for: who makes one after that finds it, and gives way
        files.refresh()
        still = _dead(store, files.catalog)
        old = [name for name in old if name in still and still[name].tag == dead[name].tag]
        files.objects.delete(old)
        files.refresh()
    waiting = [name for name in dead if name not in set(old)]
    if not dry_run and (waiting or noted or old):
        note(waiting, ())
    return Garbage(
        len(old), sum(dead[name].size for name in old), len(waiting), sum(dead[name].size for name in waiting)
    )  # fmt: skip


def _dead(store: Store, catalog: Catalog) -> dict[str, Object]:
    """Return the objects of the store that nothing needs, by key."""
    there = catalog.listing.there
    checkpoints = store.checkpoints()
    named = {checkpoint.name for checkpoint in checkpoints}
    dead = {
        key: one for key, one in there.items()
        if len(parts := key.split("/")) > 3 and parts[0] == CHECKPOINTS and parts[1] not in named
    }  # fmt: skip
    for name in store.stream_names():
        newest = store.newest_commit(name)
        commits = [newest, *(checkpoint.cut[name] for checkpoint in checkpoints if name in checkpoint.cut)]
        dead |= _dead_of_stream(store, name, newest, commits, there)
    return dead


def _dead_of_stream(
    store: Store, name: str, newest: Commit, commits: list[Commit], there: Mapping[str, Object]
) -> dict[str, Object]:
    needed = {one.key for commit in commits for one in needed_objects(store.schema, name, commit)}
    columns = needed_arrays(store.schema, newest)
    found = {}
    for key, one in there.items():
        if not key.startswith(f"{STREAMS}/{name}/") or key in needed:
            continue
        number, oldest = tail_number(name, key), newest.tail.oldest
        path = key.removeprefix(f"{STREAMS}/{name}/").rpartition("/")[0]
        if number is None and path in columns:
            number = shard_number(key.rpartition("/")[2], columns[path])
            stored = newest.arrays[path]
            oldest = min(newest.of(path).needed_from // stored.shard_rows, stored.shard)
        if number is not None and number < oldest:
            found[key] = one
    return found


def _note_key(catalog: Catalog) -> str:
    beside = numbers.first(documents.attributes(catalog.read(metadata.NAME) or b""))
    return f"{STREAMS}/{beside}/start/{NOTE}"


def going(catalog: Catalog) -> set[str]:
    """Return the keys of objects that are being removed, or were when the process that removed them ended half-way."""
    found = _note(catalog).get("going")
    return {name for name in found if isinstance(name, str)} if isinstance(found, list) else set()


def _noted(catalog: Catalog) -> dict[str, float]:
    """Return since when objects are known to be dead, by key and tag."""
    try:
        return {str(name): float(since) for name, since in _note(catalog).get("since", {}).items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # then all begin to wait anew


def _note(catalog: Catalog) -> dict[str, Any]:
    """Return what the note says, empty if there is none that can be read."""
    key = _note_key(catalog)
    try:
        found = json.loads(read(catalog.objects, key, MAX_NOTE_BYTES)[1])
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
