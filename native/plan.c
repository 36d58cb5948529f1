#include "plan.h"

#include "ids.h"
#include "memory.h"

int64_t plan_stream_at(const plan_stream *streams, int64_t count, int64_t number) {
    if (number >= 0 && number < count && streams[number].number == number) /* always so, unless somebody removed one */
        return number;
    int64_t low = 0, high = count - 1;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (streams[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low == high && streams[low].number == number ? low : -1;
}

/* ---- Columns in RAM ---- */

/* Write the position in the table of each row, and its stream if `which` is given; return false if one is not there. */
static bool locate(
    const plan_stream *streams, int64_t stream_count, const int64_t *ids, int64_t n, int64_t *which,
    int64_t *positions) {
    for (int64_t k = 0; k < n; k++) {
        int64_t s = plan_stream_at(streams, stream_count, ids[k] >> STREAM_SHIFT);
        if (s < 0)
            return false;
        int64_t local = local_of(ids[k]), row = local / streams[s].envs;
        if (row < streams[s].floor || row >= streams[s].end)
            return false;
        which[k] = s;
        positions[k] = row % streams[s].length * streams[s].envs + local % streams[s].envs;
    }
    return true;
}

enum { LINE = 64 }; /* the bytes that a processor fetches at once */

static const uint8_t *value_of(
    const plan_stream *of, const uint8_t *array, const uint8_t *patches, int64_t at, int64_t size, bool following) {
    if (!following)
        return array + at * size;
    int64_t patch = of->next_patches[at];
    if (patch >= 0 && of->patch_length > 0)
        return patches + patch % of->patch_length * size;
    int64_t next = at + of->envs, held = of->length * of->envs;
    return array + (next >= held ? next - held : next) * size;
}

/* Copy a column. A compiler makes a loop for each size that is a number in the call. */
static inline void copy_column(
    const plan_stream *streams, const plan_columns *columns, int64_t c, const int64_t *which, const int64_t *at,
    int64_t n, const int64_t *place, uint8_t *out, int64_t size) {
    bool following = columns->following[c] == NEXT;
    for (int64_t k = 0; k < n; k++) { /* rows are drawn at random: each is in RAM and in no cache */
        const uint8_t *value = columns->arrays[which[k] * columns->count + c] + at[k] * size;
        look_ahead(value);
        if (size > LINE / 2) /* then it has parts of two lines, or more */
            look_ahead(value + size - 1);
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t source = which[k] * columns->count + c;
        const uint8_t *value = value_of(
            &streams[which[k]], columns->arrays[source], columns->patches[source], at[k], size, following);
        copy_value(out + (place ? place[k] : k) * size, value, size);
    }
}

bool gather_columns(
    const plan_stream *streams, int64_t stream_count, const plan_columns *columns, const int64_t *ids,
    const int64_t *last, int64_t n, const int64_t *place, uint8_t *const *out, int64_t *room) {
    int64_t *which = room, *positions = room + n, *lasts = last ? room + 2 * n : positions, count = columns->count;
    if (!locate(streams, stream_count, ids, n, which, positions))
        return false;
    if (last && !locate(streams, stream_count, last, n, which, lasts))
        return false;
    for (int64_t c = 0; c < count; c++) {
        const int64_t *at = columns->following[c] == OWN ? positions : lasts;
        switch (columns->sizes[c]) {
        case 1: copy_column(streams, columns, c, which, at, n, place, out[c], 1); break;
        case 4: copy_column(streams, columns, c, which, at, n, place, out[c], 4); break;
        case 8: copy_column(streams, columns, c, which, at, n, place, out[c], 8); break;
        default: copy_column(streams, columns, c, which, at, n, place, out[c], columns->sizes[c]);
        }
    }
    return true;
}

/* ---- Pieces of chunks ---- */

static int64_t slot_in_cache(const plan_column *of, int64_t chunk, int64_t group) {
    if (of->is_ring)
        return 0;
    if (of->slots_length == 0)
        return -1;
    int64_t slot = of->slots[chunk % of->slots_length * of->groups + group];
    if (slot < 0 || slot >= of->held || of->cached[slot].chunk != chunk || of->cached[slot].group != group)
        return -1;
    return slot;
}

/* Sort the positions of pieces by their keys. */
static void sort(int64_t *order, const batch_piece *pieces, int64_t begin, int64_t end) {
    int64_t gap = 1;
    while (gap < (end - begin) / 3)
        gap = 3 * gap + 1;
    for (; gap > 0; gap /= 3) {
        for (int64_t at = begin + gap; at < end; at++) {
            int64_t one = order[at], key = pieces[one].key, to = at;
            for (; to >= begin + gap && pieces[order[to - gap]].key > key; to -= gap)
                order[to] = order[to - gap];
            order[to] = one;
        }
    }
}

/* Append the pieces of consecutive rows, whose run fills `places` places; return false if the column has no such
 * environment.
 *
 * Where a chunk has several environments, its values of one are not consecutive: each is a piece. */
static bool cut(
    const plan_column *of, int64_t place, int64_t places, int64_t step, int64_t first, int64_t last, int64_t env,
    int64_t stream, int64_t kind, plan_found *found) {
    int64_t group = env / of->chunk_envs, low = first;
    if (group < 0 || group >= of->groups)
        return false;
    while (low <= last) {
        int64_t chunk = low / of->chunk_rows;
        int64_t high = of->chunk_envs > 1 ? low : least_int(last, (chunk + 1) * of->chunk_rows - 1);
        if (found->count == found->most)
            return false;
        batch_piece piece = {
            .place = place, .step = step + low - first,
            .row = (low - chunk * of->chunk_rows) * of->chunk_envs + env % of->chunk_envs, .rows = high - low + 1,
            .chunk = chunk, .group = group, .stream = stream, .places = places,
            .key = (int64_t)((uint64_t)stream << STREAM_SHIFT) + chunk * of->groups + group,
            .slot = slot_in_cache(of, chunk, group),
        };
        low = high + 1;
        if (piece.slot >= 0) {
            piece.kind = kind + CACHED;
        } else if (chunk >= of->in_ram) {
            piece.kind = kind + WAITING;
        } else {
            piece.kind = kind + ON_DISK, piece.offset = -1;
            if (chunk >= of->first_chunk && chunk < of->stop_chunk) {
                const int64_t *entry = of->entries + 2 * (chunk % of->entries_length * of->groups + group);
                piece.offset = entry[0], piece.size = entry[1];
            }
            found->lost = found->lost || piece.offset < 0;
        }
        found->unordered[found->count++] = piece;
    }
    return true;
}

/* Have the processor fetch what each row of one stream needs first: rows are drawn at random. */
static void look_at_rows(const plan_stream *of, const plan_column *rows, const int64_t *ids, int64_t n) {
    int64_t slots = most_int(1, rows->slots_length);
    for (int64_t k = 0; k < n; k++) {
        int64_t local = local_of(ids[k]), row = local / of->envs;
        int64_t position = row % of->length * of->envs + local - row * of->envs;
        look_ahead(of->starts + position);
        look_ahead(of->next_patches + position);
        look_ahead(rows->slots + row / rows->chunk_rows % slots * rows->groups);
    }
}

/* Return how many of `n` rows are one run: each is the row after the one before, and goes to the place after it.
 *
 * If the rows after them are wanted, too, none but the last has a next observation that is a patch. */
static int64_t length_of(
    const plan_stream *of, const int64_t *ids, const int64_t *place, int64_t n, int64_t last_step) {
    int64_t length = 1, local = local_of(ids[0]), row = local / of->envs, at = row % of->length;
    const int64_t *patches = of->next_patches + local % of->envs;
    for (; length < n && row + length < of->end; length++) {
        if (ids[length] != ids[length - 1] + of->envs || place[length] != place[length - 1] + 1
            || (last_step == 1 && patches[at * of->envs] >= 0))
            break;
        at = at + 1 < of->length ? at + 1 : 0;
    }
    return length;
}

/* Append the pieces of a run of `length` rows; return false if the log or the column does not have them. */
static bool cut_run(
    const plan_stream *of, const plan_column *rows, const plan_column *patches, int64_t stream, int64_t local,
    int64_t length, int64_t sample, int64_t place, int64_t first_step, int64_t last_step, plan_found *found) {
    int64_t row = local / of->envs, env = local % of->envs, older = most_int(0, -first_step);
    if (row < of->floor || row >= of->end)
        return false;
    int64_t depth = 0, position = row % of->length;
    while (depth < older && of->starts[position * of->envs + env] == CONTINUES) {
        depth++;
        position = position ? position - 1 : of->length - 1;
    }
    int64_t first = first_step > 0 ? row + 1 : row - depth, newest = row + length - 1, patch = -1;
    int64_t last = newest + last_step, places = length + (found->runs == ONE_MORE);
    if (last_step == 1) {
        patch = of->next_patches[newest % of->length * of->envs + env];
        if (patch >= 0)
            last = newest;
    }
    if (last >= first) {
        if (first < of->floor || last >= of->end + 1)
            return false;
        if (!cut(rows, place, places, first - row - first_step, first, last, env, stream, 0, found))
            return false;
    }
    if (patch >= 0) {
        if (patch < of->patch_begin || patch >= of->patch_end)
            return false;
        if (!cut(patches, place, places, length - first_step, patch, patch, 0, stream, KINDS, found))
            return false;
    }
    if (depth < older) {
        found->short_rows[2 * found->short_count] = sample;
        found->short_rows[2 * found->short_count + 1] = depth;
        found->short_count++;
    }
    return true;
}

/* Put the pieces in order, and number the files of those on disk. */
static void put_in_order(const plan_column *rows, const plan_column *patches, plan_found *found) {
    int64_t *ends = found->ends, filled[2 * KINDS];
    memset(ends, 0, sizeof found->ends);
    for (int64_t k = 0; k < found->count; k++)
        ends[found->unordered[k].kind]++;
    for (int kind = 1; kind < 2 * KINDS; kind++)
        ends[kind] += ends[kind - 1];
    memcpy(filled, ends, sizeof filled);
    for (int64_t k = found->count - 1; k >= 0; k--)
        found->order[--filled[found->unordered[k].kind]] = k;
    for (int part = 0; part < 2; part++) {
        int64_t begin = part ? ends[KINDS - 1] : 0, end = ends[KINDS * part], before = found->file_count;
        const plan_column *columns = part ? patches : rows;
        sort(found->order, found->unordered, begin, end);
        for (int64_t at = begin; at < end; at++) {
            batch_piece *piece = &found->unordered[found->order[at]];
            int64_t shard = piece->chunk / columns[piece->stream].shard_chunks;
            int64_t *file = found->files + 2 * (found->file_count - 1);
            if (found->file_count == before || file[0] != piece->stream || file[1] != shard) {
                found->files[2 * found->file_count] = piece->stream;
                found->files[2 * found->file_count + 1] = shard;
                found->file_count++;
            }
            piece->slot = found->file_count - 1 - before;
        }
        if (!part)
            found->frames_files = found->file_count;
    }
    for (int64_t k = 0; k < found->count; k++)
        found->pieces[k] = found->unordered[found->order[k]];
}

int64_t plan_most(const plan_column *rows, int64_t stream_count, int64_t n, int64_t first_step, int64_t last_step) {
    int64_t shortest = (int64_t)1 << 30;
    for (int64_t at = 0; at < stream_count; at++)
        if (rows[at].chunk_rows > 0) /* of a stream that was ever drawn from */
            shortest = least_int(shortest, rows[at].chunk_envs == 1 ? rows[at].chunk_rows : 1);
    return n * ((last_step - first_step + shortest) / shortest + 2);
}

bool plan_frames(
    const plan_stream *streams, const plan_column *rows, const plan_column *patches, int64_t stream_count,
    const int64_t *ids, const int64_t *place, int64_t n, int64_t first_step, int64_t last_step, plan_found *found) {
    found->count = found->file_count = found->frames_files = found->short_count = 0, found->lost = false;
    if (stream_count == 1)
        look_at_rows(streams, rows, ids, n);
    for (int64_t sample = 0, length; sample < n; sample += length) {
        int64_t at = plan_stream_at(streams, stream_count, ids[sample] >> STREAM_SHIFT);
        if (at < 0)
            return false;
        length = found->runs ? length_of(&streams[at], ids + sample, place + sample, n - sample, last_step) : 1;
        if (!cut_run(
                &streams[at], &rows[at], &patches[at], at, local_of(ids[sample]), length, sample, place[sample],
                first_step, last_step, found))
            return false;
    }
    put_in_order(rows, patches, found);
    return true;
}

int64_t plan_most_of(const plan_column *of, const plan_runs *runs) {
    const int64_t most_row = (int64_t)1 << 48;
    int64_t most = 0;
    for (int64_t k = 0; k < runs->n; k++) {
        int64_t first = runs->first[k], last = runs->last[k], base = runs->base[k];
        if (first < 0 || last < first || last >= most_row || base <= -most_row || base >= most_row || runs->env[k] < 0
            || most >= most_row)
            return -1;
        most += of->chunk_envs > 1 ? last - first + 1 : last / of->chunk_rows - first / of->chunk_rows + 1;
    }
    return most;
}

bool plan_rows(const plan_column *columns, int64_t stream, const plan_runs *runs, plan_found *found) {
    found->count = found->file_count = found->frames_files = found->short_count = 0, found->lost = false;
    for (int64_t k = 0; k < runs->n; k++)
        if (!cut(
                &columns[stream], runs->place[k], 1, runs->first[k] - runs->base[k], runs->first[k], runs->last[k],
                runs->env[k], stream, 0, found))
            return false;
    put_in_order(columns, columns, found);
    return true;
}
