# One call a batch: the draw, its weights, and what its transitions show, from columns in RAM.
#
# A call goes on only if all is ordinary. First comes what may run Python code or allocate: the arrays of the batch are
# made, and the batch itself. Then the state is looked at: Python's objects by their identity, which runs no Python
# code, and the numbers in C fields by a function without the GIL, which makes the change, too. Nobody tells these
# classes what has changed: each call compares what is now with what it saw last.

from cpython.ref cimport Py_INCREF
from libc.math cimport fabs

cdef extern from "draw.h" nogil:
    enum: NOW, LATER, OWN, NEXT, LAST

    ctypedef struct draw_window:
        int64_t begin, rows, invalid
        const uint8_t *valid
        const uint8_t *terminated
        const uint8_t *truncated

    ctypedef struct draw_source:
        const plan_stream *streams
        const draw_window *windows
        int64_t count, n_step, steps, needed, stride
        bint across

    int64_t draw_steps(const draw_source *source, const int64_t *ids, int64_t n, int64_t *every, int64_t *place,
                       uint8_t *mask, uint8_t *is_first)
    int draw_standing(const draw_source *source, int64_t stream, int64_t local)
    int64_t draw_held(const draw_source *source)
    bint draw_any(const draw_source *source)
    bint draw_are_items(const draw_source *source, const int64_t *ids, int64_t n)
    void ranks_draw(const double *uniforms, const double *masses, int64_t count, int64_t parts, int64_t size,
                    double exponent, int64_t *ranks, float *weights)
    void draw_uniform(bitgen_t *bits, const draw_source *source, int64_t size, double most_share, bint by_share,
                      int64_t *ids, int64_t *room)

cdef extern from "frames.h" nogil:
    ctypedef struct frames_source:
        const plan_stream *streams
        const plan_column *rows
        const plan_column *patches
        const cache_slab *row_slabs
        const cache_slab *patch_slabs
        int64_t count, row_items, patch_items

    int64_t frames_room(const frames_source *source, int64_t n, int64_t first_step, int64_t last_step)
    bint frames_fill(const frames_source *source, const int64_t *ids, const int64_t *place, int64_t n,
                     int64_t first_step, int64_t last_step, const batch_target *target, int64_t *room, int64_t *packed,
                     int64_t *raw)

cdef extern from "returns.h" nogil:
    void returns_of(const draw_source *source, const uint8_t **rewards, int64_t size, double gamma, const int64_t *ids,
                    int64_t n, uint8_t *sums, int64_t *last, float *discount)
    void returns_end(float *discount, const uint8_t *terminated, int64_t n)

cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_Empty(int ndim, cnp.npy_intp *shape, cnp.dtype dtype, int fortran)

cdef enum: MOST_COLUMNS = 1024, MOST_LEAVES = 32, MOST_SIZE = 1 << 20


# ---- Frames in the cache ----

@cython.final
cdef class Frames:
    """A leaf of observations that the cache holds, or stacks of its frames.

    Args:
        rows, patches: where the chunks of its columns are.
        frames: how many are stacked.
        dtype, shape: those of an observation, all of whose frames stand one after another.
        given: True if the stacks were given, so that one need not go on from the one before.
        empty: a function as numpy.empty.
    """

    cdef Chunks rows, patches
    cdef int64_t frames, row_bytes
    cdef object dtype, empty
    cdef tuple shape
    cdef bint given

    def __init__(self, Chunks rows not None, Chunks patches not None, int64_t frames, dtype, tuple shape not None,
                 bint given, empty, /):
        self.rows, self.patches, self.frames, self.dtype, self.shape = rows, patches, frames, dtype, shape
        self.given, self.empty, self.row_bytes = given, empty, dtype.itemsize
        for length in shape:
            self.row_bytes *= length
        self.row_bytes //= frames

    cdef cnp.ndarray array(self, int64_t size):
        """Return an array for the observations of a batch."""
        cdef cnp.ndarray made = self.empty((size, *self.shape), self.dtype)
        if not hold(made, self.row_bytes * self.frames, size):
            raise ValueError("an array of a batch is not contiguous")
        return made

    cdef frames_source source(self, const plan_stream *streams, int64_t count) noexcept:
        cdef frames_source of
        of.streams, of.rows, of.patches, of.count = streams, self.rows.facts, self.patches.facts, count
        of.row_slabs, of.patch_slabs = self.rows.slabs, self.patches.slabs
        of.row_items, of.patch_items = self.rows.items, self.patches.items
        return of


cdef struct leaf_copy:  # how one leaf is copied
    frames_source source
    int64_t frames, row_bytes
    uint8_t *out
    uint8_t *following


cdef bint copy_leaf(const leaf_copy *of, const int64_t *ids, const int64_t *last, const int64_t *place, int64_t size,
                    int64_t places, int64_t *room, int64_t *copied) noexcept nogil:
    """Copy observations of ``ids``, and next ones of ``last``, or of ``ids`` if that is NULL."""
    cdef batch_target target
    target.out, target.following, target.places = of.out, NULL, places
    target.row_bytes, target.width, target.chunk_rows = of.row_bytes, of.row_bytes * of.frames, 0
    if last == NULL:
        target.following = of.following
        return frames_fill(&of.source, ids, place, size, 1 - of.frames, 1, &target, room, copied, copied + 1)
    if not frames_fill(&of.source, ids, place, size, 1 - of.frames, 0, &target, room, copied, copied + 1):
        return False
    target.out = of.following
    return frames_fill(&of.source, last, place, size, 2 - of.frames, 1, &target, room, copied, copied + 1)


# ---- Columns in RAM ----

NEXT_OWN = ".next "
"""The prefix of an observation's name for its next values; no column's name starts with a point."""


cdef struct shown_shape:  # of a column's array in a batch
    int axes
    cnp.npy_intp lengths[MOST_AXES]


@cython.final
cdef class Rows:
    """The columns that transitions show, of all streams of a store: those in RAM, and leaves in the cache.

    Args:
        logs: the logs of the streams.
        columns: name, dtype and shape of each column in RAM, and True for the value after a transition's last row. The
            first three are the rewards, and the flags that a row is terminated, or truncated: of the last row, too.
        leaves: leaves in the cache.
        places: where columns stand among the arrays of a batch, then the leaves' observations, then their next ones.
        valid: the name of the array of what is a transition.
        most_bytes: the bytes of columns in RAM from which on a batch is not copied in one call.
        most_size: the largest batch.
    """

    cdef Logs logs
    cdef list tables, patches, names, keys, dtypes, leaves
    cdef object valid
    cdef int64_t count, columns, leaf_count, row_bytes, most_bytes, most_size
    cdef plan_stream *streams
    cdef draw_window *windows
    cdef const uint8_t **arrays
    cdef const uint8_t **patch_arrays
    cdef const uint8_t **rewards
    cdef shown_shape *shapes
    cdef int64_t sizes[MOST_COLUMNS]
    cdef uint8_t rules[MOST_COLUMNS]
    cdef int64_t places[MOST_COLUMNS]
    cdef leaf_copy copies[MOST_LEAVES]
    cdef bint has_given

    def __init__(self, Logs logs not None, list columns not None, list leaves not None, list places not None,
                 str valid not None, int64_t most_bytes, int64_t most_size, /):
        cdef int64_t at, axis
        if self.shapes != NULL or len(columns) < 3 or len(places) > MOST_COLUMNS:
            raise ValueError("there are 3 to 1,024 arrays")
        if sorted(places) != list(range(len(columns) + 2 * len(leaves))):
            raise ValueError("each array of a batch has a place")
        for at, place in enumerate(places):
            self.places[at] = place
        self.leaves, self.leaf_count, self.most_size = leaves, len(leaves), most_size
        for at, leaf in enumerate(leaves):
            self.copies[at].frames, self.copies[at].row_bytes = (<Frames?>leaf).frames, (<Frames>leaf).row_bytes
            self.has_given = self.has_given or (<Frames>leaf).given
        self.logs, self.streams, self.count = logs, logs.streams, logs.count
        self.columns, self.valid, self.most_bytes = len(columns), valid, most_bytes
        self.tables, self.patches = [None] * self.count, [None] * self.count
        self.names, self.dtypes = [one[0] for one in columns], [one[1] for one in columns]
        self.keys = [NEXT_OWN * one[3] + one[0] for one in columns]
        self.shapes = <shown_shape *>calloc(self.columns, sizeof(shown_shape))
        if self.shapes == NULL:
            raise MemoryError
        for at, (_, dtype, shape, following) in enumerate(columns):
            if len(shape) >= MOST_AXES:
                raise ValueError("a value has fewer axes")
            self.shapes[at].axes, self.sizes[at] = 1 + len(shape), dtype.itemsize
            self.rules[at] = NEXT if following else LAST if 1 <= at <= 2 else OWN
            for axis in range(len(shape)):
                self.shapes[at].lengths[1 + axis] = shape[axis]
                self.sizes[at] *= shape[axis]
            self.row_bytes += self.sizes[at]
        self.windows = <draw_window *>calloc(self.count, sizeof(draw_window))
        self.arrays = <const uint8_t **>calloc(self.count * (2 * self.columns + 1), sizeof(void *))
        if self.windows == NULL or self.arrays == NULL:
            raise MemoryError
        self.patch_arrays = self.arrays + self.count * self.columns
        self.rewards = self.patch_arrays + self.count * self.columns

    def __dealloc__(self):
        free(self.shapes)
        free(self.windows)
        free(self.arrays)

    def gather(self, cnp.ndarray ids not None, cnp.ndarray place not None, int64_t size, /):
        """Return the columns in RAM of rows ``(n,)`` by name, or None if numpy must copy them; hold the lock.

        Each row goes to its place in arrays of ``size`` entries; places without a row are zeros. The values of next
        rows have :data:`NEXT_OWN` before their name.
        """
        cdef uint8_t *out[MOST_COLUMNS]
        cdef int64_t *of = ints(ids)
        cdef int64_t *to = ints(place)
        cdef int64_t count = count_of(ids), column, k
        if size * self.row_bytes >= self.most_bytes or not self.look_at_logs():
            return None
        for k in range(count):
            if count_of(place) != count or not 0 <= to[k] < size:
                raise IndexError("each row has a place in the arrays")
        found: dict = {}
        for column in range(self.columns):
            found[self.keys[column]] = self.array(column, size, out)
            if count < size:
                memset(out[column], 0, size * self.sizes[column])
        room = empty(3 * count, cnp.NPY_INT64)
        return found if self.gather_to(count, of, NULL, to, out, ints(room)) else None

    cdef bint look(self) except -1:
        """Bring the numbers up to date; return False if they are not ordinary."""
        cdef int64_t at
        cdef Frames leaf
        if not self.look_at_logs():
            return False
        for at in range(self.leaf_count):
            leaf = <Frames>self.leaves[at]
            if not leaf.rows.look() or not leaf.patches.look():
                return False
            self.copies[at].source = leaf.source(self.streams, self.count)
        return True

    cdef bint look_at_logs(self) except -1:
        """Bring the numbers of the logs up to date; return False if a stream lacks a column."""
        cdef int64_t at
        cdef Window log
        self.logs.look()
        for at in range(self.count):
            log = <Window>self.logs.logs[at]
            table, patches = self.logs.tables[at], self.logs.patches[at]
            if table is not self.tables[at] or patches is not self.patches[at]:
                if not self.look_at(at, table, patches):
                    return False
            self.windows[at].begin, self.windows[at].rows, self.windows[at].invalid = log.begin, log.rows, log.invalid
            if self.has_given and log.next_older_patches:
                return False
        return True

    cdef bint look_at(self, int64_t at, table, patches) except -1:
        """Find the arrays of a stream."""
        global finds
        cdef plan_stream *of = &self.streams[at]
        cdef draw_window *window = &self.windows[at]
        cdef int64_t column, first = at * self.columns, held = of.length * of.envs
        finds += 1
        self.tables[at] = self.patches[at] = None
        arrays: dict = table.arrays
        patched: dict = patches.arrays
        valid = arrays.get(self.valid)
        if valid is None or not hold(valid, 1, held):
            return False
        window.valid = <uint8_t *>cnp.PyArray_DATA(valid)
        for column in range(self.columns):
            array = arrays.get(self.names[column])
            if array is None or not hold(array, self.sizes[column], held):
                return False
            self.arrays[first + column] = <uint8_t *>cnp.PyArray_DATA(array)
            if self.rules[column] == NEXT:
                array = patched.get(self.names[column])
                if array is None or not hold(array, self.sizes[column], of.patch_length):
                    return False
                self.patch_arrays[first + column] = <uint8_t *>cnp.PyArray_DATA(array)
        self.rewards[at], window.terminated, window.truncated = (
            self.arrays[first], self.arrays[first + 1], self.arrays[first + 2]
        )
        self.tables[at], self.patches[at] = table, patches
        return True

    cdef cnp.ndarray array(self, int64_t column, int64_t size, uint8_t **out):
        """Return an array for a column in RAM; ``out[column]`` is where it begins."""
        cdef cnp.ndarray made
        dtype = self.dtypes[column]
        Py_INCREF(dtype)  # numpy takes it over
        self.shapes[column].lengths[0] = size
        made = PyArray_Empty(self.shapes[column].axes, self.shapes[column].lengths, dtype, 0)
        out[column] = <uint8_t *>cnp.PyArray_BYTES(made)
        return made

    cdef list empty(self, int64_t size, uint8_t **out):
        """Return a batch's arrays, in their places, behind room for five; ``out``: where columns in RAM begin."""
        cdef int64_t column, at, place
        found = [None] * (5 + self.columns + 2 * self.leaf_count)
        for column in range(self.columns):
            found[5 + self.places[column]] = self.array(column, size, out)
        for at in range(self.leaf_count):
            for column in range(2):
                place = 5 + self.places[self.columns + column * self.leaf_count + at]
                found[place] = (<Frames>self.leaves[at]).array(size)
        return found

    cdef int64_t room(self, int64_t size) noexcept:
        """Return for how many numbers there must be room beside the draw's."""
        cdef int64_t at, most = 0
        for at in range(self.leaf_count):
            most = max(most, frames_room(&self.copies[at].source, size, 1 - self.copies[at].frames, 1))
        return 5 * size + most

    cdef void aim(self, list arrays) noexcept:
        """Have the leaves copied to these arrays."""
        cdef int64_t at
        for at in range(self.leaf_count):
            self.copies[at].out = <uint8_t *>cnp.PyArray_BYTES(arrays[5 + self.places[self.columns + at]])
            self.copies[at].following = <uint8_t *>cnp.PyArray_BYTES(
                arrays[5 + self.places[self.columns + self.leaf_count + at]]
            )

    cdef int count_copies(self, const int64_t *copied) except -1:
        """Count pieces that were copied out of the cache: those kept as runs, and those kept raw."""
        if self.leaf_count:
            try:
                counts: dict = (<Frames>self.leaves[0]).rows.cache.copied
                counts["runs"] += copied[0]
                counts["raw"] += copied[1]
            except MemoryError:
                pass  # some are not counted
        return 0

    cdef void clear(self, int64_t size, uint8_t **out) noexcept nogil:
        """Set the arrays of a batch to zeros."""
        cdef int64_t at
        for at in range(self.columns):
            memset(out[at], 0, size * self.sizes[at])
        for at in range(self.leaf_count):
            memset(self.copies[at].out, 0, size * self.copies[at].frames * self.copies[at].row_bytes)
            memset(self.copies[at].following, 0, size * self.copies[at].frames * self.copies[at].row_bytes)

    cdef bint gather_to(self, int64_t size, const int64_t *ids, const int64_t *last, const int64_t *place,
                        uint8_t **out, int64_t *room) noexcept nogil:
        cdef plan_columns of
        of.count, of.arrays, of.patches, of.sizes = self.columns, self.arrays, self.patch_arrays, self.sizes
        of.following = self.rules
        return gather_columns(self.streams, self.count, &of, ids, last, size, place, out, room)


# ---- Draws ----

cdef class Draw:
    """A sampler's draws; of this class itself, none. The methods are called in their order; one that returns False has
    changed nothing."""

    cdef bint prepare(self) except -1:
        """Do what may run Python code."""
        return True

    cdef bint look(self, Rows rows) except -1:
        """Look at Python's objects."""
        return True

    cdef int64_t room(self, Rows rows, int64_t size) noexcept:
        """Return for how many numbers there must be room."""
        return size + rows.count

    cdef bint draw(self, draw_source *source, int64_t size, int64_t *ids, float *weights, int64_t *room) noexcept nogil:
        """Draw ids and weights."""
        return False

    cdef bint update(self, draw_source *source, const int64_t *ids, const double *priorities, int64_t count,
                     int64_t *room) noexcept nogil:
        """Set the priorities of ids, which are at least 0."""
        return False


cdef bitgen_t *bits_of(rng) except NULL:
    return <bitgen_t *>PyCapsule_GetPointer(rng.bit_generator.capsule, "BitGenerator")


@cython.final
cdef class Uniform(Draw):
    """The draws of :class:`~diskreplay.Uniform`, and of the newest rows of :class:`~diskreplay.Recent`.

    Args:
        rng: the generator.
        most_share: the share of the windows, in ids drawn, after which the transitions are listed instead.
        newest: how many of the newest ids, 0 for all.
        numerator, denominator: the share of the rows, the newest ones, 0 for all.
    """

    cdef object rng
    cdef bitgen_t *bits
    cdef double most_share
    cdef int64_t newest, numerator, denominator

    def __init__(self, rng, double most_share, int64_t newest=0, int64_t numerator=0, int64_t denominator=1, /):
        self.rng, self.bits, self.most_share, self.newest = rng, bits_of(rng), most_share, newest
        self.numerator, self.denominator = numerator, denominator
        if newest < 0 or not 0 <= numerator <= denominator <= 1 << 62:
            raise ValueError("a number of ids, or a share")

    cdef bint draw(self, draw_source *source, int64_t size, int64_t *ids, float *weights, int64_t *room) noexcept nogil:
        cdef draw_source narrowed = source[0]
        cdef draw_window window
        cdef int64_t k
        cdef bint is_recent = self.newest or self.numerator
        if is_recent and not self.narrow(&narrowed, &window):
            return False
        if not 2 <= draw_held(&narrowed) < <int64_t>1 << 32 or not draw_any(&narrowed):
            return False
        draw_uniform(self.bits, &narrowed, size, self.most_share, is_recent, ids, room)
        for k in range(size):
            weights[k] = 1
        return True

    cdef bint narrow(self, draw_source *source, draw_window *window) noexcept nogil:
        """Keep to the newest rows of the only stream that holds some."""
        cdef int64_t at = 0, k, rows, wanted
        for k in range(1, source.count):
            if source.windows[k].begin < source.streams[k].end:
                if source.windows[at].begin < source.streams[at].end:
                    return False
                at = k
        window[0] = source.windows[at]
        rows = source.streams[at].end - window.begin
        if self.newest:
            wanted = (self.newest - 1) // source.streams[at].envs + 1
        elif rows > (<int64_t>1 << 62) // self.denominator:
            return False
        else:
            wanted = (self.numerator * rows + self.denominator - 1) // self.denominator
        window.begin = source.streams[at].end - min(rows, wanted)
        source.streams, source.windows, source.count = source.streams + at, window, 1
        return True


include "priorities.pxi"


# ---- Batches ----

cdef enum: DRAWN = 1, WHOLE


@cython.final
cdef class Told:
    """Whether a sampler was told priorities: ever, and since closing saved them last."""

    cdef public bint updated, unsaved

    def __init__(self, bint updated, /):
        self.updated = self.unsaved = updated


@cython.final
cdef class Batches:
    """The batches of one store, each drawn by one call; see docs/design/0045-a-native-core.md.

    Args:
        gate: what bars the store from use.
        streams: an object whose ``rows`` are :class:`Rows`, or None.
        draw: what draws.
        n_step, gamma: of the transitions.
        sequence: the steps of a sequence, how many of these there must be, the stride, and whether it goes on into the
            next episode; None for transitions.
        made: a function that makes a batch of a list of its arrays: steps that there are, those that begin an episode
            (None twice for transitions), discounts, ids, weights, and the columns.
        told: what :meth:`update` notes.
    """

    cdef Gate gate
    cdef Told told
    cdef object streams, made
    cdef Draw draw
    cdef double gamma
    cdef draw_source items  # what an item is

    def __init__(self, Gate gate not None, streams, Draw draw not None, int64_t n_step, double gamma, sequence, made,
                 Told told not None, /):
        self.told, self.gate, self.streams, self.draw, self.made = told, gate, streams, draw, made
        self.items.n_step, self.gamma = n_step, gamma
        if sequence is not None:
            self.items.steps, self.items.needed, self.items.stride, self.items.across = sequence
        if n_step < 1 or (sequence is not None and (n_step > 1 or self.items.steps < 1 or self.items.stride < 1)):
            raise ValueError("an item has a step")

    cdef draw_source source(self, Rows rows) noexcept nogil:
        cdef draw_source of = self.items
        of.streams, of.windows, of.count = rows.streams, rows.windows, rows.count
        return of

    cdef bint look(self, Rows rows) except -1:
        """Tell whether all is ordinary; no Python code runs after the last look at it.

        To find arrays anew may run some, as it makes objects of which the garbage collector takes note. Then all is
        looked at once more.
        """
        cdef int tries
        cdef int64_t before
        for tries in range(3):
            before = finds
            if not self.gate.readable() or self.streams.rows is not rows or not rows.look() or not self.draw.look(rows):
                return False
            if finds == before:
                return True
        return False

    def sample(self, size, bint draw_only=False, /):
        """Return a batch; ids and weights, if Python must read it; None, with nothing changed, if it must draw it.

        Python must read a batch that several threads copy, and any if that is said.
        """
        if type(size) is not int or not 0 < size <= MOST_SIZE or type(self.draw) is Draw:
            return None
        return self.batch(size, NULL, draw_only)

    def get(self, cnp.ndarray ids not None, /):
        """Return the batch of the items that ids ``(B,)`` name; None if Python must look at them, or read it."""
        cdef int64_t count = count_of(ids)
        return self.batch(count, ints(ids), False) if 0 < count <= MOST_SIZE else None

    cdef object batch(self, int64_t count, const int64_t *given, bint draw_only):
        """Return what :meth:`sample` does, or :meth:`get` of the given ids, which the caller keeps."""
        cdef Rows rows
        cdef uint8_t *out[MOST_COLUMNS]
        cdef uint8_t *masks[2]
        cdef int64_t copied[4]
        cdef int found
        if not self.gate.readable():
            return None
        rows = self.streams.rows
        cdef int64_t entries = count * max(1, self.items.steps)
        if rows is None or not self.draw.prepare():
            return None
        if draw_only or entries > rows.most_size or entries * rows.row_bytes >= rows.most_bytes:
            return self.drawn(rows, count) if given == NULL else None
        if rows.leaf_count and not self.look(rows):  # for the room of its pieces
            return None
        discount, index = empty(entries, cnp.NPY_FLOAT), empty(count, cnp.NPY_INT64)
        weight = empty(count, cnp.NPY_FLOAT)
        cdef int64_t most = rows.room(entries) + self.draw.room(rows, count) + 2 * entries
        room = empty(most, cnp.NPY_INT64)
        arrays = rows.empty(entries, out)
        arrays[2], arrays[3], arrays[4] = discount, index, weight
        for at in range(2 if self.items.steps else 0):
            arrays[at] = empty(entries, cnp.NPY_BOOL)
            masks[at] = <uint8_t *>cnp.PyArray_BYTES(arrays[at])
        made = self.made(arrays)
        if not self.look(rows) or most < rows.room(entries) + self.draw.room(rows, count) + 2 * entries:
            return None
        rows.aim(arrays)
        memset(copied, 0, sizeof(copied))
        found = self.fill(
            rows, count, given, ints(index), <float *>cnp.PyArray_DATA(weight), <float *>cnp.PyArray_DATA(discount),
            masks, out, ints(room), copied,
        )
        if not found:
            return None
        rows.count_copies(copied)
        if found == WHOLE:
            return made
        return (index, weight) if given == NULL else None

    cdef tuple drawn(self, Rows rows, int64_t count):
        """Return ids and weights, or None with nothing changed."""
        index, weight = empty(count, cnp.NPY_INT64), empty(count, cnp.NPY_FLOAT)
        cdef int64_t most = self.draw.room(rows, count)
        room = empty(most, cnp.NPY_INT64)
        found = index, weight
        if not self.look(rows) or most < self.draw.room(rows, count):
            return None
        cdef draw_source source = self.source(rows)
        if not self.choose(rows, &source, count, ints(index), <float *>cnp.PyArray_DATA(weight), ints(room)):
            return None
        return found

    cdef bint choose(self, Rows rows, draw_source *source, int64_t size, int64_t *ids, float *weights,
                     int64_t *room) noexcept nogil:
        """Draw ids and weights; return False with nothing changed."""
        cdef int64_t k, invalid = 0
        for k in range(rows.count):
            invalid += rows.windows[k].invalid
        return size <= draw_held(source) - invalid and self.draw.draw(source, size, ids, weights, room)

    cdef int fill(self, Rows rows, int64_t size, const int64_t *given, int64_t *ids, float *weights, float *discounts,
                  uint8_t **masks, uint8_t **out, int64_t *room, int64_t *copied) noexcept nogil:
        """Draw a batch, or take given ids; return 0 with nothing changed, DRAWN if the rest is Python's, or WHOLE."""
        cdef draw_source source = self.source(rows)
        cdef int64_t k, held, entries = size, count = size
        cdef int64_t *last = NULL
        cdef int64_t *place = NULL
        cdef int64_t *every = ids
        if given != NULL:
            if not draw_are_items(&source, given, size):
                return 0
            for k in range(size):
                ids[k], weights[k] = given[k], 1
        elif not self.choose(rows, &source, size, ids, weights, room):
            return 0
        # From here on the generator has moved.
        if source.steps:
            entries, every = size * source.steps, room
            place, room = room + entries, room + 2 * entries
            count = draw_steps(&source, ids, size, every, place, masks[0], masks[1])
            if count < entries:
                rows.clear(entries, out)
            for k in range(entries):
                discounts[k] = <float>self.gamma if masks[0][k] else 0
        elif source.n_step == 1:
            for k in range(size):
                discounts[k] = <float>self.gamma
        else:
            last = room + size
            returns_of(&source, rows.rewards, rows.sizes[0], self.gamma, ids, size, <uint8_t *>room, last, discounts)
        rows.gather_to(count, every, last, place, out, room + 2 * size)
        if last != NULL:
            memcpy(out[0], room, size * rows.sizes[0])
        returns_end(discounts, out[1], entries)
        for k in range(rows.leaf_count):
            held = rows.copies[k].source.rows.is_ring  # then nothing of it is in the cache
            if not copy_leaf(&rows.copies[k], every, last, place, count, entries, room + 2 * size, copied + 2 * held):
                return DRAWN
        return WHOLE

    def update(self, index, errors, /):
        """Set priorities and return True; False, with none changed, if Python must look at them."""
        cdef Rows rows
        cdef cnp.ndarray given, wanted
        if type(index) is not np.ndarray or type(errors) is not np.ndarray or not self.gate.readable():
            return False
        wanted, given, rows = index, errors, self.streams.rows
        cdef int kind = cnp.PyArray_TYPE(given)
        if cnp.PyArray_TYPE(wanted) != cnp.NPY_INT64 or (kind != cnp.NPY_DOUBLE and kind != cnp.NPY_FLOAT):
            return False
        if cnp.PyArray_NDIM(wanted) != 1 or cnp.PyArray_NDIM(given) != 1:
            return False
        cdef int64_t count = count_of(wanted), k
        if count_of(given) != count or not cnp.PyArray_ISCARRAY_RO(wanted) or not cnp.PyArray_ISCARRAY_RO(given):
            return False
        room = empty(3 * count, cnp.NPY_INT64)
        cdef int64_t *numbers = ints(room)
        cdef double *priorities = <double *>numbers + 2 * count
        if rows is None or not self.draw.prepare() or not self.look(rows):
            return False
        cdef void *values = cnp.PyArray_DATA(given)
        for k in range(count):
            priorities[k] = fabs((<double *>values)[k] if kind == cnp.NPY_DOUBLE else (<float *>values)[k])
        cdef draw_source source = self.source(rows)
        if not self.draw.update(&source, ints(wanted), priorities, count, numbers):
            return False
        self.told.updated = self.told.unsaved = True
        return True
