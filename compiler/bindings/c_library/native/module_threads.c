/* Threads of a module of WebAssembly: workers of JavaScript, each with an instance of the module over
 * the same memory, and with a stack of its own. A worker calls `tw_work` and stays there.
 *
 * One stage runs at a time, and its tiles are claimed as shares.h says. Why this is correct is what
 * pool.c says of itself. There is no clock, and whoever calls may be a page, which must not sleep.
 */
#include <stdatomic.h>
#include <stdbool.h>

#include "shares.h"
#include "tw_model.h"

enum { SPIN = 1 << 16 }; /* looks before a thread sleeps: some hundred microseconds */

/* On lines of their own: workers poll the ticket, beside which they find the job. */
static struct {
    _Alignas(64) _Atomic uint64_t ticket;
    void (*work)(void *argument, int64_t first, int64_t last, int thread);
    void *argument;
    int64_t tiles;
    _Alignas(64) _Atomic int pending; /* chunks that are not completed */
    atomic_bool caller_sleeps;
    atomic_bool lost; /* a thread ended with a chunk that nobody completes */
    _Alignas(64) _Atomic int bell; /* another number whenever sleepers are woken */
    _Atomic int sleepers;
} pool;

static tw_share shares[TW_MAX_THREADS];

static bool caller_may_sleep;

static void sleep_on(_Atomic int *word, int seen) {
    __builtin_wasm_memory_atomic_wait32((int *)word, seen, -1);
}

static void wake(_Atomic int *word) { __builtin_wasm_memory_atomic_notify((int *)word, UINT32_MAX); }

static void take_part(uint64_t ticket, int thread) {
    const int participants = tw_participants_of(ticket);
    for (int i = 0; i < participants; i++) {
        const int share = (thread + i) % participants;
        int done = 0;
        for (int chunk; (chunk = tw_claim(&shares[share], ticket)) >= 0; done++) {
            int64_t lo = tw_first_tile(ticket, pool.tiles, share, chunk);
            int64_t hi = tw_first_tile(ticket, pool.tiles, share, chunk + 1);
            if (lo < hi) pool.work(pool.argument, lo, hi, thread);
        }
        if (done && atomic_fetch_sub(&pool.pending, done) == done &&
            atomic_load(&pool.caller_sleeps))
            wake(&pool.pending);
    }
}

static bool is_for(uint64_t ticket, uint64_t seen, int thread) {
    return ticket != seen && thread < tw_participants_of(ticket);
}

void tw_work(int thread) {
    uint64_t seen = 0;
    for (int looks = 0;;) {
        const uint64_t ticket = atomic_load(&pool.ticket);
        if (is_for(ticket, seen, thread)) {
            take_part(ticket, thread);
            seen = ticket;
            looks = 0;
        } else if (++looks >= SPIN) {
            /* it says that it sleeps before it looks again, the caller looks who sleeps after it has
             * written the ticket: nobody sleeps through work */
            const int bell = atomic_load(&pool.bell);
            atomic_fetch_add(&pool.sleepers, 1);
            if (!is_for(atomic_load(&pool.ticket), seen, thread)) sleep_on(&pool.bell, bell);
            atomic_fetch_sub(&pool.sleepers, 1);
            looks = 0;
        }
    }
}

/* A thread ended. It changes the number that the caller may be about to sleep on. */
void tw_lost(void) {
    atomic_store(&pool.lost, true);
    atomic_fetch_add(&pool.pending, 1);
    wake(&pool.pending);
}

static void wait_for_pending(void) {
    for (int looks = 0, pending; (pending = atomic_load(&pool.pending)) != 0;) {
        if (atomic_load(&pool.lost)) __builtin_trap();
        if (!caller_may_sleep || ++looks < SPIN) continue;
        atomic_store(&pool.caller_sleeps, true);
        while ((pending = atomic_load(&pool.pending)) != 0 && !atomic_load(&pool.lost))
            sleep_on(&pool.pending, pending);
        atomic_store(&pool.caller_sleeps, false);
    }
}

static void share_tiles(void *context,
                        void (*work)(void *argument, int64_t first, int64_t last, int thread),
                        void *argument, int64_t tiles, int threads) {
    (void)context;
    if (threads > tiles) threads = (int)tiles;
    const unsigned chunks = tw_chunks(tiles, threads);
    pool.work = work;
    pool.argument = argument;
    pool.tiles = tiles;
    atomic_store(&pool.pending, threads * (int)chunks);
    const uint64_t ticket = tw_next_ticket(atomic_load(&pool.ticket), threads, chunks);
    atomic_store(&pool.ticket, ticket);
    if (atomic_load(&pool.sleepers)) {
        atomic_fetch_add(&pool.bell, 1);
        wake(&pool.bell);
    }
    take_part(ticket, 0);
    wait_for_pending();
}

/* What shares tiles out to `threads` threads, the caller among them. */
const struct tw_sharing *tw_pool(int threads, int may_sleep) {
    static struct tw_sharing sharing = {share_tiles, NULL, 1};
    sharing.threads = threads;
    caller_may_sleep = may_sleep != 0;
    return &sharing;
}
