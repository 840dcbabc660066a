#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "system.h"

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double ratio_of(const double *readings, size_t count, double seconds) {
    static double ordered[MOST_READINGS];
    memcpy(ordered, readings, count * sizeof *ordered);
    qsort(ordered, count, sizeof *ordered, by_size);
    double best = ordered[(size_t)(BEST_SHARE * (double)count)];
    return best > 0 ? seconds / best : 1;
}

void tw_speed_take(tw_speed *speed, double arithmetic, double memory, int threads) {
    int kind = threads > 1;
    size_t place = speed->counts[kind]++ % MOST_READINGS;
    size_t count = speed->counts[kind] < MOST_READINGS ? speed->counts[kind] : MOST_READINGS;
    tw_reading made = {.seconds = {arithmetic, memory}, .taken = true};
    for (int part = 0; part < 2; part++) {
        double *readings = speed->readings[kind][part];
        readings[place] = made.seconds[part];
        made.ratios[part] = ratio_of(readings, count, made.seconds[part]);
    }
    made.disturbed = made.ratios[0] > ARITHMETIC_LIMIT || made.ratios[1] > MEMORY_LIMIT;
    speed->last_at = tw_now();
    if (made.disturbed && !speed->last.disturbed) speed->disturbed_since = speed->last_at;
    speed->is_disturbed_long =
        made.disturbed && speed->last_at - speed->disturbed_since >= THROTTLED_SECONDS;
    speed->last = made;
}

double tw_reading_excess(const tw_reading *reading) {
    double arithmetic = reading->ratios[0] / ARITHMETIC_LIMIT,
           memory = reading->ratios[1] / MEMORY_LIMIT;
    return arithmetic > memory ? arithmetic : memory;
}

static void add_parts(const tw_reading *reading, tw_text *text) {
    static const char *const names[] = {"arithmetic", "memory"};
    tw_text_add(text, "{", 1);
    for (int part = 0; part < 2; part++) {
        tw_text_format(text, "\"%s_seconds\":", names[part]);
        tw_text_number(text, reading->seconds[part]);
        tw_text_format(text, ",\"%s_ratio\":", names[part]);
        tw_text_number(text, reading->ratios[part]);
        tw_text_add(text, ",", 1);
    }
    tw_text_format(text, "\"disturbed\":%s", reading->disturbed ? "true" : "false");
}

void tw_reading_json(const tw_reading *reading, tw_text *text) {
    if (!reading->taken) {
        tw_text_format(text, "null");
        return;
    }
    add_parts(reading, text);
    tw_text_add(text, "}", 1);
}

void tw_speed_json(const tw_speed *speed, tw_text *text) {
    if (!speed->last.taken) {
        tw_text_format(text, "null");
        return;
    }
    add_parts(&speed->last, text);
    tw_text_format(text, ",\"throttled\":%s}", speed->is_disturbed_long ? "true" : "false");
}
