"""The compiled part of diskreplay: Python's arguments for the kernels beside this file.

Each function checks the types of its arrays, makes what the kernel needs room for, and calls it. The numbers in arrays
are those that the rooms of the package keep; each header says what they are.
"""

cimport cython
cimport numpy as cnp
from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy, memset

import time

import numpy as np

cnp.import_array()


cdef extern from "numpy/random/bitgen.h" nogil:  # not cimported: that would import numpy.random
    ctypedef struct bitgen_t:
        void *state
        double (*next_double)(void *state) noexcept nogil

cdef extern from "integers.h" nogil:
    void integers_draw(bitgen_t *bits, int64_t low, int64_t most, int64_t count, int64_t *found)

cdef extern from "crc32c.h" nogil:
    uint32_t crc32c_of "crc32c"(const uint8_t *data, size_t size)
    uint32_t crc32c_by_table(const uint8_t *data, size_t size)
    const char *crc32c_method()

cdef extern from "ids.h" nogil:
    enum: STREAM_SHIFT, SLOT_EVICTED, SLOT_UNKNOWN

    ctypedef struct slots_t:
        int64_t stream, base, lanes, rows, first, stop, capacity, group

    int64_t local_of(int64_t id)
    int64_t slot_of(const slots_t *of, int64_t number)
    void slots_of_ids(const slots_t *table, int64_t streams, const int64_t *ids, int64_t count, int64_t *slots)
    bint slots_to_ids(const slots_t *table, int64_t streams, const int64_t *slots, int64_t count, int64_t *ids)

cdef extern from "sum_tree.h" nogil:
    ctypedef struct sum_tree:
        double *sums
        double *mins
        const int64_t *offsets
        int64_t levels, slots

    ctypedef struct slot_range:
        int64_t start, stop, group

    ctypedef struct priority_power:
        double alpha, epsilon, least, most

    void tree_fill(const sum_tree *tree, const int64_t *emptied, int64_t empty, const int64_t *slots, int64_t count,
                   const double *masses, int64_t *room)
    double tree_mass(const priority_power *power, double priority)
    int64_t tree_update(const sum_tree *tree, const slot_range *ranges, int64_t range_count, double *maxima,
                        int64_t *left_out, const int64_t *slots, const double *priorities, int64_t count,
                        const priority_power *power, int64_t *room)
    void tree_totals(const sum_tree *tree, const slot_range *ranges, int64_t count, double *totals)
    bint tree_draw(const sum_tree *tree, const slot_range *ranges, int64_t range_count, const double *uniforms,
                   int64_t count, double beta, int64_t *slots, float *weights, double *rest, int64_t *levels,
                   double *least)

cdef extern from "ranks.h" nogil:
    ctypedef struct ranks_node:
        double priority
        int64_t id

    ctypedef struct ranks_head:
        int64_t root, count

    void ranks_insert(ranks_node *nodes, ranks_head *head, const int64_t *slots, const int64_t *ids, double priority,
                      int64_t count)
    void ranks_remove(ranks_node *nodes, ranks_head *head, const int64_t *slots, int64_t count)
    int64_t ranks_update(ranks_node *nodes, int64_t all, ranks_head *head, double *maxima, int64_t *left_out,
                         const int64_t *slots, const double *priorities, int64_t count, double most)
    void ranks_select(const ranks_node *nodes, const ranks_head *head, const int64_t *ranks, int64_t count,
                      int64_t *slots)
    void ranks_find(const ranks_node *nodes, const ranks_head *head, const int64_t *slots, int64_t count,
                    int64_t *ranks)
    void ranks_build(ranks_node *nodes, ranks_head *head, const int64_t *slots, int64_t count, int64_t *path)

cdef extern from "runs.h" nogil:
    ctypedef struct batch_piece:
        int64_t stream

    ctypedef struct batch_target:
        uint8_t *out
        uint8_t *following
        int64_t places, width, chunk_rows, row_bytes

    ctypedef struct cache_slot:
        const uint8_t *block
        int64_t size

    ctypedef struct cache_slab:
        const cache_slot *slots
        int64_t count

    int64_t runs_take(const cache_slab *slabs, int64_t slab_count, const batch_piece *pieces, int64_t begin,
                      int64_t end, const batch_target *target, int64_t *packed)
    void runs_majority(const uint8_t *rows, int64_t count, int64_t width, uint8_t *key, int32_t *votes)
    int64_t runs_pack(const uint8_t *rows, int64_t count, int64_t width, const uint8_t *key, uint8_t *block,
                      int64_t room)

cdef extern from "plan.h" nogil:
    enum: KINDS

    ctypedef struct plan_stream:
        int64_t number, envs, length, floor, end
        const uint8_t *starts
        const int64_t *next_patches
        int64_t patch_begin, patch_end, patch_length

    ctypedef struct plan_column:
        int64_t chunk_rows, chunk_envs, shard_chunks
        const int64_t *entries
        int64_t entries_length, first_chunk, stop_chunk, groups, in_ram
        const int64_t *slots
        int64_t slots_length
        const cache_slot *cached
        int64_t held
        bint is_ring

    ctypedef struct plan_columns:
        int64_t count
        const uint8_t **arrays
        const uint8_t **patches
        const int64_t *sizes
        const uint8_t *following

    bint gather_columns(const plan_stream *streams, int64_t stream_count, const plan_columns *columns,
                        const int64_t *ids, const int64_t *last, int64_t n, const int64_t *place, uint8_t **out,
                        int64_t *room)

    ctypedef struct plan_found:
        int64_t most, count
        int64_t runs
        batch_piece *unordered
        batch_piece *pieces
        int64_t *order
        int64_t *files
        int64_t ends[6]
        int64_t file_count, frames_files
        int64_t *short_rows
        int64_t short_count
        bint lost

    ctypedef struct plan_runs:
        const int64_t *place
        const int64_t *env
        const int64_t *first
        const int64_t *last
        const int64_t *base
        int64_t n

    int64_t plan_stream_at(const plan_stream *streams, int64_t count, int64_t number)
    int64_t plan_most_of(const plan_column *of, const plan_runs *runs)
    bint plan_rows(const plan_column *columns, int64_t stream, const plan_runs *runs, plan_found *found)
    int64_t plan_most(const plan_column *rows, int64_t stream_count, int64_t n, int64_t first_step, int64_t last_step)
    bint plan_frames(const plan_stream *streams, const plan_column *rows, const plan_column *patches,
                     int64_t stream_count, const int64_t *ids, const int64_t *place, int64_t n, int64_t first_step,
                     int64_t last_step, plan_found *found)

cdef extern from "read.h" nogil:
    ctypedef int (*lz4_call)(const char *, char *, int, int)
    ctypedef int (*lz4_partial_call)(const char *, char *, int, int, int)
    ctypedef int (*blosc_call)(const void *, void *, size_t, int)

    ctypedef size_t pread_call
    ctypedef size_t preadv2_call
    ctypedef size_t fadvise_call

    ctypedef struct read_calls:
        lz4_call lz4
        lz4_partial_call lz4_partial
        blosc_call blosc
        pread_call pread
        preadv2_call preadv2
        fadvise_call fadvise
        int nowait, will_need

    ctypedef struct read_room:
        uint8_t *encoded
        int64_t encoded_bytes
        uint8_t *decoded

    int64_t read_pieces(const read_calls *calls, const int64_t *files, int64_t file_count, const batch_piece *pieces,
                        int64_t begin, int64_t end, bint raw, const read_room *room, const batch_target *target)


include "state.pxi"


# ---- Arrays ----

cdef refused(array):
    """Return the error that tells of an array."""
    given = f"{'an' if array.flags.writeable else 'a read-only'} array of {array.dtype} {array.shape}"
    return TypeError(f"{given}, strides {array.strides}, is not what the kernel takes")


cdef inline cnp.ndarray written(cnp.ndarray array):
    """Return an array that the kernel writes to."""
    if not cnp.PyArray_ISWRITEABLE(array):
        raise refused(array)
    return array


cdef void *data_of(cnp.ndarray array, int type, int ndim) except? NULL:
    """Return where an array begins, which is contiguous and has this type and number of axes."""
    if cnp.PyArray_TYPE(array) != type or cnp.PyArray_NDIM(array) != ndim or not cnp.PyArray_ISCARRAY_RO(array):
        raise refused(array)
    return cnp.PyArray_DATA(array)


cdef int64_t *ints(cnp.ndarray array, int ndim=1) except? NULL:
    return <int64_t *>data_of(array, cnp.NPY_INT64, ndim)


cdef double *floats(cnp.ndarray array) except? NULL:
    return <double *>data_of(array, cnp.NPY_DOUBLE, 1)


cdef uint8_t *bytes_of(cnp.ndarray array, int ndim) except? NULL:
    return <uint8_t *>data_of(array, cnp.NPY_UINT8, ndim)


cdef inline int64_t count_of(cnp.ndarray array, int axis=0) noexcept:
    """Return the length of an axis, -1 of one that the array does not have."""
    return cnp.PyArray_DIM(array, axis) if axis < cnp.PyArray_NDIM(array) else -1


cdef cnp.ndarray empty(int64_t count, int type):
    cdef cnp.npy_intp dims[1]
    dims[0] = count
    return cnp.PyArray_EMPTY(1, dims, type, 0)


cdef cnp.ndarray empty_rows(int64_t count, int64_t columns):
    cdef cnp.npy_intp dims[2]
    dims[0], dims[1] = count, columns
    return cnp.PyArray_EMPTY(2, dims, cnp.NPY_INT64, 0)


cdef cnp.ndarray shortened(cnp.ndarray array, int64_t count):
    """Return the first entries of an array alone, without the rest of it."""
    return array[:count].copy()


# ---- Checksums ----

def crc32c(cnp.ndarray data not None, bint by_table=False, /):
    """Return the CRC-32C of bytes, uint8 ``(n,)``, by the processor's own instruction if it has one."""
    cdef uint8_t *first = bytes_of(data, 1)
    return crc32c_by_table(first, count_of(data)) if by_table else crc32c_of(first, count_of(data))


def checksum_method():
    """Return how checksums are computed here: "instruction" or "table"."""
    return (<bytes>crc32c_method()).decode()


# ---- Integers ----

def draw_integers(capsule, int64_t low, int64_t high, int64_t size, /):
    """Return integers ``(size,)`` in ``[low, high)`` of a bit generator, whose lock the caller holds."""
    cdef bitgen_t *bits = <bitgen_t *>PyCapsule_GetPointer(capsule, "BitGenerator")
    if not 1 < high - low < 1 << 32:
        raise ValueError("integers are drawn from 2 to 2**32 - 1 choices")
    found = empty(size, cnp.NPY_INT64)
    integers_draw(bits, low, high - low - 1, size, ints(found))
    return found


include "row.pxi"


# ---- The reading of a batch ----

cdef batch_piece *pieces_of(cnp.ndarray pieces) except? NULL:
    if count_of(pieces, 1) * 8 != sizeof(batch_piece):
        raise TypeError("a piece has thirteen numbers")
    return <batch_piece *>ints(pieces, 2)


cdef batch_target target_of(cnp.ndarray out, cnp.ndarray following, int64_t chunk_rows, int64_t row_bytes) except *:
    cdef batch_target of
    of.out, of.following = bytes_of(written(out), 2), NULL
    of.places, of.width, of.chunk_rows, of.row_bytes = count_of(out), count_of(out, 1), chunk_rows, row_bytes
    if following is not None:
        of.following = bytes_of(written(following), 2)
        if count_of(following) != of.places or count_of(following, 1) != of.width:
            raise ValueError("the array of the steps one later is not like the first")
    return of


@cython.final
cdef class Calls:
    """Functions of C-Blosc and its LZ4, and of the system, given by their addresses; 0 for one that is not there."""

    cdef read_calls calls

    def __init__(self, size_t lz4, size_t lz4_partial, size_t blosc, size_t pread, size_t preadv2, size_t fadvise,
                 int nowait, int will_need, /):
        if not blosc or not pread:
            raise ValueError("without Blosc and pread nothing can be read")
        self.calls.lz4, self.calls.lz4_partial = <lz4_call>lz4, <lz4_partial_call>lz4_partial
        self.calls.blosc, self.calls.pread = <blosc_call>blosc, <pread_call>pread
        self.calls.preadv2, self.calls.fadvise = <preadv2_call>preadv2, <fadvise_call>fadvise
        self.calls.nowait, self.calls.will_need = nowait, will_need


def read(Calls calls not None, cnp.ndarray files not None, cnp.ndarray pieces not None, int64_t begin, int64_t end,
         int64_t chunk_rows, int64_t row_bytes, bint raw, cnp.ndarray encoded not None, cnp.ndarray decoded not None,
         cnp.ndarray out not None, cnp.ndarray following=None, /):
    """Copy the pieces ``[begin, end)`` into the batch; return the first that could not be copied, or ``end``.

    Args:
        files: int64, the file descriptors.
        pieces: int64 ``(n, 13)``, as :func:`frames` gives them; those of one chunk stand side by side.
        chunk_rows, row_bytes: the rows of a decoded chunk, and the bytes of a row.
        raw: True if chunks are not compressed.
        encoded, decoded: the room for a chunk as it is on disk, and as it is in RAM, uint8.
        out: the array to fill, uint8 ``(batch, steps * row_bytes)``.
        following: an array like ``out`` for the steps one later, so pieces have one more step; None for none.
    """
    cdef batch_piece *of = pieces_of(pieces)
    cdef batch_target target = target_of(out, following, chunk_rows, row_bytes)
    cdef read_room room
    cdef int64_t *descriptors = ints(files)
    cdef int64_t file_count = count_of(files), done
    room.encoded, room.encoded_bytes = bytes_of(written(encoded), 1), count_of(encoded)
    room.decoded = bytes_of(written(decoded), 1)
    cdef bint is_room = row_bytes < 1 or chunk_rows <= count_of(decoded) // row_bytes
    if not 0 <= begin <= end <= count_of(pieces) or not is_room:
        raise ValueError("there is room for a chunk")
    with nogil:
        done = read_pieces(&calls.calls, descriptors, file_count, of, begin, end, raw, &room, &target)
    return done


def majority(cnp.ndarray rows not None, cnp.ndarray key not None, /):
    """Set each byte of ``key`` to its value in most of the rows ``(n, row_bytes)``, or if there is none, in any row."""
    if count_of(rows, 1) != count_of(key):
        raise ValueError("a key is as long as a row")
    cdef cnp.npy_intp dims[1]
    dims[0] = count_of(key)
    cdef cnp.ndarray votes = cnp.PyArray_ZEROS(1, dims, cnp.NPY_INT32, 0)
    runs_majority(bytes_of(rows, 2), count_of(rows), count_of(rows, 1), bytes_of(written(key), 1),
                  <int32_t *>cnp.PyArray_DATA(votes))


def pack(cnp.ndarray rows not None, cnp.ndarray key not None, cnp.ndarray block not None, /):
    """Write the runs in which rows ``(n, row_bytes)`` differ from a key.

    Returns the bytes of the block, 0 for no room.
    """
    if count_of(rows, 1) != count_of(key):
        raise ValueError("a key is as long as a row")
    return runs_pack(bytes_of(rows, 2), count_of(rows), count_of(rows, 1), bytes_of(key, 1),
                     bytes_of(written(block), 1), count_of(block))


include "plan.pxi"


include "batch.pxi"


# ---- The module ----

cdef extern from *:
    """
    #ifndef SOURCES
    #define SOURCES ""
    #endif
    """
    const char *SOURCES

sources = (<bytes>SOURCES).decode()
