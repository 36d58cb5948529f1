# What a call looks at before it changes something: who holds a lock, what bars the store from use, where the window is.
# Only the calls of this module and the classes of the package that own these numbers change them, with the GIL held.

cdef extern from "Python.h" nogil:
    ctypedef void *PyThread_type_lock
    ctypedef enum PyLockStatus:
        PY_LOCK_FAILURE, PY_LOCK_ACQUIRED, PY_LOCK_INTR
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    PyLockStatus PyThread_acquire_lock_timed(PyThread_type_lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock)
    unsigned long PyThread_get_thread_ident()
    int PyErr_CheckSignals() except -1


@cython.final
cdef class RLock:
    """A reentrant lock, as threading.RLock; other calls of the core see whether somebody holds it."""

    cdef PyThread_type_lock lock
    cdef unsigned long owner
    cdef Py_ssize_t count

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    def acquire(self, bint blocking=True, double timeout=-1, /):
        """Take it, or give up after ``timeout`` seconds, at once if not ``blocking``; return which."""
        if self._is_owned():
            self.count += 1
            return True
        cdef PyLockStatus got = PyThread_acquire_lock_timed(self.lock, 0, 0)
        cdef double deadline = 0
        cdef long long left = -1
        if got != PY_LOCK_ACQUIRED and blocking:
            if timeout >= 0:
                deadline = time.monotonic() + timeout
            while got != PY_LOCK_ACQUIRED:
                if timeout >= 0:
                    left = max(0, <long long>((deadline - time.monotonic()) * 1e6))
                with nogil:
                    got = PyThread_acquire_lock_timed(self.lock, left, 1)
                if got != PY_LOCK_INTR:
                    break
                PyErr_CheckSignals()
        if got != PY_LOCK_ACQUIRED:
            return False
        self.owner, self.count = PyThread_get_thread_ident(), 1
        return True

    def release(self):
        """Give it back; raise RuntimeError in a thread that does not hold it."""
        if not self._is_owned():
            raise RuntimeError("cannot release a lock that this thread does not hold")
        self.count -= 1
        if not self.count:
            self.owner = 0
            PyThread_release_lock(self.lock)

    cpdef bint _is_owned(self):
        """Tell whether this thread holds it, as threading.Condition asks."""
        return self.count and self.owner == PyThread_get_thread_ident()

    def _at_fork_reinit(self):
        """Make it free in a forked child: a thread that is not there held it."""
        cdef PyThread_type_lock fresh = PyThread_allocate_lock()
        if fresh == NULL:
            raise MemoryError
        self.lock, self.owner, self.count = fresh, 0, 0  # the old one may be held for ever, so it cannot be freed


@cython.final
cdef class Gate:
    """What bars an open store from use, and whether somebody is using it now.

    Attributes:
        lock, write_lock: the store's locks.
        closed, ending: the store is closed, or takes no more rows.
        refused: a copy in a forked process, which cannot be used.
        failed, broken: the writer stopped; a change in RAM was cut short.
        stale: a stream of another writer is only partly up to date.
    """

    cdef readonly RLock lock, write_lock
    cdef public bint closed, ending, refused, failed, broken, stale

    def __cinit__(self):
        self.lock, self.write_lock = RLock(), RLock()

    cdef inline bint readable(self) noexcept nogil:
        """Tell whether a batch can be drawn at once."""
        return not (self.closed or self.refused or self.broken or self.stale or self.lock.count)

    cdef inline bint writable(self) noexcept nogil:
        """Tell whether a row can be added at once."""
        return self.readable() and not (self.ending or self.failed or self.write_lock.count)


cdef class Window:
    """The numbers of a stream's window.

    Attributes:
        begin, end: the rows that can be sampled, half-open.
        rows: the most rows that it may hold.
        context: the number of rows to hold before it.
        invalid: how many of its entries are no transitions; an entry is one row of one environment.
        pending: True if a next observation stands at the place of row ``end``.
        going: True if row ``end`` continues the row before in all environments, provided that it has the pending
            observation.
        cut: a row that begins an episode in some environment whatever it has, or -1.
        noted: True if facts wait for an episode, or are noted for one that may go on.
        table, patches: the arrays of the rows, and of the patches.
        patch_begin, patch_end: the patches that are held, half-open.
    """

    cdef public int64_t begin, end, rows, context, invalid, cut, patch_begin, patch_end
    cdef public bint pending, going, noted
    cdef public object table, patches


@cython.auto_pickle(False)
cdef class Counted:
    """What counts its rows: ``end`` is one past the last."""

    cdef public int64_t end
