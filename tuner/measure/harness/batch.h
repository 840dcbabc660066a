/* A batch in the sandbox, which batch.c checks and race.c times. */
#ifndef TW_BATCH_H
#define TW_BATCH_H

#include "child.h"
#include "library.h"

typedef struct {
    int samples;
    double sample_seconds, round_seconds, abandon_ratio, margin, incumbent_seconds;
    uint64_t random;
} repeat;

/* Memory that equal buffers share, so that candidates are compared fairly. */
typedef struct tw_held {
    struct tw_held *next;
    const char *text;
    size_t length, bytes;
    void *memory;
} held;

typedef struct {
    const json *text;
    tw_array expected;
    double weight;
    bool timed;
} measured_case;

/* A kernel with its buffers, and the numbers that it is called with. */
typedef struct {
    tw_bound_kernel bound;
    tw_stage *stages;
    int64_t *extents, *sizes;
    void **pointers;
    tw_buffer *buffers;
    size_t buffer_count;
    double weight;
} kernel;

typedef struct {
    int64_t number;
    kernel *kernels; /* one for each timed case */
    bool cold;
    double *samples;
    size_t sample_count;
} entry;

/* Memory of all batches of a job. */
typedef struct pool {
    held *memory;
    size_t held_bytes;
    void *scratch;
    size_t scratch_bytes;
} pool;

/* One request of a job. */
typedef struct {
    const tw_child *child;
    const json *request;
    int64_t first; /* number of its first candidate among all candidates of the job */
    tw_library *library;
    measured_case *cases;
    const json **plans; /* of a case, the list of its kernels */
    size_t case_count, timed_count;
    bool has_sizes;
    int threads;
    double tolerance;
    repeat repeat;
    pool *pool;
    entry *ready; /* candidates that passed their checks and wait for the race */
    size_t ready_count;
    entry **left; /* the candidates still in the race */
    size_t left_count;
    double best; /* fastest sample so far */
    tw_text line;
} batch;

void tw_free_kernel(kernel *made);

/* Give up the memory that kernels share. */
void tw_forget(pool *pool);

/* Time the ready candidates, and free their memory. Screening batches are interleaved: each is
 * measured between the rounds of the others. */
void tw_race(batch *batches, size_t count, pool *pool);

#endif
