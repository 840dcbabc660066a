/* The harness: one process that does an agent's requests, each in a sandbox. */
#ifndef TW_HARNESS_H
#define TW_HARNESS_H

#include "facts.h"
#include "heat.h"
#include "json.h"
#include "messages.h"
#include "sandbox.h"

/* A reading of the reference kernel, next to the best so far: arithmetic, memory. */
typedef struct {
    double seconds[2], ratios[2];
    bool taken, disturbed;
} tw_reading;

/* The readings of a device (tuner/measure/speed.py): of one thread in processor time, of several
 * threads in wall time. */
typedef struct {
    double readings[2][2][MOST_READINGS];
    size_t counts[2];
    tw_reading last;
    double last_at, disturbed_since;
    bool is_disturbed_long;
} tw_speed;

void tw_speed_take(tw_speed *speed, double arithmetic, double memory, int threads);
/* JSON of a reading, or of the last one with whether the device is slow for long; "null" for
 * none. */
void tw_reading_json(const tw_reading *reading, tw_text *text);
void tw_speed_json(const tw_speed *speed, tw_text *text);
/* How disturbed a reading is: at most 1 where it is not. */
double tw_reading_excess(const tw_reading *reading);

/* cache.c */
typedef struct {
    char folder[512], empty[520];
    uint64_t bytes; /* most that it holds */
    int lock;
    struct tw_verified *verified; /* files whose bytes were compared with their names */
} tw_cache;

/* Take a folder below `base` that no other process has. */
bool tw_cache_open(tw_cache *cache, const char *base, tw_error *error);
/* Bytes that the blobs of one request may have: limited by the cache and the address space. */
uint64_t tw_cache_room(const tw_cache *cache);
/* Whether the bytes of a blob are here, and are right. One that is damaged is deleted. */
bool tw_cache_has(tw_cache *cache, const char *digest);
/* Open a file for a blob, and later store or discard it. */
int tw_cache_begin(const tw_cache *cache, const char *digest, tw_error *error);
bool tw_cache_end(tw_cache *cache, const char *digest, int file, bool whole);
/* Make room for `coming` bytes: delete the least recently used blobs, except those in `kept`. */
void tw_cache_trim(const tw_cache *cache, const tw_blob *kept, size_t count, uint64_t coming);
/* The bytes of a blob that is here. */
bool tw_cache_map(const tw_cache *cache, tw_blob *blob, tw_error *error);

/* The process that an agent starts, and the device that it runs on. */
typedef struct {
    const char *root; /* that holds `proc` and `sys`; "" for / */
    char worker[65];  /* in whose name it measures */
    uint64_t sandbox_bytes;
    unsigned first_user, last_user; /* that candidates run as where this is root; 0: none */
    uid_t user;                     /* the one of them that this process has; 0: none */
    tw_facts facts;
    tw_cache cache;
    tw_speed speed;
    tw_heat heat;
    char guards[200];
} tw_harness;

/* users.c: take a user of a range that no other harness of this machine has, until this process ends.
 * Where all are taken, one is shared. */
uid_t tw_take_user(unsigned first, unsigned last);

/* serve.c: do the work that an agent requests on standard input, until the input ends. */
int tw_serve(tw_harness *harness);

/* work.c */

typedef struct tw_task tw_task;
/* A request to run programs, or batches that are measured together, parsed from the agent's
 * message; NULL with the reason. */
tw_task *tw_task_of(tw_harness *harness, const json *requests, tw_error *error);
/* The blobs that they name. */
tw_blob *tw_task_blobs(tw_task *task, size_t *count);
/* Do it: a list of results as JSON. False if a run was cancelled, or with the reason if nothing could
 * be done. Cancelled batches have results: those of the candidates that were finished. */
bool tw_task_do(tw_task *task, bool (*cancelled)(void *self), void *self, tw_text *result,
                tw_error *error);
void tw_task_free(tw_task *task);

/* Time the reference kernel so often in a process of its own; false where that does not start. */
bool tw_probe_device(tw_harness *harness, int times, bool (*cancelled)(void *self), void *self,
                     tw_error *error);

/* A line of the log. */
void tw_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* check.c: print whether the device measures well, and commands that help; the exit status. */
int tw_check(tw_harness *harness, bool as_json);

/* results.c: batches that are measured together, and their results. */

typedef struct tw_batch tw_batch;
tw_batch *tw_batch_of(const json *requests, tw_error *error);
/* Measure them; false with the reason if nothing could be done. If the work is cancelled, candidates
 * without a result have the status "cancelled". */
bool tw_batch_measure(tw_batch *batch, tw_harness *harness, tw_job *job, const tw_watch *watch,
                      tw_error *error);
/* The list of their results. */
void tw_batch_results(const tw_batch *batch, const tw_harness *harness, tw_text *text);
void tw_batch_free(tw_batch *batch);

#endif
