/* Registers that hold matrices: a process has them once it has asked the system for them. */
#include "tw_model.h"

#if defined(__x86_64__) && defined(__linux__)

/* Linux, Documentation/arch/x86/xstate.rst. Where the CPU has none, the system refuses. */
enum { ARCH_PRCTL = 158, REQUEST = 0x1023, TILE_DATA = 18 };

void tw_permit_matrices(void) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)ARCH_PRCTL), "D"((long)REQUEST), "S"((long)TILE_DATA)
                     : "rcx", "r11", "memory");
    (void)result;
}

#else

void tw_permit_matrices(void) {}

#endif
