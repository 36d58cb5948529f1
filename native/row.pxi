# A row in one call: its arguments are taken, what a call looks at is looked at, the row is written.

cdef extern from "row.h" nogil:
    ctypedef struct row_column:
        const uint8_t *given
        const uint8_t *following
        int64_t part, parts
        uint8_t *buffer
        int64_t chunk_rows, row_step, part_step
        uint8_t *ring

    ctypedef struct row_break:
        int64_t row, envs, length
        const uint8_t *valid
        const uint8_t *ended
        const uint8_t *cut
        bint by_flags
        uint8_t *unlike
        uint8_t *begins
        int64_t differing, episodes, cuts

    ctypedef struct row_signs:
        int64_t ends, unmoved, empty, earning

    bint row_goes_on(const row_column *columns, int64_t leaves, int64_t row)
    void row_breaks(row_break *of, const row_column *columns, int64_t leaves)
    void row_watch(const row_break *of, const row_column *columns, int64_t leaves, const row_column *rewards,
                   const row_column *terminated, const row_column *truncated, int64_t earlier, row_signs *signs)
    int64_t row_patch(const row_break *of, const row_column *columns, int64_t leaves, const row_column *patches,
                      int64_t first, int64_t room, int64_t *known)
    void row_write(const row_column *columns, int64_t count, int64_t leaves, int64_t row, int64_t length, bint in_place,
                   bint last)
    bint row_finite(const void *numbers, int64_t count, int64_t bytes)
    bint row_within(const uint8_t *numbers, const uint8_t *most, int64_t count, int64_t bytes)
    void row_round(const double *numbers, int64_t count, float *rounded)

cdef enum: MOST_AXES = 32

EXACT, ADDED, LOOK, ENDS_CHUNK = -1, 1, 2, 3
"""What a call says of a row: it was not added though its arguments need no conversion; it was, and no more; a commit or
a warning may be due; a chunk ends with it."""

cdef object FLOAT64 = np.float64, TRUE = np.True_, FALSE = np.False_


@cython.auto_pickle(False)
@cython.final
cdef class Argument:
    """The rule for one argument of a row, as :class:`diskreplay.engine.inputs.Slot` has it.

    Args:
        dtype, shape: those of the value; ``shape`` begins with the environments, if there are several.
        finite, rounded: True if numbers must be finite; True if float64 is rounded to the dtype.
        low, high: the least and the largest number, int64 or float64.
        most: the largest value of each element, as unsigned integers; None for any.
        single: True if only numbers are taken, no arrays.
    """

    cdef cnp.ndarray most, staged
    cdef object scalar
    cdef int type, axes
    cdef int64_t axis[MOST_AXES]
    cdef int64_t count, item
    cdef char kind
    cdef bint finite, rounded, single
    cdef double low, high
    cdef int64_t least, largest

    def __init__(self, dtype not None, tuple shape not None, bint finite, bint rounded, low, high,
                 cnp.ndarray most, bint single, /):
        cdef int k
        self.staged = np.zeros(shape, dtype)
        self.scalar, self.type, self.kind = dtype.type, cnp.PyArray_TYPE(self.staged), ord(dtype.kind)
        self.axes, self.count, self.item = len(shape), self.staged.size, dtype.itemsize
        if self.axes > MOST_AXES:
            raise ValueError(f"a value has at most {MOST_AXES} axes")
        for k in range(self.axes):
            self.axis[k] = shape[k]
        self.finite, self.rounded, self.single = finite, rounded, single
        self.low, self.high, self.least, self.largest = 1, 0, 1, 0
        if self.kind == b"f" and self.item in (4, 8):
            self.low, self.high, self.largest = low, high, <int64_t>1 << (24 if self.item == 4 else 53)  # exact
            self.least = -self.largest
        elif self.kind in b"iu":
            self.least, self.largest = low, high
        if most is not None and (most.nbytes != self.staged.nbytes or not cnp.PyArray_ISCARRAY_RO(most)):
            raise ValueError("each element has a largest value")
        self.most = most

    cdef const uint8_t *take(self, object given, bint checked, list kept) except? NULL:
        """Return where a value's bytes are, or NULL if Python must look at it. It runs no code of Python's."""
        cdef const uint8_t *found
        if type(given) is cnp.ndarray:
            if self.single and not checked:
                return NULL
            found = self.of_array(<cnp.ndarray>given, kept)
        else:
            found = self.of_number(given) if not self.axes else NULL
        return found if found == NULL or checked or self.fits(found) else NULL

    cdef bint fits(self, const uint8_t *value) noexcept:
        """Tell whether a value keeps the rule for its numbers; False if that cannot be told at once."""
        if self.finite and (self.kind != b"f" or not row_finite(value, self.count, self.item)):
            return False
        return self.most is None or row_within(value, <uint8_t *>cnp.PyArray_DATA(self.most), self.count, self.item)

    cdef const uint8_t *of_array(self, cnp.ndarray given, list kept) except? NULL:
        cdef int k, type = cnp.PyArray_TYPE(given)
        cdef bint wide = self.rounded and self.type == cnp.NPY_FLOAT and type == cnp.NPY_DOUBLE
        if (type != self.type and not wide) or cnp.PyArray_NDIM(given) != self.axes:
            return NULL
        if not cnp.PyArray_ISBEHAVED_RO(given):
            return NULL
        for k in range(self.axes):
            if cnp.PyArray_DIM(given, k) != self.axis[k]:
                return NULL
        if not cnp.PyArray_IS_C_CONTIGUOUS(given):
            given = cnp.PyArray_GETCONTIGUOUS(given)
            kept.append(given)
        if not wide:
            return <uint8_t *>cnp.PyArray_DATA(given)
        row_round(<double *>cnp.PyArray_DATA(given), self.count, <float *>cnp.PyArray_DATA(self.staged))
        return <uint8_t *>cnp.PyArray_DATA(self.staged)

    cdef const uint8_t *of_number(self, object given) except? NULL:
        """Return where a number is, after it was staged: a Python one, or one of the dtype's own type."""
        cdef void *to = cnp.PyArray_DATA(self.staged)
        cdef double number
        cdef int64_t integer
        cdef int beyond = 0
        if self.kind == b"b":
            if given is not True and given is not False and given is not TRUE and given is not FALSE:
                return NULL
            (<uint8_t *>to)[0] = given is True or given is TRUE
        elif type(given) is self.scalar and self.kind in b"fc":
            cnp.PyArray_ScalarAsCtype(given, to)
        elif type(given) is int or (type(given) is self.scalar and self.kind in b"iu"):
            integer = PyLong_AsLongLongAndOverflow(given, &beyond)
            if beyond or not self.least <= integer <= self.largest:
                return NULL
            if self.kind == b"f":
                self.stage_float(<double>integer)
            else:
                memcpy(to, &integer, self.item)  # little-endian, as are all processors for which this is built
        elif self.kind == b"f" and (type(given) is float or (self.rounded and type(given) is FLOAT64)):
            number = given
            if not self.low <= number <= self.high:
                return NULL
            self.stage_float(number)
        else:
            return NULL
        return <uint8_t *>to

    cdef void stage_float(self, double number) noexcept:
        if self.item == 4:
            (<float *>cnp.PyArray_DATA(self.staged))[0] = <float>number
        else:
            (<double *>cnp.PyArray_DATA(self.staged))[0] = number


cdef bint leaves_of(object tree, object given, list found) except -1:
    """Add the leaves of a nested value to a list; return False if its structure is not simply that of the space."""
    if type(tree) is str:
        found.append(given)
        return True
    if type(tree) is dict:
        if type(given) is not dict or len(<dict>given) != len(<dict>tree):
            return False
        for name, below in (<dict>tree).items():
            if name not in <dict>given or not leaves_of(below, (<dict>given)[name], found):
                return False
        return True
    if type(given) is not tuple or len(<tuple>given) != len(tree):
        return False
    for below, part in zip(tree, <tuple>given):
        if not leaves_of(below, part, found):
            return False
    return True


@cython.auto_pickle(False)
@cython.final
cdef class Signs:
    """Counts of the rows that begin episodes, from which warnings about likely mistakes follow.

    Attributes:
        episodes, differing: the episodes that began; the steps that go on though their observation differs.
        cuts: the steps that begin an episode only because their observation differs.
        ends, unmoved, empty, earning: as row.h has them.
        cuts_said, resets_said: True if the warning that follows from these counts was given, or is not wanted.
        most_cuts, watched_steps, watched_ends: the share of steps with a cut that gets no warning; the numbers of steps
            and of ends from which on there are warnings.
    """

    cdef public int64_t episodes, differing, cuts, ends, unmoved, empty, earning, watched_steps, watched_ends
    cdef public bint cuts_said, resets_said
    cdef public double most_cuts

    cdef bint due(self, int64_t steps) noexcept nogil:
        """Tell whether a warning may be due, after so many steps of all environments."""
        if self.cuts > self.most_cuts * steps and steps >= self.watched_steps and not self.cuts_said:
            return True
        return self.watched_ends <= self.ends and self.ends == self.unmoved and not self.resets_said

    cdef void count(self, const row_break *of, const row_signs *signs) noexcept nogil:
        self.episodes += of.episodes
        self.differing += of.differing
        self.cuts += of.cuts
        self.ends, self.unmoved = self.ends + signs.ends, self.unmoved + signs.unmoved
        self.empty, self.earning = self.empty + signs.empty, self.earning + signs.earning


@cython.auto_pickle(False)
@cython.final
cdef class Written:
    """Columns that rows are written to.

    Args:
        counted: the columns.
        facts: int64 ``(C, 9)``, as row.h has them: those of the columns, then those of arrays without a value.
        owners: of the memory that ``facts`` names.
    """

    cdef object owners, buffers
    cdef tuple counted
    cdef cnp.ndarray facts, ends
    cdef row_column *columns
    cdef int64_t **end
    cdef int64_t counts, count, until

    def __init__(self, tuple counted not None, cnp.ndarray facts not None, owners, /):
        cdef int64_t k
        self.counted, self.facts, self.owners = counted, facts, owners
        self.columns, self.count, self.counts = <row_column *>ints(facts, 2), count_of(facts), len(counted)
        if count_of(facts, 1) != sizeof(row_column) // 8 or self.counts > self.count:
            raise ValueError("a column has nine numbers")
        self.ends, self.until = empty(self.counts, cnp.NPY_INT64), -1
        self.end = <int64_t **>ints(self.ends)
        for k in range(self.counts):
            self.end[k] = &(<Counted?>counted[k]).end

    def attach(self, int64_t until, list buffers not None, /):
        """Take the columns' write buffers ``(groups, chunk_rows, ...)``, of which none is full before row ``until``."""
        cdef int64_t k
        cdef cnp.ndarray buffer
        if len(buffers) != self.counts:
            raise ValueError("a column has a write buffer")
        for k in range(self.counts):
            buffer, of = buffers[k], &self.columns[k]
            if not cnp.PyArray_ISCARRAY(buffer) or buffer.nbytes != of.chunk_rows * of.part * of.parts:
                raise ValueError("a write buffer has another size than the column's chunks")
        for k in range(self.counts):
            self.columns[k].buffer = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>buffers[k])
        self.buffers, self.until = buffers, until

    cdef void set_end(self, int64_t end) noexcept nogil:
        cdef int64_t k
        for k in range(self.counts):
            self.end[k][0] = end


@cython.auto_pickle(False)
cdef class Row:
    """The calls that write rows to one table of a log.

    Args:
        gate, log, signs: what bars the store from use; the log; what is counted.
        ended: a mask of the environments whose episode has ended.
        rows, patches: the columns of the rows, those of the observation's leaves first; those of patches, places first.
        valid, known: the log's arrays of valid rows, bool, and of numbers of patches, ``(length, num_envs)``.
        arguments: the rules for leaves, actions, reward, flags, own columns, next leaves, in this order.
        targets: int64 ``(n + 2,)``, the column of each argument, and those of the flags "valid" and of start codes.
        trees: those of observations and of actions; the names of the own columns.
        numbers: how many leaves an observation has; the first row that gets no id; the first row of this writer; the
            patches for which the log has room; 1 if an environment with another observation goes on.
        codes: the start codes of what goes on, of what begins, and of what is no transition.

    Attributes:
        due, due_at: the number of rows, and the time, from which on Python looks whether a commit is due.
    """

    cdef Gate gate
    cdef Window log
    cdef Signs signs
    cdef Written rows, patches
    cdef object table, patched
    cdef tuple trees, arguments
    cdef cnp.ndarray targets, valid, is_ended, known, all_valid, none_valid, all_go_on, room
    cdef int64_t *target
    cdef int64_t *numbers_known
    cdef uint8_t *ended
    cdef uint8_t *unlike
    cdef uint8_t *begins
    cdef uint8_t *starting
    cdef const uint8_t *flags_valid
    cdef uint8_t codes[3]
    cdef int64_t leaves, envs, length, most, opened_at, patch_room
    cdef bint by_flags, watched
    cdef row_column *reward
    cdef row_column *terminated
    cdef row_column *truncated
    cdef row_column *is_valid
    cdef row_column *starts
    cdef public int64_t due
    cdef public double due_at

    def __init__(self, Gate gate not None, Window log not None, Signs signs not None, cnp.ndarray ended not None,
                 Written rows not None, Written patches not None, cnp.ndarray valid not None,
                 cnp.ndarray known not None, tuple arguments not None, cnp.ndarray targets not None,
                 tuple trees not None, tuple numbers not None, tuple codes not None, /):
        self.gate, self.log, self.signs, self.rows, self.patches = gate, log, signs, rows, patches
        self.table, self.patched, self.arguments, self.trees = log.table, log.patches, arguments, trees
        self.targets, self.valid, self.is_ended, self.known = targets, valid, ended, known
        self.leaves, self.most, self.opened_at, self.patch_room, self.by_flags = numbers
        self.codes[0], self.codes[1], self.codes[2] = codes
        self.due, self.due_at = 0, 0
        self.envs, self.length = count_of(ended), count_of(valid)
        self.ended, self.target = <uint8_t *>data_of(written(ended), cnp.NPY_BOOL, 1), ints(targets)
        data_of(written(valid), cnp.NPY_BOOL, 2)
        self.numbers_known = ints(written(known), 2)
        self.all_valid, self.none_valid = np.ones(self.envs, bool), np.zeros(self.envs, bool)
        self.all_go_on, self.room = np.full(self.envs, self.codes[0], np.uint8), np.zeros((3, self.envs), np.uint8)
        self.unlike = <uint8_t *>cnp.PyArray_DATA(self.room)
        self.begins, self.starting = self.unlike + self.envs, self.unlike + 2 * self.envs
        self.check()

    cdef int check(self) except -1:
        """Find the columns of rewards and flags; raise an error if what was given does not belong together."""
        cdef int64_t k, flags = len(self.arguments) - self.leaves - len(<tuple>self.trees[2]) - 2
        if count_of(self.targets) != len(self.arguments) + 2 or self.leaves < 1 or flags <= self.leaves or (
            self.patches.counts != 1 + self.leaves or count_of(self.known) != self.length or
            count_of(self.valid, 1) != self.envs or count_of(self.known, 1) != self.envs
        ):
            raise ValueError("an argument has a column, and flags are behind the observation")
        for k in range(count_of(self.targets)):
            if not 0 <= self.target[k] < self.rows.counts:
                raise IndexError("a row has no such column")
            of = &self.rows.columns[self.target[k]]
            if k < len(self.arguments) and (<Argument?>self.arguments[k]).staged.nbytes != of.part * of.parts:
                raise ValueError("an argument is not as long as its column's values")
        self.reward = &self.rows.columns[self.target[flags - 1]]
        self.terminated, self.truncated = self.reward + 1, self.reward + 2
        k = len(self.arguments)
        self.is_valid, self.starts = &self.rows.columns[self.target[k]], &self.rows.columns[self.target[k + 1]]
        if self.target[flags] != self.target[flags - 1] + 1 or self.target[flags + 1] != self.target[flags] + 1:
            raise ValueError("flags are behind the reward")
        if not (self.flags(self.terminated) and self.flags(self.truncated) and self.flags(self.is_valid) and
                self.flags(self.starts)):
            raise ValueError("each environment has flags")
        for k in range(1 + self.leaves):
            of = &self.patches.columns[k]
            if of.parts != 1 or of.part != (24 if not k else self.rows.columns[k - 1].part *
                                            self.rows.columns[k - 1].parts // self.envs):
                raise ValueError("a patch has a place, and a frame of each leaf")
        rewards = <Argument>self.arguments[flags - 1]
        self.watched = rewards.kind == b"f" and rewards.item in (4, 8) and self.reward.ring != NULL and (
            self.terminated.ring != NULL and self.truncated.ring != NULL)
        return 0

    cdef bint flags(self, const row_column *of) noexcept:
        return of.part * of.parts == self.envs

    def add(self, obs, action, reward, next_obs, terminated, truncated, valid, extra, bint held=False, /):
        """Add a row, and return ADDED, or LOOK; or EXACT or 0, with nothing changed, if Python must add it.

        ``held`` says that the caller holds the locks: a row that goes on may end a chunk then, which ENDS_CHUNK tells.
        The caller writes the next observation behind the chunk's end.
        """
        if not held and not self.gate.writable():
            return 0
        cdef list kept = [], values = self.flat(obs, action, reward, next_obs, terminated, truncated, extra)
        cdef double now = time.monotonic()
        # From here on nothing runs code of Python's or is collected: exact types only, and no new lists.
        if values is None or not self.take_valid(valid) or not self.stage(values, False, kept):
            return 0
        return (self.add_held() if held else self.change(now)) or EXACT

    def put(self, list values not None, /):
        """Add a row of checked arguments as :meth:`add` with ``held``."""
        cdef list kept = []
        if not self.stage(values, True, kept):
            return 0
        self.flags_valid = <uint8_t *>cnp.PyArray_DATA(self.all_valid)
        return self.add_held()

    def breaks(self, list values not None, cnp.ndarray valid not None, cnp.ndarray cut, /):
        """Tell how a row of checked arguments, arrays of the columns' dtypes, breaks with the row before.

        Args:
            valid, cut: bool ``(num_envs,)``: where it is a transition; where an episode begins in any case, or None.

        Returns bool ``(2, num_envs)``: where it has another observation, and where it begins an episode.
        """
        cdef list kept = []
        cdef row_break of
        valid = self.mask(valid)
        self.look_at(&of, <uint8_t *>cnp.PyArray_DATA(valid))
        if cut is not None:
            cut = self.mask(cut)
            of.cut = <uint8_t *>cnp.PyArray_DATA(cut)
        self.stage_checked(values, kept)
        row_breaks(&of, self.rows.columns, self.leaves)
        return self.room[:2].astype(bool)

    def write(self, list values not None, cnp.ndarray valid not None, cnp.ndarray starts not None, bint in_place, /):
        """Add a row of checked arguments, with the locks held, and return ADDED or ENDS_CHUNK, as :meth:`add`.

        ``valid`` and ``starts``, uint8, are
        ``(num_envs,)``. ``in_place`` says that the row's observation is the pending one.
        """
        cdef list kept = []
        valid = self.mask(valid)
        if count_of(starts) != self.envs:
            raise ValueError("each environment has a start code")
        cdef uint8_t *codes = <uint8_t *>data_of(starts, cnp.NPY_UINT8, 1)
        self.stage_checked(values, kept)
        if not self.has_room():
            raise IndexError("there is no room for a row")
        memcpy(self.starting, codes, self.envs)
        return self.write_staged(<uint8_t *>cnp.PyArray_DATA(valid), in_place)

    cdef cnp.ndarray mask(self, cnp.ndarray given):
        """Return a mask of the environments whose flags stand side by side."""
        if cnp.PyArray_TYPE(given) != cnp.NPY_BOOL or cnp.PyArray_NDIM(given) != 1 or count_of(given) != self.envs:
            raise ValueError("each environment has a flag")
        return cnp.PyArray_GETCONTIGUOUS(given)

    cdef bint take_valid(self, given) except -1:
        """Find where the flags "valid" are; return False if they are none that are taken at once."""
        if given is None or given is True:
            self.flags_valid = <uint8_t *>cnp.PyArray_DATA(self.all_valid)
            return True
        if given is False and self.envs == 1:
            self.flags_valid = <uint8_t *>cnp.PyArray_DATA(self.none_valid)
            return True
        if type(given) is not cnp.ndarray or cnp.PyArray_TYPE(<cnp.ndarray>given) != cnp.NPY_BOOL:
            return False
        if cnp.PyArray_NDIM(<cnp.ndarray>given) != 1 or not cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>given):
            return False
        self.flags_valid = <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>given)
        return self.envs > 1 and count_of(given) == self.envs

    cdef list flat(self, obs, action, reward, next_obs, terminated, truncated, extra):
        """Return the arguments as one list, or None if their structure is not simply that of the columns."""
        cdef list values = []
        cdef tuple names = self.trees[2]
        if type(extra) is not dict or len(<dict>extra) != len(names) or not leaves_of(self.trees[0], obs, values):
            return None
        if not leaves_of(self.trees[1], action, values):
            return None
        values += (reward, terminated, truncated)
        for name in names:
            if name not in <dict>extra:
                return None
            values.append((<dict>extra)[name])
        return values if leaves_of(self.trees[0], next_obs, values) else None

    cdef bint stage(self, list values, bint checked, list kept) except -1:
        """Find the bytes of all values; return False if Python must look at one, or the log has other arrays."""
        cdef int64_t k, first_next = len(self.arguments) - self.leaves
        cdef const uint8_t *found
        if self.log.table is not self.table or self.log.patches is not self.patched:
            return False
        if len(values) != len(self.arguments):
            return False
        for k in range(len(self.arguments)):
            found = (<Argument>self.arguments[k]).take(values[k], checked, kept)
            if found == NULL:
                return False
            if k < first_next:
                self.rows.columns[self.target[k]].given = found
            else:
                self.rows.columns[self.target[k]].following = found
        return True

    cdef int stage_checked(self, list values, list kept) except -1:
        if not self.stage(values, True, kept):
            raise TypeError("a value is no array of its column's dtype, or the log has other arrays")
        return 0

    cdef int add_held(self) noexcept nogil:
        """Add the row that was staged, if nothing bars it, and it goes on everywhere or ends no chunk."""
        if self.gate.failed or self.gate.broken or not self.has_room():
            return 0
        if memchr(self.flags_valid, 0, self.envs) == NULL and self.goes_on():
            return self.write_staged(self.flags_valid, True)
        if self.log.end >= self.rows.until or not self.begin():
            return 0
        return 2 if self.signs.due((self.log.end - 1 - self.opened_at) * self.envs) else 1

    cdef int change(self, double now) noexcept nogil:
        """Add the row that was staged, if nothing bars it, and it ends no chunk."""
        if not self.gate.writable() or self.log.end >= self.rows.until:
            return 0
        cdef int done = self.add_held()
        return 2 if done == 1 and (self.log.end >= self.due or now >= self.due_at) else done

    cdef bint has_room(self) noexcept nogil:
        """Tell whether there is an id, and a place in the arrays, for one more row."""
        if self.log.end >= self.most or self.log.end > self.rows.until:
            return False
        return self.log.end + 2 - max(0, min(self.log.begin, self.log.end - 1) - self.log.context) <= self.length

    cdef bint goes_on(self) noexcept nogil:
        """Tell whether the row that was staged goes on in all environments; then note their codes."""
        if not self.log.going or not self.log.pending or self.log.end == self.log.cut:
            return False
        if not row_goes_on(self.rows.columns, self.leaves, self.log.end):
            return False
        memcpy(self.starting, cnp.PyArray_DATA(self.all_go_on), self.envs)
        return True

    cdef void look_at(self, row_break *of, const uint8_t *valid) noexcept nogil:
        of.row, of.envs, of.length, of.valid, of.ended = self.log.end, self.envs, self.length, valid, self.ended
        of.cut, of.by_flags = NULL, self.by_flags and self.log.end != self.opened_at
        of.unlike, of.begins = self.unlike, self.begins

    cdef bint begin(self) noexcept nogil:
        """Add the row that was staged, if all that it brings is patches; else change nothing, and return False."""
        cdef row_break of
        cdef row_signs signs
        cdef int64_t row = self.log.end, k, count
        if not self.log.pending or self.log.noted or row == self.log.cut or not self.watched or row < 1:
            return False
        cdef int64_t *known = self.numbers_known + (row - 1) % self.length * self.envs
        self.look_at(&of, self.flags_valid)
        row_breaks(&of, self.rows.columns, self.leaves)
        count = row_patch(&of, self.rows.columns, self.leaves, NULL, self.log.patch_end, self.patch_room, known)
        if self.log.patch_end + count > self.patches.until or (
            self.log.patch_end + count - self.log.patch_begin > self.patch_room):
            return False
        row_patch(&of, self.rows.columns, self.leaves, self.patches.columns, self.log.patch_end, self.patch_room, known)
        self.log.patch_end += count
        self.patches.set_end(self.log.patch_end)
        signs.ends = signs.unmoved = signs.empty = signs.earning = 0
        if row != self.opened_at:
            k = min(max(row - 2, self.log.begin), row - 1)
            row_watch(&of, self.rows.columns, self.leaves, self.reward, self.terminated, self.truncated, k, &signs)
        else:
            of.cuts = 0
        self.signs.count(&of, &signs)
        for k in range(self.envs):
            self.starting[k] = self.codes[(1 if of.valid[k] else 2) if of.begins[k] else 0]
        self.write_staged(of.valid, False)
        return True

    cdef int write_staged(self, const uint8_t *valid, bint in_place) noexcept nogil:
        """Write the row that was staged, for which there is room."""
        cdef int64_t row = self.log.end, k
        cdef bint last = row == self.rows.until
        self.is_valid.given, self.starts.given = valid, self.starting
        row_write(self.rows.columns, self.rows.count, self.leaves, row, self.length, in_place, last)
        self.log.end = row + 1
        if not last:
            self.rows.set_end(row + 1)
        self.log.pending = self.log.going = True
        for k in range(self.envs):
            self.log.invalid += not valid[k]
            self.ended[k] = self.terminated.given[k] or self.truncated.given[k] or not valid[k]
            if self.ended[k]:
                self.log.going = False
        self.slide(row + 1 - self.log.rows)
        return 3 if last else 1

    cdef void slide(self, int64_t begin) noexcept nogil:
        """Move the window's first row forward to ``begin``."""
        cdef const uint8_t *valid = <uint8_t *>cnp.PyArray_DATA(self.valid)
        cdef int64_t row, k
        if self.log.invalid:
            for row in range(self.log.begin, begin):
                for k in range(row % self.length * self.envs, (row % self.length + 1) * self.envs):
                    self.log.invalid -= not valid[k]
        if begin > self.log.begin:
            self.log.begin = begin
