/* Timing kernels. CPU time for one thread, because other processes do not count in it; wall time for
 * several, because waiting counts. */
#include "clock.h"
#include "tilewright.h"

void tw_call(const tw_bound_kernel *kernel, int threads) {
    for (int64_t stage = 0; stage < kernel->stage_count; stage++)
        tw_run_stage(kernel->stages[stage], &kernel->arguments, kernel->extents[stage], threads);
}

static double sample(const tw_bound_kernel *kernel, int threads) {
    clockid_t clock = threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    int64_t start = tw_nanoseconds(clock);
    for (int64_t run = 0; run < kernel->inner; run++) tw_call(kernel, threads);
    return (double)(tw_nanoseconds(clock) - start) * 1e-9 / (double)kernel->inner;
}

/* Write back and drop the cache lines of a block. Where there is no such instruction for
   programs, the block is left where it is. */
void tw_evict(const void *block, int64_t bytes) {
#if defined(__x86_64__) || defined(__i386__)
    const char *first = block;
    for (int64_t i = 0; i < bytes; i += 64)
        /* clflushopt; processors without it ignore the prefix and run clflush */
        __asm__ volatile(".byte 0x66; clflush %0" : : "m"(first[i]) : "memory");
    __asm__ volatile("mfence" ::: "memory");
#elif defined(__aarch64__)
    const char *first = block;
    for (int64_t i = 0; i < bytes; i += 64)
        __asm__ volatile("dc civac, %0" : : "r"(first + i) : "memory");
    __asm__ volatile("dsb ish" ::: "memory");
#else
    (void)block;
    (void)bytes;
#endif
}

void tw_bench(const tw_bound_kernel *kernel, int threads, int64_t samples, double *seconds) {
    for (int64_t i = 0; i < samples; i++) seconds[i] = sample(kernel, threads);
}

/* The reference kernel: work that never changes, so that a machine which takes longer for it than it
   once did is disturbed or throttled. */
#define REFERENCE_CHAINS 16
#define REFERENCE_STEPS (1 << 16)
#define REFERENCE_LOADS (1 << 12)

/* 2^20 multiply-adds in 16 chains; seconds. */
static double reference_compute(clockid_t clock) {
    static volatile float sink;
    float value[REFERENCE_CHAINS];
    for (int i = 0; i < REFERENCE_CHAINS; i++) value[i] = (float)i;
    int64_t start = tw_nanoseconds(clock);
    for (int64_t step = 0; step < REFERENCE_STEPS; step++)
        for (int i = 0; i < REFERENCE_CHAINS; i++) value[i] = value[i] * 0.999f + 0.001f;
    int64_t taken = tw_nanoseconds(clock) - start;
    for (int i = 0; i < REFERENCE_CHAINS; i++) sink = value[i];
    (void)sink;
    return (double)taken * 1e-9;
}

/* 2^12 loads, each from a place that the one before it tells: seconds. */
static double reference_memory(clockid_t clock, const unsigned char *zeros, int64_t bytes) {
    static int64_t last; /* goes on where it was, so that no cache holds what comes */
    int64_t mask = bytes / 64 - 1, line = last & mask;
    int64_t start = tw_nanoseconds(clock);
    /* a linear congruential generator: it comes to every line, and no prefetcher follows it */
    for (int64_t load = 0; load < REFERENCE_LOADS; load++)
        line = (line * 1664525 + 1013904223 + zeros[line * 64]) & mask;
    int64_t taken = tw_nanoseconds(clock) - start;
    last = line;
    return (double)taken * 1e-9;
}

void tw_reference(int threads, const void *zeros, int64_t bytes, double *seconds) {
    clockid_t clock = threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    seconds[0] = reference_compute(clock);
    seconds[1] = reference_memory(clock, zeros, bytes);
}
