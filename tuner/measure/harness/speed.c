#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "system.h"

#define ARITHMETIC_LIMIT 1.1
#define MEMORY_LIMIT 1.5
#define THROTTLED_SECONDS 30.0
#define BEST_SHARE 0.1 /* the best is this quantile: a single lucky reading is no standard */

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double ratio_of(const tw_speed *speed, int part, double seconds) {
    static double ordered[MOST_READINGS];
    size_t count = speed->count < MOST_READINGS ? speed->count : MOST_READINGS;
    memcpy(ordered, speed->readings[part], count * sizeof *ordered);
    qsort(ordered, count, sizeof *ordered, by_size);
    double best = ordered[(size_t)(BEST_SHARE * (double)count)];
    return best > 0 ? seconds / best : 1;
}

void tw_speed_take(tw_speed *speed, double arithmetic, double memory) {
    size_t place = speed->count++ % MOST_READINGS;
    speed->readings[0][place] = speed->seconds[0] = arithmetic;
    speed->readings[1][place] = speed->seconds[1] = memory;
    for (int part = 0; part < 2; part++)
        speed->ratios[part] = ratio_of(speed, part, speed->seconds[part]);
    speed->last_at = tw_now();
    bool disturbed = speed->ratios[0] > ARITHMETIC_LIMIT || speed->ratios[1] > MEMORY_LIMIT;
    if (disturbed && !speed->disturbed) speed->disturbed_since = speed->last_at;
    speed->disturbed = disturbed;
    speed->is_disturbed_long =
        disturbed && speed->last_at - speed->disturbed_since >= THROTTLED_SECONDS;
}

double tw_speed_excess(const tw_speed *speed) {
    double arithmetic = speed->ratios[0] / ARITHMETIC_LIMIT,
           memory = speed->ratios[1] / MEMORY_LIMIT;
    return arithmetic > memory ? arithmetic : memory;
}

void tw_speed_json(const tw_speed *speed, bool with_throttled, tw_text *text) {
    static const char *const names[] = {"arithmetic", "memory"};
    if (!speed->count) {
        tw_text_format(text, "null");
        return;
    }
    tw_text_add(text, "{", 1);
    for (int part = 0; part < 2; part++) {
        tw_text_format(text, "\"%s_seconds\":", names[part]);
        tw_text_number(text, speed->seconds[part]);
        tw_text_format(text, ",\"%s_ratio\":", names[part]);
        tw_text_number(text, speed->ratios[part]);
        tw_text_add(text, ",", 1);
    }
    tw_text_format(text, "\"disturbed\":%s", speed->disturbed ? "true" : "false");
    if (with_throttled)
        tw_text_format(text, ",\"throttled\":%s", speed->is_disturbed_long ? "true" : "false");
    tw_text_add(text, "}", 1);
}
