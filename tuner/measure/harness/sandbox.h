/* Runs a lease in a process of its own, which is watched, and killed when a step takes too long. */
#ifndef TW_SANDBOX_H
#define TW_SANDBOX_H

#include <sched.h>
#include <sys/types.h>

#include "child.h"

/* The task of a process, and its limits. */
typedef struct {
    const json *requests; /* one run, or batches that are measured together; NULL: probes alone */
    const tw_blob *blobs;
    size_t blob_count;
    const tw_blob *const *plans; /* of each request; NULL where it needs none */
    const bool *wanted;          /* of batches, the candidates; NULL for a run */
    double limit;        /* seconds that a step may take */
    double budget;       /* and all steps together */
    size_t event_bytes;  /* the most bytes of one event */
    int probes;          /* without requests: how often the reference kernel is timed */
    int threads;
    uint64_t memory;        /* bytes of address space; 0: no limit */
    const cpu_set_t *cores; /* NULL: all */
    uid_t user;             /* that it becomes where the harness is root; 0: none */
    const char *folder;     /* an empty one, where it is */
} tw_job;

typedef enum {
    TW_ENDED,     /* it completed its task */
    TW_FAILED,    /* it reported that its task is impossible */
    TW_CRASHED,   /* or forged events that only the worker's own code may write */
    TW_NO_MEMORY, /* as far as that can be detected */
    TW_TIMED_OUT,
    TW_CANCELLED,
    TW_NO_CHILD, /* the system starts no process */
} tw_ended;

typedef struct {
    void *self;
    void (*take)(void *self, const json *event); /* is given each event but the last */
    bool (*cancelled)(void *self);               /* called often */
} tw_watch;

/* Do a job; `error` has the reason for its end, except for TW_ENDED. */
tw_ended tw_sandbox(const tw_job *job, const tw_watch *watch, tw_error *error);

/* confinement.c: confine this process for good; the guards that are on, in words. */
void tw_confine(const tw_job *job, int events, char *guards, size_t room);

#endif
