#include "frames.h"

#include "ids.h"
#include "memory.h"

enum { PIECE = sizeof(batch_piece) / sizeof(int64_t) };
enum { CUT_START = 4, ZEROS = 1, REPEAT = 2 }; /* start codes, as diskreplay.schema.columns has them */

int64_t frames_room(const frames_source *from, int64_t n, int64_t first_step, int64_t last_step) {
    return plan_most(from->rows, from->count, n, first_step, last_step) * (2 * PIECE + 3) + 3 * n;
}

/* Copy the pieces [begin, end) of a plan; return false if one could not be copied. */
static bool copy_pieces(
    const cache_slab *slabs, int64_t slab_count, int64_t items, const plan_found *found, int64_t begin, int64_t end,
    const batch_target *target, int64_t *packed) {
    batch_target of_chunks = *target;
    of_chunks.chunk_rows = items;
    return runs_take(slabs, slab_count, found->pieces, begin, end, &of_chunks, packed) == end;
}

/* Fill in the first `count` steps of a place, before its episode; return false if they are patches. */
static bool pad(const batch_target *target, int64_t place, int64_t count, int code) {
    int64_t size = target->row_bytes, start = place * target->width;
    const uint8_t *next = target->out + start + count * size;
    if (code != ZEROS && code != REPEAT)
        return false;
    for (int64_t step = 0; step < count; step++) {
        uint8_t *both[] = {
            target->out + start + step * size,
            target->following && step ? target->following + start + (step - 1) * size : NULL};
        for (int k = 0; k < 2; k++)
            if (both[k] && code == ZEROS)
                memset(both[k], 0, (size_t)size);
            else if (both[k])
                memcpy(both[k], next, (size_t)size);
    }
    return true;
}

static int start_of(const frames_source *from, int64_t id, int64_t depth) {
    int64_t stream = 0;
    while (from->streams[stream].number != id >> STREAM_SHIFT)
        stream++;
    const plan_stream *of = &from->streams[stream];
    int64_t local = local_of(id), row = local / of->envs - depth;
    return of->starts[row % of->length * of->envs + local % of->envs] % CUT_START;
}

bool frames_fill(
    const frames_source *from, const int64_t *ids, const int64_t *place, int64_t n, int64_t first_step,
    int64_t last_step, const batch_target *target, int64_t *room, int64_t *packed, int64_t *raw) {
    plan_found found = {
        .most = plan_most(from->rows, from->count, n, first_step, last_step),
        .runs = target->width == target->row_bytes ? ONE_PLACE_EACH : NO_RUNS};
    int64_t *own = room, before = *packed;
    found.short_rows = own + n;
    found.order = found.short_rows + 2 * n;
    found.files = found.order + found.most;
    found.unordered = (batch_piece *)(found.files + 2 * found.most);
    found.pieces = found.unordered + found.most;
    for (int64_t k = 0; k < n; k++)
        own[k] = place ? place[k] : k;
    if (!plan_frames(
            from->streams, from->rows, from->patches, from->count, ids, own, n, first_step, last_step, &found))
        return false;
    const int64_t *ends = found.ends;
    if (ends[ON_DISK] || ends[WAITING] != ends[CACHED] || ends[KINDS + ON_DISK] != ends[WAITING]
        || ends[KINDS + WAITING] != ends[KINDS + CACHED])
        return false;
    if (!copy_pieces(
            from->row_slabs, from->count, from->row_items, &found, 0, ends[CACHED], target, packed)
        || !copy_pieces(
            from->patch_slabs, from->count, from->patch_items, &found, ends[CACHED], found.count, target, packed))
        return false;
    for (int64_t k = 0; k < found.short_count; k++) {
        int64_t at = found.short_rows[2 * k], depth = found.short_rows[2 * k + 1];
        if (!pad(target, own[at], -first_step - depth, start_of(from, ids[at], depth)))
            return false;
    }
    *raw += found.count - (*packed - before);
    return true;
}
