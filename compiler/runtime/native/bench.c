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
