/* The worker in C: one process that leases work over HTTP, has a sandbox do it, and reports
 * results. */
#ifndef TW_WORKER_H
#define TW_WORKER_H

#include "facts.h"
#include "heat.h"
#include "http.h"
#include "json.h"
#include "sandbox.h"

enum { PROTOCOL = 7, MOST_TARGETS = 16, MOST_READINGS = 4096 };

/* The readings of the reference kernel, each beside the best so far (tuner/measure/speed.py). */
typedef struct {
    double readings[2][MOST_READINGS];
    size_t count;
    double seconds[2], ratios[2]; /* the last ones: arithmetic, memory */
    double last_at, disturbed_since;
    bool disturbed, is_disturbed_long;
} tw_speed;

void tw_speed_take(tw_speed *speed, double arithmetic, double memory);
/* JSON of the last reading; "null" before the first. */
void tw_speed_json(const tw_speed *speed, bool with_throttled, tw_text *text);
/* How disturbed a reading is: at most 1 where it is not. */
double tw_speed_excess(const tw_speed *speed);

/* state.c: what is kept on disk, all of it in a folder for one service. */
typedef struct {
    char folder[512];
    uint64_t cache_bytes;
    int lock;
    struct tw_verified *verified; /* files whose bytes were compared with their names */
} tw_state;

bool tw_state_open(tw_state *state, const char *base, const char *url, tw_error *error);
/* A text of one line that an earlier life wrote; "" where there is none. */
void tw_state_read(const tw_state *state, const char *name, char *value, size_t room);
void tw_state_write(const tw_state *state, const char *name, const char *value);
/* Whether the bytes of a blob are here, and are right. One that is damaged is deleted. */
bool tw_state_has(tw_state *state, const char *digest);
/* A file to write a blob to, and what becomes of it. */
int tw_state_begin(const tw_state *state, const char *digest, tw_error *error);
bool tw_state_end(tw_state *state, const char *digest, int file, bool whole);
/* Whether a file of this name is here, whatever its bytes are. */
bool tw_state_here(const tw_state *state, const char *digest);
/* Make room for so many bytes more by deleting the blobs that were used longest ago, but not
 * these. */
void tw_state_trim(const tw_state *state, const tw_blob *kept, size_t count, uint64_t coming);
/* The bytes of a blob that is here. */
bool tw_state_map(const tw_state *state, tw_blob *blob, tw_error *error);

typedef struct {
    http_server server;
    char name[200];
    const char *targets[MOST_TARGETS];
    size_t target_count;
    uint64_t sandbox_bytes;
    const char *given_key; /* "" if none was given */
    const char *root;      /* that holds `proc` and `sys` */
    tw_facts facts;
    tw_state state;
    char id[33];
    unsigned char key[32];
    double heartbeat_seconds, long_poll_seconds;
    double next_heartbeat, next_probe;
    char lease[33]; /* "" without one */
    bool lost;
    tw_speed speed;
    tw_heat heat;
    double report_until; /* by http_now(), once the worker is to end; 0 before */
    char guards[200];
    long long results;
    int status; /* of the process, once `ends` */
    bool ends, is_draining, is_beating;
} tw_worker;

void tw_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* calls.c */

typedef enum { CALL_DONE, CALL_AGAIN, CALL_REFUSED, CALL_STOPPED } tw_told;

/* Why the service refused. */
typedef struct {
    char slug[64];
    bool ends_worker, worker_unknown;
} tw_refusal;

/* Ask the service. What it answered is in `document` until that is freed. */
tw_told tw_ask(tw_worker *worker, const char *method, const char *path, const tw_text *body,
               double seconds, json_document *document, const json **answer, tw_refusal *refusal,
               tw_error *error);

/* Pauses that double up to five seconds, with jitter. Starts as 0. */
void tw_pause(double *pause);

/* Introduce the worker, until the service knows it or the worker ends. */
void tw_register(tw_worker *worker);
/* A heartbeat, if it is time for one. */
void tw_beat(tw_worker *worker);
void tw_leave(tw_worker *worker);
/* The worker ends, with a sentence. */
void tw_end(tw_worker *worker, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* As hexadecimal digits; 0 behind them. */
void tw_draw_name(char name[33]);
/* Fetch a blob of at most so many bytes, if it is not here. `damaged` says whether it arrived, and
 * is another. */
tw_told tw_fetch(tw_worker *worker, const char *digest, uint64_t most, bool *damaged,
                 tw_error *error);
/* Whether the service signed that this request is to be run. */
bool tw_is_signed(const tw_worker *worker, const char *request_id, const json *payload,
                  const char *signature);
/* An interval that an answer holds, within reason; false where it has none. */
bool tw_seconds(const json *answer, const char *name, double *found);

/* report.c */

/* Send the result of the lease in hand until the service takes or refuses it. */
void tw_report(tw_worker *worker, const char *request_id, const tw_text *result);
/* Give the lease in hand back: whose fault it is, "worker" or "service", and what happened. */
void tw_give_back(tw_worker *worker, const char *cause, const char *why);

/* lease.c */

/* Do what a lease asks, and report it; false for one that makes no sense. */
bool tw_work(tw_worker *worker, const json *lease);
/* See how fast the device is, if nobody has looked for a while. */
void tw_look(tw_worker *worker);

/* check.c: print whether the device measures well, and what to type; the exit status. */
int tw_check(tw_worker *worker, bool as_json);

/* Time the reference kernel so often in a process of its own; false where that does not start. */
bool tw_probe_device(tw_worker *worker, int times, tw_error *error);

/* results.c: a batch that is measured, and its result. */

typedef struct tw_batch tw_batch;
tw_batch *tw_batch_of(const json *request, tw_error *error);
/* Measure it; false where that was cancelled, or nothing could be done (with the reason). */
bool tw_batch_measure(tw_batch *batch, tw_worker *worker, tw_job *job, const tw_watch *watch,
                      bool *cancelled, tw_error *error);
void tw_batch_result(const tw_batch *batch, const tw_worker *worker, tw_text *text);
void tw_batch_free(tw_batch *batch);

#endif
