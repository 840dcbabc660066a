/* The length of registers that the device decides: code for longer ones would compute a part of each
 * vector, and say nothing. */
#include "tilewright.h"

#if defined(__linux__) && defined(__aarch64__)

#include <sys/prctl.h>

#ifndef PR_SVE_GET_VL
#define PR_SVE_GET_VL 51
#endif

int64_t tw_vector_bits(void) {
    int said = prctl(PR_SVE_GET_VL); /* bytes in the low 16 bits */
    return said < 0 ? 0 : (int64_t)(said & 0xffff) * 8;
}

#elif defined(__linux__) && defined(__riscv)

#include <sys/auxv.h>

int64_t tw_vector_bits(void) {
    unsigned long bytes = 0;
    if (!(getauxval(AT_HWCAP) >> ('v' - 'a') & 1)) return 0;
    __asm__ volatile("csrr %0, 0xc22" : "=r"(bytes)); /* vlenb */
    return (int64_t)bytes * 8;
}

#else

int64_t tw_vector_bits(void) { return 0; }

#endif
