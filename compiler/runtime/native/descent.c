/* Down decision trees: how many steps a row takes depends on its values. A native function has a
 * stage's type (tilewright.h): its parameters are `sizes`, its tiles what
 * compiler/runtime/native_functions.py says. */
#include <stdint.h>

#include "tilewright.h"

/* Walks of a tile, which compiler/runtime/native_functions.py has, too: a walk is one row's in one
 * tree. Some are made together, since each step of a walk waits for the step before. */
enum { WALKS = 96, TOGETHER = 12 };

/* compiler/ops/descend.py makes them */
typedef struct {
    union {
        float single;
        double full;
    } threshold;
    int32_t column, following;
} record;

_Static_assert(sizeof(record) == 16, "records are 16 bytes");

/* So that each walk's place is in a register. */
#define UNROLLED _Pragma("GCC unroll 12")

/* Walks from `first` to `last`, which are those of the first row, then those of the second one. */
#define DESCEND(name, type, member)                                                                \
    static void name(const int32_t *places, const type *x, const record *records, int32_t *out,    \
                     int64_t first, int64_t last, const int64_t *sizes) {                          \
        const int64_t columns = sizes[2], trees = sizes[3], steps = sizes[5];                      \
        int64_t tree = first % trees;                                                              \
        for (x += first / trees * columns; first < last; first += TOGETHER) {                      \
            const int64_t some = last - first < TOGETHER ? last - first : TOGETHER;                \
            const type *rows[TOGETHER];                                                            \
            int32_t at[TOGETHER], moved = 1;                                                       \
            for (int64_t i = 0; i < TOGETHER; i++) {                                               \
                rows[i] = x, at[i] = places[tree];                                                 \
                if (i + 1 < some && ++tree == trees) tree = 0, x += columns;                       \
            }                                                                                      \
            for (int64_t step = 0; step < steps && moved; step++) {                                \
                moved = 0;                                                                         \
                UNROLLED for (int64_t i = 0; i < TOGETHER; i++) {                                  \
                    const record *here = records + at[i];                                          \
                    const type most = here->threshold.member;                                      \
                    const int32_t next = here->following + !(rows[i][here->column] <= most);       \
                    moved |= next ^ at[i];                                                         \
                    at[i] = next;                                                                  \
                }                                                                                  \
            }                                                                                      \
            for (int64_t i = 0; i < some; i++) out[first + i] = at[i];                             \
            if (++tree == trees) tree = 0, x += columns;                                           \
        }                                                                                          \
    }

DESCEND(of_floats, float, single)
DESCEND(of_doubles, double, full)

/* The leaves of rows in trees. A tile is up to WALKS walks.
 * sizes: bytes of an element, rows, columns, trees, records, steps at most. Records and columns that
 * the table names are there: compiler/ops/contrib/ml/tree_tables.py made it.
 * buffers: (trees,) int32: where each tree begins; (rows, columns) float32 or float64; records;
 * (rows, trees) int32. */
TW_EXPORT void tw_native_descend(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                                 int64_t hi) {
    (void)scratch;
    const int64_t all = sizes[1] * sizes[3];
    const int64_t first = lo * WALKS, last = hi * WALKS < all ? hi * WALKS : all;
    if (sizes[0] == sizeof(float))
        of_floats(buffers[0], buffers[1], buffers[2], buffers[3], first, last, sizes);
    else
        of_doubles(buffers[0], buffers[1], buffers[2], buffers[3], first, last, sizes);
}
