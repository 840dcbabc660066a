/* Ordering elements of any type: values become integers, which are sorted, or the first of them
 * selected. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* -O2 of GCC makes no vectors of loops whose length is not known */
#endif

#include "order.h"

#include <string.h>

/* Keys of a type, in a loop that knows it. Floats of one sign are ordered as their bits are; of
 * negative ones, the larger bits are less. Magnitudes above `most` are NaNs. */
#define KEYS(name, type, key)                                                                      \
    static void name(const void *values, int64_t stride, int64_t count, type most, type flip,      \
                     uint64_t *restrict keys) {                                                    \
        const type *restrict x = values;                                                           \
        const type sign = (type)((type)1 << (8 * sizeof(type) - 1));                               \
        (void)most, (void)sign;                                                                    \
        if (stride == 1)                                                                           \
            for (int64_t i = 0; i < count; i++) keys[i] = (type)(key(x[i]) ^ flip);                \
        else                                                                                       \
            for (int64_t i = 0; i < count; i++) keys[i] = (type)(key(x[i * stride]) ^ flip);       \
    }
#define AS_IT_IS(bits) (bits)
#define SIGNED(bits) ((bits) ^ sign)
#define MAGNITUDE(bits) ((bits) & (sign - 1))
#define NO_NUMBER (sign | (sign - 1))
#define FLOAT(bits)                                                                                \
    (MAGNITUDE(bits) > most ? NO_NUMBER                                                                 \
     : (bits) & sign        ? sign - MAGNITUDE(bits)                                               \
                            : sign + MAGNITUDE(bits))

KEYS(keys_of_u8, uint8_t, AS_IT_IS)
KEYS(keys_of_u16, uint16_t, AS_IT_IS)
KEYS(keys_of_u32, uint32_t, AS_IT_IS)
KEYS(keys_of_u64, uint64_t, AS_IT_IS)
KEYS(keys_of_i8, uint8_t, SIGNED)
KEYS(keys_of_i16, uint16_t, SIGNED)
KEYS(keys_of_i32, uint32_t, SIGNED)
KEYS(keys_of_i64, uint64_t, SIGNED)
KEYS(keys_of_f16, uint16_t, FLOAT)
KEYS(keys_of_f32, uint32_t, FLOAT)
KEYS(keys_of_f64, uint64_t, FLOAT)

void tw_order_keys(tw_element element, const void *values, int64_t stride, int64_t count,
                   bool reverse, uint64_t *keys) {
#define MAKE(name, type, most) name(values, stride, count, most, (type)(reverse ? -1 : 0), keys)
    switch (element.kind * 16 + element.bytes) {
    case TW_UNSIGNED * 16 + 1: MAKE(keys_of_u8, uint8_t, 0); return;
    case TW_UNSIGNED * 16 + 2: MAKE(keys_of_u16, uint16_t, 0); return;
    case TW_UNSIGNED * 16 + 4: MAKE(keys_of_u32, uint32_t, 0); return;
    case TW_UNSIGNED * 16 + 8: MAKE(keys_of_u64, uint64_t, 0); return;
    case TW_SIGNED * 16 + 1: MAKE(keys_of_i8, uint8_t, 0); return;
    case TW_SIGNED * 16 + 2: MAKE(keys_of_i16, uint16_t, 0); return;
    case TW_SIGNED * 16 + 4: MAKE(keys_of_i32, uint32_t, 0); return;
    case TW_SIGNED * 16 + 8: MAKE(keys_of_i64, uint64_t, 0); return;
    case TW_BFLOAT * 16 + 2: MAKE(keys_of_f16, uint16_t, 0x7f80); return;
    case TW_FLOAT * 16 + 2: MAKE(keys_of_f16, uint16_t, 0x7c00); return;
    case TW_FLOAT * 16 + 4: MAKE(keys_of_f32, uint32_t, 0x7f800000); return;
    default: MAKE(keys_of_f64, uint64_t, 0x7ff0000000000000); return;
    }
}

bool tw_rows_equal(const tw_rows *rows, int64_t a, int64_t b) {
    const uint64_t *x = rows->keys + a * rows->width, *y = rows->keys + b * rows->width;
    for (int64_t i = 0; i < rows->width; i++)
        if (x[i] != y[i]) return false;
    return true;
}

/* The order of the rows is total, so that whatever selects by it is stable. */
static bool before(const tw_rows *rows, int64_t a, int64_t b) {
    const uint64_t *x = rows->keys + a * rows->width, *y = rows->keys + b * rows->width;
    for (int64_t i = 0; i < rows->width; i++)
        if (x[i] != y[i]) return x[i] < y[i];
    return a < b;
}

/* Let order[root] sink to its place in a heap whose root comes last. */
static void sink(const tw_rows *rows, int64_t *order, int64_t size, int64_t root) {
    int64_t sinking = order[root];
    for (int64_t child; (child = 2 * root + 1) < size; root = child) {
        if (child + 1 < size && before(rows, order[child], order[child + 1])) child++;
        if (!before(rows, sinking, order[child])) break;
        order[root] = order[child];
    }
    order[root] = sinking;
}

static void select_by_heap(const tw_rows *rows, int64_t count, int64_t k, int64_t *order) {
    for (int64_t i = 0; i < k; i++) order[i] = i;
    for (int64_t root = k / 2; root-- > 0;) sink(rows, order, k, root);
    for (int64_t i = k; i < count; i++) {
        if (!before(rows, i, order[0])) continue;
        order[0] = i;
        sink(rows, order, k, 0);
    }
    for (int64_t end = k - 1; end > 0; end--) {
        int64_t last = order[0];
        order[0] = order[end];
        order[end] = last;
        sink(rows, order, end, 0);
    }
}

/* A key and where it stands. */
typedef struct {
    uint64_t key;
    int64_t place;
} item;

/* Put a key behind those of `held` that are no larger; of k the last one goes. */
static inline void insert(uint64_t *held, int64_t *order, int64_t size, uint64_t key, int64_t place) {
    int64_t at = size;
    for (; at > 0 && held[at - 1] > key; at--) held[at] = held[at - 1], order[at] = order[at - 1];
    held[at] = key, order[at] = place;
}

/* The first place from `i` on that may hold a key below the last one: one of the four from there. */
static inline int64_t next_below(const uint64_t *keys, int64_t i, int64_t count, uint64_t last) {
    while (i + 4 <= count && !((keys[i] < last) | (keys[i + 1] < last) | (keys[i + 2] < last) |
                               (keys[i + 3] < last)))
        i += 4;
    return i;
}

/* A few of many: most keys are compared with the last of those that are held, and that is all. */
static void select_few(const uint64_t *keys, int64_t count, int64_t k, int64_t *order) {
    uint64_t held[TW_FEW];
    int64_t i = 0;
    for (; i < k; i++) insert(held, order, i, keys[i], i);
    for (uint64_t last = held[k - 1]; (i = next_below(keys, i, count, last)) < count; i++)
        if (keys[i] < last) {
            insert(held, order, k - 1, keys[i], i);
            last = held[k - 1];
        }
}

/* The items in the order of their keys, those of equal keys in the order that they have: eight bits
 * at a time, from the last ones on, as far as keys differ. */
static void sort(item *items, item *other, int64_t count) {
    int64_t counts[256];
    uint64_t differing = 0;
    item *from = items, *to = other;
    for (int64_t i = 0; i < count; i++) differing |= items[i].key ^ items[0].key;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!(differing >> shift & 255)) continue;
        memset(counts, 0, sizeof counts);
        for (int64_t i = 0; i < count; i++) counts[from[i].key >> shift & 255]++;
        for (int64_t value = 0, next = 0; value < 256; value++) {
            const int64_t here = counts[value];
            counts[value] = next;
            next += here;
        }
        for (int64_t i = 0; i < count; i++) to[counts[from[i].key >> shift & 255]++] = from[i];
        item *sorted = to;
        to = from, from = sorted;
    }
    if (from != items) memcpy(items, from, (size_t)count * sizeof *items);
}

/* Many: those that may be among the first gather until there are twice as many as wanted; then all
 * behind the first k go, and what comes later must be less than the last of these. */
static void select_many(const uint64_t *keys, int64_t count, int64_t k, int64_t *order, item *items) {
    const int64_t room = count / 2 < k ? count : 2 * k;
    for (int64_t i = 0; i < room; i++) items[i] = (item){keys[i], i};
    sort(items, items + room, room);
    int64_t held = k;
    uint64_t last = items[k - 1].key;
    for (int64_t i = room; (i = next_below(keys, i, count, last)) < count; i++) {
        if (keys[i] >= last) continue;
        items[held++] = (item){keys[i], i};
        if (held < room) continue;
        sort(items, items + room, held);
        held = k, last = items[k - 1].key;
    }
    if (held > k) sort(items, items + room, held);
    for (int64_t i = 0; i < k; i++) order[i] = items[i].place;
}

void tw_select(const tw_rows *rows, int64_t count, int64_t k, int64_t *order, void *scratch) {
    if (k == 0) return;
    if (rows->width != 1)
        select_by_heap(rows, count, k, order);
    else if (k <= TW_FEW)
        select_few(rows->keys, count, k, order);
    else
        select_many(rows->keys, count, k, order, scratch);
}
