/* Native functions that choose elements by their values. Each has a stage's type (tilewright.h): its
 * parameters are `sizes`, its tiles what compiler/runtime/native_functions.py says. */
#include <string.h>

#include "order.h"
#include "tilewright.h"

/* The first k of each row in order, as positions in the row. A tile is a row.
 * sizes: kind and bytes of an element, outer, extent, inner, k, whether the largest come first.
 * buffers: (outer, extent, inner) elements; (outer, k, inner) int64.
 * scratch: extent keys, k positions, 4 * extent integers where k is above TW_FEW. */
TW_EXPORT void tw_native_top_k(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                               int64_t hi) {
    const tw_element element = {sizes[0], sizes[1]};
    const int64_t extent = sizes[3], inner = sizes[4], k = sizes[5];
    uint64_t *keys = scratch;
    int64_t *order = (int64_t *)(keys + extent);
    const tw_rows rows = {keys, 1};
    for (int64_t row = lo; row < hi; row++) {
        int64_t outer = row / inner, within = row % inner;
        const char *first = (const char *)buffers[0] + (outer * extent * inner + within) * sizes[1];
        tw_order_keys(element, first, inner, extent, sizes[6] != 0, keys);
        tw_select(&rows, extent, k, order, order + k);
        int64_t *output = (int64_t *)buffers[1] + outer * k * inner + within;
        for (int64_t i = 0; i < k; i++) output[i * inner] = order[i];
    }
}

/* The positions of true elements, in order, then zeros. One tile.
 * sizes: extent.  buffers: extent booleans; extent int64. */
TW_EXPORT void tw_native_positions(void *const *buffers, void *scratch, const int64_t *sizes,
                                   int64_t lo, int64_t hi) {
    (void)scratch, (void)lo, (void)hi;
    const uint8_t *chosen = buffers[0];
    int64_t *output = buffers[1], found = 0;
    for (int64_t i = 0; i < sizes[0]; i++) {
        /* written whether chosen or not: no branch to mispredict, and never past position i */
        output[found] = i;
        found += chosen[i] != 0;
    }
    memset(output + found, 0, (size_t)(sizes[0] - found) * sizeof *output);
}

/* The groups of equal rows. One tile.
 * sizes: kind and bytes of an element, rows, width, whether groups are sorted by value: they are in
 * the order of their first rows otherwise.
 * buffers: (rows, width) elements; (3, rows) int64: the first row of each group, the group of each
 * row, the number of rows of each group. What lies behind the last group is zero.
 * scratch: rows * width keys, 8 * rows integers. */
TW_EXPORT void tw_native_unique(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                                int64_t hi) {
    (void)lo, (void)hi;
    const tw_element element = {sizes[0], sizes[1]};
    const int64_t count = sizes[2], width = sizes[3];
    uint64_t *keys = scratch;
    int64_t *order = (int64_t *)(keys + count * width), *first = order + count;
    int64_t *members = first + count, *renamed = members + count, *sorting = renamed + count;
    const tw_rows rows = {keys, width};
    tw_order_keys(element, buffers[0], 1, count * width, false, keys);
    tw_select(&rows, count, count, order, sorting);
    int64_t *out_first = buffers[1], *out_group = out_first + count, *out_members = out_group + count;
    int64_t groups = 0;
    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || !tw_rows_equal(&rows, order[i - 1], order[i])) {
            first[groups] = order[i];
            members[groups++] = 0;
        }
        members[groups - 1]++;
        out_group[order[i]] = groups - 1;
    }
    memset(out_first, 0, (size_t)count * sizeof *out_first);
    memset(out_members, 0, (size_t)count * sizeof *out_members);
    if (sizes[4]) {
        memcpy(out_first, first, (size_t)groups * sizeof *first);
        memcpy(out_members, members, (size_t)groups * sizeof *members);
        return;
    }
    for (int64_t i = 0, next = 0; i < count; i++) {
        int64_t group = out_group[i];
        if (first[group] == i) {
            out_first[next] = i;
            out_members[next] = members[group];
            renamed[group] = next++;
        }
        out_group[i] = renamed[group];
    }
}

/* One row of many, which a value of the run names; nothing if there is none of that number. One
 * tile.
 * sizes: rows, bytes of a row.  buffers: a row; its number, int64; (rows, bytes of a row) bytes. */
TW_EXPORT void tw_native_put(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                             int64_t hi) {
    (void)scratch, (void)lo, (void)hi;
    const int64_t number = *(const int64_t *)buffers[1];
    if (number >= 0 && number < sizes[0])
        memcpy((char *)buffers[2] + number * sizes[1], buffers[0], (size_t)sizes[1]);
}

/* Rows of `within` bytes to their places. Inlined where that is a constant, so that each row is a
 * load and a store, and no call. */
static inline __attribute__((always_inline)) void put_rows(char *output, const char *given,
                                                           const int64_t *places, int64_t rows,
                                                           int64_t count, size_t within) {
    for (int64_t i = 0; i < count; i++)
        if (places[i] >= 0 && places[i] < rows)
            memcpy(output + (size_t)places[i] * within, given + (size_t)i * within, within);
}

/* Rows to their places among others. A place that is none of theirs is left out, and of several rows
 * for one place the last one stays. One tile.
 * sizes: rows, bytes of a row, rows to place.
 * buffers: (rows, bytes) bytes; places, int64; (rows to place, bytes) bytes; (rows, bytes) bytes, which
 * may be the first buffer: then nothing else is written. */
TW_EXPORT void tw_native_scatter(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                                 int64_t hi) {
    (void)scratch, (void)lo, (void)hi;
    const int64_t rows = sizes[0], count = sizes[2], *places = buffers[1];
    const size_t within = (size_t)sizes[1];
    const char *given = buffers[2];
    char *output = buffers[3];
    if (output != buffers[0]) memcpy(output, buffers[0], (size_t)rows * within);
    switch (within) {
        case 1: put_rows(output, given, places, rows, count, 1); break;
        case 2: put_rows(output, given, places, rows, count, 2); break;
        case 4: put_rows(output, given, places, rows, count, 4); break;
        case 8: put_rows(output, given, places, rows, count, 8); break;
        default: put_rows(output, given, places, rows, count, within);
    }
}

/* The first elements along a dimension, as many as a value of the run says. One tile.
 * sizes: outer, extent, bytes within.
 * buffers: (outer, extent, within) bytes; how many, int64; (outer, how many, within) bytes, which
 * has room for `extent`; how many lie there, int64. */
TW_EXPORT void tw_native_trim(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                              int64_t hi) {
    (void)scratch, (void)lo, (void)hi;
    const char *source = buffers[0];
    char *target = buffers[2];
    const int64_t outer = sizes[0], extent = sizes[1], within = sizes[2];
    int64_t kept = *(const int64_t *)buffers[1];
    kept = kept < 0 ? 0 : kept > extent ? extent : kept;
    for (int64_t i = 0; i < outer; i++)
        memcpy(target + i * kept * within, source + i * extent * within, (size_t)(kept * within));
    *(int64_t *)buffers[3] = kept;
}
