"""The commits of the stream that is written: when one is due, and which thread writes its files.

1. A commit is begun by the thread that adds or commits, with both locks held: what it makes durable is fixed, and rows
   may be added from then on (:meth:`StreamWriter.begin`).
2. Its files are written without a lock, and the record is published with ``engine.lock`` held
   (:meth:`StreamWriter.write`). The thread that calls `commit` does that itself. If a commit is due because rows were
   added, a thread of its own does it, and adding goes on.
3. There is one commit at a time. One that is due meanwhile is begun once the other is over. Adding waits for that only
   if more than COMMIT_BYTES, counted apart from what the other commit has taken, wait in RAM.
4. An error in that thread stops the writer. The next call that writes or commits raises it.

Whoever waits for that thread may hold ``engine.write_lock`` and others, but never ``engine.lock``, which the thread
needs. In turn the thread waits for no lock but those it needs, whatever a finalizer asks of it: their holders wait for
no commit. While it compresses chunks, for which a holder of ``engine.lock`` may wait, it waits for no lock at all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping

from diskreplay.engine.pushes import Pushes
from diskreplay.engine.streams import Streams
from diskreplay.errors import StateError
from diskreplay.index.cuts import Cuts
from diskreplay.index.log import StreamLog
from diskreplay.process import lifecycle
from diskreplay.process.background import Task, start_thread
from diskreplay.process.locks import Lock, waiting_only_for
from diskreplay.reading.bytelog import ByteLog
from diskreplay.schema.columns import CUT_PLACES, CUTS, PATCH_TABLE
from diskreplay.storage.commit import table_of
from diskreplay.storage.stream import Begun, StreamWriter

COMMIT_BYTES = 64 << 20
"""The most encoded bytes that may wait in RAM for a commit."""
WAITING_ROWS, WAITING_BYTES = 64, 4 << 20
"""The number of rows after which the waiting bytes are counted again; or, if that is more, rows of so many bytes."""
POLL_SECONDS = 0.01
"""The seconds after which the next row looks whether a commit is over, if another one is due."""


class Commits:
    """The commits of one stream. Callers hold ``engine.write_lock``, and not ``engine.lock``.

    Args:
        writer, log, logs, cuts: the stream's writer, its rows, its logs of bytes by path, and its table of cuts.
        streams, pushes: the open streams, and the pushes, of the store.
        lock: ``engine.lock``.
        rows, seconds: the rows that are added, and the seconds that pass, before a commit is due.

    Attributes:
        begun_end: one past the last row of the newest commit that was begun.
    """

    def __init__(
        self, writer: StreamWriter, log: StreamLog, logs: Mapping[str, ByteLog], cuts: Cuts, streams: Streams,
        pushes: Pushes, lock: Lock, rows: int, seconds: float,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._log = log
        self._logs = logs
        self._cuts = cuts
        self._streams = streams
        self._pushes = pushes
        self._lock = lock
        self._rows = rows
        self._seconds = seconds
        row_bytes = log.num_envs * sum(column.item_bytes for column in writer.schema.columns)
        self._counted = WAITING_ROWS if writer.items else max(WAITING_ROWS, WAITING_BYTES // row_bytes)
        """The number of rows after which the waiting bytes are counted: few if rows have items, however many."""
        self._last = time.monotonic()
        """The time at which the newest commit was begun."""
        self.begun_end = writer.commit_record.end
        self._running: Task[None] | None = None
        """The commit that another thread writes, until somebody has waited for it or found that it is over."""
        self._writes = False
        """True while that thread writes it."""
        self._process = lifecycle.process

    # When one is due

    @property
    def due(self) -> tuple[int, float]:
        """The number of rows, and the time by the monotonic clock, from which on :meth:`added` is to be called."""
        end, now = self._log.end, time.monotonic()
        rows, seconds = self.begun_end + self._rows, self._last + self._seconds
        if self.is_running() and (end >= rows or now >= seconds):
            rows, seconds = end + self._counted, now + POLL_SECONDS
        return min(rows, end - end % self._counted + self._counted), seconds

    def rows_before(self, end: int) -> int:
        """Return how many rows may be added to ``end`` before :meth:`added` is to be called."""
        left, counted = self.begun_end + self._rows - end, self._counted - end % self._counted
        return min(left, counted) if left > 0 else counted  # else a commit is due, and another one is being written

    def added(self) -> bool:
        """Begin a commit if one is due, after rows were added; return whether one was begun."""
        end = self._log.end
        due = end - self.begun_end >= self._rows or time.monotonic() - self._last >= self._seconds
        if due and not self.is_running():
            self._hand_over()
            return True
        return not end % self._counted and self.relieve()

    def relieve(self) -> bool:
        """Begin a commit if more than COMMIT_BYTES wait for one, once no other runs; return whether one was begun."""
        logged = (log.waiting_bytes for log in self._logs.values())
        if max(self._writer.waiting_bytes(), *logged) <= COMMIT_BYTES:
            return False
        self.wait()
        self._hand_over()
        return True

    # How one is made

    def commit(self, closing: bool = False) -> None:
        """Make all rows durable, in this thread; with ``closing`` shards hold all of them."""
        writer, log, record = self._writer, self._log, self._writer.commit_record
        same = (log.begin, log.end, log.capacity) == (record.begin, record.end, record.capacity)
        unwritten = any(stored.unwritten for stored in self._logs.values())
        if same and not unwritten and not (closing and writer.closing_adds):
            self._last = time.monotonic()
            writer.commit_counts(self._lock.change)
            writer.reclaim(self._lock.change)  # a checkpoint may have been dropped
        else:
            begun = self._begin(closing)
            with writer.fail_stop("committing"):
                self._write(begun)
        self._pushes.committed(writer)

    def _begin(self, closing: bool = False) -> Begun:
        """Fix what a commit makes durable."""
        writer, log = self._writer, self._log
        self._last = time.monotonic()
        writer.check()
        writer.check_place("committing")
        with self._lock.change:
            needed = {table_of(path): stored.put(writer.logs[path]) for path, stored in self._logs.items()}
            needed |= {column.column.name: log.first_item(name) for name, column in writer.items.items()}
            needed[PATCH_TABLE] = log.drop_patches()
            writer.columns[CUT_PLACES].append(self._cuts.new())
            needed[CUTS] = self._cuts.begin
            begun = writer.begin(log.begin, needed, log.capacity, closing=closing)
            self.begun_end = begun.record.end
        return begun

    def _write(self, begun: Begun) -> None:
        """Write the files of a commit, and publish it."""
        self._writer.write(begun, self._lock.change)
        with self._lock.change:
            for stored in self._logs.values():
                stored.durable()
            self._streams.size_cache()

    # In a thread of its own

    def _hand_over(self) -> None:
        """Begin a commit, and have another thread write its files."""
        self._running = task = Task(functools.partial(self._write_aside, self._begin()))
        try:
            start_thread(task.run, "diskreplay-commit")
        except StateError:  # the system has no thread to give
            self.wait()

    def _write_aside(self, begun: Begun) -> None:
        """Write the files of a commit while others add, and raise nothing: the writer keeps what to tell them."""
        if self._writes:
            self._writer.stop("the thread that wrote a commit ended")
            return
        self._writes = True
        with self._writer.stopped_by("committing", aside=True):
            with waiting_only_for():
                begun.compress()
            with waiting_only_for(self._lock, self._streams.cache.lock, *self._pushes.locks):
                self._write(begun)
                self._pushes.committed(self._writer)
        self._writes = False

    def is_running(self) -> bool:
        """Tell whether a commit is being written in another thread."""
        if self._running is not None and self._running.done:
            self._running = None
        return self._running is not None

    def wait(self) -> None:
        """Wait until no commit is being written; raise StateError in the thread that writes it."""
        if self._running is None or lifecycle.process != self._process:
            return
        self.check_thread()
        self._running.result()
        self._running = None

    def check_thread(self) -> None:
        """Raise StateError in the thread that writes a commit: what it waits for would never come."""
        if self._running is not None and self._running.mine:
            raise StateError(
                f"{self._writer.path!r}: this call came from a finalizer that the garbage collector ran in the thread "
                "that writes a commit; call it in a thread of the program's own"
            )
