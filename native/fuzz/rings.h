/* Streams, and columns with about the right chunks, whose rings hold anything; their addresses and lengths do not. */
#ifndef DISKREPLAY_FUZZ_RINGS_H
#define DISKREPLAY_FUZZ_RINGS_H

#include "../ids.h"
#include "../plan.h"
#include "input.h"

enum { STREAMS = 3, ROWS = 8, CHUNKS = 6, SLOTS = 5 };

typedef struct {
    int64_t count;
    plan_stream streams[STREAMS];
    plan_column rows[STREAMS], patches[STREAMS];
} rings;

static void *kept[512];
static int kept_count;

/* Return memory that is freed after this input. */
static inline void *keep(void *made) { return kept[kept_count++] = made; }

static inline void free_kept(void) {
    while (kept_count)
        free(kept[--kept_count]);
}

/* Make slots that hold about the chunks [begin, stop]. */
static inline cache_slot *slots_of(input *from, int64_t held, int64_t begin, int64_t stop, int64_t groups) {
    cache_slot *made = keep(room(held * (int64_t)sizeof(cache_slot)));
    for (int64_t slot = 0; slot < held; slot++)
        made[slot].chunk = forged(from, begin, stop), made[slot].group = forged(from, 0, groups - 1);
    return made;
}

/* Make a column with about the chunks [begin, stop). */
static inline plan_column column_of(
    input *from, int64_t groups, int64_t group_envs, int64_t rows, int64_t begin, int64_t stop) {
    begin += between(from, 0, 1), stop -= between(from, 0, 1);
    int64_t length = stop > begin ? stop - begin : 1, slots = between(from, 0, SLOTS), held = between(from, 1, CHUNKS);
    return (plan_column){
        .chunk_rows = rows, .chunk_envs = group_envs, .shard_chunks = between(from, 1, 3),
        .entries = keep(forged_numbers(from, length * groups * 2, 0, 100)), .entries_length = length,
        .first_chunk = begin, .stop_chunk = stop, .groups = groups,
        .in_ram = between(from, 0, 1) ? stop - 1 : (int64_t)1 << 62,
        .slots = keep(forged_numbers(from, slots * groups, 0, held)), .slots_length = slots,
        .cached = slots_of(from, held, begin, begin + length, groups), .held = held, .is_ring = !between(from, 0, 7),
    };
}

static inline rings rings_of(input *from) {
    rings made = {.count = between(from, 1, STREAMS)};
    for (int64_t s = 0; s < made.count; s++) {
        int64_t envs = between(from, 1, 2), length = between(from, 1, ROWS), floor = between(from, 0, 20);
        int64_t end = floor + between(from, 0, length), chunk_rows = between(from, 1, 4);
        int64_t group_envs = between(from, 0, 1) ? envs : 1, patch_rows = between(from, 1, 2);
        made.streams[s] = (plan_stream){
            .number = 2 * s, .envs = envs, .length = length, .floor = floor, .end = end,
            .starts = keep(filled(from, length * envs)),
            .next_patches = keep(forged_numbers(from, length * envs, -1, 6)),
            .patch_begin = 0, .patch_end = 6, .patch_length = 4,
        };
        made.rows[s] = column_of(
            from, envs / group_envs, group_envs, chunk_rows, floor / chunk_rows, end / chunk_rows + 1);
        made.patches[s] = column_of(from, 1, 1, patch_rows, 0, 5 / patch_rows + 1);
    }
    return made;
}

/* Write ids, most of them of rows that there are. */
static inline void forge_ids(input *from, const rings *of, int64_t n, int64_t *ids) {
    for (int64_t k = 0; k < n; k++) {
        const plan_stream *stream = &of->streams[between(from, 0, of->count - 1)];
        int64_t row = stream->floor + between(from, 0, ROWS), env = between(from, 0, stream->envs - 1);
        int64_t id = (stream->number << STREAM_SHIFT) + row * stream->envs + env;
        ids[k] = between(from, 0, 15) ? id : forged(from, 0, 9);
    }
}

#endif
