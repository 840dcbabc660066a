#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "placement.h"

#if defined(__linux__)

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

static cpu_set_t usable;
static int usable_count;

/* Written by one thread at a time, read by workers: the count is written last, or first to 0. */
static atomic_int bound[CPU_SETSIZE];
static atomic_int bound_count;

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
    if (atomic_load(&bound_count) > 0) return false;
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

void tw_move(int thread, int worker) {
    int count = atomic_load(&bound_count);
    if (count > 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atomic_load(&bound[(worker - 1) % count]), &set);
        (void)sched_setaffinity(thread, sizeof set, &set);
    } else if (usable_count > 1) {
        (void)sched_setaffinity(thread, sizeof usable, &usable);
    }
}

/* Twice where a binding came in between: whoever binds moves the workers only once. */
void tw_settle(int worker) {
    int before = atomic_load(&bound_count);
    if (before == 0) tw_move(0, worker);
    if (atomic_load(&bound_count) > 0) tw_move(0, worker);
}

int tw_bind(const int *processors, int count) {
    atomic_store(&bound_count, 0);
    for (int i = 0; i < count; i++) atomic_store(&bound[i], processors[i]);
    atomic_store(&bound_count, count);
    return 0;
}

int tw_may_run_on(int processor) {
    cpu_set_t before, wanted;
    if (processor < 0 || processor >= CPU_SETSIZE) return 0;
    if (sched_getaffinity(0, sizeof before, &before) != 0) return 1; /* not known: try */
    CPU_ZERO(&wanted);
    CPU_SET(processor, &wanted);
    int allowed = sched_setaffinity(0, sizeof wanted, &wanted) == 0;
    if (allowed) (void)sched_setaffinity(0, sizeof before, &before);
    return allowed;
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
void tw_settle(int worker) { (void)worker; }
void tw_move(int thread, int worker) {
    (void)thread;
    (void)worker;
}
int tw_bind(const int *processors, int count) {
    (void)processors;
    return count > 0 ? -1 : 0;
}
int tw_may_run_on(int processor) {
    (void)processor;
    return 0;
}

#endif
