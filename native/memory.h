/* What several kernels need: numbers at addresses that need no alignment, and hints to the processor. */
#ifndef DISKREPLAY_MEMORY_H
#define DISKREPLAY_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline int64_t least_int(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most_int(int64_t a, int64_t b) { return a > b ? a : b; }

/* The format's numbers are little-endian, as are all processors on which the module is built. */
static inline uint16_t uint16_at(const uint8_t *at) {
    uint16_t found;
    memcpy(&found, at, sizeof found);
    return found;
}

static inline uint32_t uint32_at(const uint8_t *at) {
    uint32_t found;
    memcpy(&found, at, sizeof found);
    return found;
}

static inline uint64_t uint64_at(const uint8_t *at) {
    uint64_t found;
    memcpy(&found, at, sizeof found);
    return found;
}

/* Tell the processor that memory will be read; the address may be any. */
static inline void look_ahead(const void *address) { __builtin_prefetch(address, 0, 3); }

/* Copy a value: the sizes that columns often have become a few instructions, without a call. */
static inline void copy_value(void *target, const void *source, int64_t size) {
    switch (size) {
    case 1: memcpy(target, source, 1); break;
    case 4: memcpy(target, source, 4); break;
    case 8: memcpy(target, source, 8); break;
    case 16: memcpy(target, source, 16); break;
    default: memcpy(target, source, (size_t)size);
    }
}

#endif
