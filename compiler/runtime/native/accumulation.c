/* Native functions that carry a value from one element to the next: updates that are combined with
 * what lies at their places, running sums and products. Each has a stage's type (tilewright.h): its
 * parameters are `sizes`, its tiles what compiler/runtime/native_functions.py says. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* -O2 of GCC makes no vectors of loops whose length is not known */
#endif

#include <string.h>

#include "order.h"
#include "tilewright.h"

/* How an update is combined; compiler/runtime/native_functions.py has the same. */
enum { ADD = 0, MULTIPLY = 1, LARGEST = 2, LEAST = 3 };

/* The largest and the least let a NaN pass, on either side: one that lies there already stays. */
#define PLUS(a, b) (a) + (b)
#define TIMES(a, b) 1u * (a) * (b) /* as ints, two numbers of 16 bits might overflow */
#define MOST(a, b) ((b) != (b) ? (b) : (a) < (b) ? (b) : (a))
#define FEWEST(a, b) ((b) != (b) ? (b) : (a) > (b) ? (b) : (a))

typedef struct {
    const int64_t *places;
    int64_t rows, within, count;
} updates;

/* Rows of updates to their places, in their order. A row of one element has a loop of its own. */
#define COMBINE(name, type, how)                                                                   \
    static void name(void *target, const void *source, updates all) {                              \
        type *output = target;                                                                     \
        const type *given = source;                                                                \
        if (all.within == 1) {                                                                     \
            for (int64_t i = 0; i < all.count; i++) {                                              \
                const int64_t place = all.places[i];                                               \
                if (place < 0 || place >= all.rows) continue;                                      \
                output[place] = (type)(how(output[place], given[i]));                              \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t i = 0; i < all.count; i++) {                                                  \
            if (all.places[i] < 0 || all.places[i] >= all.rows) continue;                          \
            type *restrict row = output + all.places[i] * all.within;                              \
            const type *restrict update = given + i * all.within;                                  \
            for (int64_t k = 0; k < all.within; k++)                                               \
                row[k] = (type)(how(row[k], update[k]));                                           \
        }                                                                                          \
    }

#define COMBINE_ALL(type)                                                                          \
    COMBINE(add_##type, type, PLUS)                                                                \
    COMBINE(multiply_##type, type, TIMES)                                                          \
    COMBINE(largest_##type, type, MOST)                                                            \
    COMBINE(least_##type, type, FEWEST)

/* Numbers of fewer bits than an int are added as ints, and fit that. Products are those of unsigned. */
COMBINE_ALL(uint8_t)
COMBINE_ALL(uint16_t)
COMBINE_ALL(uint32_t)
COMBINE_ALL(uint64_t)
COMBINE_ALL(float)
COMBINE_ALL(double)
#define COMBINE_SIGNED(type)                                                                       \
    COMBINE(largest_##type, type, MOST)                                                            \
    COMBINE(least_##type, type, FEWEST)
COMBINE_SIGNED(int8_t)
COMBINE_SIGNED(int16_t)
COMBINE_SIGNED(int32_t)
COMBINE_SIGNED(int64_t)

typedef void (*combiner)(void *, const void *, updates);

#define ROW(type) {add_##type, multiply_##type, largest_##type, least_##type}
/* Sums and products of signed integers wrap around: they are those of unsigned ones. */
#define SIGNED_ROW(type) {add_u##type, multiply_u##type, largest_##type, least_##type}

static combiner choose(int64_t kind, int64_t bytes, int64_t how) {
    static const combiner unsigned_[4][4] = {ROW(uint8_t), ROW(uint16_t), ROW(uint32_t),
                                             ROW(uint64_t)};
    static const combiner signed_[4][4] = {SIGNED_ROW(int8_t), SIGNED_ROW(int16_t),
                                           SIGNED_ROW(int32_t), SIGNED_ROW(int64_t)};
    static const combiner floats[2][4] = {ROW(float), ROW(double)};
    if (kind == TW_FLOAT) return floats[bytes == 8][how];
    const int64_t size = bytes == 1 ? 0 : bytes == 2 ? 1 : bytes == 4 ? 2 : 3;
    return (kind == TW_SIGNED ? signed_ : unsigned_)[size][how];
}

/* Rows combined with those at their places among others, each once, in their order. A place that is
 * none of theirs is left out. One tile.
 * sizes: kind and bytes of an element (no float of 2 bytes), how they are combined, rows, elements of
 * a row, rows to combine.
 * buffers: (rows, elements); places, int64; (rows to combine, elements); (rows, elements), which may be
 * the first buffer: then nothing else is written. */
TW_EXPORT void tw_native_combine(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                                 int64_t hi) {
    (void)scratch, (void)lo, (void)hi;
    const updates all = {buffers[1], sizes[3], sizes[4], sizes[5]};
    if (buffers[3] != buffers[0])
        memcpy(buffers[3], buffers[0], (size_t)(all.rows * all.within * sizes[1]));
    choose(sizes[0], sizes[1], sizes[2])(buffers[3], buffers[2], all);
}

/* Columns that a tile of a running sum has at most, COLUMNS of native_functions.py: a row of them stays
 * in the first cache. */
enum { COLUMNS = 1024, FEW = 24 };

typedef struct {
    int64_t extent, inner, columns, lines; /* of one column there may be several lines */
    int64_t first, step; /* of the row that comes first, and from there to the next one */
    bool exclusive;
} running;

/* A line whose elements lie side by side: of four, all but one operation do not wait for what came
 * before them. Products are formed one by one: that of two elements may be infinite after a zero. */
#define LINE(name, type, how, neutral, apart)                                                      \
    static inline void name(const type *restrict x, type *restrict y, int64_t count,               \
                            const int64_t step, bool exclusive) {                                  \
        type carried = neutral;                                                                    \
        int64_t i = 0;                                                                             \
        if (exclusive) {                                                                           \
            for (; i < count; i++) {                                                               \
                y[i * step] = carried;                                                             \
                carried = (type)(how(carried, x[i * step]));                                       \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        if (count) y[0] = carried = x[0], i = 1;                                                   \
        for (; apart && i + 4 <= count; i += 4) {                                                  \
            const type a = x[i * step], c = x[(i + 2) * step];                                     \
            const type b = (type)(how(a, x[(i + 1) * step]));                                      \
            const type d = (type)(how(c, x[(i + 3) * step]));                                      \
            const type three = (type)(how(b, c)), four = (type)(how(b, d));                        \
            y[i * step] = (type)(how(carried, a));                                                 \
            y[(i + 1) * step] = (type)(how(carried, b));                                           \
            y[(i + 2) * step] = (type)(how(carried, three));                                       \
            y[(i + 3) * step] = carried = (type)(how(carried, four));                              \
        }                                                                                          \
        for (; i < count; i++) y[i * step] = carried = (type)(how(carried, x[i * step]));          \
    }

/* A few columns, whose sums stay in registers: a row of few would wait for what was just stored. */
#define NARROW(name, type, how, neutral)                                                           \
    static inline void name(const type *restrict x, type *restrict y, const int64_t width,         \
                            running all) {                                                         \
        type carried[4];                                                                           \
        for (int64_t k = 0; k < width; k++) carried[k] = all.exclusive ? (type)(neutral) : x[k];   \
        for (int64_t k = 0; k < width; k++) y[k] = carried[k];                                     \
        for (int64_t i = 1; i < all.extent; i++) {                                                 \
            const type *added = x + (i - all.exclusive) * all.step;                                \
            type *row = y + i * all.step;                                                          \
            for (int64_t k = 0; k < width; k++)                                                    \
                row[k] = carried[k] = (type)(how(carried[k], added[k]));                           \
        }                                                                                          \
    }

/* Rows, each of which is the one before it and what is new. */
#define RUN(name, type, how, neutral, apart)                                                       \
    LINE(line_##name, type, how, neutral, apart)                                                   \
    NARROW(narrow_##name, type, how, neutral)                                                      \
    static void name(const void *source, void *target, running all) {                              \
        const type *x = (const type *)source + all.first;                                          \
        type *y = (type *)target + all.first;                                                      \
        if (all.inner == 1) {                                                                      \
            for (int64_t i = 0; i < all.lines; i++, x += all.extent, y += all.extent) {            \
                if (all.step > 0)                                                                  \
                    line_##name(x, y, all.extent, 1, all.exclusive);                               \
                else                                                                               \
                    line_##name(x, y, all.extent, -1, all.exclusive);                              \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        if (all.columns > 1 && all.columns < FEW) { /* the last ones once more, if need be */      \
            const int64_t width = all.columns < 4 ? 2 : 4, last = all.columns - width;             \
            for (int64_t k = 0; k < all.columns; k += width) {                                     \
                const int64_t first = k < last ? k : last;                                         \
                if (width == 4)                                                                    \
                    narrow_##name(x + first, y + first, 4, all);                                   \
                else                                                                               \
                    narrow_##name(x + first, y + first, 2, all);                                   \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t k = 0; k < all.columns; k++) y[k] = all.exclusive ? (type)(neutral) : x[k];   \
        for (int64_t i = 1; i < all.extent; i++) {                                                 \
            const type *restrict added = x + (i - all.exclusive) * all.step;                       \
            const type *restrict before = y + (i - 1) * all.step;                                  \
            type *restrict row = y + i * all.step;                                                 \
            for (int64_t k = 0; k < all.columns; k++) row[k] = (type)(how(before[k], added[k]));   \
        }                                                                                          \
    }

#define RUN_BOTH(type)                                                                             \
    RUN(sums_##type, type, PLUS, 0, true)                                                          \
    RUN(products_##type, type, TIMES, 1, false)

RUN_BOTH(uint8_t)
RUN_BOTH(uint16_t)
RUN_BOTH(uint32_t)
RUN_BOTH(uint64_t)
RUN_BOTH(float)
RUN_BOTH(double)

typedef void (*runner)(const void *, void *, running);

/* Running sums or products along an axis. A tile is a block of columns of one outer index.
 * sizes: kind and bytes of an element (no float of 2 bytes), ADD or MULTIPLY, outer, extent, inner,
 * whether an element itself is left out, whether the last element comes first.
 * buffers: (outer, extent, inner) elements twice. */
TW_EXPORT void tw_native_accumulate(void *const *buffers, void *scratch, const int64_t *sizes,
                                    int64_t lo, int64_t hi) {
    (void)scratch;
    static const runner runners[6][2] = {
        {sums_uint8_t, products_uint8_t},   {sums_uint16_t, products_uint16_t},
        {sums_uint32_t, products_uint32_t}, {sums_uint64_t, products_uint64_t},
        {sums_float, products_float},       {sums_double, products_double},
    };
    const int64_t bytes = sizes[1], extent = sizes[4], inner = sizes[5];
    const int64_t blocks = (inner + COLUMNS - 1) / COLUMNS;
    const int type = (bytes > 1) + (bytes > 2) + (bytes > 4) + (sizes[0] == TW_FLOAT ? 2 : 0);
    const runner run = runners[type][sizes[2]];
    if (extent == 0) return;
    const int64_t together = inner == 1 ? hi - lo : 1;
    for (int64_t tile = lo; tile < hi; tile += together) {
        const int64_t column = tile % blocks * COLUMNS, rest = inner - column;
        const int64_t start = tile / blocks * extent * inner + column;
        const running all = {
            .extent = extent,
            .inner = inner,
            .columns = rest < COLUMNS ? rest : COLUMNS,
            .lines = together,
            .first = sizes[7] ? (extent - 1) * inner : 0,
            .step = sizes[7] ? -inner : inner,
            .exclusive = sizes[6] != 0,
        };
        run((const char *)buffers[0] + start * bytes, (char *)buffers[1] + start * bytes, all);
    }
}
