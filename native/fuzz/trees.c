/* Priorities of any ids, set in a tree of sums and in one of ranks; windows that move by any numbers; draws. */
#include <math.h>

#include "../memory.h"
#include "../ranks.h"
#include "../sum_tree.h"
#include "input.h"

enum { STREAMS = 3, MOST_SLOTS = STREAMS * 3 * 12, IDS = 6 };

static int64_t offsets[MOST_LEVELS];

/* Lay out the levels of a tree as diskreplay.index.sum_tree does. */
static sum_tree tree_of(int64_t slots) {
    sum_tree made = {.offsets = offsets, .levels = 1, .slots = slots};
    int64_t size = 0, nodes = slots;
    while (true) {
        int64_t groups = nodes > 1 ? (nodes + FANOUT - 1) / FANOUT : 1;
        size += groups * FANOUT;
        if (nodes <= 1 && made.levels > 1)
            break;
        offsets[made.levels++] = size;
        nodes = groups;
    }
    made.sums = room(size * 8), made.mins = room(size * 8);
    return made;
}

/* Check that each inner sum is that of its children, and that only ids in a window have mass. */
static void check_sums(const sum_tree *tree, const slots_t *table, int64_t streams) {
    for (int64_t level = 1; level < tree->levels; level++)
        for (int64_t node = 0; offsets[level - 1] + node * FANOUT < offsets[level]; node++) {
            double sum = 0;
            for (int64_t child = 0; child < FANOUT; child++)
                sum += tree->sums[offsets[level - 1] + node * FANOUT + child];
            check(fabs(sum - tree->sums[offsets[level] + node]) <= 1e-9 * sum);
        }
    for (int64_t slot = 0, id; slot < tree->slots; slot++)
        if (tree->sums[slot] != 0) {
            check(tree->sums[slot] > 0 && slots_to_ids(table, streams, &slot, 1, &id));
            int64_t again;
            slots_of_ids(table, streams, &id, 1, &again);
            check(again == slot);
        }
}

static void check_ranks(const ranks_node *nodes, const ranks_head *head) {
    for (int64_t k = 0, slot, rank, before = 0; k < head->count; k++, before = slot) {
        ranks_select(nodes, head, &k, 1, &slot);
        ranks_find(nodes, head, &slot, 1, &rank);
        check(rank == k && (!k || nodes[before].priority >= nodes[slot].priority));
    }
}

/* Move a window: ids that leave it lose their entries in both trees, and every second one that enters gets one. */
static void move(const sum_tree *tree, ranks_node *nodes, ranks_head *head, slots_t *of, int64_t first, int64_t stop) {
    int64_t left = 0, entered = 0, gone[MOST_SLOTS], slots[MOST_SLOTS], ids[MOST_SLOTS], numbers[2 * MOST_SLOTS];
    double masses[MOST_SLOTS];
    for (int64_t number = of->first; number < first && number < of->stop; number++)
        gone[left++] = slot_of(of, number);
    for (int64_t number = first > of->stop ? first : of->stop; number < stop; number += 2, entered++)
        ids[entered] = (of->stream << STREAM_SHIFT) + number, slots[entered] = slot_of(of, number), masses[entered] = 1;
    ranks_remove(nodes, head, gone, left);
    ranks_insert(nodes, head, slots, ids, 1, entered);
    tree_fill(tree, gone, left, slots, entered, masses, numbers);
    of->first = first, of->stop = stop;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input from = {data, size};
    slots_t table[STREAMS];
    slot_range ranges[STREAMS];
    int64_t streams = between(&from, 1, STREAMS), slots = 0, ignored = 0, numbers[MOST_SLOTS], of_ids[IDS], ids[IDS];
    double maxima[STREAMS] = {1, 1, 1}, highest = 1, priorities[IDS];
    for (int64_t s = 0; s < streams; s++) {
        int64_t lanes = between(&from, 1, 3), rows = between(&from, 1, 12), first = between(&from, 0, 20);
        table[s] = (slots_t){2 * s, slots, lanes, rows, first, first, lanes * rows, s};
        ranges[s] = (slot_range){slots, slots + lanes * rows, s};
        slots += lanes * rows;
    }
    sum_tree tree = tree_of(slots);
    ranks_node *nodes = room(slots * (int64_t)sizeof(ranks_node));
    ranks_head head = {RANKS_NOTHING, 0};
    for (int64_t s = 0; s < streams; s++)
        move(&tree, nodes, &head, &table[s], table[s].first, table[s].first + between(&from, 0, table[s].capacity));
    const priority_power power = {.alpha = 0.6, .epsilon = 0, .least = 1e-100, .most = 1e100};
    for (int64_t turn = between(&from, 0, 3); turn > 0; turn--) {
        int64_t n = between(&from, 0, IDS);
        for (int64_t k = 0; k < n; k++) {
            const slots_t *of = &table[between(&from, 0, streams - 1)];
            ids[k] = of->stream << STREAM_SHIFT ^ forged(&from, of->first, of->stop);
            int64_t any = forged(&from, 1, 3);
            priorities[k] = fabs((double)any);
            if (any < 0) /* any bits, so that it may be no number */
                memcpy(&priorities[k], &any, sizeof any);
            priorities[k] = fabs(priorities[k]);
        }
        slots_of_ids(table, streams, ids, n, of_ids);
        for (int64_t k = 0, id; k < n; k++) {
            check(of_ids[k] < 0 || (slots_to_ids(table, streams, &of_ids[k], 1, &id) && id == ids[k]));
            if (!between(&from, 0, 15))
                of_ids[k] = forged(&from, SLOT_UNKNOWN, slots);
        }
        tree_update(&tree, ranges, streams, maxima, &ignored, of_ids, priorities, n, &power, numbers);
        ranks_update(nodes, slots, &head, &highest, &ignored, of_ids, priorities, n, power.most);
        check_sums(&tree, table, streams);
        check_ranks(nodes, &head);
        slots_t *of = &table[between(&from, 0, streams - 1)];
        int64_t first = between(&from, of->first, of->stop + 2);
        move(&tree, nodes, &head, of, first, between(&from, most_int(first, of->stop), first + of->capacity));
        check_sums(&tree, table, streams);
        check_ranks(nodes, &head);
    }
    double uniforms[STREAMS], rest[STREAMS], least[STREAMS];
    int64_t drawn[STREAMS], levels[STREAMS];
    float weights[STREAMS];
    for (int64_t s = 0; s < streams; s++)
        uniforms[s] = between(&from, 0, 255) / 256.0;
    if (tree_draw(&tree, ranges, streams, uniforms, streams, 0.4, drawn, weights, rest, levels, least))
        for (int64_t s = 0; s < streams; s++)
            check(drawn[s] >= ranges[s].start && drawn[s] < ranges[s].stop && tree.sums[drawn[s]] > 0);
    free(tree.sums);
    free(tree.mins);
    free(nodes);
    return 0;
}
