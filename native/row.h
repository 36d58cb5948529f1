/* The writing of a row, and what its observation has in common with the pending one: the next one of the row before.
 *
 * It compares and copies bytes, so it knows no shapes. The caller checks flags and masks.
 */
#ifndef DISKREPLAY_ROW_H
#define DISKREPLAY_ROW_H

#include <stdbool.h>
#include <stdint.h>

/* The places of a column's values. If it has separate chunks for several sets of environments, a row's value has bytes
 * for each set.
 *
 * given, following: the row's value, and that of its next observation.
 * part, parts: the bytes for one set of environments, and the number of sets.
 * buffer, ring: the column's write buffer and its array in the log's table; NULL for none.
 * chunk_rows: the rows for which the write buffer has room.
 * row_step, part_step: the bytes in the write buffer from one row, or one set, to the next.
 */
typedef struct {
    const uint8_t *given, *following;
    int64_t part, parts;
    uint8_t *buffer;
    int64_t chunk_rows, row_step, part_step;
    uint8_t *ring;
} row_column;

/* Tell whether a row's observation is the pending one. row: its number. leaves: how many columns, the first ones, are
 * of the observation. */
bool row_goes_on(const row_column *columns, int64_t leaves, int64_t row);

/* How a row breaks with the row before. Masks and codes have a byte for each environment.
 *
 * row, envs: the row's number, and the number of environments. length: the rows for which the log's table has room.
 * valid, ended, cut: where the row is a transition; where an episode ended with the row before; where one begins in any
 * case, or NULL.
 * by_flags: true if an environment with another observation goes on, too.
 * unlike, begins: where the observation is not the pending one; where an episode begins. Both are found.
 * differing, episodes, cuts: how many have another observation and begin no episode; how many episodes begin; in how
 * many only the observation says so. All are found. */
typedef struct {
    int64_t row, envs, length;
    const uint8_t *valid, *ended, *cut;
    bool by_flags;
    uint8_t *unlike, *begins;
    int64_t differing, episodes, cuts;
} row_break;

/* Find how a row breaks with the row before. */
void row_breaks(row_break *of, const row_column *columns, int64_t leaves);

/* Signs of misuse in a row that begins episodes, summed over rows.
 *
 * earlier: a row before the row before. rewards, terminated, truncated: the columns; rewards have 4 or 8 bytes.
 * ends: the environments whose step is the first after an end with a flag, but for those that do not move. unmoved: of
 * these, those that begin with the next observation of the end. empty: of these, those without a reward. earning: of
 * unmoved, those where the step before the end had one. */
typedef struct {
    int64_t ends, unmoved, empty, earning;
} row_signs;

void row_watch(const row_break *of, const row_column *columns, int64_t leaves, const row_column *rewards,
               const row_column *terminated, const row_column *truncated, int64_t earlier, row_signs *signs);

/* Put pending observations to the patch table, as the next observations of the row before: where they are unlike, and
 * `known`, the numbers of the patches of that row, is negative. Return how many, also if `patches` is NULL.
 *
 * patches: the columns of patches: the place, three numbers, and the leaves. first: the number of the next patch. room:
 * the patches for which the arrays have room. */
int64_t row_patch(const row_break *of, const row_column *columns, int64_t leaves, const row_column *patches,
                  int64_t first, int64_t room, int64_t *known);

/* Write a row, and its next observation to the place of the row after.
 *
 * length: the rows for which the log's table has room. in_place: true if the row's observation is there already. last:
 * true if a write buffer is full after this row; then the next observation is not written. */
void row_write(const row_column *columns, int64_t count, int64_t leaves, int64_t row, int64_t length, bool in_place,
               bool last);

/* Tell whether all numbers, floats of 2, 4 or 8 bytes, are finite. */
bool row_finite(const void *numbers, int64_t count, int64_t bytes);

/* Tell whether each unsigned number, of 1, 2, 4 or 8 bytes, is at most that of `most`. A negative one, taken for an
 * unsigned one, is above any. */
bool row_within(const uint8_t *numbers, const uint8_t *most, int64_t count, int64_t bytes);

/* Round numbers. */
void row_round(const double *numbers, int64_t count, float *rounded);

#endif
