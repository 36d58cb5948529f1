/* Draws from windows whose flags hold anything; the steps of sequences and the sums of rewards that ids show. */
#include "../draw.h"

#include "../returns.h"
#include "rings.h"

static input *source;
static uint64_t turned;

/* Bits of the input, and once these are used up, others that look random: a draw may ask for more. */
static uint32_t next_bits(void *state) {
    (void)state;
    turned = (turned + next_byte(source)) * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)(turned >> 32);
}

static double next_share(void *state) { return next_bits(state) / 4294967296.0; }

static bitgen_t bits = {.next_uint32 = next_bits, .next_double = next_share};

static int64_t stream_of(const draw_source *from, int64_t id) {
    int64_t stream = (id >> STREAM_SHIFT) / 2;
    check(id >= 0 && stream < from->count && from->streams[stream].number == id >> STREAM_SHIFT);
    int64_t row = local_of(id) / from->streams[stream].envs;
    check(row >= from->windows[stream].begin && row < from->streams[stream].end);
    return stream;
}

static void show_steps(const draw_source *from, const int64_t *ids, int64_t n) {
    int64_t *every = room(n * from->steps * 8), *place = room(n * from->steps * 8);
    uint8_t *mask = room(n * from->steps), *is_first = room(n * from->steps);
    int64_t count = draw_steps(from, ids, n, every, place, mask, is_first);
    check(count >= n && count <= n * from->steps);
    for (int64_t k = 0; k < count; k++) {
        stream_of(from, every[k]);
        check(place[k] < n * from->steps && (!k || place[k] > place[k - 1]) && mask[place[k]]);
    }
    free(every);
    free(place);
    free(mask);
    free(is_first);
}

static void show_returns(const draw_source *from, const int64_t *ids, int64_t n) {
    int64_t size = between(source, 0, 1) ? 4 : 8, *last = room(n * 8);
    const uint8_t *rewards[STREAMS];
    for (int64_t s = 0; s < from->count; s++)
        rewards[s] = keep(filled(source, from->streams[s].length * from->streams[s].envs * size));
    uint8_t *sums = room(n * size), *terminated = filled(source, n);
    float *discount = room(n * 4);
    returns_of(from, rewards, size, 0.99, ids, n, sums, last, discount);
    returns_end(discount, terminated, n);
    for (int64_t k = 0; k < n; k++) {
        check(stream_of(from, last[k]) == stream_of(from, ids[k]));
        check(last[k] >= ids[k] && (discount[k] == 0) == (terminated[k] != 0));
    }
    free(last);
    free(sums);
    free(terminated);
    free(discount);
}

static void draw_ranks(void) {
    int64_t count = between(source, 1, 8), n = between(source, 1, 9), *ranks = room(n * 8);
    double *masses = room(count * 8), *uniforms = room((n + 1) * 8), mass = 0;
    float *weights = room(n * 4);
    for (int64_t k = 0; k < count; k++)
        masses[k] = mass += between(source, 0, 255);
    for (int64_t k = 0; k <= n; k++)
        uniforms[k] = next_share(NULL);
    ranks_draw(uniforms, masses, count, between(source, 1, 9), n, -0.4, ranks, weights);
    for (int64_t k = 0; k < n; k++)
        check(ranks[k] >= 0 && ranks[k] < count && weights[k] >= 1);
    free(ranks);
    free(masses);
    free(uniforms);
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input from = {data, size};
    source = &from, turned = 0;
    rings of = rings_of(&from);
    draw_window windows[STREAMS];
    bool flagged = between(&from, 0, 1);
    for (int64_t s = 0; s < of.count; s++) {
        int64_t held = of.streams[s].length * of.streams[s].envs;
        windows[s] = (draw_window){
            .begin = between(&from, of.streams[s].floor, of.streams[s].end), .rows = of.streams[s].length,
            .invalid = flagged, .valid = keep(filled(&from, held)), .terminated = keep(filled(&from, held)),
            .truncated = keep(filled(&from, held))};
    }
    int64_t steps = between(&from, 0, 4), n = between(&from, 1, 9), *ids = keep(room(n * 8));
    draw_source all = {
        .streams = of.streams, .windows = windows, .count = of.count, .n_step = steps ? 1 : between(&from, 1, 5),
        .steps = steps, .needed = between(&from, 1, steps > 1 ? steps : 1), .stride = between(&from, 1, 3),
        .across = between(&from, 0, 1)};
    if (draw_held(&all) >= 2 && draw_any(&all)) {
        draw_uniform(&bits, &all, n, between(&from, 0, 3), between(&from, 0, 1), ids, keep(room((n + of.count) * 8)));
        for (int64_t k = 0; k < n; k++)
            check(draw_standing(&all, stream_of(&all, ids[k]), local_of(ids[k])) == NOW);
        check(draw_are_items(&all, ids, n));
        (steps ? show_steps : show_returns)(&all, ids, n);
    }
    forge_ids(&from, &of, n, ids);
    ids[0] = forged(&from, ids[0], ids[0]);
    if (draw_are_items(&all, ids, n))
        (steps ? show_steps : show_returns)(&all, ids, n);
    draw_ranks();
    free_kept();
    return 0;
}
