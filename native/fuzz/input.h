/* What a target makes of the bytes that libFuzzer gives it. */
#ifndef DISKREPLAY_FUZZ_INPUT_H
#define DISKREPLAY_FUZZ_INPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const uint8_t *at;
    size_t left;
} input;

/* Return the next byte, 0 once all are used up. */
static inline uint8_t next_byte(input *from) {
    if (!from->left)
        return 0;
    from->left--;
    return *from->at++;
}

/* Return a number from `low` to `high`, which are less than 256 apart. */
static inline int64_t between(input *from, int64_t low, int64_t high) {
    return low + next_byte(from) % (high - low + 1);
}

/* Return a number that is now and then any of all, and else one from `low - 1` to `high + 1`. */
static inline int64_t forged(input *from, int64_t low, int64_t high) {
    if (next_byte(from) < 250)
        return between(from, low - 1, high + 1);
    uint64_t any = 0;
    for (int byte = 0; byte < 8; byte++)
        any = any << 8 | next_byte(from);
    return (int64_t)any;
}

/* Return memory of just so many bytes, all 0: what reads or writes beside it is found. The caller frees it. */
static inline void *room(int64_t size) { return calloc(1, (size_t)size); }

/* Return such memory with the next bytes in it. */
static inline uint8_t *filled(input *from, int64_t size) {
    uint8_t *made = room(size);
    for (int64_t byte = 0; byte < size; byte++)
        made[byte] = next_byte(from);
    return made;
}

/* Return such memory with `count` forged numbers in it. */
static inline int64_t *forged_numbers(input *from, int64_t count, int64_t low, int64_t high) {
    int64_t *made = room(count * 8);
    for (int64_t k = 0; k < count; k++)
        made[k] = forged(from, low, high);
    return made;
}

/* End the process with a stack, where something does not hold. */
static inline void check(bool holds) {
    if (!holds)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
