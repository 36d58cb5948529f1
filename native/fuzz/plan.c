/* Batches planned over forged rings: what stands in a ring may come from a file, its address and length do not. */
#include "rings.h"

/* Check that each piece lies in its chunk, and in a file or slot that there is. */
static void check_pieces(const plan_found *found, const plan_column *rows, const plan_column *patches, int64_t n) {
    check(found->count <= found->most && found->ends[2 * KINDS - 1] == found->count && found->short_count <= n);
    for (int64_t k = 0, kind = 0; k < found->count; k++) {
        while (k >= found->ends[kind])
            kind++;
        const batch_piece *piece = &found->pieces[k];
        const plan_column *of = (kind < KINDS ? rows : patches) + piece->stream;
        check(piece->kind == kind && piece->place >= 0 && piece->place < n && piece->step >= 0 && piece->rows > 0);
        check(piece->places > 0 && piece->place + piece->places <= n + (found->runs == ONE_MORE));
        check(piece->row >= 0 && piece->row + piece->rows <= of->chunk_rows * of->chunk_envs);
        check(piece->group >= 0 && piece->group < of->groups);
        if (kind % KINDS == ON_DISK) {
            int64_t files = kind < KINDS ? found->frames_files : found->file_count - found->frames_files;
            check(piece->offset < 0 || (piece->chunk >= of->first_chunk && piece->chunk < of->stop_chunk));
            check(piece->slot >= 0 && piece->slot < files);
        } else if (kind % KINDS == CACHED) {
            check(piece->slot >= 0 && piece->slot < (of->is_ring ? 1 : of->held));
        } else {
            check(piece->chunk >= of->in_ram);
        }
    }
}

/* Return room for what is found of `n` rows. */
static plan_found room_of(int64_t most, int64_t n) {
    check(most >= 0 && most < 1000);
    return (plan_found){
        .most = most, .unordered = room(most * (int64_t)sizeof(batch_piece)),
        .pieces = room(most * (int64_t)sizeof(batch_piece)), .order = room(most * 8),
        .files = room(2 * most * 8), .short_rows = room(2 * n * 8),
    };
}

static void free_found(plan_found *found) {
    free(found->unordered);
    free(found->pieces);
    free(found->order);
    free(found->files);
    free(found->short_rows);
}

static void plan(
    input *from, const plan_stream *streams, const plan_column *rows, const plan_column *patches, int64_t count,
    const int64_t *ids, const int64_t *place, int64_t n) {
    static const int64_t rising[] = {0, 1, 2, 3};
    int64_t first_step = between(from, -3, 1), last_step = first_step == 1 ? 1 : between(from, 0, 1);
    plan_found found = room_of(plan_most(rows, count, n, first_step, last_step), n);
    found.runs = first_step < 0 ? NO_RUNS : between(from, NO_RUNS, first_step < last_step ? ONE_MORE : ONE_PLACE_EACH);
    if (found.runs)
        place = rising;
    if (plan_frames(streams, rows, patches, count, ids, place, n, first_step, last_step, &found))
        check_pieces(&found, rows, patches, n);
    free_found(&found);
}

/* Plan runs of rows of the first stream. */
static void plan_run(input *from, const plan_column *rows, const int64_t *place, int64_t n) {
    int64_t env[4], first[4], last[4], base[4];
    for (int64_t k = 0; k < n; k++) {
        env[k] = forged(from, 0, rows->groups * rows->chunk_envs - 1);
        first[k] = forged(from, 0, 20);
        last[k] = first[k] >= 0 && first[k] < 100 ? first[k] + between(from, -1, 9) : forged(from, 0, 20);
        base[k] = forged(from, -5, 20);
    }
    plan_runs runs = {place, env, first, last, base, n};
    int64_t most = plan_most_of(rows, &runs);
    if (most < 0 || most >= 1000)
        return;
    plan_found found = room_of(most, 0);
    plan_rows(rows, 0, &runs, &found);
    free_found(&found);
}

/* Copy two columns of RAM, an own and a following value of three bytes each. */
static void gather(
    input *from, const plan_stream *streams, int64_t count, const int64_t *ids, const int64_t *place, int64_t n) {
    const uint8_t *arrays[2 * STREAMS], *patches[2 * STREAMS];
    for (int64_t s = 0; s < count; s++)
        for (int column = 0; column < 2; column++) {
            arrays[2 * s + column] = keep(filled(from, 3 * streams[s].length * streams[s].envs));
            patches[2 * s + column] = keep(filled(from, 3 * streams[s].patch_length));
        }
    const int64_t sizes[] = {3, 3};
    const uint8_t following[] = {0, 1};
    plan_columns columns = {2, arrays, patches, sizes, following};
    uint8_t *out[] = {room(3 * n), room(3 * n)};
    int64_t *numbers = room(2 * n * 8);
    gather_columns(streams, count, &columns, ids, NULL, n, place, out, numbers);
    free(out[0]);
    free(out[1]);
    free(numbers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input from = {data, size};
    rings of = rings_of(&from);
    int64_t n = between(&from, 1, 4), ids[4], place[] = {n - 1, n - 2, n - 3, n - 4};
    forge_ids(&from, &of, n, ids);
    plan(&from, of.streams, of.rows, of.patches, of.count, ids, place, n);
    gather(&from, of.streams, of.count, ids, place, n);
    plan_run(&from, of.rows, place, n);
    free_kept();
    return 0;
}
