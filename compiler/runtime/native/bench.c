/* Timing kernels. CPU time for one thread, because other processes do not count in it; wall time for
 * several, because waiting counts. */
#include "clock.h"
#include "tilewright.h"

static void call(const tw_bound_kernel *kernel, int threads) {
    for (int64_t stage = 0; stage < kernel->stage_count; stage++)
        tw_run_stage(kernel->stages[stage], &kernel->arguments, kernel->extents[stage], threads);
}

static double sample(const tw_bound_kernel *kernel, int threads) {
    clockid_t clock = threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    int64_t start = tw_nanoseconds(clock);
    for (int64_t run = 0; run < kernel->inner; run++) call(kernel, threads);
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

void tw_call(const tw_bound_kernel *kernel, int threads) {
    tw_enter(threads);
    call(kernel, threads);
    tw_leave(threads);
}

void tw_bench(const tw_bound_kernel *kernel, int threads, int64_t samples, double *seconds) {
    tw_enter(threads);
    for (int64_t i = 0; i < samples; i++) seconds[i] = sample(kernel, threads);
    tw_leave(threads);
}

void tw_bench_interleaved(const tw_bound_kernel *kernels, const int64_t *order, int64_t samples,
                          int threads, double *seconds) {
    tw_enter(threads);
    for (int64_t i = 0; i < samples; i++) {
        call(&kernels[order[i]], threads);
        seconds[i] = sample(&kernels[order[i]], threads);
    }
    tw_leave(threads);
}
