/* Integers in a range, drawn from 32 bits at a time. */
#ifndef DISKREPLAY_INTEGERS_H
#define DISKREPLAY_INTEGERS_H

#include "numpy/random/bitgen.h" /* needs no Python.h */

/* Write integers in [low, low + most], `most` from 1 to 2**32 - 2, as `Generator.integers` of numpy 1.17 to 2.4 draws
 * them.
 *
 * The method is that of Lemire, "Fast Random Integer Generation in an Interval" (2019). Random 32 bits are multiplied
 * by `most + 1`, and the upper half of the product is the integer. If the lower half is below the remainder of
 * 2**32 / (most + 1), it draws again: otherwise some integers would come more often than others.
 *
 * The caller holds the bit generator's lock. */
void integers_draw(bitgen_t *bits, int64_t low, int64_t most, int64_t count, int64_t *found);

#endif
