/* Keys of random numbers: another one at each call, in each process, unless they are pinned. */
#include <stdatomic.h>

#include "tilewright.h"
#ifndef __wasm__
#include <unistd.h>

#include "clock.h"
#endif

static _Atomic uint32_t calls;
static _Atomic int pinned; /* how many callers want the keys to be the same */

int tw_pin_random_keys(int change) { return atomic_fetch_add(&pinned, change) + change; }

/* The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): one bit of x changes half of the bits. */
static uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#ifdef __wasm__
static uint64_t seed;

/* 64 bits of the page, which alone has any that differ from the last time. */
void tw_seed_random_keys(uint32_t low, uint32_t high) { seed = (uint64_t)high << 32 | low; }

static uint64_t of_this_run(void) { return seed; }
#else
static uint64_t of_this_run(void) {
    return (uint64_t)tw_nanoseconds(CLOCK_REALTIME) ^ mixed((uint64_t)getpid());
}
#endif

/* A key: of the time, the process and the number of the call; pinned, of the node's number alone.
 * One tile.  sizes: the node's number.  buffers: 2 uint32. */
TW_EXPORT void tw_native_random_key(void *const *buffers, void *scratch, const int64_t *sizes,
                                    int64_t lo, int64_t hi) {
    (void)scratch, (void)lo, (void)hi;
    uint64_t key = (uint64_t)sizes[0] + 1;
    if (atomic_load(&pinned) <= 0) {
        key = mixed(of_this_run());
        key += (uint64_t)atomic_fetch_add(&calls, 1) * 0x9e3779b97f4a7c15u;
    }
    key = mixed(key);
    uint32_t *words = buffers[0];
    words[0] = (uint32_t)key;
    words[1] = (uint32_t)(key >> 32);
}
