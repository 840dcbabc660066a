/* Numbers that follow from the sizes of a run. */
#include <stddef.h>

#include "tilewright.h"

#define LARGEST (INT64_C(1) << 62)

/* Whether a + b * c is in range; then a is that. All three are, so that a sum of two fits; of a
 * product the float tells whether it does, which no processor needs a library for. */
static int add_product(int64_t *a, int64_t b, int64_t c) {
    double estimate = (double)b * (double)c;
    if (!(estimate < 1.001 * LARGEST && estimate > -1.001 * LARGEST)) return 0;
    *a += b * c;
    return *a < LARGEST && *a > -LARGEST;
}

/* A sum of products, divided and rounded down; `rule` ends behind it. */
static int sum(const int64_t **rule, const int64_t *numbers, int64_t *result) {
    const int64_t *word = *rule;
    int64_t divisor = *word++, total = *word++, terms = *word++;
    for (; terms > 0; terms--) {
        int64_t product = *word++, factors = *word++;
        for (; factors > 0; factors--) {
            int64_t whole = 0;
            if (!add_product(&whole, product, numbers[*word++])) return TW_TOO_LARGE;
            product = whole;
        }
        if (!add_product(&total, product, 1)) return TW_TOO_LARGE;
    }
    int64_t quotient = total / divisor;
    *result = quotient - (total % divisor < 0);
    *rule = word;
    return TW_OK;
}

static void largest(const int64_t **rule, const int64_t *numbers, int64_t *result) {
    const int64_t *word = *rule + 1;
    int64_t count = *word++;
    *result = 0;
    for (; count > 0; count--, word++)
        if (numbers[*word] > *result) *result = numbers[*word];
    *rule = word;
}

int tw_size(const tw_sizing *sizing) {
    const int64_t *rule = sizing->rules, *end = rule + sizing->words;
    int64_t *next = sizing->numbers + sizing->given;
    for (; rule < end; next++) {
        int status = TW_OK;
        if (*rule)
            status = sum(&rule, sizing->numbers, next);
        else
            largest(&rule, sizing->numbers, next);
        if (status != TW_OK) return status;
    }
    return TW_OK;
}

void tw_fill(int64_t *values, int64_t base, const int64_t *pairs, int64_t count,
             const int64_t *numbers) {
    for (; count > 0; count--, pairs += 2) values[pairs[0]] = base + numbers[pairs[1]];
}
