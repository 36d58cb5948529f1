/* What transitions of several steps show: the sum of their rewards, their last row, the discount of what follows. */
#ifndef DISKREPLAY_RETURNS_H
#define DISKREPLAY_RETURNS_H

#include "draw.h"

/* Write for each of `n` transitions the discounted sum of its rewards, float32 or float64 by `size`, the id of the last
 * row in the sum, and gamma ** steps. A transition has n_step steps, or fewer if its episode ends before.
 *
 * rewards: the array of each stream. The ids are in the windows. */
void returns_of(
    const draw_source *from, const uint8_t *const *rewards, int64_t size, double gamma, const int64_t *ids, int64_t n,
    uint8_t *sums, int64_t *last, float *discount);

/* Set to 0 the discounts of transitions whose last step is terminated. */
void returns_end(float *discount, const uint8_t *terminated, int64_t n);

#endif
