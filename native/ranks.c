#include "ranks.h"

/* Return a number from 1 to 2^31 - 1 that looks random. */
static int32_t height_of(int64_t id) {
    uint64_t mixed = (uint64_t)(id ^ (id >> 31)) * UINT64_C(0x7FB5D329728EA185);
    mixed = (mixed ^ ((mixed >> 27) & UINT64_C(0x1FFFFFFFFF))) * UINT64_C(0x01DADEF4BC2DD44D);
    return (int32_t)((mixed >> 32) & UINT64_C(0x7FFFFFFF)) | 1;
}

static inline bool precedes(double priority, int64_t id, const ranks_node *node) {
    return priority > node->priority || (priority == node->priority && id > node->id);
}

static void link(ranks_node *nodes, ranks_head *head, int64_t parent, bool leftwards, int64_t child) {
    if (parent == RANKS_NOTHING)
        head->root = child;
    else if (leftwards)
        nodes[parent].left = (int32_t)child;
    else
        nodes[parent].right = (int32_t)child;
}

static void insert(ranks_node *nodes, ranks_head *head, int64_t slot, int64_t id, double priority) {
    int32_t height = height_of(id);
    int64_t parent = RANKS_NOTHING, at = head->root;
    bool leftwards = false;
    while (at != RANKS_NOTHING && nodes[at].height >= height) {
        parent = at;
        leftwards = precedes(priority, id, &nodes[at]);
        if (leftwards)
            nodes[at].before++;
        at = leftwards ? nodes[at].left : nodes[at].right;
    }
    link(nodes, head, parent, leftwards, slot);
    int64_t split = at;
    int32_t before = 0;
    while (at != RANKS_NOTHING) {
        if (precedes(priority, id, &nodes[at])) {
            at = nodes[at].left;
        } else {
            before += nodes[at].before + 1;
            at = nodes[at].right;
        }
    }
    nodes[slot].priority = priority, nodes[slot].id = id;
    nodes[slot].height = height, nodes[slot].before = before;
    /* Each node on the path goes to the left spine of the new right subtree, or to the right spine of the new left. */
    int64_t low = slot, high = slot;
    at = split;
    while (at != RANKS_NOTHING) {
        if (precedes(priority, id, &nodes[at])) {
            nodes[at].before -= before; /* `before` nodes of its left subtree precede the new node */
            link(nodes, head, high, high != slot, at);
            high = at;
            at = nodes[at].left;
        } else {
            before -= nodes[at].before + 1;
            link(nodes, head, low, low == slot, at);
            low = at;
            at = nodes[at].right;
        }
    }
    link(nodes, head, low, low == slot, RANKS_NOTHING);
    link(nodes, head, high, high != slot, RANKS_NOTHING);
    head->count++;
}

static void take_out(ranks_node *nodes, ranks_head *head, int64_t slot) {
    double priority = nodes[slot].priority;
    int64_t id = nodes[slot].id, parent = RANKS_NOTHING, at = head->root;
    bool leftwards = false;
    while (at != slot) {
        parent = at;
        leftwards = precedes(priority, id, &nodes[at]);
        if (leftwards)
            nodes[at].before--;
        at = leftwards ? nodes[at].left : nodes[at].right;
    }
    int64_t low = nodes[slot].left, high = nodes[slot].right;
    int32_t before = nodes[slot].before;
    while (low != RANKS_NOTHING && high != RANKS_NOTHING) {
        if (nodes[low].height >= nodes[high].height) {
            link(nodes, head, parent, leftwards, low);
            before -= nodes[low].before + 1;
            parent = low, leftwards = false;
            low = nodes[low].right;
        } else {
            link(nodes, head, parent, leftwards, high);
            nodes[high].before += before; /* the rest of the left subtree comes before it */
            parent = high, leftwards = true;
            high = nodes[high].left;
        }
    }
    link(nodes, head, parent, leftwards, low == RANKS_NOTHING ? high : low);
    nodes[slot].height = 0;
    head->count--;
}

void ranks_insert(
    ranks_node *nodes, ranks_head *head, const int64_t *slots, const int64_t *ids, double priority, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        insert(nodes, head, slots[k], ids[k], priority);
}

void ranks_remove(ranks_node *nodes, ranks_head *head, const int64_t *slots, int64_t count) {
    for (int64_t k = 0; k < count; k++)
        if (nodes[slots[k]].height)
            take_out(nodes, head, slots[k]);
}

int64_t ranks_update(
    ranks_node *nodes, int64_t all, ranks_head *head, double *maxima, int64_t *left_out, const int64_t *slots,
    const double *priorities, int64_t count, double most) {
    for (int64_t k = 0; k < count; k++) {
        int64_t slot = slots[k];
        if (!(priorities[k] <= most) || slot < -1 || slot >= all || (slot >= 0 && !nodes[slot].height))
            return k;
    }
    for (int64_t k = 0; k < count; k++) {
        int64_t slot = slots[k];
        if (slot >= 0 && nodes[slot].priority != priorities[k]) {
            take_out(nodes, head, slot);
            insert(nodes, head, slot, nodes[slot].id, priorities[k]);
        }
    }
    for (int64_t k = 0; k < count; k++) {
        if (slots[k] < 0)
            (*left_out)++;
        else if (nodes[slots[k]].priority == priorities[k] && priorities[k] > *maxima) /* the last for its slot */
            *maxima = priorities[k];
    }
    return -1;
}

void ranks_select(
    const ranks_node *nodes, const ranks_head *head, const int64_t *ranks, int64_t count, int64_t *slots) {
    for (int64_t k = 0; k < count; k++) {
        int64_t rank = ranks[k], at = head->root;
        while (rank != nodes[at].before) {
            if (rank < nodes[at].before) {
                at = nodes[at].left;
            } else {
                rank -= nodes[at].before + 1;
                at = nodes[at].right;
            }
        }
        slots[k] = at;
    }
}

void ranks_find(const ranks_node *nodes, const ranks_head *head, const int64_t *slots, int64_t count, int64_t *ranks) {
    for (int64_t k = 0; k < count; k++) {
        int64_t slot = slots[k];
        if (!nodes[slot].height) {
            ranks[k] = RANKS_NOTHING;
            continue;
        }
        int64_t rank = nodes[slot].before, at = head->root;
        while (at != slot) {
            if (precedes(nodes[slot].priority, nodes[slot].id, &nodes[at])) {
                at = nodes[at].left;
            } else {
                rank += nodes[at].before + 1;
                at = nodes[at].right;
            }
        }
        ranks[k] = rank;
    }
}

void ranks_build(ranks_node *nodes, ranks_head *head, const int64_t *slots, int64_t count, int64_t *path) {
    int64_t depth = 0; /* of the right spine: from the root down, as positions in `slots` */
    for (int64_t k = 0; k < count; k++) {
        ranks_node *node = &nodes[slots[k]];
        node->height = height_of(node->id);
        int64_t below = RANKS_NOTHING;
        while (depth && nodes[slots[path[depth - 1]]].height < node->height)
            below = slots[path[--depth]];
        node->left = (int32_t)below, node->right = RANKS_NOTHING;
        node->before = (int32_t)(k - (depth ? path[depth - 1] + 1 : 0));
        link(nodes, head, depth ? slots[path[depth - 1]] : RANKS_NOTHING, false, slots[k]);
        path[depth++] = k;
    }
    if (!count)
        head->root = RANKS_NOTHING;
    head->count = count;
}
