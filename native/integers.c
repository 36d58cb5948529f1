#include <stdint.h>

#include "integers.h"

void integers_draw(bitgen_t *bits, int64_t low, int64_t most, int64_t count, int64_t *found) {
    uint64_t half = UINT64_C(0xFFFFFFFF), choices = (uint64_t)most + 1, too_many = (UINT64_C(1) << 32) % choices;
    for (int64_t k = 0; k < count; k++) {
        uint64_t product = bits->next_uint32(bits->state) * choices;
        while ((product & half) < too_many)
            product = bits->next_uint32(bits->state) * choices;
        found[k] = low + (int64_t)(product >> 32);
    }
}
