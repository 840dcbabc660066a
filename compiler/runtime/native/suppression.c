/* NonMaxSuppression: of overlapping boxes, the one with the best score. */
#include <stdbool.h>

#include "order.h"
#include "tilewright.h"

typedef struct {
    float left, right, low, high;
} tw_box;

static float smaller(float a, float b) { return a < b ? a : b; }
static float larger(float a, float b) { return a > b ? a : b; }

/* Corners (y, x, y, x) in any order, or centre and size (x, y, width, height). */
static tw_box box_of(const float *b, bool centred) {
    if (centred) {
        float wide = b[2] / 2, tall = b[3] / 2;
        return (tw_box){b[0] - wide, b[0] + wide, b[1] - tall, b[1] + tall};
    }
    return (tw_box){smaller(b[1], b[3]), larger(b[1], b[3]), smaller(b[0], b[2]),
                    larger(b[0], b[2])};
}

static float area(tw_box b) { return (b.right - b.left) * (b.high - b.low); }

/* Whether what two boxes share is more than `most` of what they cover together. */
static inline bool overlap(tw_box a, tw_box b, float most) {
    float wide = smaller(a.right, b.right) - larger(a.left, b.left);
    float tall = smaller(a.high, b.high) - larger(a.low, b.low);
    if (!(wide > 0 && tall > 0)) return false;
    float shared = wide * tall, covered = area(a) + area(b) - shared;
    return shared > 0 && covered > 0 && shared / covered > most;
}

/* One tile.
 * sizes: batches, classes, boxes, most boxes a class has room for, whether boxes are centred.
 * buffers: (batches, boxes, 4) and (batches, classes, boxes) float32; most boxes of a class, int64;
 * the overlap up to which a box stays and the score above which it is looked at, float32;
 * (batches * classes * room, 3) int64: batch, class and box of each that is chosen, then -1.
 * scratch: for each box a key, its number, its place in the order, four integers to sort them, and the
 * box itself. */
TW_EXPORT void tw_native_non_max_suppression(void *const *buffers, void *scratch,
                                             const int64_t *sizes, int64_t lo, int64_t hi) {
    (void)lo, (void)hi;
    const int64_t classes = sizes[1], count = sizes[2], room = sizes[3];
    const bool centred = sizes[4] != 0;
    const float most = *(const float *)buffers[3], least = *(const float *)buffers[4];
    const int64_t wanted = *(const int64_t *)buffers[2];
    const int64_t limit = wanted < 0 ? 0 : wanted > room ? room : wanted;
    int64_t *output = buffers[5], found = 0;
    uint64_t *keys = scratch;
    int64_t *numbers = (int64_t *)(keys + count), *order = numbers + count, *sorting = order + count;
    tw_box *chosen = (tw_box *)(sorting + 4 * count);
    const tw_rows rows = {keys, 1};
    const tw_element element = {TW_FLOAT, sizeof(float)};
    for (int64_t pair = 0; pair < sizes[0] * classes; pair++) {
        const float *boxes = (const float *)buffers[0] + pair / classes * count * 4;
        const float *scores = (const float *)buffers[1] + pair * count;
        int64_t looked_at = 0, stayed = 0;
        tw_order_keys(element, scores, 1, count, true, keys);
        for (int64_t i = 0; i < count; i++) {
            keys[looked_at] = keys[i];
            numbers[looked_at] = i;
            looked_at += scores[i] > least;
        }
        /* boxes in order: some first, since few are looked at where few may stay */
        int64_t ordered = 0, some = 2 * limit < TW_FEW ? TW_FEW : 4 * limit;
        for (int64_t i = 0; i < looked_at && stayed < limit; i++) {
            if (i == ordered) {
                ordered = i == 0 && some < looked_at ? some : looked_at;
                tw_select(&rows, looked_at, ordered, order, sorting);
            }
            const int64_t number = numbers[order[i]];
            const tw_box box = box_of(boxes + 4 * number, centred);
            bool stays = true;
            for (int64_t j = 0; j < stayed && stays; j++) stays = !overlap(box, chosen[j], most);
            if (!stays) continue;
            chosen[stayed++] = box;
            output[3 * found] = pair / classes;
            output[3 * found + 1] = pair % classes;
            output[3 * found + 2] = number;
            found++;
        }
    }
    for (int64_t i = 3 * found; i < 3 * sizes[0] * classes * room; i++) output[i] = -1;
}
