/* How threads claim the tiles of a stage.
 *
 * Each thread has a share of the tiles, always the same one of equal stages: what a thread has written
 * lies in its cache when it reads it in the next stage. A share is cut into chunks. Its thread claims
 * them one after the other, and then those that are left of others' shares. There are two kinds of
 * words:
 *
 *     ticket:              epoch (48 bits) | participants (10) | chunks of each share (6)
 *     claims, one a share: epoch (48 bits) | chunks claimed (16)
 *
 * A chunk is claimed by a compare-and-swap on its share's word. One with an older epoch means that
 * nothing of the share is claimed. A thread reads a ticket and claims chunks of its epoch only. When a
 * stage is done, the claims of all its shares are full and of its epoch or a later one. So a thread
 * that saw an older stage and wakes up late claims nothing.
 */
#ifndef TILEWRIGHT_SHARES_H
#define TILEWRIGHT_SHARES_H

#include <stdatomic.h>
#include <stdint.h>

enum { TW_ROUNDS = 5 }; /* chunks of a share; see tw_first_tile */

/* On a line of its own. */
typedef struct {
    _Alignas(64) _Atomic uint64_t claims;
} tw_share;

static inline uint64_t tw_epoch_of(uint64_t ticket) { return ticket >> 16; }
static inline int tw_participants_of(uint64_t ticket) { return (int)(ticket >> 6 & 0x3ff); }
static inline int tw_chunks_of(uint64_t ticket) { return (int)(ticket & 0x3f); }

/* Chunks of a share get smaller: the first is half of it, the next a quarter, the last two a
 * sixteenth each. Few claims, and yet threads end within 1/16 of their share of each other, also
 * when one of them came late or lost its core for a while. */
static inline int64_t tw_first_tile(uint64_t ticket, int64_t extent, int share, int chunk) {
    int64_t first = extent * share / tw_participants_of(ticket);
    int64_t tiles = extent * (share + 1) / tw_participants_of(ticket) - first;
    if (tw_chunks_of(ticket) < TW_ROUNDS) return first + (chunk < tiles ? chunk : tiles);
    const int64_t whole = 1 << (TW_ROUNDS - 1);
    return first + (chunk == TW_ROUNDS ? tiles : tiles * (whole - (whole >> chunk)) / whole);
}

/* The next chunk of a share, or -1 if all are claimed or the ticket's stage is over. */
static inline int tw_claim(tw_share *share, uint64_t ticket) {
    const uint64_t epoch = tw_epoch_of(ticket);
    uint64_t claims = atomic_load_explicit(&share->claims, memory_order_relaxed);
    int claimed;
    do {
        if (claims >> 16 > epoch) return -1;
        claimed = claims >> 16 == epoch ? (int)(claims & 0xffff) : 0;
        if (claimed >= tw_chunks_of(ticket)) return -1;
    } while (!atomic_compare_exchange_weak_explicit(&share->claims, &claims,
                                                    epoch << 16 | (uint64_t)(claimed + 1),
                                                    memory_order_acq_rel, memory_order_relaxed));
    return claimed;
}

/* Chunks of each share of a stage. */
static inline unsigned tw_chunks(int64_t extent, int threads) {
    const int64_t most = (extent + threads - 1) / threads;
    return most < TW_ROUNDS ? (unsigned)most : TW_ROUNDS;
}

/* The ticket of the stage after that of another one. */
static inline uint64_t tw_next_ticket(uint64_t ticket, int threads, unsigned chunks) {
    return (tw_epoch_of(ticket) + 1) << 16 | (uint64_t)threads << 6 | chunks;
}

#endif
