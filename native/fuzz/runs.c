/* Forged chunks in RAM, raw or as runs, out of which forged pieces are taken; rows that are packed and taken again. */
#include "../runs.h"
#include "input.h"

enum { NUMBERS = sizeof(batch_piece) / sizeof(int64_t) };

/* Take forged pieces out of a slab of one slot. */
static void take(input *from, const cache_slot *slot, int64_t chunk_rows, int64_t row_bytes) {
    int64_t count = between(from, 0, 4), steps = between(from, 0, 4), slab_count = 1, packed = 0;
    batch_target target = {
        .places = between(from, 1, 3), .width = steps * row_bytes + between(from, 0, 1), .chunk_rows = chunk_rows,
        .row_bytes = row_bytes,
    };
    uint8_t *out = room(target.places * target.width), *following = room(target.places * target.width);
    target.out = out;
    target.following = between(from, 0, 1) ? following : NULL;
    batch_piece *pieces = (batch_piece *)forged_numbers(from, NUMBERS * count, 0, 4);
    for (int64_t at = 0; at < count; at++)
        if (between(from, 0, 7))
            pieces[at].stream = pieces[at].slot = 0, pieces[at].places = between(from, 1, 2);
    cache_slab slab = {slot, 1};
    int64_t done = runs_take(&slab, slab_count, pieces, 0, count, &target, &packed);
    check(done >= 0 && done <= count && packed <= count);
    free(pieces);
    free(out);
    free(following);
}

/* Pack rows; all of them taken again are what they were. */
static void pack_and_take(const uint8_t *rows, int64_t count, int64_t row_bytes, const uint8_t *key) {
    int64_t most = 4 * (count + 1) + 5 * count * row_bytes, packed = 0;
    uint8_t *wide = room(most);
    int64_t size = runs_pack(rows, count, row_bytes, key, wide, most);
    uint8_t *block = room(size), *small = room(size - 1), *out = room(count * row_bytes), *made = room(row_bytes);
    int32_t *votes = room(4 * row_bytes);
    runs_majority(rows, count, row_bytes, made, votes);
    check(runs_pack(rows, count, row_bytes, key, block, size) == size);
    check(runs_pack(rows, count, row_bytes, key, small, size - 1) == 0);
    batch_piece piece = {.rows = count, .places = 1};
    batch_target target = {out, NULL, 1, count * row_bytes, count, row_bytes};
    cache_slot slot = {block, size, key, 0, 0};
    cache_slab slab = {&slot, 1};
    check(runs_take(&slab, 1, &piece, 0, 1, &target, &packed) == 1 && packed == 1);
    check(!memcmp(out, rows, (size_t)(count * row_bytes)));
    free(wide);
    free(made);
    free(votes);
    free(block);
    free(small);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input from = {data, size};
    int64_t count = between(&from, 1, 4), row_bytes = between(&from, 8, 40), mode = between(&from, 0, 2);
    uint8_t *key = filled(&from, row_bytes);
    if (mode == 0) {
        uint8_t *rows = room(count * row_bytes);
        for (int64_t at = 0; at < count * row_bytes; at++)
            rows[at] = (uint8_t)(key[at % row_bytes] + (from.left && *from.at < 64 ? next_byte(&from) : 0));
        pack_and_take(rows, count, row_bytes, key);
        free(rows);
    } else {
        int64_t bytes = mode == 1 ? between(&from, 0, 255) : count * row_bytes;
        uint8_t *block = filled(&from, bytes);
        if (mode == 1) /* the places where rows begin are uint32s, of which most are small */
            for (int64_t at = 0; at < bytes && at < 4 * (count + 1); at++)
                block[at] = at % 4 && block[at] < 250 ? 0 : block[at];
        cache_slot slot = {block, bytes, mode == 1 ? key : NULL, 0, 0};
        take(&from, &slot, count, row_bytes);
        free(block);
    }
    free(key);
    return 0;
}
