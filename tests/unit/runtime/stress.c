/* Stress of the thread pool, run as a process of its own by test_pool.py.
 *
 * Several callers run stages of random extents on random numbers of threads, more than there are
 * cores, and check that every tile ran exactly once and that no two threads shared scratch, while
 * the process forks and the children do the same.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tilewright.h"

enum { LONGEST = 3000, WIDEST = 9 };

static void mark(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi) {
    int *marks = buffers[0];
    volatile int64_t *mine = scratch;
    (void)sizes;
    for (int64_t i = lo; i < hi; i++) {
        *mine = i;
        marks[i] += *mine == i ? 1 : 100;
    }
}

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static void stress(unsigned seed, int rounds) {
    int *marks = malloc(LONGEST * sizeof *marks);
    void *buffers[] = {marks};
    char *scratch = aligned_alloc(64, 64 * WIDEST);
    tw_arguments arguments = {.buffers = buffers, .scratch = scratch, .scratch_stride = 64};
    for (int round = 0; round < rounds; round++) {
        int threads = 1 + (int)(next(&seed) % WIDEST);
        int extent = (int)(next(&seed) % (round % 8 ? 50 : LONGEST));
        memset(marks, 0, LONGEST * sizeof *marks);
        tw_run_stage(mark, &arguments, extent, threads);
        for (int i = 0; i < LONGEST; i++)
            if (marks[i] != (i < extent)) {
                fprintf(stderr, "tile %d of %d, %d threads: %d\n", i, extent, threads, marks[i]);
                abort();
            }
        if (round % 500 == 0) usleep(next(&seed) % 300);
    }
    free(scratch);
    free(marks);
}

static void *caller(void *seed) {
    stress((unsigned)(uintptr_t)seed, 6000);
    return NULL;
}

int main(int count, char **arguments) {
    int callers = count > 1 ? atoi(arguments[1]) : 1;
    pthread_t threads[16];
    for (int i = 0; i < callers; i++)
        pthread_create(&threads[i], NULL, caller, (void *)(uintptr_t)(i + 1));
    for (int i = 0; i < 8; i++) {
        usleep(2000);
        pid_t child = fork();
        if (child == 0) {
            stress(1000 + (unsigned)i, 500);
            _exit(0);
        }
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "child %d ended with status %d\n", i, status);
            return 1;
        }
    }
    for (int i = 0; i < callers; i++) pthread_join(threads[i], NULL);
    for (int tries = 0; tw_pool_sleeping() < tw_pool_workers(); tries++) {
        if (tries == 5000) {
            fprintf(stderr, "%d of %d idle workers sleep\n", tw_pool_sleeping(), tw_pool_workers());
            return 1;
        }
        usleep(1000);
    }
    printf("%d workers\n", tw_pool_workers());
    return 0;
}
