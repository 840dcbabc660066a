/* A pool of threads that all executables of a process share.
 *
 * One stage runs at a time, and its tiles are claimed as shares.h says. Why it is correct:
 * - The caller waits until `pending` is 0, which is completed work. A claimed chunk is not
 *   completed before its claimant is done with the description, so the caller cannot overwrite it.
 *   A worker that never woke up holds no chunk and is waited for by nobody.
 * - Nobody sleeps through work: a worker announces that it sleeps and then looks at the ticket; the
 *   caller writes the ticket and then looks who sleeps, all in one total order.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "clock.h"
#include "parking.h"
#include "placement.h"
#include "shares.h"
#include "tilewright.h"

enum {
    SPIN = 200 * 1000,      /* nanoseconds that a thread spins before it sleeps: serial stages, and
                             * what a caller does from run to run, are shorter than this, mostly */
    SPIN_EAGER = 20 * 1000, /* nanoseconds that a caller spins before it yields */
    LOOKS = 64,             /* looks at the ticket between two looks at the clock */
    STACK_BYTES = 1 << 20,
};

#define CACHE_LINE 64

typedef struct {
    tw_stage stage;
    tw_arguments arguments;
    int64_t extent;
} job;

/* On lines of their own: workers poll the ticket, beside which they find the job, and `pending` is
 * written by all of them. */
static struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    job job;
    _Alignas(CACHE_LINE) tw_word pending;
    atomic_bool caller_sleeps;
    _Alignas(CACHE_LINE) atomic_flag busy;
    bool prepared;
    int found; /* processors that this process may use */
    _Alignas(CACHE_LINE) atomic_int started;
    atomic_int processors;
    atomic_bool sees_forks;
} pool = {.busy = ATOMIC_FLAG_INIT};

static tw_share shares[TW_MAX_THREADS];

static struct {
    _Alignas(CACHE_LINE) tw_word sleeps;
    atomic_int self;
} workers[TW_MAX_THREADS];

/* Run what is left of a share; how many chunks that was. */
static unsigned run_share(uint64_t ticket, int share, int thread) {
    unsigned done = 0;
    for (int chunk; (chunk = tw_claim(&shares[share], ticket)) >= 0; done++) {
        const job *job = &pool.job;
        int64_t lo = tw_first_tile(ticket, job->extent, share, chunk);
        int64_t hi = tw_first_tile(ticket, job->extent, share, chunk + 1);
        const tw_arguments *a = &job->arguments;
        if (lo < hi)
            job->stage(a->buffers, a->scratch + thread * a->scratch_stride, a->sizes, lo, hi);
    }
    return done;
}

/* Run chunks of the ticket's stage until all are claimed, those of the thread's own share first. */
static void take_part(uint64_t ticket, int thread) {
    const int participants = tw_participants_of(ticket);
    for (int i = 0; i < participants; i++) {
        unsigned done = run_share(ticket, (thread + i) % participants, thread);
        if (done && atomic_fetch_sub(&pool.pending, done) == done &&
            atomic_load(&pool.caller_sleeps))
            tw_wake(&pool.pending);
    }
}

static inline bool is_for(uint64_t ticket, uint64_t seen, int thread) {
    return ticket != seen && thread < tw_participants_of(ticket);
}

static int64_t patience(int thread) {
    /* With more threads than processors a thread that spins takes time from one that works. */
    return thread < atomic_load_explicit(&pool.processors, memory_order_relaxed) ? SPIN : 0;
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    int64_t idle_since = 0;
    uint64_t seen = 0;
    atomic_store(&workers[thread].self, tw_placement_self());
    tw_settle(thread);
    for (int looks = 0;;) {
        uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_acquire);
        if (is_for(ticket, seen, thread)) {
            take_part(ticket, thread);
            seen = ticket;
            idle_since = looks = 0;
            continue;
        }
        tw_pause();
        if (++looks % LOOKS != 0) continue;
        int64_t now = tw_nanoseconds(CLOCK_MONOTONIC);
        if (idle_since == 0) idle_since = now;
        if (now - idle_since < patience(thread)) continue;
        atomic_store(&workers[thread].sleeps, 1);
        while (atomic_load(&workers[thread].sleeps) &&
               !is_for(atomic_load(&pool.ticket), seen, thread))
            tw_sleep(&workers[thread].sleeps, 1);
        atomic_store(&workers[thread].sleeps, 0);
        tw_settle(thread);
        idle_since = looks = 0;
    }
    return NULL;
}

/* The child of a fork has only the thread that forked: it starts workers of its own. */
static void after_fork(void) {
    tw_parking_after_fork();
    atomic_store(&pool.ticket, 0);
    atomic_store(&pool.pending, 0);
    atomic_store(&pool.caller_sleeps, false);
    atomic_store(&pool.started, 0);
    for (int i = 0; i < TW_MAX_THREADS; i++) {
        atomic_store(&shares[i].claims, 0);
        atomic_store(&workers[i].sleeps, 0);
        atomic_store(&workers[i].self, 0);
    }
    atomic_flag_clear(&pool.busy);
}

/* Before anybody takes `busy`: a child that is made meanwhile would find it taken for good. Two
 * threads may do it at once; `after_fork` may run twice. */
static void see_forks(void) {
    if (atomic_load_explicit(&pool.sees_forks, memory_order_acquire)) return;
    pthread_atfork(NULL, NULL, after_fork);
    atomic_store_explicit(&pool.sees_forks, true, memory_order_release);
}

/* Once; the caller holds `busy`. */
static void prepare(void) {
    if (pool.prepared) return;
    pool.found = tw_placement_prepare();
    atomic_store(&pool.processors, pool.found);
    pool.prepared = true;
}

/* Start a worker on a processor that is not the caller's, or on any if the system refuses that. */
static bool start_worker(int worker) {
    for (int elsewhere = 1; elsewhere >= 0; elsewhere--) {
        pthread_attr_t attributes;
        pthread_t handle;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, STACK_BYTES);
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        if (elsewhere) tw_create_elsewhere(&attributes);
        int status = pthread_create(&handle, &attributes, work, (void *)(intptr_t)worker);
        pthread_attr_destroy(&attributes);
        if (status == 0) return true;
    }
    return false;
}

/* Start what is missing of `threads` - 1 workers; returns how many threads there are. The caller
 * holds `busy`. */
static int ensure_workers(int threads) {
    int started = atomic_load_explicit(&pool.started, memory_order_relaxed);
    if (started + 1 >= threads) return threads;
    prepare();
    sigset_t all, before;
    sigfillset(&all);
    /* but those of their own instructions: where they are blocked, no handler says where it was */
    const int own[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE};
    for (int i = 0; i < 4; i++) sigdelset(&all, own[i]);
    /* Signals are for the threads of the host program. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started + 1 < threads && start_worker(started + 1))
        atomic_store(&pool.started, ++started);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started + 1 < threads ? started + 1 : threads;
}

static void wake(int thread) {
    /* before `sleeps` changes: the worker may wake up by itself */
    tw_wake_elsewhere(atomic_load(&workers[thread].self));
    atomic_store(&workers[thread].sleeps, 0);
    tw_wake(&workers[thread].sleeps);
}

static void wait_for_pending(void) {
    int64_t start = 0;
    for (int looks = 0; atomic_load_explicit(&pool.pending, memory_order_acquire) != 0;) {
        tw_pause();
        if (++looks % LOOKS != 0) continue;
        int64_t now = tw_nanoseconds(CLOCK_MONOTONIC);
        if (start == 0) start = now;
        if (now - start < SPIN_EAGER) continue;
        if (now - start < SPIN) {
            sched_yield();
            continue;
        }
        atomic_store(&pool.caller_sleeps, true);
        unsigned pending;
        while ((pending = atomic_load(&pool.pending)) != 0) tw_sleep(&pool.pending, pending);
        atomic_store(&pool.caller_sleeps, false);
    }
}

void tw_run_stage(tw_stage stage, const tw_arguments *arguments, int64_t extent, int threads) {
    if (threads > TW_MAX_THREADS) threads = TW_MAX_THREADS;
    if (threads > extent) threads = (int)extent;
    if (threads > 1) see_forks();
    if (threads <= 1 || atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) {
        if (extent > 0) stage(arguments->buffers, arguments->scratch, arguments->sizes, 0, extent);
        return;
    }
    threads = ensure_workers(threads);
    const unsigned chunks = tw_chunks(extent, threads);
    pool.job = (job){stage, *arguments, extent};
    atomic_store_explicit(&pool.pending, (unsigned)threads * chunks, memory_order_relaxed);
    const uint64_t before = atomic_load_explicit(&pool.ticket, memory_order_relaxed);
    const uint64_t ticket = tw_next_ticket(before, threads, chunks);
    atomic_store(&pool.ticket, ticket);
    for (int thread = 1; thread < threads; thread++)
        if (atomic_load(&workers[thread].sleeps)) wake(thread);
    take_part(ticket, 0);
    wait_for_pending();
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
}

int tw_pool_bind(const int *processors, int count) {
    for (int i = 0; i < count; i++)
        if (!tw_may_run_on(processors[i])) return i + 1;
    see_forks();
    while (atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) sched_yield();
    prepare();
    int status = tw_bind(processors, count);
    if (status == 0) {
        /* a worker bound to a processor that is not the caller's may spin there */
        atomic_store(&pool.processors, count > 0 ? count + 1 : pool.found);
        int started = atomic_load(&pool.started);
        for (int thread = 1; thread <= started; thread++) {
            int self = atomic_load(&workers[thread].self);
            if (self != 0) tw_move(self, thread); /* else it has yet to settle by itself */
        }
    }
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
    return status;
}

int tw_pool_workers(void) { return atomic_load(&pool.started); }

int tw_pool_sleeping(void) {
    int count = 0;
    for (int thread = 1; thread < TW_MAX_THREADS; thread++)
        count += atomic_load(&workers[thread].sleeps) != 0;
    return count;
}
