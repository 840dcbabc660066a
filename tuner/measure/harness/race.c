/* Candidates timed against each other: in rounds where all take turns, or in pairs with one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "batch.h"

enum { MOST_INNER = 1 << 20 };
#define CLOCK_SECONDS 2e-5 /* to time one run that takes longer adds hardly anything */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void tw_free_kernel(kernel *made) {
    free(made->stages);
    free(made->extents);
    free(made->sizes);
    free(made->pointers);
    free(made->buffers);
    *made = (kernel){.weight = 0};
}

static double total(const batch *all, const entry *one, const double *seconds) {
    double sum = 0;
    for (size_t i = 0; i < all->timed_count; i++) sum += one->kernels[i].weight * seconds[i];
    return sum;
}

static double sampled(batch *all, entry *one, const double *seconds) {
    tw_text_format(&all->line, "{\"event\":\"sample\",\"trial\":%lld,\"seconds\":",
                   (long long)one->number);
    tw_text_numbers(&all->line, seconds, all->timed_count, 1);
    tw_text_add(&all->line, "}", 1);
    tw_emit(all->child, &all->line);
    double *more = realloc(one->samples, (one->sample_count + 1) * sizeof *more);
    if (!more) exit(TW_NO_MEMORY_STATUS);
    one->samples = more;
    return one->samples[one->sample_count++] = total(all, one, seconds);
}

static double timed(batch *all, kernel *one, int64_t inner, int samples) {
    double least = INFINITY;
    one->bound.inner = inner;
    for (int i = 0; i < samples; i++) {
        double seconds;
        tw_bench(&one->bound, all->threads, 1, &seconds);
        if (seconds < least) least = seconds;
    }
    /* the clock may show nothing */
    return least > LEAST_SECONDS ? least : LEAST_SECONDS;
}

/* The number of runs in a sample, so that a sample takes about `seconds`. */
static int64_t inner_for(batch *all, kernel *one, double seconds) {
    int64_t inner = 1;
    while (inner < MOST_INNER) {
        double taken = timed(all, one, inner, 1) * (double)inner;
        if (taken >= seconds / 2) break;
        double more =
            seconds / fmax(taken, 1e-9); /* tenfold at most: the clock may show too little */
        inner *= (int64_t)fmax(2, fmin(10, more));
        if (inner > MOST_INNER) inner = MOST_INNER;
    }
    return inner;
}

/* Find how many runs make a sample; false for a candidate that is abandoned at once. */
static bool calibrated(batch *all, entry *one, double best, double *seconds) {
    tw_begin(all->child, one->number);
    if (one->cold) return true;
    for (size_t i = 0; i < all->timed_count; i++) seconds[i] = timed(all, &one->kernels[i], 1, 2);
    if (total(all, one, seconds) > fmax(all->repeat.abandon_ratio * best, CLOCK_SECONDS)) {
        sampled(all, one, seconds);
        return false;
    }
    double share = all->repeat.sample_seconds / (double)all->timed_count;
    for (size_t i = 0; i < all->timed_count; i++)
        one->kernels[i].bound.inner = inner_for(all, &one->kernels[i], share);
    return true;
}

static double sample(batch *all, entry *one, double *seconds) {
    tw_begin(all->child, one->number);
    for (size_t i = 0; i < all->timed_count; i++) {
        kernel *each = &one->kernels[i];
        tw_call(&each->bound,
                all->threads); /* not timed: it brings its buffers back into the caches */
        for (size_t j = 0; one->cold && j < each->buffer_count; j++)
            if (each->buffers[j].role == ROLE_WEIGHT)
                tw_evict(each->pointers[j], (int64_t)each->buffers[j].bytes);
        seconds[i] = timed(all, each, each->bound.inner, 1);
    }
    return sampled(all, one, seconds);
}

static uint64_t draw(repeat *settings, uint64_t below) {
    settings->random =
        settings->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (settings->random >> 33) % below;
}

/* In a fixed order the first of two candidates that share buffers pays the misses. */
static void shuffle(repeat *settings, entry **left, size_t count) {
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)draw(settings, i);
        entry *moved = left[other];
        left[other] = left[i - 1], left[i - 1] = moved;
    }
}

static double next_round(double began, double seconds) {
    double left = began + seconds - now();
    if (left > 0) {
        struct timespec pause = {(time_t)left, (long)((left - floor(left)) * 1e9)};
        nanosleep(&pause, NULL);
    }
    return now();
}

/* Keep the candidates neither abandoned nor shown to be slower than the best; return the count. */
static size_t still_racing(const batch *all, entry **left, size_t count) {
    const double **samples = tw_allocate(count * sizeof *samples);
    size_t *counts = tw_allocate(count * sizeof *counts), kept = 0;
    bool *stays = tw_allocate(count * sizeof *stays);
    double best = all->repeat.incumbent_seconds;
    for (size_t i = 0; i < count; i++)
        if (left[i]->sample_count) left[kept++] = left[i];
    count = kept, kept = 0;
    for (size_t i = 0; i < count; i++) {
        samples[i] = left[i]->samples, counts[i] = left[i]->sample_count;
        best = fmin(best, tw_least(samples[i], counts[i]));
    }
    tw_racing(samples, counts, count, all->repeat.margin, all->repeat.incumbent_seconds, stays);
    for (size_t i = 0; i < count; i++)
        if (stays[i] &&
            tw_least(left[i]->samples, left[i]->sample_count) <= all->repeat.abandon_ratio * best)
            left[kept++] = left[i];
    free(samples);
    free(counts);
    free(stays);
    return kept;
}

/* Interleave the rounds of all screening batches. */
static void screen(batch *batches, size_t count, double *seconds) {
    double began = -INFINITY;
    for (int round = 0;; round++) {
        double apart = -1;
        for (size_t i = 0; i < count; i++)
            if (batches[i].left_count) apart = fmax(apart, batches[i].repeat.round_seconds);
        if (apart < 0) return; /* nothing is left */
        began = next_round(began, apart);
        for (size_t i = 0; i < count; i++) {
            batch *all = &batches[i];
            shuffle(&all->repeat, all->left, all->left_count);
            for (size_t j = 0; j < all->left_count; j++) {
                if (round == 0 && !calibrated(all, all->left[j], all->best, seconds)) continue;
                all->best = fmin(all->best, sample(all, all->left[j], seconds));
            }
            bool last = round + 1 >= all->repeat.samples;
            all->left_count = last ? 0 : still_racing(all, all->left, all->left_count);
        }
    }
}

static void pair(batch *all, const entry *one, const entry *first, double mine, double other) {
    tw_text_format(&all->line, "{\"event\":\"pair\",\"trial\":%lld,\"against\":%lld,\"ratio\":",
                   (long long)one->number, (long long)first->number);
    tw_text_number(&all->line, mine / other);
    tw_text_format(&all->line, "}");
    tw_emit(all->child, &all->line);
}

/* Time each challenger in pairs with the incumbent, the first entry, in the order A B B A. */
static void compare(batch *all, entry **ready, size_t count, double *seconds) {
    entry *first = ready[0];
    calibrated(all, first, INFINITY, seconds);
    double best = sample(all, first, seconds), began = -INFINITY;
    size_t left = 0;
    entry **racers = tw_allocate(count * sizeof *racers); /* the first of them is the incumbent */
    entry **going = tw_allocate(count * sizeof *going);
    racers[left++] = first;
    for (size_t i = 1; i < count; i++)
        if (calibrated(all, ready[i], best, seconds)) racers[left++] = ready[i];
    for (int round = 0; round < (all->repeat.samples + 1) / 2; round++) {
        began = next_round(began, all->repeat.round_seconds);
        shuffle(&all->repeat, racers + 1, left - 1);
        for (size_t i = 1; i < left; i++) {
            double before = sample(all, first, seconds), one = sample(all, racers[i], seconds);
            pair(all, racers[i], first, one, before);
            double two = sample(all, racers[i], seconds), after = sample(all, first, seconds);
            pair(all, racers[i], first, two, after);
        }
        if (left == 1) sample(all, first, seconds);
        memcpy(going, racers, left * sizeof *going);
        size_t kept = still_racing(all, going, left);
        left = 1; /* the incumbent stays, whatever becomes of it */
        for (size_t i = 0; i < kept; i++)
            if (going[i] != first) racers[left++] = going[i];
    }
    free(going);
    free(racers);
}

/* Put the incumbent first, where it passed its checks. */
static void put_first(batch *all) {
    const char *incumbent = json_get_text(all->request, "incumbent");
    const json *each = json_get(all->request, "candidates")->first;
    for (int64_t number = all->first; each; each = each->next, number++)
        for (size_t i = 1;
             i < all->left_count && strcmp(json_get_text(each, "trial_id"), incumbent) == 0; i++)
            if (all->left[i]->number == number) {
                entry *moved = all->left[0];
                all->left[0] = all->left[i], all->left[i] = moved;
            }
}

void tw_race(batch *batches, size_t count, pool *pool) {
    size_t cases = 0;
    for (size_t i = 0; i < count; i++) {
        batch *all = &batches[i];
        all->left = tw_allocate(all->ready_count * sizeof *all->left);
        all->left_count = all->ready_count;
        for (size_t j = 0; j < all->ready_count; j++) all->left[j] = &all->ready[j];
        if (all->timed_count > cases) cases = all->timed_count;
    }
    double *seconds = tw_allocate(cases * sizeof *seconds);
    for (size_t i = 0; i < count; i++) {
        batch *all = &batches[i];
        if (!*json_get_text(all->request, "incumbent")) continue;
        put_first(all);
        if (all->left_count) compare(all, all->left, all->left_count, seconds);
        all->left_count = 0;
    }
    screen(batches, count, seconds);
    free(seconds);
    for (size_t i = 0; i < count; i++) {
        batch *all = &batches[i];
        for (size_t j = 0; j < all->ready_count; j++) {
            entry *done = &all->ready[j];
            for (size_t k = 0; k < all->timed_count; k++) tw_free_kernel(&done->kernels[k]);
            free(done->kernels);
            free(done->samples);
        }
        free(all->left);
        all->left = NULL, all->ready_count = 0;
    }
    tw_forget(pool);
}
