/* The interpreter of programs: one call runs a whole model. */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "clock.h"
#include "tilewright.h"

#ifdef TW_WITHOUT_PROFILE /* in a C library, which asks the system for no clock */
typedef void tw_profile;
#define note(profile, code) ((void)(profile))
#else
/* Where the time of a run goes, by the first word of each instruction. */
typedef struct {
    double *seconds;
    const int64_t *code;
    clockid_t clock;
    int64_t before, cost;
} tw_profile;

/* The time since the last note belongs to the instruction at `code`. */
static void note(tw_profile *profile, const int64_t *code) {
    int64_t after = tw_nanoseconds(profile->clock), spent = after - profile->before - profile->cost;
    /* shorter than the clock can tell, but it ran: 0 is what did not */
    profile->seconds[code - profile->code] += (double)(spent > 0 ? spent : 1) * 1e-9;
    profile->before = after;
}
#endif

/* Run the instructions from `code` up to `end`, with their times where there is a profile. */
static int run(const tw_program *program, const int64_t *code, const int64_t *end,
               tw_profile *profile) {
    const tw_stage *functions = program->functions;
    void *const *pointers = program->arguments.buffers;
    tw_arguments arguments = program->arguments;
    const volatile uint8_t *stop = program->stop;
    int threads = (int)program->threads, status = TW_OK;
    for (; code < end && status == TW_OK; code += code[1]) {
        if (stop && *stop) return TW_STOPPED;
        if (end - code < 2 || code[1] < 2 || code[1] > end - code) return TW_BAD_LENGTH;
        const int64_t *next = code + code[1];
        switch (code[0]) {
        case TW_KERNEL:
            arguments.buffers = pointers + code[2];
            arguments.sizes = code + 4 + 2 * code[3];
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
        case TW_LOOP: {
            int64_t *counter = pointers[code[2]], step = 0;
            const int64_t trips = *(const int64_t *)pointers[code[2] + 1];
            const uint8_t *going = pointers[code[2] + 2];
            const int64_t steps = trips < code[3] ? trips : code[3];
            for (*counter = 0; step < steps && *going && status == TW_OK; *counter = ++step)
                status = run(program, code + 4, next, profile);
            break;
        }
        case TW_BRANCH: {
            const int64_t *other = code + 4 + code[3];
            if (code[3] < 0 || code[3] > next - code - 4) return TW_BAD_LENGTH;
            status = *(const uint8_t *)pointers[code[2]] ? run(program, code + 4, other, profile)
                                                         : run(program, other, next, profile);
            break;
        }
        case TW_SIZE_BRANCH: {
            const int64_t *other = code + 5 + code[4];
            if (code[4] < 0 || code[4] > next - code - 5) return TW_BAD_LENGTH;
            status = code[2] <= code[3] ? run(program, code + 5, other, profile)
                                        : run(program, other, next, profile);
            break;
        }
        case TW_REFUSAL:
            return TW_REFUSED + (int)code[2];
        default:
            return TW_BAD_OPCODE;
        }
        if (profile) note(profile, code);
    }
    return status;
}

int tw_run_program(const tw_program *program) {
    return run(program, program->code, program->code + program->words, NULL);
}

#ifndef TW_WITHOUT_PROFILE
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
    clockid_t clock = program->threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    tw_profile profile = {seconds, program->code, clock, 0, clock_cost(clock)};
    memset(seconds, 0, (size_t)program->words * sizeof *seconds);
    profile.before = tw_nanoseconds(clock);
    return run(program, program->code, program->code + program->words, &profile);
}
#endif

int tw_abi_version(void) { return TW_ABI_VERSION; }
