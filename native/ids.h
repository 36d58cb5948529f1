/* The map between ids and slots. A slot is the position of an id's entry in one array that all streams share.
 *
 * An id is a stream's number, shifted, and a number in the stream. Each stream has consecutive slots, which are divided
 * into lanes of `rows` slots each. The id with number n in its stream has a slot in lane n % lanes, at position
 * n / lanes % rows of that lane. So a window that moves on reuses the slots of the ids that left it. If each
 * environment has its own lane, an environment's slots lie side by side. If there is only one lane, it holds the ids
 * in their order, as a ring.
 */
#ifndef DISKREPLAY_IDS_H
#define DISKREPLAY_IDS_H

#include <stdbool.h>
#include <stdint.h>

enum { STREAM_SHIFT = 48 }; /* as diskreplay.schema.ids has it; the module compares the two when it is loaded */
enum { SLOT_EVICTED = -1, SLOT_UNKNOWN = -2 };
enum { NEVER = 0, NOW = 1, LATER = 2 }; /* the standings of ids, as diskreplay.index.log has them */

/* A stream's row in the table of slots; the streams stand in the order of their slots.
 *
 * stream: its number. base: its first slot. lanes, rows: the number of its lanes, and of the slots of each.
 * first, stop: its window, the ids with numbers [first, stop) in the stream. capacity: the most ids of the window for
 * which its slots were chosen. group: the number of the first lane's group; each of the others has the next number.
 */
typedef struct {
    int64_t stream, base, lanes, rows, first, stop, capacity, group;
} slots_t;

static inline int64_t local_of(int64_t id) { return id & (((int64_t)1 << STREAM_SHIFT) - 1); }

static inline int64_t slot_of(const slots_t *of, int64_t number) {
    return of->base + number % of->lanes * of->rows + number / of->lanes % of->rows;
}

/* Write the slot of each id: EVICTED if it is below its stream's window, UNKNOWN if it does not exist. */
void slots_of_ids(const slots_t *table, int64_t streams, const int64_t *ids, int64_t count, int64_t *slots);

/* Write the id in each slot; ascending slots are quickest. Return false if a slot holds no id of its stream's
 * window. */
bool slots_to_ids(const slots_t *table, int64_t streams, const int64_t *slots, int64_t count, int64_t *ids);

#endif
