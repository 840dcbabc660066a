/* The interpreter of programs: one call runs a whole model. */
#include <stddef.h>
#include <string.h>

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

int tw_abi_version(void) { return TW_ABI_VERSION; }
