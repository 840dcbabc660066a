/* Time and the processor's hint for a loop that waits. */
#ifndef TILEWRIGHT_CLOCK_H
#define TILEWRIGHT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t tw_nanoseconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void tw_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* `yield` is a no-op on most cores */
#elif defined(__arm__) && __ARM_ARCH >= 7
    __asm__ volatile("yield" ::: "memory");
#elif defined(__riscv)
    __asm__ volatile(".4byte 0x0100000f" ::: "memory"); /* pause; a fence where not known */
#elif defined(__GNUC__)
    __asm__ volatile("" ::: "memory");
#endif
}

#endif
