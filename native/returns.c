#include "returns.h"

#include "ids.h"
#include "memory.h"

static double reward_at(const plan_stream *of, const uint8_t *rewards, int64_t size, int64_t row, int64_t env) {
    const uint8_t *value = rewards + (row % of->length * of->envs + env) * size;
    double wide;
    float single;
    if (size == sizeof wide) {
        memcpy(&wide, value, sizeof wide);
        return wide;
    }
    memcpy(&single, value, sizeof single);
    return single;
}

void returns_of(
    const draw_source *from, const uint8_t *const *rewards, int64_t size, double gamma, const int64_t *ids, int64_t n,
    uint8_t *sums, int64_t *last, float *discount) {
    int64_t stream = 0;
    for (int64_t k = 0; k < n; k++) {
        while (from->streams[stream].number != ids[k] >> STREAM_SHIFT)
            stream = stream + 1 < from->count ? stream + 1 : 0;
        const plan_stream *of = &from->streams[stream];
        int64_t local = local_of(ids[k]), row = local / of->envs, env = local % of->envs;
        double sum = reward_at(of, rewards[stream], size, row, env), scale = gamma;
        for (int64_t step = 1; step < from->n_step && row + 1 < of->end; step++) {
            if (draw_is_cut(from, stream, row, env))
                break;
            row++;
            sum += scale * reward_at(of, rewards[stream], size, row, env);
            scale *= gamma;
        }
        float single = (float)sum;
        memcpy(sums + k * size, size == sizeof sum ? (void *)&sum : (void *)&single, (size_t)size);
        last[k] = (of->number << STREAM_SHIFT) + row * of->envs + env;
        discount[k] = (float)scale;
    }
}

void returns_end(float *discount, const uint8_t *terminated, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        if (terminated[k])
            discount[k] = 0.0f;
}
