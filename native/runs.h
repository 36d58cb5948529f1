/* Chunks in RAM, raw or as runs over a key, and the copying of pieces out of them into a batch.
 *
 * A block of runs begins with `rows + 1` uint32s: the places where each row's runs begin, and where the last row's runs
 * end. A run has a uint16, the number of bytes by which it begins after the run before it or, the first one, after the
 * row's begin, and then 8 bytes to write. All numbers are little-endian. A row is the key with its runs written over
 * it. That all runs are as long costs a few bytes, and spares the processor what it cannot foresee.
 */
#ifndef DISKREPLAY_RUNS_H
#define DISKREPLAY_RUNS_H

#include <stdbool.h>
#include <stdint.h>

/* The arrays of a batch: `out`, and for the steps one later `following` or NULL; each `places` rows of `width` bytes.
 *
 * Pieces are copied to them from chunks of `chunk_rows` values of `row_bytes` bytes. */
typedef struct {
    uint8_t *out, *following;
    int64_t places, width, chunk_rows, row_bytes;
} batch_target;

/* A piece: `rows` consecutive values of a chunk from `row` on, which go to the batch from step `step` of a place on.
 *
 * places: the places that its run of rows fills. From step 0 on a run has the steps of one place, and one more for each
 * other place; with `following`, which lacks step 0, one more again, which `out` lacks. chunk, group, stream: which
 * chunk it is. slot: of the cache; of a chunk on disk the number of its file, and then offset and size are where it is
 * there, the offset below 0 if it is missing. kind, key: as plan.h needs them. */
typedef struct {
    int64_t place, step, row, rows, chunk, group, stream, slot, offset, size, places, kind, key;
} batch_piece;

/* Tell whether pieces can be copied to a batch: it has room for a step, and the bytes of a chunk are a number. */
bool target_holds(const batch_target *target);

/* Tell whether a piece lies in its chunk and in such a batch. */
bool piece_fits(const batch_piece *piece, const batch_target *target);

/* Copy a piece's values, which begin at an address, to its place. */
void piece_put(const batch_piece *piece, const uint8_t *values, const batch_target *target);

/* A slot of the cache: a block, its bytes, its key, NULL if the block is the rows themselves, and which chunk it is. */
typedef struct {
    const uint8_t *block;
    int64_t size;
    const uint8_t *key;
    int64_t chunk, group;
} cache_slot;

/* The slots of one column's cached chunks. */
typedef struct {
    const cache_slot *slots;
    int64_t count;
} cache_slab;

/* Copy the pieces [begin, end) out of chunks in RAM, each from its slot of its stream's slab. Return the first that
 * could not be copied, or `end`. `*packed` grows by the number of pieces with a key. */
int64_t runs_take(
    const cache_slab *slabs, int64_t slab_count, const batch_piece *pieces, int64_t begin, int64_t end,
    const batch_target *target, int64_t *packed);

/* Set each byte of `key` to its value in most of the rows, or if there is none, in any row. `votes` is room for a
 * number of each byte, all 0. */
void runs_majority(const uint8_t *rows, int64_t count, int64_t width, uint8_t *key, int32_t *votes);

/* Write the runs in which rows differ from a key; return the bytes of the block, 0 if it has no room for them. */
int64_t runs_pack(
    const uint8_t *rows, int64_t count, int64_t width, const uint8_t *key, uint8_t *block, int64_t room);

#endif
