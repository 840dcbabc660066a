/* Ordering elements of any type: values become integers, which a heap selects from. */
#include "order.h"

/* The smallest magnitude's bits that are no number's: those above are NaNs. */
static uint64_t infinity(tw_element element) {
    if (element.kind == TW_BFLOAT) return 0x7f80;
    switch (element.bytes) {
    case 2: return 0x7c00;
    case 4: return 0x7f800000;
    default: return 0x7ff0000000000000;
    }
}

static inline uint64_t load(const void *values, int64_t bytes, int64_t index) {
    switch (bytes) {
    case 1: return ((const uint8_t *)values)[index];
    case 2: return ((const uint16_t *)values)[index];
    case 4: return ((const uint32_t *)values)[index];
    default: return ((const uint64_t *)values)[index];
    }
}

/* Floats of one sign are ordered as their bits are; of negative ones, the larger bits are less. */
static inline uint64_t float_key(uint64_t bits, uint64_t sign, uint64_t most) {
    uint64_t magnitude = bits & (sign - 1);
    if (magnitude > most) return UINT64_MAX;
    if (magnitude == 0) return sign;
    return bits & sign ? sign - magnitude : sign + magnitude;
}

void tw_order_keys(tw_element element, const void *values, int64_t stride, int64_t count,
                   bool reverse, uint64_t *keys) {
    const uint64_t sign = (uint64_t)1 << (8 * element.bytes - 1);
    const uint64_t most = infinity(element), flip = reverse ? UINT64_MAX : 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = load(values, element.bytes, i * stride);
        switch (element.kind) {
        case TW_UNSIGNED: break;
        case TW_SIGNED: bits ^= sign; break;
        default: bits = float_key(bits, sign, most); break;
        }
        keys[i] = bits ^ flip;
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

void tw_select(const tw_rows *rows, int64_t count, int64_t k, int64_t *order) {
    if (k == 0) return;
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
