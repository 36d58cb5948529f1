#include "ids.h"

void slots_of_ids(const slots_t *table, int64_t streams, const int64_t *ids, int64_t count, int64_t *slots) {
    int64_t row = 0;
    for (int64_t k = 0; k < count; k++) {
        int64_t stream = ids[k] >> STREAM_SHIFT, number = local_of(ids[k]), tried = 0;
        while (tried < streams && table[row].stream != stream) {
            row = row + 1 < streams ? row + 1 : 0;
            tried++;
        }
        if (tried == streams || number >= table[row].stop)
            slots[k] = SLOT_UNKNOWN;
        else
            slots[k] = number < table[row].first ? SLOT_EVICTED : slot_of(&table[row], number);
    }
}

bool slots_to_ids(const slots_t *table, int64_t streams, const int64_t *slots, int64_t count, int64_t *ids) {
    int64_t row = 0, lane = 0, low = 0, high = 0, first = 0, turned = 0; /* of the lane of the slot before */
    for (int64_t k = 0; k < count; k++) {
        int64_t slot = slots[k];
        if (slot < low || slot >= high) {
            while (row > 0 && slot < table[row].base)
                row--;
            while (row + 1 < streams && slot >= table[row].base + table[row].lanes * table[row].rows)
                row++;
            const slots_t *of = &table[row];
            if (!streams || slot < of->base || slot >= of->base + of->lanes * of->rows)
                return false;
            lane = (slot - of->base) / of->rows;
            low = of->base + lane * of->rows;
            high = low + of->rows;
            first = (of->first - lane + of->lanes - 1) / of->lanes; /* the first in the window */
            turned = first % of->rows;
        }
        int64_t at = first + slot - low - turned;
        if (at < first)
            at += high - low;
        ids[k] = (table[row].stream << STREAM_SHIFT) + at * table[row].lanes + lane;
    }
    return true;
}
