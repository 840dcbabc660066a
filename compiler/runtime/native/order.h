/* Ordering elements of any type: what sorting and selecting native functions share. */
#ifndef TILEWRIGHT_ORDER_H
#define TILEWRIGHT_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* How the bits of an element say its value; compiler/runtime/native_functions.py has the same. */
enum {
    TW_UNSIGNED = 0,
    TW_SIGNED = 1,
    TW_FLOAT = 2,
    TW_BFLOAT = 3,
};

/* An element type: its kind and its size in bytes (1, 2, 4 or 8). */
typedef struct {
    int64_t kind;
    int64_t bytes;
} tw_element;

/* Rows of keys: `width` keys a row, compared from the first on. */
typedef struct {
    const uint64_t *keys;
    int64_t width;
} tw_rows;

/* keys[i], for `count` elements that are `stride` elements apart: integers in the order of the
 * values, or in the reverse order. -0 equals 0; all NaNs are equal and larger than every number. */
void tw_order_keys(tw_element element, const void *values, int64_t stride, int64_t count,
                   bool reverse, uint64_t *keys);

/* Whether two rows have the same keys. */
bool tw_rows_equal(const tw_rows *rows, int64_t a, int64_t b);

/* So many are selected by comparisons, without scratch; compiler/runtime/native_functions.py has the
 * same. */
enum { TW_FEW = 64 };

/* order[0..k): which of `count` rows come first, in their order; of equal rows the earlier first.
 * Rows of one key take time in proportion to their number, and four integers of scratch each where
 * k is above TW_FEW; others take count * log(k) comparisons. */
void tw_select(const tw_rows *rows, int64_t count, int64_t k, int64_t *order, void *scratch);

#endif
