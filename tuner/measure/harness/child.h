/* The sandbox's side: a process that runs the untrusted code of one lease, reports events in lines
 * of JSON, and ends. */
#ifndef TW_CHILD_H
#define TW_CHILD_H

#include "../../../compiler/runtime/native/tilewright.h"
#include "arrays.h"
#include "messages.h"

/* A blob in memory. */
typedef struct {
    char digest[65];
    const void *data;
    size_t size;
} tw_blob;

typedef struct {
    const tw_blob *blobs;
    size_t count;
    int events;        /* where lines go */
    const char *nonce; /* that begins each of them: candidates have the same file */
} tw_child;

const tw_blob *tw_blob_of(const tw_child *child, const char *digest);

/* Send a line, which becomes empty. */
void tw_emit(const tw_child *child, tw_text *line);

/* Report that the candidate with this number begins. */
void tw_begin(const tw_child *child, int64_t candidate);
/* Report that a step of a run begins; its name is part of the reason if the step fails. */
void tw_begin_step(const tw_child *child, const char *name);

/* Time the reference kernel, a measure of this machine's present speed. */
void tw_probe(const tw_child *child, int threads);

/* A request with its plan, which is NULL where it needs none. */
typedef struct {
    const json *request, *plan;
} tw_part;

/* Measure batches together. `wanted` has one entry per candidate of all batches, in their order.
 * False with the reason if the batches cannot be measured. */
bool tw_measure(const tw_child *child, const tw_part *parts, size_t count, const bool *wanted,
                tw_error *error);

/* Do a run, and send its result. */
bool tw_run(const tw_child *child, const tw_part *part, tw_error *error);

/* Measure the device's speeds, and add them to a line. */
bool tw_speeds(const tw_child *child, const json *work, tw_text *line, tw_error *error);

/* Bytes from one thread's scratch block to the next: as compiler/runtime/bench.py has it. */
size_t tw_scratch_stride(size_t bytes);

double tw_least(const double *seconds, size_t count);

/* Statistics of tuner/measure/statistics.py. */

/* Which of several kernels may still be the fastest, or within `margin` of it. Row i of `samples`
 * has counts[i] > 0 of them; `leader` is the fastest sample of another kernel, or infinite. */
void tw_racing(const double *const *samples, const size_t *counts, size_t kernels, double margin,
               double leader, bool *stays);

/* The verdict on a challenger from the ratios of pairs, at least one and at most 1000. */
typedef struct {
    double ratio, low, high, coverage;
    const char *outcome; /* "faster", "slower" or "tie" */
} tw_verdict;

tw_verdict tw_judge(const double *ratios, size_t count);

/* Whether a challenger may still be shown to be faster when all pairs are run. */
bool tw_may_be_faster(const double *ratios, size_t count, size_t pairs);

#endif
