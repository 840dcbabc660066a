/* The interpreter of programs: one call runs a whole model. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "clock.h"
#include "tilewright.h"

static int run(const int64_t *code, const int64_t *end, const tw_stage *functions,
               void *const *pointers, tw_arguments arguments, int threads) {
    for (; code < end; code += code[1]) {
        if (end - code < 2 || code[1] < 2 || code[1] > end - code) return TW_BAD_LENGTH;
        switch (code[0]) {
        case TW_KERNEL:
            arguments.buffers = pointers + code[2];
            for (int64_t stage = 0; stage < code[3]; stage++)
                tw_run_stage(functions[code[4 + 2 * stage]], &arguments, code[5 + 2 * stage],
                             threads);
            break;
        case TW_COPY:
            memcpy(pointers[code[2]], pointers[code[3]], (size_t)code[4]);
            break;
        case TW_NATIVE: {
            tw_arguments given = arguments;
            given.buffers = pointers + code[2];
            given.sizes = code + 5;
            tw_run_stage(functions[code[3]], &given, code[4], threads);
            break;
        }
        default:
            return TW_BAD_OPCODE;
        }
    }
    return TW_OK;
}

int tw_run_program(const tw_program *program) {
    int threads = (int)program->threads;
    tw_enter(threads);
    int status = run(program->code, program->code + program->words, program->functions,
                     program->arguments.buffers, program->arguments, threads);
    tw_leave(threads);
    return status;
}

/* What two looks at a clock cost: of the thread's CPU time it is a call into the system. */
static int64_t clock_cost(clockid_t clock) {
    int64_t least = INT64_MAX, before = tw_nanoseconds(clock);
    for (int i = 0; i < 16; i++) {
        int64_t after = tw_nanoseconds(clock);
        if (after - before < least) least = after - before;
        before = after;
    }
    return least;
}

int tw_profile_program(double *seconds, const tw_program *program) {
    int threads = (int)program->threads, status = TW_OK;
    clockid_t clock = threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    const int64_t *code = program->code, *end = code + program->words;
    const int64_t cost = clock_cost(clock);
    tw_enter(threads);
    int64_t before = tw_nanoseconds(clock);
    while (code < end && status == TW_OK) {
        /* `run` refuses an instruction whose length is wrong */
        bool sound = end - code > 1 && code[1] > 1 && code[1] <= end - code;
        const int64_t *next = sound ? code + code[1] : end;
        status = run(code, next, program->functions, program->arguments.buffers,
                     program->arguments, threads);
        int64_t after = tw_nanoseconds(clock), spent = after - before - cost;
        *seconds++ = spent > 0 ? (double)spent * 1e-9 : 0.0;
        before = after;
        code = next;
    }
    tw_leave(threads);
    return status;
}

int tw_abi_version(void) { return TW_ABI_VERSION; }
