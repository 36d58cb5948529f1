#include "runs.h"

#include "memory.h"

enum {
    RUN = 8,            /* the bytes that differ */
    SKIPPED = 2,        /* those of the number before them */
    MOST_SKIPPED = 0xFFFF
};

bool target_holds(const batch_target *target) {
    return target->row_bytes > 0 && target->width >= target->row_bytes && target->chunk_rows >= 0
        && target->chunk_rows <= INT64_MAX / target->row_bytes;
}

/* Return how many steps the run of a piece has. */
static int64_t steps_of(const batch_piece *piece, const batch_target *target) {
    return piece->places - 1 + target->width / target->row_bytes + (target->following != NULL);
}

bool piece_fits(const batch_piece *piece, const batch_target *target) {
    if (piece->place < 0 || piece->places < 1 || piece->places > target->places - piece->place || piece->step < 0
        || piece->row < 0 || piece->rows < 1)
        return false;
    return piece->rows <= steps_of(piece, target) - piece->step && piece->rows <= target->chunk_rows - piece->row;
}

/* Return how many rows of a piece only `following` has: its last one, if that is the last step of all. */
static int64_t in_following_alone(const batch_piece *piece, const batch_target *target) {
    return target->following && piece->step + piece->rows == steps_of(piece, target);
}

void piece_put(const batch_piece *piece, const uint8_t *values, const batch_target *target) {
    int64_t size = target->row_bytes, step = piece->step, rows = piece->rows;
    int64_t start = piece->place * target->width, there = rows - in_following_alone(piece, target);
    if (there > 0)
        copy_value(target->out + start + step * size, values, there * size);
    if (target->following) {
        int64_t skipped = step == 0;
        if (rows > skipped)
            copy_value(
                target->following + start + (step + skipped - 1) * size, values + skipped * size,
                (rows - skipped) * size);
    }
}

/* ---- Out of the cache ---- */

/* Write one row from a block of runs; return false if the block is not valid. */
static bool unpack(const cache_slot *of, int64_t row, int64_t rows, int64_t row_bytes, uint8_t *to) {
    int64_t first = 4 * (rows + 1), place = 0;
    if (of->size < first)
        return false;
    int64_t at = uint32_at(of->block + 4 * row), end = uint32_at(of->block + 4 * row + 4);
    if (at < first || end < at || end > of->size)
        return false;
    memcpy(to, of->key, (size_t)row_bytes);
    for (; at + SKIPPED + RUN <= end; at += SKIPPED + RUN) {
        place += uint16_at(of->block + at);
        if (place > row_bytes - RUN)
            return false;
        memcpy(to + place, of->block + at + SKIPPED, RUN);
    }
    return at == end;
}

static bool take_packed(const cache_slot *of, const batch_piece *piece, const batch_target *target) {
    int64_t size = target->row_bytes, start = piece->place * target->width;
    int64_t there = piece->rows - in_following_alone(piece, target);
    for (int64_t row = 0; row < piece->rows; row++) {
        int64_t step = piece->step + row;
        uint8_t *after = target->following ? target->following + start + (step - 1) * size : NULL;
        uint8_t *to = row < there ? target->out + start + step * size : after;
        if (!unpack(of, piece->row + row, target->chunk_rows, size, to))
            return false;
        if (after && step > 0 && row < there)
            memcpy(after, to, (size_t)size);
    }
    return true;
}

int64_t runs_take(
    const cache_slab *slabs, int64_t slab_count, const batch_piece *pieces, int64_t begin, int64_t end,
    const batch_target *target, int64_t *packed) {
    if (!target_holds(target))
        return begin;
    for (int64_t at = begin; at < end; at++) {
        const batch_piece *piece = &pieces[at];
        int64_t slab = piece->stream, slot = piece->slot;
        if (slab < 0 || slab >= slab_count || slot < 0 || slot >= slabs[slab].count || !piece_fits(piece, target))
            return at;
        const cache_slot *of = &slabs[slab].slots[slot];
        if (of->key) {
            if (!take_packed(of, piece, target))
                return at;
            (*packed)++;
        } else {
            if (of->size != target->chunk_rows * target->row_bytes)
                return at;
            piece_put(piece, of->block + piece->row * target->row_bytes, target);
        }
    }
    return end;
}

/* ---- Into the cache ---- */

void runs_majority(const uint8_t *rows, int64_t count, int64_t width, uint8_t *key, int32_t *votes) {
    for (int64_t row = 0; row < count; row++, rows += width) {
        for (int64_t at = 0; at < width; at++) {
            int32_t lead = votes[at];
            uint8_t one = rows[at], other = key[at];
            key[at] = lead == 0 ? one : other;
            votes[at] = lead == 0 || one == other ? lead + 1 : lead - 1;
        }
    }
}

static void write_uint16(uint8_t *to, int64_t value) {
    uint16_t narrow = (uint16_t)value;
    memcpy(to, &narrow, sizeof narrow);
}

static void write_uint32(uint8_t *to, int64_t value) {
    uint32_t narrow = (uint32_t)value;
    memcpy(to, &narrow, sizeof narrow);
}

/* Return the first byte from `place` on in which a row differs from the key, or `width`. */
static int64_t differs(const uint8_t *row, const uint8_t *key, int64_t place, int64_t width) {
    while (place + 8 <= width && uint64_at(row + place) == uint64_at(key + place))
        place += 8;
    while (place < width && row[place] == key[place])
        place++;
    return place;
}

int64_t runs_pack(
    const uint8_t *rows, int64_t count, int64_t width, const uint8_t *key, uint8_t *block, int64_t room) {
    int64_t at = 4 * (count + 1);
    if (at > room || width < RUN)
        return 0;
    for (int64_t k = 0; k < count; k++, rows += width) {
        write_uint32(block + 4 * k, at);
        int64_t before = 0, place = 0;
        while ((place = differs(rows, key, place, width)) < width) {
            /* A run that begins nearer may have no bytes that differ; the last one ends with the row. */
            place = least_int(least_int(place, width - RUN), before + MOST_SKIPPED);
            if (room - at < SKIPPED + RUN)
                return 0;
            write_uint16(block + at, place - before);
            memcpy(block + at + SKIPPED, rows + place, RUN);
            at += SKIPPED + RUN;
            before = place;
            place += RUN;
        }
    }
    write_uint32(block + 4 * count, at);
    return at;
}
