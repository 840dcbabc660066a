/* What a test asks of the threads of a module. Each round is over when every tile has run. */
#include "module_threads.c"

enum { TILES = 64 };

static _Atomic int counts[TILES], present[2];

static void count(void *argument, int64_t first, int64_t last, int thread) {
    const int round = *(int *)argument;
    atomic_store(&present[thread], round);
    while (atomic_load(&present[1 - thread]) != round) continue; /* until the other one is here, too */
    for (int64_t tile = first; tile < last; tile++) atomic_fetch_add(&counts[tile], 1);
}

/* How many tiles did not run once in each round, with two threads. */
int rounds(int first, int last) {
    const struct tw_sharing *sharing = tw_pool(2, 1);
    int wrong = 0;
    for (int round = first; round < last; round++) {
        for (int tile = 0; tile < TILES; tile++) atomic_store(&counts[tile], 0);
        sharing->share(NULL, count, &round, TILES, 2);
        for (int tile = 0; tile < TILES; tile++) wrong += atomic_load(&counts[tile]) != 1;
    }
    return wrong;
}

static void fall(void *argument, int64_t first, int64_t last, int thread) {
    (void)argument, (void)first, (void)last;
    atomic_store(&present[thread], -1);
    while (atomic_load(&present[1 - thread]) != -1) continue;
    if (thread == 1) __builtin_trap();
}

/* The other thread ends in the middle of its work. */
void fallen(void) { tw_pool(2, 1)->share(NULL, fall, NULL, TILES, 2); }

int asleep(void) { return atomic_load(&pool.sleepers); }
