/* The frames of rows, all of which the cache holds: their pieces found, copied and filled up. */
#ifndef DISKREPLAY_FRAMES_H
#define DISKREPLAY_FRAMES_H

#include "plan.h"

/* Where one leaf's frames are: its column and that of its patches, for each stream, and the slots of their chunks. */
typedef struct {
    const plan_stream *streams;
    const plan_column *rows, *patches;
    const cache_slab *row_slabs, *patch_slabs;
    int64_t count;
    int64_t row_items, patch_items; /* the values of a chunk */
} frames_source;

/* Return for how many numbers `room` of frames_fill must be. */
int64_t frames_room(const frames_source *from, int64_t n, int64_t first_step, int64_t last_step);

/* Copy the steps first_step to last_step (at most 1) of `n` rows to their places, the first `n` if `place` is NULL;
 * return false, when some may have been copied, if a frame is not in the cache, or an episode's older frames are
 * patches. `*packed` and `*raw` grow by the numbers of pieces that were copied. */
bool frames_fill(
    const frames_source *from, const int64_t *ids, const int64_t *place, int64_t n, int64_t first_step,
    int64_t last_step, const batch_target *target, int64_t *room, int64_t *packed, int64_t *raw);

#endif
