"""The ratio of samples to inserts, kept within bounds between one writer and one learner, in one process or in two.

1. Inserts are the rows x environments that the streams of the store ever held: what their commit records say, and the
   newest row of the stream that is written here.
2. Samples are what the learner has announced; they are counted in the stream that its buffer writes, and become durable
   with that stream's commits, in the same record as its rows. A learner in a process of its own writes a stream of its
   own, which need not hold a row.
3. ``surplus = inserts * samples_per_insert - samples`` is held at what it was when the limiter began, or at that of
   ``min_size`` inserts if it began before them, plus or minus ``error_buffer``: above, adding waits; below, sampling
   does. Up to ``min_size`` inserts only sampling waits.
4. A limiter begins when the first of a store is made, or one of another ``samples_per_insert`` or ``min_size``. The
   records say where; both sides go by the newest start. One ahead of the counts, after going back, counts for none.
5. What the other process did after its last commit is not seen, which errs on the safe side: inserts that are not seen
   make the learner wait, samples that are not seen make the writer wait. So that nobody waits for what has been done
   already, each side commits before it waits, and whenever it has gone an eighth of the band on since its last commit.
   In one process nobody commits for the other's sake.
"""

from __future__ import annotations

import math
import time
from fractions import Fraction
from typing import Any

from diskreplay.buffers.stored import StoredBuffer
from diskreplay.checks import check_count, checked_number
from diskreplay.errors import InputError, MisuseWarning, RateLimitError, RateLimitWarning, StateError, warn_outside
from diskreplay.storage.commit import MAX_SAMPLED, NO_START, LimiterStart
from diskreplay.storage.files import THIS_PROCESS
from diskreplay.storage.stream import lock_holder

POLL_SECONDS = 0.01
"""The seconds between two looks of a waiting side at the other one's records."""
PUBLISHED_SHARE = 0.125
"""The share of the band between the bounds, in samples, after which a side commits."""
TOLD_SECONDS = 10.0
"""The seconds after which a waiting side is told what it waits for."""
TOLERANCE = 0.1
"""The default error buffer, as a share of the samples that ``min_size`` inserts allow."""


class RateLimiter:
    """A limiter that says when to add a step and when to sample a batch, so that the two keep their ratio.

    Over a buffer that writes. In one process both sides use one limiter; in two processes each makes one, with the same
    arguments, over its own buffer of the store. The counts are the store's: they come back with its
    commits and checkpoints. A call that needs not wait takes about a microsecond.

    What the store held when its first limiter was made, or one of another ratio or ``min_size``, neither allows samples
    nor asks for any: the ratio is that of what comes after. A call that waits for more than ten seconds warns once of
    what it waits for (RateLimitWarning). Rows that were added in one process without asking are told once, too.

    Args:
        buffer: open with mode "r+". A learner in a process of its own opens the store with ``stream="learner"``.
        samples_per_insert: transitions that are sampled for each that is added, on average.
        min_size: transitions that must have been added before the first is sampled.
        error_buffer: the samples by which the ratio may be missed, in either direction; a tenth of ``min_size *
            samples_per_insert`` if None. At least half of a batch and the samples of one step of all environments, of
            the stream that has most.

    Raises InputError where an argument is out of range, ReadOnlyError where the buffer does not write.
    """

    def __init__(
        self, buffer: StoredBuffer, samples_per_insert: float, min_size: int, error_buffer: float | None = None
    ) -> None:
        if not isinstance(buffer, StoredBuffer):
            raise InputError(f"buffer must be an open buffer of a store, got {buffer!r:.200}")
        self._ratio = checked_number("samples_per_insert", samples_per_insert, above=True)
        self._min_size = check_count("min_size", min_size)
        middle = self._min_size * self._ratio
        self._error = TOLERANCE * middle if error_buffer is None else checked_number("error_buffer", error_buffer)
        self._buffer, self._engine = buffer, buffer.engine
        self._writer = self._engine.writable()
        self._log, self._envs = self._engine.appender.log, buffer.num_envs
        # Exact, in whole numbers: rounded, a band that is just wide enough could hold both sides back.
        ratio, error = Fraction(repr(self._ratio)), Fraction(repr(self._error))
        self._unit = math.lcm(ratio.denominator, error.denominator)
        """The size of a sample in the units in which an insert is ``_rate``, and the bounds are counted."""
        self._rate, self._band = int(ratio * self._unit), int(error * self._unit)
        self._publish = PUBLISHED_SHARE * 2 * self._error
        self._told: set[str] = set()
        self._start = NO_START
        self._read_counts()
        self._check_band("a step", 0)

    # Facts

    @property
    def inserts(self) -> int:
        """The number of transitions, rows x environments, ever added to the store, as far as this process knows."""
        return self._log.end * self._envs + self._other_inserts

    @property
    def samples(self) -> int:
        """The number of transitions ever announced to be sampled, as far as this process knows."""
        return self._writer.sampled + self._other_samples

    @property
    def most_inserts(self) -> int:
        """The number of ``inserts`` up to which all writers together may go, for the samples counted so far.

        For who gives several writers leave to add. A step that begins below ``min_size`` may pass it, as one writer's.
        """
        return max(self._min_size, (self._most + self.samples * self._unit) // self._rate)

    @property
    def band_inserts(self) -> int:
        """The number of inserts between the bounds."""
        return 2 * self._band // self._rate

    def check_step(self, num_envs: int) -> None:
        """Raise InputError if the band is too narrow for a stream with ``num_envs`` environments, which may come."""
        if num_envs > self.band_inserts:
            least = Fraction(num_envs * self._rate, 2 * self._unit)
            raise InputError(
                f"error_buffer must be at least {float(least):.15g} for a step of {num_envs} environments with "
                f"{self._ratio:g} samples per insert, got {self._error:.15g}"
            )

    def __repr__(self) -> str:
        return (
            f"RateLimiter({self._buffer!r}, samples_per_insert={self._ratio}, min_size={self._min_size}, "
            f"error_buffer={self._error})"
        )

    # Before adding

    def may_add(self) -> bool:
        """Tell whether the next step of all environments may be added now; if it seems not, look at the records."""
        return self._add_fits() or (self._refresh_counts() and self._add_fits())

    def wait_to_add(self, timeout: float | None = None) -> None:
        """Wait until the next step of all environments may be added, which is at once, nearly always.

        Args:
            timeout: seconds to wait; for ever if None.

        Raises RateLimitError when the time is over, and what ``commit`` of the buffer raises. A Ctrl-C ends it.
        """
        if not self._add_fits():
            self._wait("add a step", self._add_fits, timeout)
        unpublished = (self._log.end - self._writer.commit_record.end) * self._envs * self._ratio
        if unpublished >= self._publish and self._shared:
            self._engine.commit()

    def _add_fits(self) -> bool:
        inserts = self._log.end * self._envs + self._other_inserts
        if inserts < self._min_size:  # else nobody could go on where a step of all environments passes it by far
            return True
        samples = self._writer.sampled + self._other_samples
        return (inserts + self._envs) * self._rate - samples * self._unit <= self._most

    # Before sampling

    def may_sample(self, count: int) -> bool:
        """Tell whether ``count`` transitions may be sampled now, without counting them; look again if it seems not."""
        count = self._checked(count)
        return self._sample_fits(count) or (self._refresh_counts() and self._sample_fits(count))

    def wait_to_sample(self, count: int, timeout: float | None = None) -> None:
        """Count ``count`` transitions as sampled once that many may be, which is at once, nearly always.

        Where it had to look at other streams, the buffer has gone on to their newest commits.

        Args:
            count: the number of transitions of the batch that is sampled next.
            timeout: seconds to wait; for ever if None.

        Raises InputError where so many are never allowed at once, RateLimitError when the time is over; then, and where
        a Ctrl-C ends the waiting, nothing was counted. Raises what ``commit`` of the buffer raises, too.
        """
        if type(count) is not int or not 0 < count <= self._largest:
            count = self._checked(count)
        if not self._counted(count):
            self._wait(f"sample {count} transitions", lambda: self._counted(count), timeout, count)
        if self._shared:
            if self._writer.sampled - self._writer.commit_record.sampled >= self._publish:
                self._engine.commit()
        elif (self._log.end - 1) * self._envs * self._rate - self._writer.sampled * self._unit > self._most:
            self._tell(
                "rows are added without asking: call wait_to_add() or may_add() before each step, and make the limiter "
                "of a store that is filled beforehand after that", MisuseWarning,
            )  # fmt: skip

    def _counted(self, count: int) -> bool:
        with self._engine.lock:
            self._engine.check_open()
            fits = self._sample_fits(count)
            if fits:
                if self._writer.sampled + count > MAX_SAMPLED:
                    raise StateError(f"at most {MAX_SAMPLED:,} samples can be counted; go on in a new store")
                self._writer.sampled += count
        return fits

    def _sample_fits(self, count: int) -> bool:
        inserts = self._log.end * self._envs + self._other_inserts
        if inserts < self._min_size:
            return False
        samples = self._writer.sampled + self._other_samples + count
        return inserts * self._rate - samples * self._unit >= self._least

    def _checked(self, count: Any) -> int:
        checked = check_count("count", count)
        self._check_band("a batch", checked)
        return checked

    def _check_band(self, what: str, count: int) -> None:
        """Raise InputError if the band is too narrow for what the two sides do at once."""
        if count > self._largest:
            least = Fraction(count * self._unit + self._most_envs * self._rate, 2 * self._unit)
            raise InputError(
                f"error_buffer must be at least {float(least):.15g} for {what} of {count or self._most_envs}, with "
                f"{self._most_envs} environments and {self._ratio:g} samples per insert, got {self._error:.15g}"
            )

    # The other side

    def _read_counts(self) -> None:
        """Take over the counts of the other streams, as they are open here."""
        with self._engine.lock:
            own = self._writer.name
            records = [commit for name, commit in self._engine.streams.commits.items() if name != own]
            self._shared = bool(records)
            """True if there are other streams, in whose processes it matters what is committed here."""
            self._other_inserts = sum(commit.end * commit.num_envs for commit in records)
            self._other_samples = sum(commit.sampled for commit in records)
            self._most_envs = max(self._envs, *(commit.num_envs for commit in records), 1)
            self._begin(max(self._writer.limiter, NO_START, *(commit.limiter for commit in records)))
            self._largest = (2 * self._band - self._most_envs * self._rate) // self._unit
            """The largest batch: with a larger one, both sides could wait for each other."""

    def _begin(self, newest: LimiterStart) -> None:
        """Go by the newest start if it is of this ratio; where there is none, begin now."""
        first = self._start is NO_START
        wanted = self._min_size, self._ratio
        ahead = newest.inserts > self.inserts or newest.samples > self.samples
        if newest > self._start and newest[3:] == wanted and not (first and ahead):
            self._start = newest
        elif first:
            self._start = LimiterStart(newest.number + 1, self.inserts, self.samples, *wanted)
        else:
            return
        self._writer.limiter = self._start
        middle = max(self._start.inserts, self._min_size) * self._rate - self._start.samples * self._unit
        self._least, self._most = middle - self._band, middle + self._band

    def _refresh_counts(self) -> bool:
        """Go on to the newest commits of the other streams, and return True."""
        self._engine.refresh()
        self._read_counts()
        return True

    def _wait(self, what: str, fits: Any, timeout: float | None, count: int = 0) -> None:
        """Commit, so that the other side sees what was done here, and wait until it has done enough itself."""
        if timeout is not None:
            timeout = checked_number("timeout", timeout)
        start = time.monotonic()
        while not (self._refresh_counts() and fits()):
            self._check_band("a batch" if count else "a step", count)  # a stream of more environments may have come
            record = self._writer.commit_record
            if self._shared and (self._log.end != record.end or self._writer.counted):
                self._engine.commit()  # the other side may have come just now
            waited = time.monotonic() - start
            if waited >= TOLD_SECONDS:
                first = "the first " if count and self.inserts < self._min_size else ""
                self._tell(f"waiting for {first}{'inserts' if count else 'samples'}", RateLimitWarning)
            if timeout is not None and waited >= timeout:
                raise RateLimitError(f"waited {waited:.1f} s and may not {what} yet: {self._standing()}")
            time.sleep(POLL_SECONDS if timeout is None else min(POLL_SECONDS, timeout - waited))

    def _tell(self, reason: str, category: type[Warning]) -> None:
        """Warn of each reason once."""
        if reason not in self._told:
            self._told.add(reason)
            warn_outside(f"{reason}: {self._standing()}", category)

    def _standing(self) -> str:
        """Return the counts, and who writes the other streams, in words."""
        store, streams = self._engine.store, self._engine.streams.commits
        others = [
            f"{name!r} is "
            + (f"written by {holder}" if holder.startswith(("process", THIS_PROCESS)) else "not being written")
            for name in streams
            if name != self._writer.name
            for holder in (lock_holder(store.files, store.stream_path(name)),)
        ]
        surplus = self.inserts * self._ratio - self.samples
        return (
            f"{self.inserts} inserts (at least {self._min_size}), {self.samples} samples, a surplus of {surplus:g} "
            f"where {self._least / self._unit:g} to {self._most / self._unit:g} is allowed; "
            + (f"the stream {', '.join(others)}" if others else "the store has no other stream, so both sides are here")
        )
