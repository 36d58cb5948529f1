/* A tree of sums and minima: it draws slots in proportion to their masses, and changes masses, many at once.
 *
 * 1. Each node has eight children, which lie side by side in one cache line. A million slots have seven levels of nodes
 *    above them.
 * 2. Level 0 holds the masses of the slots, and the last level the root. Each level is padded with zeros to a multiple
 *    of eight nodes, so the tree works for any number of slots.
 * 3. A slot of mass 0 is never drawn, and does not count for the minimum.
 * 4. The tree always computes an inner sum anew from eight children, in one fixed order. It never adds a difference to
 *    a sum. So sums do not drift, and two trees of the same masses are equal bit by bit, whatever their histories.
 * 5. Each draw is from a range of slots. The tree first finds the few nodes that together have just these slots under
 *    them, at most seven at each end of each level. From these nodes it computes the range's total and minimum. So the
 *    precision of a draw depends only on the masses in its range.
 * 6. A draw begins with a number between 0 and the range's total. It walks along the nodes of point 5, in the order of
 *    their slots, and subtracts their sums until the rest is smaller than the next sum. It enters that next node, and
 *    walks along the node's eight children in the same way, down to a slot. So it never enters a child whose sum is 0.
 *    If rounding takes it past all eight, it goes on to the last slot under them whose mass is not 0.
 * 7. A draw spends its time waiting for memory, and for branches that the processor guessed wrong. So all draws go down
 *    a level together. Each draw prefetches its next eight children, and chooses among them without a branch.
 */
#ifndef DISKREPLAY_SUM_TREE_H
#define DISKREPLAY_SUM_TREE_H

#include "ids.h"

enum { FANOUT = 8, FANOUT_SHIFT = 3, MOST_LEVELS = 24, MOST_COVER = 2 * FANOUT * MOST_LEVELS };

/* sums: the masses, and above them the sums, level by level. mins: the least mass above 0 under each inner node; its
 * entries at level 0 are never used. offsets: the position of each level's first node in both. slots: those there
 * are. */
typedef struct {
    double *sums, *mins;
    const int64_t *offsets;
    int64_t levels, slots;
} sum_tree;

/* Slots [start, stop), and the position of their group in an array of maxima. */
typedef struct {
    int64_t start, stop, group;
} slot_range;

/* Set the masses of `emptied` to 0, then those of `slots` to `masses`, one for each. `room` is for as many numbers as
 * both have together. Each list has a slot at most once; ascending ones are quickest. */
void tree_fill(
    const sum_tree *tree, const int64_t *emptied, int64_t empty, const int64_t *slots, int64_t count,
    const double *masses, int64_t *room);

typedef struct {
    double alpha, epsilon, least, most;
} priority_power;

/* Return the mass of a priority that has epsilon in it: priority ** alpha, but no less than `least`. */
double tree_mass(const priority_power *power, double priority);

/* Set masses to those of priority + epsilon; if a slot is named twice, its last priority counts.
 *
 * slots, priorities: of each entry; SLOT_EVICTED is skipped, and counted in `left_out`. ranges: ascending; each slot
 * lies in one of them. maxima: the range's entry is raised to the largest priority + epsilon that is used there.
 * Return -1, or with nothing changed the position of the first bad entry: its priority is NaN or above `most`, or its
 * slot is unknown or has no mass. `room` is for `count` numbers. */
int64_t tree_update(
    const sum_tree *tree, const slot_range *ranges, int64_t range_count, double *maxima, int64_t *left_out,
    const int64_t *slots, const double *priorities, int64_t count, const priority_power *power, int64_t *room);

/* Write the sum of the masses in each range. */
void tree_totals(const sum_tree *tree, const slot_range *ranges, int64_t count, double *totals);

/* Divide each range's total mass, which must be above 0, into equal slices, and write one slot of each, and its weight
 * (least / mass) ** beta. `uniforms`, in [0, 1), says where in each slice; their number is a multiple of the ranges'.
 * `rest` and `levels` are room for as many numbers, `least` for one of each range. Return false if a range is empty. */
bool tree_draw(
    const sum_tree *tree, const slot_range *ranges, int64_t range_count, const double *uniforms, int64_t count,
    double beta, int64_t *slots, float *weights, double *rest, int64_t *levels, double *least);

#endif
