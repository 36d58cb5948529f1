/* Ids of the rows of all streams, drawn as Uniform and Recent of diskreplay.sampling draw them.
 *
 * Ids are drawn from all rows and environments of the windows, and those that are no items are passed over. As many
 * more are drawn as the share of items so far makes likely to be enough. Where too many were drawn in vain, the items
 * are listed instead. */
#ifndef DISKREPLAY_DRAW_H
#define DISKREPLAY_DRAW_H

#include "integers.h"
#include "plan.h"

/* What a draw looks at in a stream, beside its numbers in plan_stream.
 *
 * begin: the first row that may be drawn; all rows from it to the stream's end may. rows: the most that the window may
 * hold. invalid: how many entries of the window are no transitions. valid, terminated, truncated: arrays of the log's
 * table. */
typedef struct {
    int64_t begin, rows, invalid;
    const uint8_t *valid, *terminated, *truncated;
} draw_window;

/* Where ids are drawn from: all streams, and what an item is: a transition of `n_step` steps, or if `steps` is not 0 a
 * sequence, as diskreplay.Sequence has it, of so many steps, `needed` of which there must be at least. */
typedef struct {
    const plan_stream *streams;
    const draw_window *windows;
    int64_t count, n_step, steps, needed, stride;
    bool across;
} draw_source;

/* Return the standing of an entry, which is `local` in its stream, as an item: NEVER, NOW or LATER of ids.h. */
int draw_standing(const draw_source *from, int64_t stream, int64_t local);

/* Tell whether the row is the last of its episode; for the newest row only its flags can tell. */
bool draw_is_cut(const draw_source *from, int64_t stream, int64_t row, int64_t env);

/* Return how many ids the windows hold, transitions or not. */
int64_t draw_held(const draw_source *from);

/* Write the ids of the steps of sequences, and their places among `n * steps`; those that are no transitions are left
 * out. `mask` and `is_first`, of as many entries, tell which steps there are, and which begin an episode. Return how
 * many. */
int64_t draw_steps(
    const draw_source *from, const int64_t *ids, int64_t n, int64_t *every, int64_t *place, uint8_t *mask,
    uint8_t *is_first);

/* Tell whether one of these ids is an item. */
bool draw_any(const draw_source *from);

/* Tell whether each of these ids, which may be any numbers, is an item of the windows. */
bool draw_are_items(const draw_source *from, const int64_t *ids, int64_t n);

/* Write `size` ids of items, each drawn with the same probability; at least one there must be, and the ids held
 * must be 2 to 2**32 - 1. `by_share`: from a list they are chosen by a number in [0, 1) each, as Recent does.
 *
 * most_share: the share of the ids held, in ids drawn, from which on they are listed. The caller holds the bit
 * generator's lock. `room` is for `size` numbers, and one for each stream. */
void draw_uniform(
    bitgen_t *bits, const draw_source *from, int64_t size, double most_share, bool by_share, int64_t *ids,
    int64_t *room);

/* Write ranks, each drawn with its mass, and their weights: (rank / count) ** exponent, for ranks that begin with 1.
 *
 * uniforms: in [0, 1), one for each rank. Where `size` is no multiple of `parts` one more comes first, which says what
 * segments give one rank more. masses: of the ranks 1 to r, for r from 1 to count. parts: the segments of equal mass,
 * with equally many draws of each. */
void ranks_draw(
    const double *uniforms, const double *masses, int64_t count, int64_t parts, int64_t size, double exponent,
    int64_t *ranks, float *weights);

#endif
