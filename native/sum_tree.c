#include "sum_tree.h"

#include <math.h>

#include "memory.h"

static inline double lesser(double a, double b) { return b < a ? b : a; }
static inline double greater(double a, double b) { return b > a ? b : a; }

static inline double fold(const double *of) {
    double left = (of[0] + of[1]) + (of[2] + of[3]);
    double right = (of[4] + of[5]) + (of[6] + of[7]);
    return left + right;
}

static inline double counted(double mass) { return mass > 0.0 ? mass : INFINITY; }

/* Return the least positive one of eight values, or 0 if none is positive. */
static inline double least_of(const double *of) {
    double left = lesser(lesser(counted(of[0]), counted(of[1])), lesser(counted(of[2]), counted(of[3])));
    double right = lesser(lesser(counted(of[4]), counted(of[5])), lesser(counted(of[6]), counted(of[7])));
    double least = lesser(left, right);
    return least < INFINITY ? least : 0.0;
}

/* Compute all ancestors of the slots `nodes` anew, level by level; this overwrites `nodes`. */
static void refresh(const sum_tree *tree, int64_t *nodes, int64_t count) {
    for (int64_t level = 1; level < tree->levels; level++) {
        int64_t below = tree->offsets[level - 1], here = tree->offsets[level], kept = 0, previous = -1;
        const double *under = level == 1 ? tree->sums : tree->mins;
        for (int64_t k = 0; k < count; k++) {
            int64_t node = nodes[k] >> FANOUT_SHIFT;
            if (node != previous) {
                int64_t children = below + (node << FANOUT_SHIFT);
                tree->sums[here + node] = fold(tree->sums + children);
                tree->mins[here + node] = least_of(under + children);
                nodes[kept++] = previous = node;
            }
        }
        count = kept;
    }
}

void tree_fill(
    const sum_tree *tree, const int64_t *emptied, int64_t empty, const int64_t *slots, int64_t count,
    const double *masses, int64_t *room) {
    for (int64_t k = 0; k < empty; k++)
        tree->sums[room[k] = emptied[k]] = 0.0;
    for (int64_t k = 0; k < count; k++)
        tree->sums[room[empty + k] = slots[k]] = masses[k];
    refresh(tree, room, empty + count);
}

/* Return the level of a node, which is given by its position in the flat array. */
static int64_t level_of(const sum_tree *tree, int64_t node) {
    int64_t level = tree->levels - 1;
    while (node < tree->offsets[level])
        level--;
    return level;
}

/* Write the positions of the nodes that together have just the slots of a range under them, without empty nodes.
 * Return their number; `*total` is the sum of their masses, `*least` the least mass of a slot. */
static int64_t cover(const sum_tree *tree, const slot_range *of, int64_t *nodes, double *total, double *least) {
    int64_t front = 0, back = MOST_COVER, level = 0, start = of->start, stop = of->stop;
    while (start < stop) {
        while (start < stop && start % FANOUT)
            nodes[front++] = tree->offsets[level] + start++;
        while (start < stop && stop % FANOUT)
            nodes[--back] = tree->offsets[level] + --stop;
        start >>= FANOUT_SHIFT, stop >>= FANOUT_SHIFT, level++;
    }
    int64_t count = 0;
    *total = 0.0, *least = INFINITY;
    for (int64_t k = 0; k < front + MOST_COVER - back; k++) {
        int64_t node = k < front ? nodes[k] : nodes[back + k - front];
        if (tree->sums[node] > 0.0) {
            nodes[count++] = node;
            *total += tree->sums[node];
            *least = lesser(*least, node < tree->offsets[1] ? tree->sums[node] : tree->mins[node]);
        }
    }
    return count;
}

void tree_totals(const sum_tree *tree, const slot_range *ranges, int64_t count, double *totals) {
    int64_t nodes[MOST_COVER];
    double least;
    for (int64_t k = 0; k < count; k++)
        cover(tree, &ranges[k], nodes, &totals[k], &least);
}

double tree_mass(const priority_power *power, double priority) {
    return greater(pow(priority, power->alpha), power->least);
}

int64_t tree_update(
    const sum_tree *tree, const slot_range *ranges, int64_t range_count, double *maxima, int64_t *left_out,
    const int64_t *slots, const double *priorities, int64_t count, const priority_power *power, int64_t *room) {
    for (int64_t k = 0; k < count; k++) {
        int64_t slot = slots[k];
        if (!(priorities[k] <= power->most) || slot < SLOT_EVICTED || slot >= tree->slots)
            return k;
        if (slot >= 0 && (tree->sums[slot] == 0.0 || !range_count))
            return k;
    }
    for (int64_t k = 0; k < count; k++)
        if (slots[k] >= 0)
            tree->sums[slots[k]] = -1.0 - (double)k; /* the last entry for a slot leaves its number there */
    int64_t changed = 0, at = 0;
    for (int64_t k = 0; k < count; k++) {
        int64_t slot = slots[k];
        if (slot < 0) {
            (*left_out)++;
        } else if (tree->sums[slot] == -1.0 - (double)k) {
            double priority = priorities[k] + power->epsilon;
            tree->sums[slot] = tree_mass(power, priority);
            while (at > 0 && slot < ranges[at].start)
                at--;
            while (at + 1 < range_count && slot >= ranges[at].stop)
                at++;
            maxima[ranges[at].group] = greater(maxima[ranges[at].group], priority);
            room[changed++] = slot;
        }
    }
    refresh(tree, room, changed);
    return -1;
}

bool tree_draw(
    const sum_tree *tree, const slot_range *ranges, int64_t range_count, const double *uniforms, int64_t count,
    double beta, int64_t *slots, float *weights, double *rest, int64_t *levels, double *least) {
    int64_t nodes[MOST_COVER], top = 0, each = range_count ? count / range_count : 0;
    for (int64_t k = 0; k < range_count; k++) {
        double total, passed = 0.0;
        int64_t found = cover(tree, &ranges[k], nodes, &total, &least[k]), at = 0;
        if (!found)
            return false;
        int64_t level = level_of(tree, nodes[0]);
        for (int64_t j = k * each; j < (k + 1) * each; j++) {
            double share = ((double)(j - k * each) + uniforms[j]) * (total / (double)each);
            while (at + 1 < found && share - passed >= tree->sums[nodes[at]]) { /* shares ascend */
                passed += tree->sums[nodes[at++]];
                level = level_of(tree, nodes[at]);
            }
            rest[j] = greater(share - passed, 0.0);
            slots[j] = nodes[at] - tree->offsets[level];
            levels[j] = level;
            top = most_int(top, level);
        }
    }
    for (int64_t level = top; level > 0; level--) {
        for (int64_t k = 0; k < count; k++) {
            if (levels[k] < level)
                continue;
            int64_t first = tree->offsets[level - 1] + (slots[k] << FANOUT_SHIFT), chosen = first;
            double left = rest[k], after = left;
            for (int child = 0; child < FANOUT; child++) {
                after -= tree->sums[first + child]; /* below 0 from the chosen child on */
                left = after >= 0.0 ? after : left;
                chosen += after >= 0.0;
            }
            if (chosen == first + FANOUT) {
                chosen--;
                while (chosen > first && tree->sums[chosen] == 0.0)
                    chosen--;
                left = INFINITY;
            }
            slots[k] = chosen - tree->offsets[level - 1];
            rest[k] = left;
            if (level > 1)
                look_ahead(tree->sums + tree->offsets[level - 2] + (slots[k] << FANOUT_SHIFT));
        }
    }
    for (int64_t j = 0; j < each * range_count; j++)
        weights[j] = (float)pow(least[j / each] / tree->sums[slots[j]], beta);
    return true;
}
