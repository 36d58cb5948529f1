# The priorities of a sampler: a tree of them, and the places of ids in it, which follow the windows of all streams.

# ---- Slots ----

cdef slots_t *table_of(cnp.ndarray table) except? NULL:
    if count_of(table, 1) != sizeof(slots_t) // 8:
        raise TypeError("a table of slots has eight columns")
    return <slots_t *>ints(table, 2)


def to_slots(cnp.ndarray table not None, cnp.ndarray ids not None, /):
    """Return the slot of each id: EVICTED if it is below its stream's window, UNKNOWN if it does not exist."""
    cdef slots_t *rows = table_of(table)
    slots = empty(count_of(ids), cnp.NPY_INT64)
    slots_of_ids(rows, count_of(table), ints(ids), count_of(ids), ints(slots))
    return slots


def to_ids(cnp.ndarray table not None, cnp.ndarray slots not None, /):
    """Return the id in each slot, which must hold an id of its stream's window; ascending slots are quickest."""
    cdef slots_t *rows = table_of(table)
    ids = empty(count_of(slots), cnp.NPY_INT64)
    if not slots_to_ids(rows, count_of(table), ints(slots), count_of(slots), ints(ids)):
        raise ValueError("a slot belongs to no stream")
    return ids


# ---- Trees ----

cdef slot_range *ranges_of(cnp.ndarray ranges) except? NULL:
    if count_of(ranges, 1) != 3:
        raise TypeError("a table of ranges has three columns")
    return <slot_range *>ints(ranges, 2)


cdef int check_slots(const int64_t *slots, int64_t count, int64_t all) except -1:
    cdef int64_t k
    for k in range(count):
        if not 0 <= slots[k] < all:
            raise IndexError(f"slot {slots[k]} is none of {all}")
    return 0


@cython.final
cdef class Tree:
    """The arrays of a :class:`~diskreplay.index.sum_tree.WideSumTree`, and the kernels over them."""

    cdef sum_tree tree
    cdef cnp.ndarray sums, mins, offsets

    def __init__(self, cnp.ndarray sums not None, cnp.ndarray mins not None, cnp.ndarray offsets not None, /):
        self.tree.sums, self.tree.mins, self.tree.offsets = floats(sums), floats(mins), ints(offsets)
        self.tree.levels = count_of(offsets)
        self.tree.slots = count_of(sums) if self.tree.levels < 2 else self.tree.offsets[1]
        self.sums, self.mins, self.offsets = sums, mins, offsets

    def __reduce__(self):
        return Tree, (self.sums, self.mins, self.offsets)

    cdef sum_tree *changed(self) except NULL:
        """Return the tree for a kernel that writes to it; a copy that lies in shared memory may be read-only."""
        written(self.sums)
        written(self.mins)
        return &self.tree

    def fill(self, cnp.ndarray slots not None, cnp.ndarray masses not None, /):
        cdef int64_t count = count_of(slots)
        check_slots(ints(slots), count, self.tree.slots)
        if count_of(masses) != count:
            raise ValueError("each slot has a mass")
        room = empty(count, cnp.NPY_INT64)
        tree_fill(self.changed(), NULL, 0, ints(slots), count, floats(masses), ints(room))

    def totals(self, cnp.ndarray ranges not None, /):
        cdef slot_range *of = ranges_of(ranges)
        cdef int64_t k
        for k in range(count_of(ranges)):
            if of[k].start < 0 or of[k].stop > self.tree.slots:
                raise IndexError(f"slots {of[k].start} to {of[k].stop} are not all of {self.tree.slots}")
        found = empty(count_of(ranges), cnp.NPY_DOUBLE)
        tree_totals(&self.tree, of, count_of(ranges), floats(found))
        return found


cdef ranks_node *nodes_of(cnp.ndarray nodes) except? NULL:
    if cnp.PyArray_ITEMSIZE(nodes) != sizeof(ranks_node) or not cnp.PyArray_ISCARRAY_RO(nodes):
        raise TypeError("a node has 32 bytes")
    return <ranks_node *>cnp.PyArray_DATA(nodes)


def find_ranks(cnp.ndarray nodes not None, cnp.ndarray head not None, cnp.ndarray slots not None, /):
    """Return the ranks, counted from 0, of the entries at slots, or -1 for a slot without one."""
    check_slots(ints(slots), count_of(slots), count_of(nodes))
    ranks = empty(count_of(slots), cnp.NPY_INT64)
    ranks_find(nodes_of(nodes), <ranks_head *>ints(head), ints(slots), count_of(slots), ints(ranks))
    return ranks


def build_ranks(cnp.ndarray nodes not None, cnp.ndarray head not None, cnp.ndarray slots not None, /):
    """Build the tree of all entries; ``slots`` has their slots in the order of ranks."""
    check_slots(ints(slots), count_of(slots), count_of(nodes))
    path = empty(count_of(slots), cnp.NPY_INT64)
    ranks_build(nodes_of(written(nodes)), <ranks_head *>ints(written(head)), ints(slots), count_of(slots), ints(path))


# ---- Priorities that follow the windows ----

cdef enum: MOST_MOVED = 1024, LATE_ROOM = 256, IGNORED = 0, SAMPLES = 1


cdef class Followed:
    """What is common to :class:`Masses` and :class:`Ranked`: their places, and what follows the windows.

    ``table`` is the table of slots, ``waiting`` the ids that are no items and may still become some, ``maxima`` the
    largest priority so far of each group. ``counts``, int64 ``(2,)``, are of the updates of ids that had left their
    window, and of the draws. The arrays but ``waiting`` are the caller's, who reads them.
    """

    cdef cnp.ndarray table, late_ids, maxima, counts
    cdef slots_t *slots
    cdef int64_t streams, groups, late_count, late_room
    cdef int64_t *late
    cdef double *highest
    cdef int64_t *count
    cdef int64_t moved[7 * MOST_MOVED]
    cdef int8_t standings[MOST_MOVED]

    cdef int hold(self, cnp.ndarray table, cnp.ndarray waiting, cnp.ndarray maxima, cnp.ndarray counts,
                  int64_t all) except -1:
        """Take the arrays, for a tree of ``all`` slots."""
        cdef int64_t k
        cdef slots_t *of
        self.table, self.maxima, self.counts = table, maxima, counts
        self.slots, self.streams = table_of(table), count_of(table)
        self.highest, self.groups, self.count = floats(maxima), count_of(maxima), ints(counts)
        if count_of(counts) != 2:
            raise ValueError("there are two counts")
        self.late, self.late_count = ints(waiting), count_of(waiting)
        self.make_late_room(self.late_count)
        for k in range(self.streams):
            of = &self.slots[k]
            if of.base < 0 or not 1 <= of.lanes <= all or not 1 <= of.rows <= all // of.lanes or (
                of.base > all - of.lanes * of.rows or not 0 <= of.group <= self.groups - of.lanes
                or not 0 <= of.first <= of.stop or of.stop - of.first > of.lanes * of.rows):
                raise ValueError("a stream has slots in the tree, and each lane a group")
        return 0

    cdef int make_late_room(self, int64_t most) except -1:
        """Have room for so many ids that wait, and some more."""
        late = empty(most + LATE_ROOM, cnp.NPY_INT64)
        memcpy(ints(late), self.late, 8 * self.late_count)
        self.late_ids, self.late, self.late_room = late, ints(late), most + LATE_ROOM
        return 0

    def waiting(self):
        """Return the ids that may still become items."""
        return shortened(self.late_ids, self.late_count)

    # Windows

    def follow(self, cnp.ndarray spans not None, standing, /):
        """Move the windows, int64 ``(S, 2)``: the first number in each stream, and one past the last.

        ``standing`` tells the standings of ids. If it raises an error, the streams before were followed.
        """
        cdef int64_t *span = ints(spans, 2)
        cdef int64_t k, first, stop
        cdef slots_t *of
        written(self.table)
        self.check_tree()
        if count_of(spans) != self.streams or count_of(spans, 1) != 2:
            raise ValueError("each stream has a window")
        for k in range(self.streams):
            of = &self.slots[k]
            first, stop = span[2 * k], span[2 * k + 1]
            if not 0 <= first <= stop <= (<int64_t>1 << STREAM_SHIFT) or stop - first > of.lanes * of.rows:
                raise ValueError("a window has slots")
            while of.first != first or of.stop != stop:
                self.ask(of, first, stop, standing)

    cdef int ask(self, slots_t *of, int64_t first, int64_t stop, standing) except -1:
        """Move a window, unless it moves while the standings are asked for."""
        cdef int64_t old_first = of.first, old_stop = of.stop, waiting = self.late_count
        cdef int64_t most = waiting + stop - first, left = old_stop - old_first
        ids, standings = empty(most, cnp.NPY_INT64), empty(0, cnp.NPY_INT8)
        room = empty(2 * left + 4 * most, cnp.NPY_INT64)
        cdef int64_t count = self.list_asked(of, first, stop, ints(ids))
        if count:
            standings = np.ascontiguousarray(standing(shortened(ids, count)), np.int8)
        cdef int8_t *each = <int8_t *>data_of(standings, cnp.NPY_INT8, 1)
        if count_of(standings) != count:
            raise ValueError("each id has a standing")
        if of.first == old_first and of.stop == old_stop and self.late_count == waiting:
            if most > self.late_room:
                self.make_late_room(most)
            self.move(of, first, stop, ints(ids), each, count, ints(room))
        return 0

    cdef int check_tree(self) except -1:
        """Raise TypeError if the tree is read-only."""
        return 0

    cdef bint goes_back(self, const slots_t *of, int64_t first, int64_t stop) noexcept nogil:
        return first < of.first or stop < of.stop

    cdef int64_t list_asked(self, const slots_t *of, int64_t first, int64_t stop, int64_t *ids) noexcept nogil:
        """Write the ids of a window's next place whose standings have to be known; return how many."""
        cdef int64_t count = 0, k, tag = of.stream << STREAM_SHIFT
        cdef bint back = self.goes_back(of, first, stop)
        for k in range(0 if back else self.late_count):
            if first <= self.late[k] - tag < of.stop:
                ids[count] = self.late[k]
                count += 1
        for k in range(first if back else max(first, of.stop), stop):
            ids[count] = tag + k
            count += 1
        return count

    cdef void move(self, slots_t *of, int64_t first, int64_t stop, const int64_t *ids, const int8_t *standings,
                   int64_t count, int64_t *room) noexcept nogil:
        """Move a window, with the standings of the ids that :meth:`list_asked` has listed.

        ``room`` is for twice the ids that leave, and four times ``count``; the list of ids that wait has room for them.
        """
        cdef int64_t k, waiting = 0, entered = 0, tag = of.stream << STREAM_SHIFT
        cdef int64_t left = (of.stop if self.goes_back(of, first, stop) else min(first, of.stop)) - of.first
        cdef int64_t *taken = room + left
        cdef int64_t *entering = taken + count
        for k in range(left):
            room[k] = slot_of(of, of.first + k)
        for k in range(self.late_count):
            if self.late[k] >> STREAM_SHIFT != of.stream:
                self.late[waiting] = self.late[k]
                waiting += 1
        for k in range(count):
            if standings[k] == NOW:
                entering[entered], taken[entered] = ids[k], slot_of(of, ids[k] - tag)
                entered += 1
            elif standings[k] == LATER:
                self.late[waiting] = ids[k]
                waiting += 1
        self.enter(of, room, left, entering, taken, entered, entering + count)
        self.late_count, of.first, of.stop = waiting, first, stop

    cdef bint follow_all(self, const draw_source *source) noexcept nogil:
        """Follow windows that went forward by few rows; return False if one is not ordinary.

        Others may have been followed then.
        """
        cdef int64_t k, row = 0, tried, envs, held = 0
        cdef slots_t *of
        for k in range(source.count):
            tried, envs = 0, source.streams[k].envs
            while tried < self.streams and self.slots[row].stream != source.streams[k].number:
                row = row + 1 if row + 1 < self.streams else 0
                tried += 1
            of = &self.slots[row]
            if tried == self.streams or of.capacity != source.windows[k].rows * envs:
                return False
            if not self.follow_one(source, k, of, source.windows[k].begin * envs, source.streams[k].end * envs):
                return False
            held += of.first < of.stop
        for row in range(self.streams):
            held -= self.slots[row].first < self.slots[row].stop
        return not held  # else a stream is not there any more

    cdef bint follow_one(self, const draw_source *source, int64_t stream, slots_t *of, int64_t first,
                         int64_t stop) noexcept nogil:
        cdef int64_t k, count, new = stop - max(first, of.stop)
        if of.first == first and of.stop == stop:
            return True
        if self.goes_back(of, first, stop) or first > stop or stop - first > of.lanes * of.rows:
            return False
        if min(first, of.stop) - of.first > MOST_MOVED or self.late_count + new > min(MOST_MOVED, self.late_room):
            return False
        count = self.list_asked(of, first, stop, self.moved)
        for k in range(count):
            self.standings[k] = draw_standing(source, stream, local_of(self.moved[k]))
        self.move(of, first, stop, self.moved, self.standings, count, self.moved + MOST_MOVED)
        return True

    cdef void enter(self, const slots_t *of, const int64_t *gone, int64_t left, const int64_t *ids,
                    const int64_t *taken, int64_t entered, int64_t *room) noexcept nogil:
        """Empty slots, then give new ids theirs; there is room for ``left``, and twice ``entered``."""

    # Draws and updates

    cdef int64_t room(self, int64_t size) noexcept nogil:
        """Return for how many numbers a draw needs room."""
        return 4 * size + self.groups

    cdef int64_t ready(self, int64_t size, int64_t *room) noexcept nogil:
        """Return how many numbers in [0, 1) it takes to draw ``size`` ids, or -1 if so many cannot be drawn."""
        return -1

    cdef void pick(self, const double *uniforms, int64_t size, double beta, int64_t *slots, float *weights,
                   int64_t *room) noexcept nogil:
        """Draw slots, and their weights; :meth:`ready` said that it can be."""

    cdef int64_t set(self, const int64_t *slots, const double *priorities, int64_t count, int64_t *room) noexcept nogil:
        """Set priorities; return -1, or with nothing changed the position of the first bad entry."""
        return 0

    cdef bint pick_ids(self, const double *uniforms, int64_t size, double beta, int64_t *ids, float *weights,
                       int64_t *room) noexcept nogil:
        """Draw ids, and their weights; return False if a slot holds none, which must not be."""
        self.pick(uniforms, size, beta, room, weights, room + size)
        self.count[SAMPLES] += 1
        return slots_to_ids(self.slots, self.streams, room, size, ids)

    cdef int64_t set_ids(self, const int64_t *ids, const double *priorities, int64_t count,
                         int64_t *room) noexcept nogil:
        slots_of_ids(self.slots, self.streams, ids, count, room)
        return self.set(room, priorities, count, room + count)

    def draw(self, cnp.ndarray uniforms not None, int64_t size, double beta, /):
        """Draw ids of the windows, int64 ``(size,)``, and their weights, float32.

        ``uniforms`` are numbers in [0, 1), float64: one for each id. Where ranks are drawn from segments of which
        ``size`` is no multiple, one more comes first.
        """
        written(self.counts)
        ids, weights = empty(size, cnp.NPY_INT64), empty(size, cnp.NPY_FLOAT)
        room = empty(self.room(size), cnp.NPY_INT64)
        if size and self.ready(size, ints(room)) != count_of(uniforms):
            raise ValueError(f"{size} ids cannot be drawn by {count_of(uniforms)} numbers")
        if size and not self.pick_ids(
            floats(uniforms), size, beta, ints(ids), <float *>cnp.PyArray_DATA(weights), ints(room)
        ):
            raise RuntimeError("what was drawn is in no window")
        return ids, weights

    def check_writable(self):
        """Raise TypeError if an array is read-only, as memory is that processes share."""
        written(self.table)
        written(self.maxima)
        written(self.counts)
        self.check_tree()

    def update(self, cnp.ndarray ids not None, cnp.ndarray priorities not None, /):
        """Set priorities of ids; return -1, or with nothing changed the position of the first bad entry.

        Its priority is NaN or too large, or its id is no item. An id that has left its window is skipped and counted.
        Of an id that is named twice the last priority counts.
        """
        cdef int64_t count = count_of(ids)
        written(self.maxima)
        written(self.counts)
        self.check_tree()
        if count_of(priorities) != count:
            raise ValueError("each id has a priority")
        room = empty(2 * count, cnp.NPY_INT64)
        return self.set_ids(ints(ids), floats(priorities), count, ints(room))


@cython.auto_pickle(False)
@cython.final
cdef class Masses(Followed):
    """The priorities of :class:`~diskreplay.Proportional`, as masses in a tree.

    ``by_env`` tells that each lane is a group, from which draws are made by itself. ``power`` has alpha, epsilon, the
    least mass, and the largest priority that is taken.
    """

    cdef Tree tree
    cdef cnp.ndarray range_array
    cdef slot_range *spans
    cdef int64_t range_count
    cdef bint by_env
    cdef priority_power power

    def __init__(self, cnp.ndarray table not None, cnp.ndarray waiting not None, cnp.ndarray maxima not None,
                 cnp.ndarray counts not None, Tree tree not None, bint by_env, tuple power not None, /):
        self.hold(table, waiting, maxima, counts, tree.tree.slots)
        self.tree, self.by_env = tree, by_env
        self.power.alpha, self.power.epsilon, self.power.least, self.power.most = power
        self.range_array = empty_rows(max(1, count_of(maxima)), 3)
        self.spans = ranges_of(self.range_array)

    def __reduce__(self):
        power = self.power.alpha, self.power.epsilon, self.power.least, self.power.most
        return Masses, (self.table, self.waiting(), self.maxima, self.counts, self.tree, self.by_env, power)

    cdef int check_tree(self) except -1:
        self.tree.changed()
        return 0

    def ranges(self):
        """Return what is drawn from, int64 ``(R, 3)``: the first slot, one past the last, and the group."""
        self.find_ranges()
        return self.range_array[:self.range_count].copy()

    cdef void find_ranges(self) noexcept nogil:
        cdef int64_t k, lane, at
        cdef slots_t *of
        self.range_count = 0
        for k in range(self.streams):
            of = &self.slots[k]
            if not self.by_env:
                self.range_count = 1
                self.spans[0].start, self.spans[0].stop, self.spans[0].group = 0, of.base + of.lanes * of.rows, 0
            elif of.first < of.stop:
                for lane in range(of.lanes):
                    at = of.base + lane * of.rows
                    self.spans[self.range_count].start, self.spans[self.range_count].stop = at, at + of.rows
                    self.spans[self.range_count].group = of.group + lane
                    self.range_count += 1

    cdef void enter(self, const slots_t *of, const int64_t *gone, int64_t left, const int64_t *ids,
                    const int64_t *taken, int64_t entered, int64_t *room) noexcept nogil:
        cdef double *masses = <double *>room
        cdef int64_t k
        for k in range(entered):
            masses[k] = tree_mass(&self.power, self.highest[of.group + local_of(ids[k]) % of.lanes])
        tree_fill(&self.tree.tree, gone, left, taken, entered, masses, room + entered)

    cdef int64_t ready(self, int64_t size, int64_t *room) noexcept nogil:
        cdef double *totals = <double *>room
        cdef int64_t k
        self.find_ranges()
        if not self.range_count or size % self.range_count:
            return -1
        tree_totals(&self.tree.tree, self.spans, self.range_count, totals)
        for k in range(self.range_count):
            if not totals[k] > 0:
                return -1
        return size

    cdef void pick(self, const double *uniforms, int64_t size, double beta, int64_t *slots, float *weights,
                   int64_t *room) noexcept nogil:
        cdef double *least = <double *>room + 2 * size
        tree_draw(&self.tree.tree, self.spans, self.range_count, uniforms, size, beta, slots, weights, <double *>room,
                  room + size, least)

    cdef int64_t set(self, const int64_t *slots, const double *priorities, int64_t count, int64_t *room) noexcept nogil:
        self.find_ranges()
        return tree_update(&self.tree.tree, self.spans, self.range_count, self.highest, self.count + IGNORED, slots,
                           priorities, count, &self.power, room)


@cython.auto_pickle(False)
@cython.final
cdef class Ranked(Followed):
    """The priorities of :class:`~diskreplay.RankBased`, as a tree of ranks, which is empty or in ``nodes``.

    ``masses`` are those of the ranks 1 to r, for each r. ``rule`` has alpha, the segments, 0 for as many as ids are
    drawn, and the largest priority that is taken.
    """

    cdef cnp.ndarray nodes, heads, masses
    cdef ranks_node *node
    cdef ranks_head *head
    cdef const double *mass
    cdef double alpha, most
    cdef int64_t segments, mass_count, node_count

    def __init__(self, cnp.ndarray table not None, cnp.ndarray waiting not None, cnp.ndarray maxima not None,
                 cnp.ndarray counts not None, cnp.ndarray nodes not None, cnp.ndarray head not None,
                 cnp.ndarray masses not None, tuple rule not None, /):
        self.node, self.node_count, self.head = nodes_of(nodes), count_of(nodes), <ranks_head *>ints(head)
        self.hold(table, waiting, maxima, counts, count_of(nodes))
        self.nodes, self.heads = nodes, head
        self.weigh(masses)
        self.alpha, self.segments, self.most = rule
        if count_of(head) != 2 or count_of(maxima) < 1 or self.segments < 0:
            raise ValueError("a tree has a root and a count, and there is a largest priority")

    def __reduce__(self):
        given = self.table, self.waiting(), self.maxima, self.counts, self.nodes, self.heads, self.masses
        return Ranked, (*given, (self.alpha, self.segments, self.most))

    def weigh(self, cnp.ndarray masses not None, /):
        """Draw by other masses."""
        self.mass, self.mass_count, self.masses = floats(masses), count_of(masses), masses

    cdef int check_tree(self) except -1:
        written(self.nodes)
        written(self.heads)
        return 0

    cdef void enter(self, const slots_t *of, const int64_t *gone, int64_t left, const int64_t *ids,
                    const int64_t *taken, int64_t entered, int64_t *room) noexcept nogil:
        cdef int64_t k, slot
        ranks_remove(self.node, self.head, gone, left)
        if self.head.count:
            ranks_insert(self.node, self.head, taken, ids, self.highest[0], entered)
            return
        for k in range(entered):  # all are equal, so the newest comes first
            slot = room[k] = taken[entered - 1 - k]
            self.node[slot].id, self.node[slot].priority = ids[entered - 1 - k], self.highest[0]
        ranks_build(self.node, self.head, room, entered, room + entered)

    cdef int64_t ready(self, int64_t size, int64_t *room) noexcept nogil:
        if not 0 < self.head.count <= self.mass_count:
            return -1
        return size + (size % (self.segments or size) != 0)

    cdef void pick(self, const double *uniforms, int64_t size, double beta, int64_t *slots, float *weights,
                   int64_t *room) noexcept nogil:
        ranks_draw(uniforms, self.mass, self.head.count, self.segments or size, size, self.alpha * beta, room, weights)
        ranks_select(self.node, self.head, room, size, slots)

    cdef int64_t set(self, const int64_t *slots, const double *priorities, int64_t count, int64_t *room) noexcept nogil:
        return ranks_update(self.node, self.node_count, self.head, self.highest, self.count + IGNORED, slots,
                            priorities, count, self.most)


@cython.final
cdef class Prioritized(Draw):
    """The draws and updates of a sampler with priorities, whose ``_held`` are :class:`Followed`."""

    cdef object sampler, rng
    cdef bitgen_t *bits
    cdef Followed of
    cdef double beta
    cdef int64_t samples

    def __init__(self, sampler, rng, /):
        self.sampler, self.rng, self.bits = sampler, rng, bits_of(rng)

    cdef bint prepare(self) except -1:
        self.of = <Followed?>self.sampler._held
        self.samples = self.of.count[SAMPLES]
        self.beta = self.sampler.beta
        return True

    cdef bint look(self, Rows rows) except -1:
        return self.sampler._held is self.of and self.of.count[SAMPLES] == self.samples

    cdef int64_t room(self, Rows rows, int64_t size) noexcept:
        return size + 1 + self.of.room(size)

    cdef bint draw(self, draw_source *source, int64_t size, int64_t *ids, float *weights, int64_t *room) noexcept nogil:
        cdef double *uniforms = <double *>room
        cdef int64_t k, count
        if not self.of.follow_all(source):
            return False
        count = self.of.ready(size, room)
        for k in range(count):
            uniforms[k] = self.bits.next_double(self.bits.state)
        return count > 0 and self.of.pick_ids(uniforms, size, self.beta, ids, weights, room + count)

    cdef bint update(self, draw_source *source, const int64_t *ids, const double *priorities, int64_t count,
                     int64_t *room) noexcept nogil:
        return self.of.follow_all(source) and self.of.set_ids(ids, priorities, count, room) < 0
