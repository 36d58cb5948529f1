#include "draw.h"

#include <math.h>

#include "ids.h"
#include "memory.h"

static int64_t position_of(const plan_stream *of, int64_t row, int64_t env) {
    return row % of->length * of->envs + env;
}

bool draw_is_cut(const draw_source *from, int64_t stream, int64_t row, int64_t env) {
    const plan_stream *of = &from->streams[stream];
    const draw_window *window = &from->windows[stream];
    int64_t at = position_of(of, row, env);
    if (window->terminated[at] || window->truncated[at])
        return true;
    return row + 1 < of->end && of->starts[position_of(of, row + 1, env)] != CONTINUES;
}

/* Return how many steps a sequence has that begins at a row, at most `most`; `*over`: whether it can get no more. */
static int64_t length_of(
    const draw_source *from, int64_t stream, int64_t row, int64_t env, int64_t most, bool *over) {
    const plan_stream *of = &from->streams[stream];
    for (int64_t steps = 1;; steps++, row++) {
        *over = !from->across
            && (draw_is_cut(from, stream, row, env) || !from->windows[stream].valid[position_of(of, row, env)]);
        if (steps >= most || *over || row + 1 >= of->end)
            return steps;
    }
}

static int standing_of_sequence(const draw_source *from, int64_t stream, int64_t row, int64_t env) {
    const plan_stream *of = &from->streams[stream];
    int64_t at = position_of(of, row, env);
    bool begins = row % from->stride == 0 || (!from->across && of->starts[at] != CONTINUES), over;
    if (!begins || !from->windows[stream].valid[at])
        return NEVER;
    if (length_of(from, stream, row, env, from->needed, &over) >= from->needed)
        return NOW;
    return over ? NEVER : LATER;
}

int64_t draw_steps(
    const draw_source *from, const int64_t *ids, int64_t n, int64_t *every, int64_t *place, uint8_t *mask,
    uint8_t *is_first) {
    int64_t found = 0, stream = 0;
    bool over;
    memset(mask, 0, (size_t)(n * from->steps));
    memset(is_first, 0, (size_t)(n * from->steps));
    for (int64_t k = 0; k < n; k++) {
        while (from->streams[stream].number != ids[k] >> STREAM_SHIFT)
            stream = stream + 1 < from->count ? stream + 1 : 0;
        const plan_stream *of = &from->streams[stream];
        int64_t row = local_of(ids[k]) / of->envs, env = local_of(ids[k]) % of->envs;
        int64_t length = length_of(from, stream, row, env, from->steps, &over);
        for (int64_t step = 0; step < length; step++) {
            int64_t at = position_of(of, row + step, env), to = k * from->steps + step;
            if (!from->windows[stream].valid[at])
                continue;
            mask[to] = 1, is_first[to] = of->starts[at] != CONTINUES;
            every[found] = ids[k] + step * of->envs, place[found++] = to;
        }
    }
    return found;
}

int draw_standing(const draw_source *from, int64_t stream, int64_t local) {
    const plan_stream *of = &from->streams[stream];
    const draw_window *window = &from->windows[stream];
    int64_t row = local / of->envs, env = local % of->envs;
    if (from->steps)
        return standing_of_sequence(from, stream, row, env);
    if (window->invalid && !window->valid[position_of(of, row, env)])
        return NEVER;
    if (row + from->n_step <= of->end)
        return NOW;
    for (; row < of->end; row++)
        if (draw_is_cut(from, stream, row, env))
            return NOW;
    return LATER;
}

static int64_t held_of(const draw_source *from, int64_t stream) {
    return (from->streams[stream].end - from->windows[stream].begin) * from->streams[stream].envs;
}

int64_t draw_held(const draw_source *from) {
    int64_t held = 0;
    for (int64_t stream = 0; stream < from->count; stream++)
        held += held_of(from, stream);
    return held;
}

/* Tell whether all ids of the windows are transitions. */
static bool are_all(const draw_source *from) {
    for (int64_t stream = 0; stream < from->count; stream++)
        if (from->windows[stream].invalid)
            return false;
    return from->n_step == 1 && !from->steps;
}

/* Return how many transitions there are, but no more than `most`. */
static int64_t counted(const draw_source *from, int64_t most) {
    int64_t found = 0;
    for (int64_t stream = 0; stream < from->count; stream++) {
        int64_t first = from->windows[stream].begin * from->streams[stream].envs;
        for (int64_t k = held_of(from, stream) - 1; k >= 0 && found < most; k--)
            found += draw_standing(from, stream, first + k) == NOW;
    }
    return found;
}

bool draw_any(const draw_source *from) { return are_all(from) ? draw_held(from) > 0 : counted(from, 1) > 0; }

bool draw_are_items(const draw_source *from, const int64_t *ids, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        int64_t stream = plan_stream_at(from->streams, from->count, ids[k] >> STREAM_SHIFT), local = local_of(ids[k]);
        if (stream < 0)
            return false;
        int64_t row = local / from->streams[stream].envs;
        if (row < from->windows[stream].begin || row >= from->streams[stream].end)
            return false;
        if (draw_standing(from, stream, local) != NOW)
            return false;
    }
    return true;
}

/* Turn a number below draw_held() into an id; `ends` says where each stream's numbers end. Return its standing. */
static int place(const draw_source *from, const int64_t *ends, int64_t *picked) {
    int64_t low = 0;
    for (int64_t left = from->count; left > 1;) { /* without a branch on what is drawn, which no processor foresees */
        int64_t half = left / 2;
        low += ends[low + half - 1] <= *picked ? half : 0;
        left -= half;
    }
    int64_t first = from->windows[low].begin * from->streams[low].envs, before = low ? ends[low - 1] : 0;
    int64_t local = first + *picked - before;
    *picked = (from->streams[low].number << STREAM_SHIFT) + local;
    return draw_standing(from, low, local);
}

/* Sort positions by the numbers there. */
static void sort(int64_t *order, const int64_t *numbers, int64_t count) {
    int64_t gap = 1;
    while (gap < count / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) {
        for (int64_t at = gap; at < count; at++) {
            int64_t one = order[at], to = at;
            for (; to >= gap && numbers[order[to - gap]] > numbers[one]; to -= gap)
                order[to] = order[to - gap];
            order[to] = one;
        }
    }
}

/* Write ids drawn from all transitions, in one walk over the windows. */
static void draw_listed(
    bitgen_t *bits, const draw_source *from, int64_t count, bool by_share, int64_t *ids, int64_t *order) {
    int64_t all = counted(from, INT64_MAX), at = 0, rank = 0;
    for (int64_t k = 0; k < count; k++) {
        order[k] = k, ids[k] = 0;
        if (by_share)
            ids[k] = least_int((int64_t)(bits->next_double(bits->state) * (double)all), all - 1);
    }
    if (!by_share && all > 1)
        integers_draw(bits, 0, all - 1, count, ids);
    sort(order, ids, count);
    for (int64_t stream = 0; stream < from->count; stream++) {
        int64_t first = from->windows[stream].begin * from->streams[stream].envs, stop = first + held_of(from, stream);
        for (int64_t local = first; local < stop && at < count; local++) {
            if (draw_standing(from, stream, local) != NOW)
                continue;
            for (; at < count && ids[order[at]] == rank; at++)
                ids[order[at]] = (from->streams[stream].number << STREAM_SHIFT) + local;
            rank++;
        }
    }
}

void draw_uniform(
    bitgen_t *bits, const draw_source *from, int64_t size, double most_share, bool by_share, int64_t *ids,
    int64_t *room) {
    int64_t *ends = room, held = 0, found = 0;
    for (int64_t stream = 0; stream < from->count; stream++)
        ends[stream] = held += held_of(from, stream);
    integers_draw(bits, 0, held - 1, size, ids);
    for (int64_t k = 0; k < size; k++) {
        int64_t id = ids[k];
        int standing = place(from, ends, &id);
        ids[found] = id;
        found += standing == NOW;
    }
    int64_t drawn = size, most = (int64_t)(most_share * (double)held);
    while (found < size && drawn < most) {
        int64_t missing = size - found;
        int64_t more = least_int(missing + missing * drawn / most_int(1, found), most - drawn);
        drawn += more;
        for (int64_t k = 0; k < more; k++) {
            int64_t id;
            integers_draw(bits, 0, held - 1, 1, &id);
            if (place(from, ends, &id) == NOW && found < size)
                ids[found++] = id;
        }
    }
    if (found < size)
        draw_listed(bits, from, size - found, by_share, ids + found, room + from->count);
}

void ranks_draw(
    const double *uniforms, const double *masses, int64_t count, int64_t parts, int64_t size, double exponent,
    int64_t *ranks, float *weights) {
    double shift = size % parts ? *uniforms++ : 0.0;
    for (int64_t k = 0; k < size; k++) {
        int64_t part = k;
        if (size != parts)
            part = least_int((int64_t)(((double)k + shift) * (double)parts / (double)size), parts - 1);
        double share = ((double)part + uniforms[k]) / (double)parts * masses[count - 1];
        int64_t low = 0, high = count;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (masses[middle] <= share)
                low = middle + 1;
            else
                high = middle;
        }
        ranks[k] = least_int(low, count - 1);
        weights[k] = (float)pow((double)(ranks[k] + 1) / (double)count, exponent);
    }
}
