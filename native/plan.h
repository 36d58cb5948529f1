/* Calls that plan a batch: one copies what is in RAM, the others find where the rest is.
 *
 * `gather_columns` copies the columns that are in RAM, for all streams of a store at once. `plan_frames` cuts rows of
 * all streams, and `plan_rows` runs of rows of one, into pieces of chunks, sort the pieces, and find where the
 * chunks are. They copy nothing and change nothing.
 *
 * They only pass on numbers that come from a file, such as an offset or the bytes of a chunk. Before a number chooses a
 * place in an array, it is compared with the array's range.
 */
#ifndef DISKREPLAY_PLAN_H
#define DISKREPLAY_PLAN_H

#include "runs.h"

enum { CONTINUES = 0 }; /* a row's start code, as diskreplay.schema.columns has it */

/* A stream: its number, that of its environments, how many rows its log has room for, the rows [floor, end) that it
 * holds, its arrays of start codes and of the numbers of the patches with next observations, the patches [patch_begin,
 * patch_end) that it holds, and how many it has room for. */
typedef struct {
    int64_t number, envs, length, floor, end;
    const uint8_t *starts;
    const int64_t *next_patches;
    int64_t patch_begin, patch_end, patch_length;
} plan_stream;

/* A column of a stream. Its environments may be divided into groups, each with chunks of its own.
 *
 * chunk_rows, chunk_envs, shard_chunks: the rows and environments of a chunk, and the chunks of a shard. entries: where
 * the chunks [first_chunk, stop_chunk) lie in their shards, a ring of (offset, bytes). in_ram: the first chunk that
 * waits in RAM for a commit. slots: in which slot of the cache a chunk is, a ring. cached: the `held` slots. is_ring:
 * whether the column is a ring in RAM, of `chunk_rows` rows: it is one chunk, in slot 0. */
typedef struct {
    int64_t chunk_rows, chunk_envs, shard_chunks;
    const int64_t *entries;
    int64_t entries_length, first_chunk, stop_chunk, groups, in_ram;
    const int64_t *slots;
    int64_t slots_length;
    const cache_slot *cached;
    int64_t held;
    bool is_ring;
} plan_column;

/* Return the position of the stream with a number among sorted ones, or -1. */
int64_t plan_stream_at(const plan_stream *streams, int64_t count, int64_t number);

/* The columns that a batch takes from RAM: for each stream and column the array of the log's table and that of patches,
 * `arrays[stream * count + column]`. The value of row r and environment e stands at position r % length * envs + e.
 *
 * sizes: the bytes of a value. following: which value is taken, one of the rules below. */
enum { OWN = 0, NEXT = 1, LAST = 2 }; /* the row's; that of the last row's next row, or of its patch; the last row's */
typedef struct {
    int64_t count;
    const uint8_t *const *arrays;
    const uint8_t *const *patches;
    const int64_t *sizes;
    const uint8_t *following;
} plan_columns;

/* Copy the values of the columns for each of `n` ids; return false, with nothing written, if a row is not in the window
 * or its context.
 *
 * last: for each id that of the transition's last row; NULL if it is the same. place: the row of the batch that each id
 * fills, or NULL for their own order. out: where each column of it begins. room: for 3 * n numbers. */
bool gather_columns(
    const plan_stream *streams, int64_t stream_count, const plan_columns *columns, const int64_t *ids,
    const int64_t *last, int64_t n, const int64_t *place, uint8_t *const *out, int64_t *room);

/* Where a piece's chunk can be: in a file, in the cache, or waiting for a commit; last, their number. */
enum { ON_DISK, CACHED, WAITING, KINDS };

enum { NO_RUNS, ONE_PLACE_EACH, ONE_MORE };

/* What is found, in room that the caller gives: `unordered`, `order`, `pieces` and `files` for plan_most() each,
 * `short_rows` for 2 * n numbers.
 *
 * runs: given, ONE_PLACE_EACH if a place has room for one value of each array, or ONE_MORE if it has, in one array
 * alone, and the row after the last one goes to the place after its. Then rows that follow one another, and go to
 * places that do, are found as one run.
 * pieces: first those of frames: those on disk, in the order of their chunks, those in RAM, those that wait for a
 * commit; then those of patches, in the same order, whose kinds are KINDS more. ends: of these six parts. files: the
 * stream and the shard of each file; those of patches after those of frames, which are `frames_files`. short_rows: the
 * rows with fewer steps before them than are wanted, and how many each has. lost: whether a chunk is missing. */
typedef struct {
    int64_t most, count;
    int64_t runs;
    batch_piece *unordered, *pieces;
    int64_t *order, *files;
    int64_t ends[2 * KINDS];
    int64_t file_count, frames_files;
    int64_t *short_rows, short_count;
    bool lost;
} plan_found;

/* Return for how many pieces there must be room. */
int64_t plan_most(const plan_column *rows, int64_t stream_count, int64_t n, int64_t first_step, int64_t last_step);

/* Find the pieces of steps first_step to last_step (at most 1) of rows; return false, where `found` means nothing, if
 * the log or the column has no such row.
 *
 * streams, rows, patches: sorted by the streams' numbers, of the frames' column, and of the column of their patches. */
bool plan_frames(
    const plan_stream *streams, const plan_column *rows, const plan_column *patches, int64_t stream_count,
    const int64_t *ids, const int64_t *place, int64_t n, int64_t first_step, int64_t last_step, plan_found *found);

/* Runs of rows of one stream, `n` of each number: their places in the batch, environments, first and last rows, and the
 * rows of step 0. */
typedef struct {
    const int64_t *place, *env, *first, *last, *base;
    int64_t n;
} plan_runs;

/* Return for how many pieces there must be room, or -1 if a run has no rows, or rows that no column has. */
int64_t plan_most_of(const plan_column *of, const plan_runs *runs);

/* Find the pieces of runs of the column `columns[stream]`, as plan_frames() does, without patches. */
bool plan_rows(const plan_column *columns, int64_t stream, const plan_runs *runs, plan_found *found);

#endif
