# Where the values of a batch are. Nobody tells these classes what has changed: each call compares what is now with what
# it saw last. They keep the arrays whose addresses they know.

cdef bint hold(cnp.ndarray array, int64_t size, int64_t count) except -1:
    """Tell whether an array has ``count`` values of ``size`` bytes, one after another."""
    return cnp.PyArray_ISCARRAY_RO(array) and cnp.PyArray_NBYTES(array) == size * count


cdef int64_t finds = 0  # how often arrays were found anew, which may have run Python code


@cython.final
cdef class Logs:
    """What the logs of all streams of a store hold.

    Args:
        logs: the logs, in the order of the streams' numbers.
        starts, numbers: the names of their arrays of start codes, and of the numbers of patches.
    """

    cdef list logs, tables, patches
    cdef object starts, numbers
    cdef plan_stream *streams
    cdef int64_t count

    def __init__(self, list logs not None, str starts not None, str numbers not None, /):
        cdef int64_t at
        cdef Window log
        if self.streams != NULL or not logs:
            raise ValueError("there are streams")
        self.logs, self.count, self.starts, self.numbers = logs, len(logs), starts, numbers
        self.tables, self.patches = [None] * self.count, [None] * self.count
        self.streams = <plan_stream *>calloc(self.count, sizeof(plan_stream))
        if self.streams == NULL:
            raise MemoryError
        for at, log in enumerate(logs):
            self.streams[at].number, self.streams[at].envs = log.stream, log.num_envs

    def __dealloc__(self):
        free(self.streams)

    cdef int look(self) except -1:
        """Bring the numbers up to date."""
        cdef int64_t at
        cdef Window log
        cdef plan_stream *of
        for at in range(self.count):
            log, of = <Window>self.logs[at], &self.streams[at]
            table, patches = log.table, log.patches
            if table is not self.tables[at] or patches is not self.patches[at]:
                self.look_at(at, table, patches)
            of.end, of.floor = log.end, max(0, min(log.begin, log.end - 1) - log.context)
            of.patch_begin, of.patch_end = log.patch_begin, log.patch_end
        return 0

    cdef int look_at(self, int64_t at, table, patches) except -1:
        global finds
        cdef plan_stream *of = &self.streams[at]
        finds += 1
        cdef int64_t length = table.length, patch_length = patches.length
        starts, numbers = table.arrays[self.starts], table.arrays[self.numbers]
        if of.envs < 1 or length < 1 or not (hold(starts, 1, length * of.envs) and hold(numbers, 8, length * of.envs)):
            raise TypeError("a log has a start code and the number of a patch of each row and environment")
        of.length, of.patch_length = length, patch_length
        of.starts, of.next_patches = <uint8_t *>cnp.PyArray_DATA(starts), <int64_t *>cnp.PyArray_DATA(numbers)
        self.tables[at], self.patches[at] = table, patches
        return 0


cdef enum: SEEN = 5, NUMBERS = sizeof(batch_piece) // sizeof(int64_t)

@cython.final
cdef class Chunks:
    """Where the values of a column of each stream are: in the log, in the cache, in shards, or waiting for a commit.

    Args:
        cache: the cache.
        columns: the column of each stream.
        logs: the logs that may hold the column in RAM.
        patches: True if it is a column of the patches.
    """

    cdef readonly object cache
    cdef readonly list columns
    cdef Logs logs
    cdef bint patches
    cdef list seen, entries
    cdef plan_column *facts
    cdef cache_slab *slabs
    cdef cache_slot *rings
    cdef int64_t count, items

    def __init__(self, cache, list columns not None, Logs logs=None, bint patches=False, /):
        if self.facts != NULL or not columns or (logs is not None and logs.count != len(columns)):
            raise ValueError("there are columns, one of each log")
        self.cache, self.columns, self.count, self.logs, self.patches = cache, columns, len(columns), logs, patches
        self.seen, self.entries = [None] * (SEEN * self.count), [None] * self.count
        self.facts = <plan_column *>calloc(self.count, sizeof(plan_column))
        self.slabs = <cache_slab *>calloc(self.count, sizeof(cache_slab))
        self.rings = <cache_slot *>calloc(self.count, sizeof(cache_slot))
        if self.facts == NULL or self.slabs == NULL or self.rings == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.facts)
        free(self.slabs)
        free(self.rings)

    cdef bint look(self) except -1:
        """Bring the numbers of RAM up to date; return False if the chunks of two streams differ in size."""
        cdef int64_t at
        for at in range(self.count):
            self.look_at(at)
            if self.facts[at].chunk_rows * self.facts[at].chunk_envs != self.items:
                return False
        return True

    cdef int look_at(self, int64_t at) except -1:
        """Find a stream's values in RAM."""
        cdef int64_t first = SEEN * at
        cdef Window log
        known: dict = self.cache._columns
        column, table = self.columns[at], None
        cached = known.get(column)
        if self.logs is not None:
            log = <Window>self.logs.logs[at]
            table = log.patches if self.patches else log.table
        if self.seen[first] is not column.column or self.seen[first + 1] is not cached or (cached is not None and (
            self.seen[first + 3] is not cached.table or self.seen[first + 4] is not cached.slots
        )) or self.seen[first + 2] is not table:
            self.find(at, column, cached, table)
        if not at:
            self.items = self.facts[0].chunk_rows * self.facts[0].chunk_envs
        return 0

    cdef int find(self, int64_t at, column, cached, table) except -1:
        """Find anew the column's layout, and its values in RAM."""
        global finds
        cdef plan_column of
        cdef cache_slab slab
        cdef cnp.ndarray of_chunk = None, slots = None, ring = None
        laid_out = column.column
        finds += 1
        memset(&of, 0, sizeof(of))
        of.chunk_rows, of.chunk_envs, of.groups = laid_out.chunk_rows, column.group_envs, column.groups
        of.shard_chunks, slab.slots, slab.count = column.shard_chunks, NULL, 0
        if table is not None:
            ring = table.arrays.get(laid_out.name)
        if ring is not None:
            of.is_ring, of.groups, of.chunk_rows = True, 1, table.length
            of.chunk_envs = 1 if self.patches else self.logs.streams[at].envs
            if not hold(ring, laid_out.item_bytes, of.chunk_rows * of.chunk_envs):
                raise TypeError("a ring has a value of each row and environment")
            slab.slots, slab.count = &self.rings[at], 1
        elif cached is not None:
            of_chunk, slots = cached.table, cached.slots
            if count_of(of_chunk, 1) != of.groups or count_of(slots, 1) * 8 != sizeof(cache_slot):
                raise TypeError("a slot has five numbers, and a chunk one in each group")
            of.slots, of.slots_length = ints(of_chunk, 2), count_of(of_chunk)
            of.cached, of.held = <const cache_slot *>ints(slots, 2), count_of(slots)
            slab.slots, slab.count = of.cached, of.held
        if of.chunk_rows < 1 or of.chunk_envs < 1 or of.groups < 1 or of.shard_chunks < 1:
            raise ValueError("a chunk has rows, and a shard has chunks")
        now = laid_out, cached, table, of_chunk, slots  # before the addresses are taken, so that they are kept
        self.facts[at], self.slabs[at] = of, slab
        if ring is not None:
            self.rings[at].block, self.rings[at].size = <uint8_t *>cnp.PyArray_DATA(ring), cnp.PyArray_NBYTES(ring)
        self.seen[SEEN * at : SEEN * at + SEEN] = now
        return 0

    cdef int look_on_disk(self, int64_t at) except -1:
        """Find all values of a stream."""
        cdef plan_column *of = &self.facts[at]
        cdef int64_t first, stop, in_ram
        cdef cnp.ndarray entries
        self.look_at(at)
        if of.is_ring:
            return 0
        column = self.columns[at]
        ring, in_ram = column.entries, column.in_ram
        entries, first, stop = ring.array, ring.begin, ring.end
        if count_of(entries) < 1 or count_of(entries, 1) != of.groups or count_of(entries, 2) != 2:
            raise TypeError("a chunk has an offset and bytes in each group")
        of.entries, of.entries_length = ints(entries, 3), count_of(entries)
        of.first_chunk, of.stop_chunk, of.in_ram = first, stop, in_ram
        self.entries[at] = entries
        return 0

    def rows(self, int64_t at, cnp.ndarray runs not None, /):
        """Find the pieces of runs of rows of a stream; return them as :func:`frames` does those of frames.

        Runs are int64 ``(5, n)``: place in the batch, environment, first and last row, row of step 0.
        """
        cdef plan_runs of
        cdef plan_found found
        cdef int64_t *numbers = ints(runs, 2)
        if count_of(runs) != 5 or not 0 <= at < self.count:
            raise ValueError("a run of a stream has five numbers")
        of.n = count_of(runs, 1)
        of.place, of.env, of.first = numbers, numbers + of.n, numbers + 2 * of.n
        of.last, of.base = numbers + 3 * of.n, numbers + 4 * of.n
        self.look_on_disk(at)
        room = room_for(&found, plan_most_of(&self.facts[at], &of), 0)
        if not plan_rows(self.facts, at, &of, &found):
            raise ValueError("a run is not of the column's environments")
        return part_of(&found, room[0], 0)

    def take(self, cnp.ndarray pieces not None, int64_t begin, int64_t end, int64_t row_bytes,
             cnp.ndarray packed not None, bint alone, cnp.ndarray out not None, cnp.ndarray following=None, /):
        """Copy pieces as :func:`read` does, from chunks in RAM.

        Args:
            packed: int64 ``(1,)``; the call adds to it the number of pieces that were kept as runs.
            alone: True if no other thread copies for the same batch; then this one keeps the GIL.
        """
        cdef batch_piece *of = pieces_of(pieces)
        cdef int64_t done
        cdef batch_target target = target_of(out, following, 0, row_bytes)
        cdef int64_t *counted = ints(written(packed))
        if not 0 <= begin <= end <= count_of(pieces):
            raise ValueError("pieces from one on")
        if begin < end and 0 <= of[begin].stream < self.count:
            target.chunk_rows = self.facts[of[begin].stream].chunk_rows * self.facts[of[begin].stream].chunk_envs
        if alone:
            return runs_take(self.slabs, self.count, of, begin, end, &target, counted)
        kept = self.seen[:]  # as long as this call copies
        with nogil:
            done = runs_take(self.slabs, self.count, of, begin, end, &target, counted)
        return done


cdef tuple room_for(plan_found *found, int64_t most, int64_t rows):
    """Return the arrays for what is found."""
    if most < 0:
        raise ValueError("a run has rows, from row 0 on")
    pieces, order = empty_rows(2 * most, NUMBERS), empty(most, cnp.NPY_INT64)
    files, short_rows = empty_rows(most, 2), empty_rows(rows, 2)
    found.most, found.pieces, found.order = most, <batch_piece *>ints(pieces, 2), ints(order)
    found.unordered, found.files, found.short_rows = found.pieces + most, ints(files, 2), ints(short_rows, 2)
    return pieces, order, files, short_rows


cdef tuple part_of(const plan_found *found, cnp.ndarray pieces, int part):
    """Return what :func:`frames` does of a column."""
    cdef int64_t at, first = found.frames_files if part else 0, kind = KINDS * part
    cdef int64_t begin = found.ends[kind - 1] if part else 0
    shards = []
    for at in range(first, found.file_count if part else found.frames_files):
        shards.append((found.files[2 * at], found.files[2 * at + 1]))
    return (pieces[begin:found.ends[kind]], shards, pieces[found.ends[kind]:found.ends[kind + 1]],
            pieces[found.ends[kind + 1]:found.ends[kind + 2]], found.lost)


cdef bint are_alike(Chunks of, int64_t one, int64_t other) except -1:
    """Tell whether the chunks of two streams have as many values, and the same codec."""
    cdef plan_column *first = &of.facts[one]
    cdef plan_column *second = &of.facts[other]
    if first.chunk_rows * first.chunk_envs != second.chunk_rows * second.chunk_envs:
        return False
    return of.columns[one].column.codec == of.columns[other].column.codec


def frames(Logs logs not None, Chunks rows not None, Chunks patches not None, cnp.ndarray ids not None,
           cnp.ndarray place not None, int64_t first_step, int64_t last_step, int64_t runs, /):
    """Find the pieces of steps ``first_step`` to ``last_step`` (at most 1) of rows.

    Args:
        rows, patches: the column of the frames, and that of their patches.
        ids, place: int64 ``(n,)``: the rows, and the place of each in the batch.
        runs: 1 if a place has room for one value of each array; 2 if it has, in one array alone, and the row after a
            run goes to the place after it. Then consecutive rows at consecutive places are one run. Else 0.

    Returns the pieces of frames, those of patches or None, and int64 ``(k, 2)``: the samples with fewer steps before
    them than are wanted, and how many each has; or None if chunks of the rows' streams differ in size or codec.

    Pieces are int64 ``(m, 13)``: place in the batch, step in it, row in the chunk, rows, chunk, group of environments,
    stream, file or slot, of one on disk offset, below 0 if the chunk is missing, and bytes, the places that its run of
    rows fills, and two more. They are given as those on disk, in the order of their chunks; the stream and shard of
    each file; those in RAM; those that wait for a commit; and whether a chunk is missing.
    """
    cdef plan_found found
    cdef int64_t k, at, before = -1, count = logs.count, n = count_of(ids)
    cdef int64_t *of = ints(ids)
    cdef int64_t *to = ints(place)
    if rows.count != count or patches.count != count or count_of(place) != n or first_step > last_step or last_step > 1:
        raise ValueError("an id has a place, and steps are at most 1")
    drawn: dict = {}  # a batch has rows of few of a thousand streams
    for k in range(n):
        at = plan_stream_at(logs.streams, count, of[k] >> STREAM_SHIFT)
        if at < 0:
            raise IndexError(f"the row {of[k]} is of no stream")
        if at != before:
            drawn[at], before = None, at
    first = None
    for stream in drawn:
        rows.look_on_disk(stream)
        patches.look_on_disk(stream)
        first = stream if first is None else first
        if stream != first and not (are_alike(rows, first, stream) and are_alike(patches, first, stream)):
            return None
    room = room_for(&found, plan_most(rows.facts, count, n, first_step, last_step), n)
    logs.look()
    found.runs = runs
    if not plan_frames(logs.streams, rows.facts, patches.facts, count, of, to, n, first_step, last_step, &found):
        raise IndexError("a row is not in its stream's window, or has no next one")
    of_patches = part_of(&found, room[0], 1) if found.ends[2 * KINDS - 1] > found.ends[KINDS - 1] else None
    return part_of(&found, room[0], 0), of_patches, room[3][:found.short_count]
