/* A pool of threads that all executables of a process share.
 *
 * One stage runs at a time. Its tiles are cut into chunks; a chunk is claimed by a compare-and-swap
 * on one 64-bit word, the ticket:
 *
 *     epoch (32 bits) | participants (16) | chunks not yet claimed (16)
 *
 * Why it is correct:
 * - The word alone says whether there is work for thread t: t < participants and chunks > 0. So a
 *   thread that saw an older stage and wakes up late either fails to swap or claims a chunk of the
 *   stage that is running now; it reads the stage's description only after it has claimed.
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
#include "tilewright.h"

enum {
    ROUNDS = 5,                /* chunks a thread; see first_tile */
    SPIN_IDLE = 20 * 1000,     /* nanoseconds that a worker spins while no program runs */
    SPIN_RUNNING = 200 * 1000, /* while one runs: serial stages are shorter than this, mostly */
    SPIN_EAGER = 20 * 1000,    /* nanoseconds that a caller spins before it yields */
    LOOKS = 64,                /* looks at the ticket between two looks at the clock */
    STACK_BYTES = 1 << 20,
};

#define CACHE_LINE 64

typedef struct {
    tw_stage stage;
    const tw_arguments *arguments;
    int64_t extent;
    int64_t chunks;
    int64_t threads;
} job;

/* On lines of their own: workers poll the ticket, and `pending` is written by all of them. */
static struct {
    _Alignas(CACHE_LINE) _Atomic uint64_t ticket;
    _Alignas(CACHE_LINE) tw_word pending;
    atomic_bool caller_sleeps;
    _Alignas(CACHE_LINE) job job;
    atomic_flag busy;
    bool prepared;
    int found; /* processors that this process may use */
    _Alignas(CACHE_LINE) atomic_int started;
    atomic_int processors;
    atomic_int running[TW_MAX_THREADS + 1]; /* programs that run now, by thread count */
    atomic_int widest;                      /* the largest of those thread counts */
} pool = {.busy = ATOMIC_FLAG_INIT};

static struct {
    _Alignas(CACHE_LINE) tw_word sleeps;
    atomic_int self;
} workers[TW_MAX_THREADS];

static inline bool has_work(uint64_t ticket, int thread) {
    return (ticket & 0xffff) != 0 && (uint64_t)thread < (ticket >> 16 & 0xffff);
}

/* Chunks get smaller: the first round shares out half of the tiles, the next a quarter, the last
 * two a sixteenth each. Few claims, and yet threads end within 1/16 of their share of each other,
 * also when one of them came late or lost its core for a while. */
static int64_t first_tile(const job *job, int64_t chunk) {
    if (job->chunks == job->extent || chunk == job->chunks)
        return chunk == job->chunks ? job->extent : chunk;
    const int64_t whole = 1 << (ROUNDS - 1);
    int64_t round = chunk / job->threads, place = chunk % job->threads;
    int64_t before = whole - (whole >> round);
    int64_t share = round < ROUNDS - 1 ? whole >> (round + 1) : 1;
    return job->extent * (before * job->threads + place * share) / (whole * job->threads);
}

static bool run_one_chunk(int thread) {
    uint64_t ticket = atomic_load_explicit(&pool.ticket, memory_order_relaxed);
    do {
        if (!has_work(ticket, thread)) return false;
    } while (!atomic_compare_exchange_weak_explicit(&pool.ticket, &ticket, ticket - 1,
                                                    memory_order_acq_rel, memory_order_relaxed));
    const job *job = &pool.job;
    int64_t chunk = job->chunks - (int64_t)(ticket & 0xffff);
    int64_t lo = first_tile(job, chunk), hi = first_tile(job, chunk + 1);
    if (lo < hi) {
        const tw_arguments *a = job->arguments;
        job->stage(a->buffers, a->scratch + thread * a->scratch_stride, a->sizes, lo, hi);
    }
    if (atomic_fetch_sub(&pool.pending, 1) == 1 && atomic_load(&pool.caller_sleeps))
        tw_wake(&pool.pending);
    return true;
}

static int64_t patience(int thread) {
    /* With more threads than processors a thread that spins takes time from one that works. */
    if (thread >= atomic_load_explicit(&pool.processors, memory_order_relaxed)) return 0;
    bool soon = thread < atomic_load_explicit(&pool.widest, memory_order_relaxed);
    return soon ? SPIN_RUNNING : SPIN_IDLE;
}

static void *work(void *argument) {
    int thread = (int)(intptr_t)argument;
    int64_t idle_since = 0;
    atomic_store(&workers[thread].self, tw_placement_self());
    tw_settle(thread);
    for (int looks = 0;;) {
        if (run_one_chunk(thread)) {
            idle_since = looks = 0;
            continue;
        }
        tw_pause();
        if (++looks % LOOKS != 0) continue;
        int64_t now = tw_nanoseconds(CLOCK_MONOTONIC);
        if (idle_since == 0) idle_since = now;
        if (now - idle_since < patience(thread)) continue;
        atomic_store(&workers[thread].sleeps, 1);
        while (atomic_load(&workers[thread].sleeps) && !has_work(atomic_load(&pool.ticket), thread))
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
    atomic_store(&pool.widest, 0);
    for (int i = 0; i <= TW_MAX_THREADS; i++) atomic_store(&pool.running[i], 0);
    for (int i = 0; i < TW_MAX_THREADS; i++) {
        atomic_store(&workers[i].sleeps, 0);
        atomic_store(&workers[i].self, 0);
    }
    atomic_flag_clear(&pool.busy);
}

/* Once; the caller holds `busy`. */
static void prepare(void) {
    if (pool.prepared) return;
    pthread_atfork(NULL, NULL, after_fork);
    pool.found = tw_placement_prepare();
    atomic_store(&pool.processors, pool.found);
    pool.prepared = true;
}

/* Start what is missing of `threads` - 1 workers; returns how many threads there are. The caller
 * holds `busy`. */
static int ensure_workers(int threads) {
    int started = atomic_load_explicit(&pool.started, memory_order_relaxed);
    if (started + 1 >= threads) return threads;
    prepare();
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    tw_create_elsewhere(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    /* Signals are for the threads of the host program. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t handle;
    while (started + 1 < threads &&
           pthread_create(&handle, &attributes, work, (void *)(intptr_t)(started + 1)) == 0)
        atomic_store(&pool.started, ++started);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
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
        if (now - start < SPIN_RUNNING) {
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
    if (threads <= 1 || atomic_flag_test_and_set_explicit(&pool.busy, memory_order_acquire)) {
        if (extent > 0) stage(arguments->buffers, arguments->scratch, arguments->sizes, 0, extent);
        return;
    }
    threads = ensure_workers(threads);
    int64_t chunks = (int64_t)threads * ROUNDS;
    if (chunks > extent) chunks = extent;
    pool.job = (job){stage, arguments, extent, chunks, threads};
    atomic_store_explicit(&pool.pending, (unsigned)chunks, memory_order_relaxed);
    uint64_t epoch = (atomic_load_explicit(&pool.ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&pool.ticket, epoch << 32 | (uint64_t)threads << 16 | (uint64_t)chunks);
    for (int thread = 1; thread < threads; thread++)
        if (atomic_load(&workers[thread].sleeps)) wake(thread);
    while (run_one_chunk(0)) {
    }
    wait_for_pending();
    atomic_flag_clear_explicit(&pool.busy, memory_order_release);
}

static void update_widest(void) {
    int widest = TW_MAX_THREADS;
    while (widest > 1 && atomic_load(&pool.running[widest]) == 0) widest--;
    /* Two callers may leave at once and write in the wrong order. This steers only how long a
     * worker spins, and the next program to enter or leave puts it right. */
    atomic_store(&pool.widest, widest);
}

void tw_enter(int threads) {
    if (threads <= 1) return;
    if (threads > TW_MAX_THREADS) threads = TW_MAX_THREADS;
    atomic_fetch_add(&pool.running[threads], 1);
    if (threads > atomic_load(&pool.widest)) atomic_store(&pool.widest, threads);
}

void tw_leave(int threads) {
    if (threads <= 1) return;
    if (threads > TW_MAX_THREADS) threads = TW_MAX_THREADS;
    atomic_fetch_sub(&pool.running[threads], 1);
    update_widest();
}

int tw_pool_bind(const int *processors, int count) {
    for (int i = 0; i < count; i++)
        if (!tw_may_run_on(processors[i])) return i + 1;
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
