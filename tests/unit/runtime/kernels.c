/* Small kernels that follow the kernel ABI, written by hand. */
#define _POSIX_C_SOURCE 199309L
#include <stdint.h>
#include <string.h>
#include <time.h>

/* out[i] = 2 * in[i], a tile is one element */
void twice(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi) {
    const float *in = buffers[0];
    float *out = buffers[1];
    for (int64_t i = lo; i < hi; i++) out[i] = 2.0f * in[i];
}

/* out[i] = in[i] + weight[i] */
void add_weight(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi) {
    const float *in = buffers[0], *weight = buffers[1];
    float *out = buffers[2];
    for (int64_t i = lo; i < hi; i++) out[i] = in[i] + weight[i];
}

/* Two stages with a barrier: shared[i] = in[i]; out[i] = sum of shared. Wrong without the barrier,
 * unless one thread does it all in order. */
void gather_stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                  int64_t hi) {
    const float *in = buffers[0];
    float *shared = buffers[1];
    for (int64_t i = lo; i < hi; i++) shared[i] = in[i];
}

void sum_stage(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi) {
    const float *shared = buffers[1];
    float *out = buffers[2];
    for (int64_t i = lo; i < hi; i++) {
        float sum = 0.0f;
        for (int64_t k = 0; k < 64; k++) sum += shared[k];
        out[i] = sum;
    }
}

/* counts[i] += 1 through scratch that another thread must not touch; scratch misaligned: -100 */
void count(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi) {
    int32_t *counts = buffers[0];
    volatile int64_t *mine = scratch;
    for (int64_t i = lo; i < hi; i++) {
        for (int k = 0; k < 8; k++) mine[k] = i;
        int same = (uintptr_t)scratch % 64 == 0;
        for (int k = 0; k < 8; k++) same &= mine[k] == i;
        counts[i] += same ? 1 : -100;
    }
}

/* Waits for 0.05 s, and computes nothing. */
void waits(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi) {
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, 0);
}

/* out: the rows of one buffer, then those of another, 8 wide; a tile is a row. sizes: how many rows
 * the first has, and the second by fours. Each row goes through scratch that holds as many rows as
 * the first buffer has, and one. */
void join_rows(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo, int64_t hi) {
    const float *first = buffers[0], *second = buffers[1];
    float *out = buffers[2], *last = (float *)scratch + 8 * sizes[0];
    for (int64_t i = lo; i < hi; i++) {
        const float *row = i < sizes[0] ? first + 8 * i : second + 8 * (i - sizes[0]);
        if (i >= sizes[0] + 4 * sizes[1]) row = 0;
        memcpy(last, row, 32);
        memcpy(out + 8 * i, last, 32);
    }
}
