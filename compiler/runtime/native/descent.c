/* Down decision trees: how many steps a row takes depends on its values. A native function has a
 * stage's type (tilewright.h): its parameters are `sizes`, its tiles what
 * compiler/runtime/native_functions.py says. */
#include <stdint.h>

#include "tilewright.h"

/* Trees of a tile, which compiler/runtime/native_functions.py has, too; those that are walked down
 * together, since each step of one waits for the step before. */
enum { TREES = 64, TOGETHER = 12 };

/* compiler/ops/descend.py makes them */
typedef struct {
    union {
        float single;
        double full;
    } threshold;
    int32_t column, following;
} record;

_Static_assert(sizeof(record) == 16, "records are 16 bytes");

/* So that each tree's place is in a register. */
#define UNROLLED _Pragma("GCC unroll 12")

#define DESCEND(name, type, member)                                                                \
    static void name(const int32_t *places, const void *row, const record *records, int32_t *out,  \
                     int64_t trees, const int64_t *sizes) {                                        \
        const type *x = row;                                                                       \
        const int64_t steps = sizes[5];                                                            \
        for (int64_t first = 0; first < trees; first += TOGETHER) {                                \
            const int64_t some = trees - first < TOGETHER ? trees - first : TOGETHER;              \
            int32_t at[TOGETHER], moved = 1;                                                       \
            for (int64_t i = 0; i < TOGETHER; i++) at[i] = places[first + (i < some ? i : 0)];     \
            for (int64_t step = 0; step < steps && moved; step++) {                                \
                moved = 0;                                                                         \
                UNROLLED for (int64_t i = 0; i < TOGETHER; i++) {                                  \
                    const record *here = records + at[i];                                          \
                    const type most = here->threshold.member;                                      \
                    const int32_t next = here->following + !(x[here->column] <= most);             \
                    moved |= next ^ at[i];                                                         \
                    at[i] = next;                                                                  \
                }                                                                                  \
            }                                                                                      \
            for (int64_t i = 0; i < some; i++) out[first + i] = at[i];                             \
        }                                                                                          \
    }

DESCEND(of_floats, float, single)
DESCEND(of_doubles, double, full)

/* The leaves of rows in trees. A tile is a row and up to TREES trees.
 * sizes: bytes of an element, rows, columns, trees, records, steps at most. Records and columns that
 * the table names are there: compiler/ops/ml_tree_tables.py made it.
 * buffers: (trees,) int32: where each tree begins; (rows, columns) float32 or float64; records;
 * (rows, trees) int32. */
TW_EXPORT void tw_native_descend(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                                 int64_t hi) {
    (void)scratch;
    const int64_t columns = sizes[2], trees = sizes[3], blocks = (trees + TREES - 1) / TREES;
    for (int64_t tile = lo; tile < hi; tile++) {
        const int64_t row = tile / blocks, first = tile % blocks * TREES;
        const int64_t some = trees - first < TREES ? trees - first : TREES;
        const int32_t *places = (const int32_t *)buffers[0] + first;
        const char *x = (const char *)buffers[1] + row * columns * sizes[0];
        int32_t *out = (int32_t *)buffers[3] + row * trees + first;
        if (sizes[0] == sizeof(float))
            of_floats(places, x, buffers[2], out, some, sizes);
        else
            of_doubles(places, x, buffers[2], out, some, sizes);
    }
}
