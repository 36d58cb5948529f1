/* Forged chunks with right checksums in a file, which forged pieces are read out of.
 *
 * The decoders are not LZ4 and Blosc: they only read all that they may read, and write all that they may write. */
#include "../read.h"

#include "../crc32c.h"
#include "input.h"

static const uint8_t *file;
static int64_t file_bytes;
static uint8_t answer; /* what the calls answer follows from its bits */
static unsigned sum;

static int decode(const uint8_t *from, uint8_t *to, int64_t size, int64_t wanted) {
    check(size >= 0 && wanted >= 0);
    for (int64_t at = 0; at < size; at++)
        sum += from[at];
    memset(to, (int)sum, (size_t)wanted);
    return answer & 1 ? (int)wanted : -1;
}

static int lz4(const char *from, char *to, int size, int bytes) {
    return decode((const uint8_t *)from, (uint8_t *)to, size, bytes);
}

static int lz4_partial(const char *from, char *to, int size, int wanted, int bytes) {
    check(wanted <= bytes);
    return decode((const uint8_t *)from, (uint8_t *)to, size, bytes);
}

/* As C-Blosc, it believes the header, which says how many bytes there are. */
static int blosc(const void *from, void *to, size_t bytes, int threads) {
    uint32_t size;
    memcpy(&size, (const uint8_t *)from + 12, sizeof size);
    check(threads == 1);
    return decode(from, to, size, (int64_t)bytes);
}

static ssize_t pread_some(int descriptor, void *to, size_t size, off_t offset) {
    check(descriptor == 3);
    if (offset < 0 || offset >= file_bytes)
        return offset < 0 ? -1 : 0;
    int64_t there = file_bytes - offset < (int64_t)size ? file_bytes - offset : (int64_t)size;
    if (answer & 2 && there > 1)
        there = (there + 1) / 2;
    memcpy(to, file + offset, (size_t)there);
    return there;
}

static ssize_t preadv2_some(int descriptor, const struct iovec *vectors, int count, off_t offset, int flags) {
    check(count == 1 && flags == 8);
    return answer & 4 ? -1 : pread_some(descriptor, vectors->iov_base, vectors->iov_len, offset);
}

static int fadvise(int descriptor, off_t offset, off_t size, int advice) {
    (void)offset, (void)size;
    check(descriptor == 3 && advice == 3);
    return 0;
}

/* Make a chunk with a checksum that is right; mostly its header is near to one of an LZ4 block. */
static uint8_t *sealed(input *from, int64_t body, int64_t chunk_bytes) {
    uint8_t *made = filled(from, body + 4);
    if (between(from, 0, 7) && body >= 24) {
        const uint32_t header[] = {
            0x00200102, (uint32_t)chunk_bytes, (uint32_t)chunk_bytes, (uint32_t)body, 20, (uint32_t)body - 24};
        for (int word = 0; word < 6; word++)
            if (between(from, 0, 15))
                memcpy(made + 4 * word, &header[word], 4);
        made[2] = (uint8_t)(made[2] | (between(from, 0, 1) ? 0x10 : 0));
    }
    uint32_t found = crc32c(made, (size_t)body);
    memcpy(made + body, &found, sizeof found);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input from = {data, size};
    int64_t chunk_rows = between(&from, 1, 4), row_bytes = between(&from, 1, 20), steps = between(&from, 0, 4);
    int64_t chunk_bytes = chunk_rows * row_bytes, body = between(&from, 0, 150), count = between(&from, 0, 3);
    answer = next_byte(&from);
    uint8_t *chunk = sealed(&from, body, chunk_bytes);
    file = chunk, file_bytes = body + 4;
    batch_target target = {
        .places = between(&from, 1, 3), .width = steps * row_bytes + between(&from, 0, 1), .chunk_rows = chunk_rows,
        .row_bytes = row_bytes,
    };
    uint8_t *out = room(target.places * target.width), *following = room(target.places * target.width);
    target.out = out;
    target.following = between(&from, 0, 1) ? following : NULL;
    batch_piece *pieces = (batch_piece *)forged_numbers(&from, (int64_t)(sizeof(batch_piece) / 8) * count, 0, 4);
    for (int64_t at = 0; at < count; at++) { /* else hardly a chunk would be read whole */
        bool whole = between(&from, 0, 7);
        pieces[at].slot = whole ? 0 : forged(&from, 0, 1);
        pieces[at].offset = whole ? 0 : forged(&from, 0, 9);
        pieces[at].size = whole ? file_bytes : forged(&from, 0, 200);
        pieces[at].places = whole ? between(&from, 1, 2) : forged(&from, 0, 4);
    }
    read_calls calls = {
        answer & 8 ? NULL : lz4, answer & 16 ? NULL : lz4_partial, blosc, pread_some, answer & 32 ? NULL : preadv2_some,
        answer & 64 ? NULL : fadvise, 8, 3};
    read_room rooms = {room(chunk_bytes + 100), chunk_bytes + 100, room(chunk_bytes)};
    const int64_t files[] = {3};
    int64_t done = read_pieces(&calls, files, 1, pieces, 0, count, answer & 128, &rooms, &target);
    check(done >= 0 && done <= count);
    free(pieces);
    free(chunk);
    free(out);
    free(following);
    free(rooms.encoded);
    free(rooms.decoded);
    return 0;
}
