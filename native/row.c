#include "row.h"

#include <math.h>

#include "memory.h"

static uint8_t *place_of(const row_column *of, int64_t row) { return of->buffer + row % of->chunk_rows * of->row_step; }

bool row_goes_on(const row_column *columns, int64_t leaves, int64_t row) {
    for (int64_t c = 0; c < leaves; c++) {
        const row_column *of = &columns[c];
        const uint8_t *pending = place_of(of, row);
        for (int64_t p = 0; p < of->parts; p++)
            if (memcmp(of->given + p * of->part, pending + p * of->part_step, (size_t)of->part))
                return false;
    }
    return true;
}

static void write_value(const row_column *of, const uint8_t *value, int64_t row, int64_t length) {
    if (of->buffer)
        for (int64_t p = 0; p < of->parts; p++)
            copy_value(place_of(of, row) + p * of->part_step, value + p * of->part, of->part);
    if (of->ring)
        copy_value(of->ring + row % length * of->part * of->parts, value, of->part * of->parts);
}

/* The bytes of one environment's value. */
static int64_t size_of(const row_column *of, int64_t envs) { return of->part / (envs / of->parts); }

/* Where the value of an environment stands in a row of the write buffer. */
static const uint8_t *value_at(const row_column *of, int64_t row, int64_t env, int64_t envs) {
    int64_t together = envs / of->parts;
    return place_of(of, row) + env / together * of->part_step + env % together * size_of(of, envs);
}

static bool is_unlike(const row_break *of, const row_column *columns, int64_t leaves, int64_t env) {
    for (int64_t c = 0; c < leaves; c++) {
        int64_t size = size_of(&columns[c], of->envs);
        if (memcmp(columns[c].given + env * size, value_at(&columns[c], of->row, env, of->envs), (size_t)size))
            return true;
    }
    return false;
}

void row_breaks(row_break *of, const row_column *columns, int64_t leaves) {
    of->differing = of->episodes = of->cuts = 0;
    for (int64_t e = 0; e < of->envs; e++) {
        bool unlike = is_unlike(of, columns, leaves, e), goes_on = of->by_flags || !unlike;
        bool free = of->valid[e] && !of->ended[e] && !(of->cut && of->cut[e]), begins = !(free && goes_on);
        of->unlike[e] = unlike;
        of->begins[e] = begins;
        of->differing += unlike && !begins;
        of->episodes += begins && of->valid[e];
        of->cuts += free && !goes_on;
    }
}

static bool moves(const row_column *columns, int64_t leaves, int64_t env, int64_t envs) {
    for (int64_t c = 0; c < leaves; c++) {
        int64_t size = size_of(&columns[c], envs);
        if (memcmp(columns[c].given + env * size, columns[c].following + env * size, (size_t)size))
            return true;
    }
    return false;
}

static bool is_zero(const uint8_t *numbers, int64_t at, int64_t bytes) {
    return bytes == 4 ? ((const float *)numbers)[at] == 0 : ((const double *)numbers)[at] == 0;
}

void row_watch(const row_break *of, const row_column *columns, int64_t leaves, const row_column *rewards,
               const row_column *terminated, const row_column *truncated, int64_t earlier, row_signs *signs) {
    int64_t before = (of->row - 1) % of->length * of->envs, bytes = size_of(rewards, of->envs);
    for (int64_t e = 0; e < of->envs; e++) {
        bool ended = terminated->ring[before + e] || truncated->ring[before + e];
        if (!of->begins[e] || !of->valid[e] || !ended)
            continue;
        if (of->unlike[e]) {
            signs->ends++;
        } else if (moves(columns, leaves, e, of->envs)) {
            signs->ends++;
            signs->unmoved++;
            signs->empty += is_zero(rewards->given, e, bytes);
            signs->earning += !is_zero(rewards->ring, earlier % of->length * of->envs + e, bytes);
        }
    }
}

int64_t row_patch(const row_break *of, const row_column *columns, int64_t leaves, const row_column *patches,
                  int64_t first, int64_t room, int64_t *known) {
    int64_t number = first;
    for (int64_t e = 0; e < of->envs; e++) {
        if (!of->unlike[e] || known[e] >= 0)
            continue;
        if (patches) {
            int64_t place[3] = {of->row - 1, e, 1};
            write_value(&patches[0], (const uint8_t *)place, number, room);
            for (int64_t c = 0; c < leaves; c++)
                write_value(&patches[1 + c], value_at(&columns[c], of->row, e, of->envs), number, room);
            known[e] = number;
        }
        number++;
    }
    return number - first;
}

void row_write(const row_column *columns, int64_t count, int64_t leaves, int64_t row, int64_t length, bool in_place,
               bool last) {
    for (int64_t c = 0; c < count; c++)
        if (c >= leaves || !in_place)
            write_value(&columns[c], columns[c].given, row, length);
    for (int64_t c = 0; c < leaves && !last; c++)
        write_value(&columns[c], columns[c].following, row + 1, length);
}

bool row_finite(const void *numbers, int64_t count, int64_t bytes) {
    for (int64_t k = 0; bytes == 2 && k < count; k++)
        if ((((const uint16_t *)numbers)[k] & 0x7C00) == 0x7C00)
            return false;
    for (int64_t k = 0; bytes > 2 && k < count; k++)
        if (!isfinite(bytes == 4 ? ((const float *)numbers)[k] : ((const double *)numbers)[k]))
            return false;
    return true;
}

static uint64_t unsigned_at(const uint8_t *at, int64_t bytes) {
    switch (bytes) {
    case 1: return *at;
    case 2: return uint16_at(at);
    case 4: return uint32_at(at);
    default: return uint64_at(at);
    }
}

bool row_within(const uint8_t *numbers, const uint8_t *most, int64_t count, int64_t bytes) {
    for (int64_t at = 0; at < count * bytes; at += bytes)
        if (unsigned_at(numbers + at, bytes) > unsigned_at(most + at, bytes))
            return false;
    return true;
}

void row_round(const double *numbers, int64_t count, float *rounded) {
    for (int64_t k = 0; k < count; k++)
        rounded[k] = (float)numbers[k];
}
