/* One call that reads, verifies, decodes and copies the pieces of a plan into a batch. It needs no Python.
 *
 * The call goes from chunk to chunk. It stops at the first chunk that is not exactly what this package writes: one that
 * it cannot read, that is too short or damaged, or whose layout it does not know. It returns how far it came. The
 * caller has Python read that chunk, and calls again for the rest. So Python alone would give the same rows and errors.
 *
 * 1. A chunk that was compressed with LZ4 is decoded up to the last row that is wanted. Its checksum covers all of it.
 * 2. Blosc decodes all other chunks, as a whole.
 * 3. The call asks the system to read without waiting. As soon as a read would have to wait, the call tells the system
 *    of all reads that follow, because a disk answers many requests at once. If all data is in memory, this costs
 *    nothing.
 *
 * Before the call uses a length that comes from a file, it compares the length with the room that there is.
 */
#ifndef DISKREPLAY_READ_H
#define DISKREPLAY_READ_H

#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "runs.h"

typedef int (*lz4_call)(const char *from, char *to, int size, int room);
typedef int (*lz4_partial_call)(const char *from, char *to, int size, int wanted, int room);
typedef int (*blosc_call)(const void *from, void *to, size_t room, int threads);

typedef ssize_t (*pread_call)(int file, void *to, size_t size, off_t offset);
typedef ssize_t (*preadv2_call)(int file, const struct iovec *vectors, int count, off_t offset, int flags);
typedef int (*fadvise_call)(int file, off_t offset, off_t size, int advice);

/* Functions of C-Blosc and its LZ4, which return how many bytes they decoded, and of the system; NULL where there is
 * none, which pread and blosc never are. nowait, will_need: the system's flags. */
typedef struct {
    lz4_call lz4;
    lz4_partial_call lz4_partial;
    blosc_call blosc;
    pread_call pread;
    preadv2_call preadv2;
    fadvise_call fadvise;
    int nowait, will_need;
} read_calls;

/* Room for a chunk as it is on disk, of so many bytes, and for one as it is in RAM, `chunk_rows * row_bytes`. */
typedef struct {
    uint8_t *encoded;
    int64_t encoded_bytes;
    uint8_t *decoded;
} read_room;

/* Copy the pieces [begin, end), of which those of one chunk stand side by side, into the batch; return the first that
 * could not be copied, or `end`.
 *
 * files: the file descriptors, `file_count` of them. raw: whether chunks are not compressed. */
int64_t read_pieces(
    const read_calls *calls, const int64_t *files, int64_t file_count, const batch_piece *pieces, int64_t begin,
    int64_t end, bool raw, const read_room *room, const batch_target *target);

/* Decode the first `wanted` bytes of an encoded chunk of `size` bytes, its checksum last, which is right. Return where
 * they are, in `room` or in the chunk, or NULL. */
const uint8_t *read_decode(
    const read_calls *calls, int64_t size, int64_t chunk_bytes, int64_t wanted, bool raw, const read_room *room);

#endif
