#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "child.h"

double tw_least(const double *seconds, size_t count) {
    double least = INFINITY;
    for (size_t i = 0; i < count; i++)
        if (seconds[i] < least) least = seconds[i];
    return least;
}

void tw_racing(const double *const *samples, const size_t *counts, size_t kernels, double margin,
               double leader, bool *stays) {
    double best = leader, excess = PRIOR_SAMPLES * PRIOR_EXCESS, freedom = PRIOR_SAMPLES;
    for (size_t i = 0; i < kernels; i++) {
        double fastest = tw_least(samples[i], counts[i]);
        if (fastest < best) best = fastest;
        for (size_t j = 0; j < counts[i] && fastest > 0; j++) excess += samples[i][j] / fastest - 1;
        freedom += (double)(counts[i] - 1); /* the fastest has no excess over itself */
    }
    double reach = excess / freedom * log(1 / (1 - CONFIDENCE));
    for (size_t i = 0; i < kernels; i++) {
        double fastest = tw_least(samples[i], counts[i]);
        stays[i] = counts[i] < LEAST_RACED ||
                   fastest <= best * (1 + margin) * (1 + reach / (double)counts[i]);
    }
}

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

tw_verdict tw_judge(const double *ratios, size_t count) {
    double *ordered = tw_allocate(count * sizeof *ordered);
    memcpy(ordered, ratios, count * sizeof *ordered);
    qsort(ordered, count, sizeof *ordered, by_size);
    size_t middle = count / 2, rank = 1;
    /* the median lies between two order statistics with a probability that is exact */
    double once = pow(0.5, (double)count), outside = once, ways = 1;
    for (; rank < (count + 1) / 2; rank++) {
        ways = ways * (double)(count - rank + 1) / (double)rank;
        double more = outside + ways * once;
        if (1 - 2 * more < CONFIDENCE) break;
        outside = more;
    }
    tw_verdict found = {
        .ratio = count % 2 ? ordered[middle] : (ordered[middle - 1] + ordered[middle]) / 2,
        .low = ordered[rank - 1],
        .high = ordered[count - rank],
        .coverage = fmax(0, 1 - 2 * outside),
        .outcome = OUTCOME_TIE,
    };
    free(ordered);
    if (found.high < 1 && found.ratio < 1 - TIE_MARGIN)
        found.outcome = found.coverage >= CONFIDENCE ? OUTCOME_FASTER : OUTCOME_TIE;
    else if (found.low > 1 && found.ratio > 1 + TIE_MARGIN)
        found.outcome =
            OUTCOME_SLOWER; /* a few pairs suffice: slower ones and ties both keep the incumbent */
    return found;
}

bool tw_may_be_faster(const double *ratios, size_t count, size_t pairs) {
    double *all =
        tw_allocate(pairs * sizeof *all); /* the pairs to come count as 0: the best luck */
    memcpy(all, ratios, count * sizeof *all);
    bool faster = strcmp(tw_judge(all, pairs).outcome, OUTCOME_FASTER) == 0;
    free(all);
    return faster;
}
