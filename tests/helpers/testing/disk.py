"""A disk in RAM that tells what a crash would leave of it.

Everything is kept twice. The *cache* is what every process sees: each operation takes effect there at once. The
*medium* is what is there when the power comes back: ``sync`` brings the bytes of one file there, and says nothing of
its name; ``sync_dir`` brings the names of one directory there, and says nothing of the bytes behind them.

What is in the cache only is lost when the power fails, in whole or in part, in any order but this: bytes that were
synced change only where they were written over; a rename took place or it did not; operations on one name keep their
order. A file may have grown without its bytes, and hold zeros or garbage there.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import pathlib
import random
import threading
import weakref
from collections.abc import Callable, Sequence

from diskreplay.storage.files import File, Files, Kind

PIECE_BYTES = 64
"""The size of the pieces in which writes reach the medium: less than a sector, as the files of tests are small."""


@dataclasses.dataclass(eq=False)
class _Data:
    """A file's bytes; ``unsynced`` are the writes since the last sync, and (size, None) for each truncation."""

    cache: bytearray = dataclasses.field(default_factory=bytearray)
    medium: bytes = b""
    unsynced: list[tuple[int, bytes | None]] = dataclasses.field(default_factory=list)

    def copy(self) -> _Data:
        return _Data(bytearray(self.cache), self.medium, list(self.unsynced))

    def after_power_loss(self, rng: random.Random | None) -> bytes:
        """Return what is on the medium, with a random part of what is not synced."""
        if rng is None or not self.unsynced:
            return self.medium
        data = bytearray(self.medium)
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        garbage = rng.random() < 0.3

        def grow(size: int) -> None:
            missing = max(0, size - len(data))
            data.extend(rng.randbytes(missing) if garbage else bytes(missing))

        for offset, written in self.unsynced:
            if written is None:
                if rng.random() < share:
                    del data[offset:]
                    data.extend(bytes(offset - len(data)))
                continue
            if rng.random() < 0.3:
                grow(offset + len(written))
            for at in range(0, len(written), PIECE_BYTES):
                if rng.random() < share:
                    piece = written[at : at + PIECE_BYTES]
                    grow(offset + at)
                    data[offset + at : offset + at + len(piece)] = piece
        return bytes(data)


@dataclasses.dataclass(eq=False)
class _Directory:
    """The names of a directory and what they stand for, in the cache and on the medium."""

    cache: dict[str, _Node] = dataclasses.field(default_factory=dict)
    medium: dict[str, _Node] = dataclasses.field(default_factory=dict)


_Node = _Data | _Directory
_Change = list[tuple[_Directory, str, _Node | None]]
"""The names that change together: each with its directory and what it stands for from then on."""


class SimulatedFile(File):
    """An open file of a :class:`SimulatedDisk`."""

    def __init__(self, data: _Data, changing: threading.RLock, free_bytes: Callable[[], int]) -> None:
        self._data = data
        self._changing = changing
        self._free_bytes = free_bytes

    def pread(self, size: int, offset: int, /) -> bytes:
        return bytes(self._data.cache[offset : offset + size])

    def pwrite(self, parts: Sequence[bytes], offset: int, /) -> None:
        data = b"".join(parts)
        if not data:
            return
        with self._changing:
            cache = self._data.cache
            growth = max(0, offset + len(data) - len(cache))
            missing = growth - self._free_bytes() if growth else 0
            if missing > 0:
                data = data[: max(0, len(data) - missing)]
            if offset > len(cache):
                cache.extend(bytes(offset - len(cache)))
            cache[offset : offset + len(data)] = data
            self._data.unsynced.append((offset, data))
            if missing > 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, size: int, /) -> None:
        with self._changing:
            cache = self._data.cache
            if size != len(cache):
                del cache[size:]
                cache.extend(bytes(size - len(cache)))
                self._data.unsynced.append((size, None))

    def sync(self) -> None:
        with self._changing:
            if self._data.unsynced:
                self._data.medium, self._data.unsynced = bytes(self._data.cache), []

    def size(self) -> int:
        return len(self._data.cache)


class SimulatedLock:
    """A lock on a file of a :class:`SimulatedDisk`."""

    def __init__(self, file: _Data, locks: _Locks, find: Callable[[str], _Node | None]) -> None:
        self._file = file
        self._locks = locks
        self._find = find

    def release(self) -> None:
        if self.held():
            del self._locks[self._file]

    def held(self) -> bool:
        return self._locks.get(self._file) is self

    def is_at(self, path: str) -> bool:
        return self._find(path) is self._file


_Locks = weakref.WeakValueDictionary[_Data, SimulatedLock]


class SimulatedDisk(Files):
    """A file system in RAM, as ``files=`` of ``ReplayBuffer.create`` and ``open``; see the module's docstring.

    Paths are absolute; ``/`` is there. One disk stands for one machine: buffers that share it see the same files and
    respect each other's locks. No operation of the real file system takes place.

    Args:
        capacity_bytes: the most bytes of all files; a write beyond it keeps what fits and fails with ENOSPC. None for
            no limit.
    """

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self._root = _Directory()
        self._pending: list[_Change] = []
        """The operations on names that are in the cache and not on the medium, in order."""
        self._locks: _Locks = weakref.WeakValueDictionary()
        """The held locks; one that is forgotten is free, as the system's are once nobody has their descriptors."""
        self._lock = threading.RLock()

    # What a crash leaves

    def after_kill(self) -> SimulatedDisk:
        """Return the disk after every process died: all is there, and what was not synced still is not."""
        with self._lock:
            copies: dict[_Node, _Node] = {}

            def copy(node: _Node) -> _Node:
                if node not in copies:
                    if isinstance(node, _Data):
                        copies[node] = node.copy()
                    else:
                        made = copies[node] = _Directory()
                        made.cache = {name: copy(child) for name, child in node.cache.items()}
                        made.medium = {name: copy(child) for name, child in node.medium.items()}
                return copies[node]

            def directory(node: _Directory) -> _Directory:
                made = copy(node)
                assert isinstance(made, _Directory)
                return made

            disk = SimulatedDisk(self.capacity_bytes)
            disk._root = directory(self._root)
            disk._pending = [
                [(directory(where), name, node and copy(node)) for where, name, node in change]
                for change in self._pending
            ]
            return disk

    def after_power_loss(self, rng: random.Random | None = None) -> SimulatedDisk:
        """Return the disk when the power comes back.

        Args:
            rng: the generator that chooses which part of what was not synced is there all the same; none of it if None.
        """
        with self._lock:
            names: dict[_Directory, dict[str, _Node]] = {}
            lost: set[tuple[_Directory, str]] = set()
            share = rng.choice((0.0, 0.5, 0.9, 1.0)) if rng else 0.0
            for change in self._pending if rng else ():
                touched = {(where, name) for where, name, _ in change}
                if rng is None or touched & lost or rng.random() >= share:
                    lost |= touched
                else:
                    _apply(change, lambda where: names.setdefault(where, dict(where.medium)))

            def survivor(node: _Node) -> _Node:
                if isinstance(node, _Data):
                    data = node.after_power_loss(rng)
                    return _Data(bytearray(data), data)
                there = {name: survivor(child) for name, child in names.get(node, node.medium).items()}
                return _Directory(there, dict(there))

            disk = SimulatedDisk(self.capacity_bytes)
            root = survivor(self._root)
            assert isinstance(root, _Directory)
            disk._root = root
            return disk

    def contents(self) -> dict[str, bytes | None]:
        """Return all paths below ``/``, sorted, with the bytes of files and None for directories."""
        found: dict[str, bytes | None] = {}

        def walk(path: str, directory: _Directory) -> None:
            for name, node in sorted(directory.cache.items()):
                found[f"{path}/{name}"] = bytes(node.cache) if isinstance(node, _Data) else None
                if isinstance(node, _Directory):
                    walk(f"{path}/{name}", node)

        with self._lock:
            walk("", self._root)
        return found

    def dump(self, directory: str | os.PathLike[str]) -> None:
        """Write all that is there below an existing directory of the real file system."""
        for path, data in self.contents().items():
            target = pathlib.Path(directory, path[1:])
            if data is None:
                target.mkdir()
            else:
                target.write_bytes(data)

    def room(self, path: str) -> int:
        return self.free_bytes()

    def free_bytes(self) -> int:
        """Return the number of bytes until ``capacity_bytes``."""
        if self.capacity_bytes is None:
            return 1 << 62
        return self.capacity_bytes - sum(len(data) for data in self.contents().values() if data is not None)

    # Files

    def open(self, path: str, *, write: bool = False) -> SimulatedFile:
        with self._lock:
            where, name = self._parent(path)
            node = where.cache.get(name)
            if node is None and write:
                node = _Data()
                self._change([(where, name, node)])
            if node is None:
                raise _error(errno.ENOENT, path)
            if isinstance(node, _Directory):
                raise _error(errno.EISDIR, path)
            return SimulatedFile(node, self._lock, self.free_bytes)

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return file.pread(file.size(), 0)

    def list(self, path: str) -> list[str]:
        node = self._find(path)
        return sorted(node.cache) if isinstance(node, _Directory) else []

    def size(self, path: str) -> int | None:
        node = self._find(path)
        return None if node is None else len(node.cache) if isinstance(node, _Data) else 0

    def kind(self, path: str) -> Kind | None:
        node = self._find(path)
        return None if node is None else "file" if isinstance(node, _Data) else "directory"

    def mkdir(self, path: str) -> None:
        with self._lock:
            where, name = self._parent(path)
            if name in where.cache:
                raise _error(errno.EEXIST, path)
            self._change([(where, name, _Directory())])

    def rename(self, source: str, target: str) -> None:
        with self._lock:
            (old, old_name), (new, new_name) = self._parent(source), self._parent(target)
            node, there = old.cache.get(old_name), new.cache.get(new_name)
            if node is None:
                raise _error(errno.ENOENT, source)
            if node is there:
                return
            if f"{target}/".startswith(f"{source}/"):
                raise _error(errno.EINVAL, target)
            if isinstance(there, _Directory) and isinstance(node, _Data):
                raise _error(errno.EISDIR, target)
            if isinstance(there, _Data) and isinstance(node, _Directory):
                raise _error(errno.ENOTDIR, target)
            if isinstance(there, _Directory) and there.cache:
                raise _error(errno.ENOTEMPTY, target)
            self._change([(old, old_name, None), (new, new_name, node)])

    def unlink(self, path: str) -> None:
        with self._lock:
            where, name = self._parent(path)
            node = where.cache.get(name)
            if not isinstance(node, _Data):
                raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
            self._change([(where, name, None)])

    def rmdir(self, path: str) -> None:
        with self._lock:
            where, name = self._parent(path)
            node = where.cache.get(name)
            if not isinstance(node, _Directory):
                raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            if node.cache:
                raise _error(errno.ENOTEMPTY, path)
            self._change([(where, name, None)])

    def sync_dir(self, path: str) -> None:
        with self._lock:
            directory = self._directory(path)
            touched: set[tuple[_Directory, str]] = set()
            durable, waiting = [], []
            for change in reversed(self._pending):
                names = {(where, name) for where, name, _ in change}
                # What came before on the same name goes with it.
                if names & touched or any(where is directory for where, _ in names):
                    touched |= names
                    durable.append(change)
                else:
                    waiting.append(change)
            for change in reversed(durable):
                _apply(change, lambda where: where.medium)
            self._pending = waiting[::-1]

    def lock(self, path: str) -> SimulatedLock | None:
        with self._lock:
            self.open(path, write=True)
            file = self._find(path)
            assert isinstance(file, _Data)
            if file in self._locks:
                return None
            lock = self._locks[file] = SimulatedLock(file, self._locks, self._find)
            return lock

    def lock_holder(self, path: str) -> str:
        return "another buffer on this simulated disk"

    # Inside

    def _find(self, path: str) -> _Node | None:
        node: _Node = self._root
        for name in _parts(path):
            child = node.cache.get(name) if isinstance(node, _Directory) else None
            if child is None:
                return None
            node = child
        return node

    def _directory(self, path: str) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        """Return the directory that holds a path, and its last part."""
        where, name = os.path.split(path)
        return self._directory(where), name

    def _change(self, change: _Change) -> None:
        _apply(change, lambda where: where.cache)
        self._pending.append(change)


def _apply(change: _Change, names: Callable[[_Directory], dict[str, _Node]]) -> None:
    for where, name, node in change:
        if node is None:
            names(where).pop(name, None)
        else:
            names(where)[name] = node


@functools.lru_cache(1 << 14)
def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"paths of a simulated disk are absolute, got {path!r}")
    return [part for part in path.split("/") if part]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
