#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "placement.h"

#if defined(__linux__)

#include <sched.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

static cpu_set_t usable;
static int usable_count;

int tw_placement_prepare(void) {
    if (sched_getaffinity(0, sizeof usable, &usable) != 0) CPU_ZERO(&usable);
    usable_count = CPU_COUNT(&usable);
    if (usable_count > 0) return usable_count;
    /* more processors than the set has bits for */
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (int)count;
}

int tw_placement_self(void) { return (int)syscall(SYS_gettid); }

static bool elsewhere(cpu_set_t *set) {
    int here = sched_getcpu();
    if (usable_count < 2 || here < 0 || here >= CPU_SETSIZE) return false;
    *set = usable;
    CPU_CLR(here, set);
    return true;
}

void tw_create_elsewhere(pthread_attr_t *attributes) {
#if defined(__GLIBC__)
    cpu_set_t set;
    if (elsewhere(&set)) pthread_attr_setaffinity_np(attributes, sizeof set, &set);
#else
    (void)attributes;
#endif
}

/* Failures are ignored: placement is a hint. */
void tw_wake_elsewhere(int thread) {
    cpu_set_t set;
    if (elsewhere(&set)) (void)sched_setaffinity(thread, sizeof set, &set);
}

void tw_run_anywhere(void) {
    if (usable_count > 1) (void)sched_setaffinity(0, sizeof usable, &usable);
}

#else

#include <unistd.h>

int tw_placement_prepare(void) {
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : (int)count;
}

int tw_placement_self(void) { return 0; }
void tw_create_elsewhere(pthread_attr_t *attributes) { (void)attributes; }
void tw_wake_elsewhere(int thread) { (void)thread; }
void tw_run_anywhere(void) {}

#endif
