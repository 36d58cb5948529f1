"""A disk whose names and bytes survive a loss of power in part, unless they were synced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple


class Violation(Exception):
    """What was promised does not hold."""


class Damage(Exception):
    """Files do not say what a record says of them."""


class Missing(Damage):
    """A file is not there, or too short."""


class Entry(NamedTuple):
    """Bytes of a file that mean something together: a record, a block, a chunk, an index, or what is left of one."""

    kind: str
    length: int
    payload: Any


Bytes = tuple[Entry, ...]


def size(data: Bytes) -> int:
    return sum(entry.length for entry in data)


def first(data: Bytes, length: int) -> Bytes:
    """The first bytes; an entry that is cut is torn."""
    kept: list[Entry] = []
    for entry in data:
        if length <= 0:
            break
        kept.append(entry if entry.length <= length else Entry("torn", length, None))
        length -= entry.length
    return tuple(kept)


@dataclasses.dataclass(eq=False)
class File:
    """Bytes as they are read, as they were synced last, and what was done since."""

    data: Bytes = ()
    synced: Bytes = ()
    since: list[tuple[str, Any]] = dataclasses.field(default_factory=list)

    def append(self, entries: Bytes) -> None:
        self.data += entries
        self.since.append(("append", entries))

    def truncate(self, length: int) -> None:
        self.data = first(self.data, length)
        self.since.append(("truncate", length))

    def sync(self) -> None:
        self.synced, self.since = self.data, []


class Loss(NamedTuple):
    """What a loss of power leaves: of the names since the last sync, and of each file that was not synced."""

    keeps_name: Callable[[int], bool]
    keeps_data: Callable[[int], tuple[int, bool, Callable[[], bool]]]
    """Of so many operations on a file: how many stay, whether the last append is torn, whether an entry is a hole."""


Change = tuple[tuple[str, File | None], ...]
"""Names that change at once, as in a rename, and the file of each; None where it goes."""


class Disk:
    """Names, files, and a trace. Each operation returns its line of the trace, for a generator to yield."""

    def __init__(self) -> None:
        self.names: dict[str, File] = {}
        self.durable: dict[str, File] = {}
        self.pending: list[Change] = []
        self.trace: list[str] = []
        self.touched: set[str] = set()

    def say(self, text: str) -> str:
        self.trace.append(text)
        return text

    def change(self, *pairs: tuple[str, File | None]) -> None:
        self.pending.append(pairs)
        self.touched.update(path.partition("/")[0] for path, _ in pairs)
        apply(self.names, pairs)

    def create(self, path: str) -> str:
        if path in self.names:
            raise Violation(f"create: {path} is there")
        self.change((path, File()))
        return self.say(f"create {path}")

    def append(self, path: str, *entries: Entry) -> str:
        self.names[path].append(entries)
        self.touched.add(path.partition("/")[0])
        return self.say(f"append to {path} {[(entry.kind, entry.length) for entry in entries]}")

    def truncate(self, path: str, length: int) -> str:
        self.names[path].truncate(length)
        self.touched.add(path.partition("/")[0])
        return self.say(f"truncate {path} to {length}")

    def sync(self, path: str) -> str:
        self.names[path].sync()
        return self.say(f"sync {path}")

    def rename(self, old: str, new: str) -> str:
        self.change((old, None), (new, self.names[old]))
        return self.say(f"rename {old} to {new}")

    def unlink(self, path: str) -> str:
        self.change((path, None))
        return self.say(f"unlink {path}")

    def sync_directory(self, directory: str) -> str:
        """Makes its names durable, with all that happened before to the same names elsewhere."""
        along: set[str] = set()
        for pairs in reversed(self.pending):
            paths = {path for path, _ in pairs}
            if paths & along or any(path.rpartition("/")[0] == directory for path in paths):
                along |= paths
        left = []
        for pairs in self.pending:
            if any(path in along for path, _ in pairs):
                apply(self.durable, pairs)
            else:
                left.append(pairs)
        self.pending = left
        return self.say(f"sync directory {directory}")

    def list(self, directory: str, kind: str = "") -> list[str]:
        """Paths of a directory, of names that begin so."""
        begin = f"{directory}/{kind}"
        return [path for path in self.names if path.startswith(begin) and "/" not in path[len(directory) + 1 :]]

    def lose_power(self, loss: Loss) -> None:
        lost: set[str] = set()
        for at, pairs in enumerate(self.pending):
            paths = {path for path, _ in pairs}
            if not paths & lost and loss.keeps_name(at):
                apply(self.durable, pairs)
            else:
                lost |= paths
        self.names, self.pending = dict(self.durable), []
        for file in self.names.values():
            if file.since:
                file.data = left_of(file, loss)
            file.sync()
        there = sorted(f"{path}:{size(file.data)}" for path, file in self.names.items())
        self.say(f"=== power is lost; on disk: {', '.join(there)}")

    def copy(self) -> Disk:
        """Another disk of the same state, whose files are its own."""
        new, files = Disk(), dict[int, File]()

        def own(file: File | None) -> File | None:
            if file is None:
                return None
            return files.setdefault(id(file), File(file.data, file.synced, list(file.since)))

        new.names = {path: found for path, file in self.names.items() if (found := own(file))}
        new.durable = {path: found for path, file in self.durable.items() if (found := own(file))}
        new.pending = [tuple((path, own(file)) for path, file in pairs) for pairs in self.pending]
        new.trace, new.touched = list(self.trace), set(self.touched)
        return new


def apply(names: dict[str, File], pairs: Change) -> None:
    for path, file in pairs:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file


def left_of(file: File, loss: Loss) -> Bytes:
    """What of a file survives: some of the operations since it was synced, in order."""
    count, torn, is_hole = loss.keeps_data(len(file.since))
    data = file.synced
    for at, (what, value) in enumerate(file.since[:count]):
        if what == "truncate":
            data = first(data, value)
        else:
            entries = tuple(Entry("hole", entry.length, None) if is_hole() else entry for entry in value)
            data += first(entries, max(1, size(entries) - 2)) if torn and at == count - 1 else entries
    return data
