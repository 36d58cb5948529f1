#include "read.h"

#include <limits.h>

#include "crc32c.h"
#include "memory.h"

enum {
    CRC_BYTES = 4,
    BLOSC_BYTES = 16,
    /* Before the LZ4 data of a Blosc frame of one block: Blosc's header, the block's offset and size. */
    FRAME_BYTES = 24
};
static const uint32_t RESIDUE = 0x48674BC7u; /* the CRC-32C of data and its CRC-32C */

/* ---- One chunk ---- */

/* Return the first byte of LZ4 data that fills a Blosc frame of one block, its size in `*count`, or NULL. */
static const uint8_t *only_block(const uint8_t *data, int64_t body, int64_t chunk_bytes, int64_t *count) {
    bool one_stream = data[2] & 0x10 ? data[3] != 0 : data[3] == 1;
    if (data[0] != 2 || data[1] != 1 || (data[2] & 0xEF) != 0x20 || !one_stream || body <= FRAME_BYTES)
        return NULL;
    if (uint32_at(data + 8) != chunk_bytes || uint32_at(data + 16) != FRAME_BYTES - 4)
        return NULL;
    *count = uint32_at(data + 20);
    return data + FRAME_BYTES;
}

const uint8_t *read_decode(
    const read_calls *calls, int64_t size, int64_t chunk_bytes, int64_t wanted, bool raw, const read_room *room) {
    const uint8_t *data = room->encoded;
    int64_t body = size - CRC_BYTES, count;
    if (raw)
        return body == chunk_bytes ? data : NULL;
    if (body < BLOSC_BYTES || chunk_bytes > INT_MAX)
        return NULL;
    if (uint32_at(data + 4) != chunk_bytes || uint32_at(data + 12) != body)
        return NULL;
    const uint8_t *block = calls->lz4 ? only_block(data, body, chunk_bytes, &count) : NULL;
    if (!block)
        return calls->blosc(data, room->decoded, (size_t)chunk_bytes, 1) == chunk_bytes ? room->decoded : NULL;
    if (count != body - FRAME_BYTES)
        return NULL;
    if (count == chunk_bytes) /* it did not shrink, and is there as it was */
        return block;
    const char *from = (const char *)block;
    char *to = (char *)room->decoded;
    if (wanted == chunk_bytes || !calls->lz4_partial)
        return calls->lz4(from, to, (int)count, (int)chunk_bytes) == chunk_bytes ? room->decoded : NULL;
    return calls->lz4_partial(from, to, (int)count, (int)wanted, (int)wanted) == wanted ? room->decoded : NULL;
}

/* ---- The system's reads ---- */

/* Tell whether two pieces lie in the same chunk; chunks of two columns may have the same number. */
static bool is_same(const batch_piece *one, const batch_piece *other) {
    return one->chunk == other->chunk && one->group == other->group && one->slot == other->slot
        && one->offset == other->offset;
}

/* Tell the system of the reads of pieces [begin, end). */
static void advise(
    const read_calls *calls, const int64_t *files, int64_t file_count, const batch_piece *pieces, int64_t begin,
    int64_t end) {
    for (int64_t at = begin; at < end && calls->fadvise; at++) {
        const batch_piece *of = &pieces[at];
        bool again = at > begin && is_same(of, of - 1);
        if (!again && of->slot >= 0 && of->slot < file_count)
            calls->fadvise((int)files[of->slot], of->offset, of->size, calls->will_need);
    }
}

/* Read without waiting; return whether all was read. */
static bool read_at_once(const read_calls *calls, int file, uint8_t *to, int64_t size, int64_t offset) {
    struct iovec vector = {to, (size_t)size};
    return calls->preadv2 && calls->preadv2(file, &vector, 1, offset, calls->nowait) == size;
}

/* Read, and wait for it; return whether all was read. */
static bool read_whole(const read_calls *calls, int file, uint8_t *to, int64_t size, int64_t offset) {
    for (int64_t got = 0; got < size;) { /* one call may give less, as on FUSE with direct_io */
        ssize_t more = calls->pread(file, to + got, (size_t)(size - got), offset + got);
        if (more <= 0)
            return false;
        got += more;
    }
    return true;
}

/* ---- The batch ---- */

int64_t read_pieces(
    const read_calls *calls, const int64_t *files, int64_t file_count, const batch_piece *pieces, int64_t begin,
    int64_t end, bool raw, const read_room *room, const batch_target *target) {
    if (!target_holds(target))
        return begin;
    int64_t size_of_chunk = target->chunk_rows * target->row_bytes;
    bool cold = false; /* true once a read had to wait */
    for (int64_t at = begin, stop; at < end; at = stop) {
        int64_t wanted = 0;
        for (stop = at; stop < end && is_same(&pieces[stop], &pieces[at]); stop++) {
            if (!piece_fits(&pieces[stop], target))
                return at;
            wanted = most_int(wanted, pieces[stop].row + pieces[stop].rows);
        }
        int64_t file = pieces[at].slot, offset = pieces[at].offset, size = pieces[at].size;
        if (file < 0 || file >= file_count || size <= CRC_BYTES || size > room->encoded_bytes)
            return at;
        if (cold || !read_at_once(calls, (int)files[file], room->encoded, size, offset)) {
            if (!cold)
                advise(calls, files, file_count, pieces, at, end);
            cold = true;
            if (!read_whole(calls, (int)files[file], room->encoded, size, offset))
                return at;
        }
        if (crc32c(room->encoded, (size_t)size) != RESIDUE)
            return at;
        const uint8_t *values = read_decode(calls, size, size_of_chunk, wanted * target->row_bytes, raw, room);
        if (!values)
            return at;
        for (int64_t each = at; each < stop; each++)
            piece_put(&pieces[each], values + pieces[each].row * target->row_bytes, target);
    }
    return end;
}
