/* Stacks of frames copied out of a cache whose slots and blocks hold anything, as do the rings that lead there. */
#include "../frames.h"

#include "rings.h"

enum { MOST_FRAMES = 4 };

/* Let a column's cache hold each of its chunks, raw or as runs over a key, most of them where they are looked for. */
static cache_slab hold(input *from, plan_column *of, int64_t row_bytes) {
    int64_t length = of->entries_length, held = length * of->groups, items = of->chunk_rows * of->chunk_envs;
    int64_t *slots = keep(room(held * 8));
    cache_slot *blocks = keep(room(held * (int64_t)sizeof(cache_slot)));
    for (int64_t slot = 0; slot < held; slot++) {
        bool wrong = !between(from, 0, 31), raw = between(from, 0, 1);
        int64_t chunk = of->first_chunk + slot / of->groups;
        int64_t size = raw && between(from, 0, 15) ? items * row_bytes : between(from, 0, 63);
        slots[chunk % length * of->groups + slot % of->groups] = wrong ? forged(from, 0, held) : slot;
        uint8_t *block = keep(filled(from, size));
        for (int64_t at = 0; !raw && at < size && at < 4 * (items + 1); at++) /* small places, which ascend */
            block[at] = at % 4 ? 0 : (uint8_t)(4 * (items + 1) + block[at] % 2 * 10 * (at / 4));
        blocks[slot] = (cache_slot){block, size, raw ? NULL : keep(filled(from, row_bytes)), chunk, slot % of->groups};
    }
    of->slots = slots, of->slots_length = length, of->cached = blocks, of->held = held;
    return (cache_slab){blocks, held};
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input from = {data, size};
    rings of = rings_of(&from);
    cache_slab row_slabs[STREAMS], patch_slabs[STREAMS];
    int64_t row_bytes = between(&from, 7, 12), frames = between(&from, 1, MOST_FRAMES), n = between(&from, 1, 4);
    for (int64_t s = 0; s < of.count; s++) {
        row_slabs[s] = hold(&from, &of.rows[s], row_bytes);
        patch_slabs[s] = hold(&from, &of.patches[s], row_bytes);
    }
    frames_source source = {
        of.streams, of.rows, of.patches, row_slabs, patch_slabs, of.count,
        of.rows->chunk_rows * of.rows->chunk_envs, of.patches->chunk_rows};
    int64_t ids[4], place[] = {n - 1, n - 2, n - 3, n - 4}, packed = 0, raw = 0;
    forge_ids(&from, &of, n, ids);
    /* As a batch asks for both arrays at once, or for each of them. */
    bool both = between(&from, 0, 1), next = !both && between(&from, 0, 1);
    int64_t first_step = next ? 2 - frames : 1 - frames, last_step = both || next, bytes = n * frames * row_bytes;
    batch_target target = {
        .out = keep(room(bytes)), .following = both ? keep(room(bytes)) : NULL, .places = n,
        .width = frames * row_bytes, .row_bytes = row_bytes};
    int64_t *numbers = keep(room(frames_room(&source, n, first_step, last_step) * 8));
    bool whole = frames_fill(
        &source, ids, between(&from, 0, 1) ? place : NULL, n, first_step, last_step, &target, numbers, &packed, &raw);
    check(packed + raw <= plan_most(of.rows, of.count, n, first_step, last_step) && (!whole || packed + raw >= 0));
    free_kept();
    return 0;
}
