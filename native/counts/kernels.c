/* Calls of kernels on fixed inputs, for native/counts/run, which counts the instructions of a call.
 *
 * The argument names the kernel. Each input is of the size that a usual training has: batches of 256, a tree of 100,000
 * slots, values of 17 floats. */
#include <stdio.h>
#include <stdlib.h>

#include "../crc32c.h"
#include "../memory.h"
#include "../plan.h"
#include "../ranks.h"
#include "../row.h"
#include "../runs.h"
#include "../sum_tree.h"

enum { BATCH = 256, SLOTS = 100000, VALUE = 68, ROWS = 64, FRAME = 7056 };

/* Numbers that look random and are the same everywhere. */
static uint32_t state = 1;
static uint32_t next_number(void) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

static void *room(int64_t size) {
    void *made = calloc(1, (size_t)size);
    if (!made)
        abort();
    return made;
}

static uint8_t *some_bytes(int64_t size) {
    uint8_t *made = room(size);
    for (int64_t at = 0; at < size; at++)
        made[at] = (uint8_t)next_number();
    return made;
}

static int64_t *below(int64_t count, int64_t most) {
    int64_t *made = room(count * 8);
    for (int64_t k = 0; k < count; k++)
        made[k] = next_number() % most;
    return made;
}

static double *shares(int64_t count) {
    double *made = room(count * 8);
    for (int64_t k = 0; k < count; k++)
        made[k] = next_number() / 4294967296.0;
    return made;
}

static int64_t *all_slots(void) {
    int64_t *made = room(SLOTS * 8);
    for (int64_t k = 0; k < SLOTS; k++)
        made[k] = k;
    return made;
}

static void check(bool holds, const char *name) {
    if (!holds) {
        fprintf(stderr, "native/counts: %s did not do its work\n", name);
        exit(1);
    }
}

/* ---- Rows ---- */

static void row(void) {
    int64_t sizes[] = {VALUE, 24, 8, 1, 1};
    row_column columns[5] = {{0}};
    for (int c = 0; c < 5; c++)
        columns[c] = (row_column){
            some_bytes(sizes[c]), some_bytes(sizes[c]), sizes[c], 1, room(ROWS * sizes[c]), ROWS, sizes[c],
            ROWS * sizes[c], room(SLOTS * sizes[c]),
        };
    memcpy(columns[0].buffer + 5 * VALUE, columns[0].given, VALUE);
    row_write(columns, 5, 1, 5, SLOTS, true, false);
    check(!memcmp(columns[0].buffer + 6 * VALUE, columns[0].following, VALUE), "row_write");
}

/* ---- Priorities ---- */

static sum_tree tree_of_slots(void) {
    int64_t *offsets = room(MOST_LEVELS * 8), levels = 0, nodes = SLOTS, size = 0;
    do {
        offsets[levels++] = size;
        nodes = (nodes + FANOUT - 1) / FANOUT;
        size += nodes * FANOUT;
    } while (nodes > 1);
    offsets[levels++] = size;
    sum_tree tree = {room((size + FANOUT) * 8), room((size + FANOUT) * 8), offsets, levels, SLOTS};
    tree_fill(&tree, NULL, 0, all_slots(), SLOTS, shares(SLOTS), room(SLOTS * 8));
    return tree;
}

static const slot_range WHOLE = {0, SLOTS, 0};

static void tree_draws(void) {
    sum_tree tree = tree_of_slots();
    int64_t *slots = room(BATCH * 8), *levels = room(BATCH * 8);
    double *rest = room(BATCH * 8), least;
    float *weights = room(BATCH * 4);
    check(
        tree_draw(&tree, &WHOLE, 1, shares(BATCH), BATCH, 0.4, slots, weights, rest, levels, &least), "tree_draw");
}

static void tree_updates(void) {
    sum_tree tree = tree_of_slots();
    priority_power power = {0.6, 0.01, 1e-280, 1e140};
    double maximum = 0.0;
    int64_t left_out = 0, *slots = below(BATCH, SLOTS);
    int64_t wrong = tree_update(
        &tree, &WHOLE, 1, &maximum, &left_out, slots, shares(BATCH), BATCH, &power, room(BATCH * 8));
    check(wrong < 0, "tree_update");
}

static void ranks_updates(void) {
    ranks_node *nodes = room(SLOTS * (int64_t)sizeof *nodes);
    ranks_head head = {RANKS_NOTHING, 0};
    double maximum = 0.0;
    int64_t left_out = 0, *slots = all_slots();
    const double *given = shares(SLOTS);
    for (int64_t k = 0; k < SLOTS; k++)
        ranks_insert(nodes, &head, slots + k, slots + k, given[k], 1);
    int64_t wrong = ranks_update(
        nodes, SLOTS, &head, &maximum, &left_out, below(BATCH, SLOTS), shares(BATCH), BATCH, 1e140);
    check(wrong < 0, "ranks_update");
}

/* ---- Batches ---- */

static void gather(void) {
    int64_t sizes[] = {VALUE, VALUE, 24, 8, 1, 1}, *patches = room(SLOTS * 8);
    uint8_t following[] = {0, 1, 0, 0, 0, 0}, *out[6];
    const uint8_t *arrays[6];
    for (int c = 0; c < 6; c++)
        arrays[c] = room(SLOTS * sizes[c]), out[c] = room(BATCH * sizes[c]);
    for (int64_t k = 0; k < SLOTS; k++)
        patches[k] = -1;
    plan_stream stream = {.envs = 1, .length = SLOTS, .end = SLOTS, .starts = room(SLOTS), .next_patches = patches};
    plan_columns columns = {6, arrays, arrays, sizes, following};
    check(
        gather_columns(&stream, 1, &columns, below(BATCH, SLOTS), NULL, BATCH, NULL, out, room(BATCH * 16)),
        "gather_columns");
}

static void take(void) {
    uint8_t *key = some_bytes(FRAME), *rows = room(ROWS * FRAME), *block = room(2 * ROWS * FRAME);
    for (int64_t at = 0; at < ROWS * FRAME; at++)
        rows[at] = next_number() % 50 ? key[at % FRAME] : (uint8_t)next_number();
    cache_slot slots[] = {
        {block, runs_pack(rows, ROWS, FRAME, key, block, 2 * ROWS * FRAME), key, 0, 0},
        {rows, ROWS * FRAME, NULL, 0, 0}};
    cache_slab slab = {slots, 2};
    int64_t packed = 0, *firsts = below(BATCH, ROWS - 4), *chosen = below(BATCH, 2);
    batch_piece pieces[BATCH] = {{0}};
    for (int64_t k = 0; k < BATCH; k++)
        pieces[k] = (batch_piece){.place = k, .row = firsts[k], .rows = 4, .slot = chosen[k], .places = 1};
    batch_target target = {room((int64_t)4 * BATCH * FRAME), NULL, BATCH, (int64_t)4 * FRAME, ROWS, FRAME};
    check(runs_take(&slab, 1, pieces, 0, BATCH, &target, &packed) == BATCH, "runs_take");
}

static void checksum(void) { check(crc32c(some_bytes(ROWS * FRAME), ROWS * FRAME) != 0, "crc32c"); }

static const struct {
    const char *name;
    void (*call)(void);
} CALLS[] = {
    {"row_write", row},
    {"tree_draw", tree_draws},
    {"tree_update", tree_updates},
    {"ranks_update", ranks_updates},
    {"gather_columns", gather},
    {"runs_take", take},
    {"crc32c", checksum},
};

/* Without an argument it prints the names. */
int main(int count, char **arguments) {
    for (size_t k = 0; k < sizeof CALLS / sizeof *CALLS; k++) {
        if (count < 2)
            puts(CALLS[k].name);
        else if (!strcmp(arguments[1], CALLS[k].name))
            CALLS[k].call();
    }
    return 0;
}
