/* Exact ranks of many priorities. A query or a change takes O(log n) expected steps.
 *
 * 1. Entries stand in a binary search tree, the largest priority first. Of equal priorities the larger id comes first;
 *    in one stream this is the newer one. So no two entries have the same rank.
 * 2. The tree is a treap: each node has a random number, here a hash of its id, and no parent's number is smaller than
 *    its child's. So the expected depth is logarithmic, whatever the priorities are and in whatever order they come.
 * 3. Each node counts the nodes in its left subtree. With these counts a walk down from the root finds the k-th entry.
 * 4. To insert a node, go down to where its random number belongs, and split the subtree there into the nodes before
 *    and the nodes after the new one. To remove a node, join its two subtrees. Both change counts only along one path.
 * 5. Each entry has a slot. Its node stands at that position of one array, so inserting allocates nothing. A node has
 *    32 bytes, half a cache line.
 * 6. An empty tree gets its entries all at once, which takes linear time after they were sorted.
 *
 * Callers check that slots lie in the array.
 */
#ifndef DISKREPLAY_RANKS_H
#define DISKREPLAY_RANKS_H

#include <stdbool.h>
#include <stdint.h>

enum { RANKS_NOTHING = -1 };

/* before: the number of nodes in the left subtree. height: the random number; 0 for a slot without an entry. */
typedef struct {
    double priority;
    int64_t id;
    int32_t left, right, before, height;
} ranks_node;

typedef struct {
    int64_t root, count;
} ranks_head;

/* Add entries of one priority at slots that have none. */
void ranks_insert(
    ranks_node *nodes, ranks_head *head, const int64_t *slots, const int64_t *ids, double priority, int64_t count);

/* Remove the entries at slots; skip the slots without one. */
void ranks_remove(ranks_node *nodes, ranks_head *head, const int64_t *slots, int64_t count);

/* Change the priorities of entries; if a slot is named twice, its last priority counts.
 *
 * slots, priorities: of each entry; -1, which is evicted, is skipped, and counted in `left_out`. maxima: is raised to
 * the largest priority that is set. Return -1, or with nothing changed the position of the first bad entry: its
 * priority is NaN or above `most`, or its slot is unknown or has no entry. */
int64_t ranks_update(
    ranks_node *nodes, int64_t all, ranks_head *head, double *maxima, int64_t *left_out, const int64_t *slots,
    const double *priorities, int64_t count, double most);

/* Write the slots of the entries with these ranks, which count from 0 and are below the number of entries. */
void ranks_select(const ranks_node *nodes, const ranks_head *head, const int64_t *ranks, int64_t count, int64_t *slots);

/* Write the ranks of the entries at slots, or -1 for a slot without one. */
void ranks_find(const ranks_node *nodes, const ranks_head *head, const int64_t *slots, int64_t count, int64_t *ranks);

/* Build the tree of all entries; `slots` has their slots in the order of ranks, and `path` is room for as many. */
void ranks_build(ranks_node *nodes, ranks_head *head, const int64_t *slots, int64_t count, int64_t *path);

#endif
