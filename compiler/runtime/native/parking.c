/* A futex on Linux, one condition variable for all words elsewhere. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "parking.h"

#if defined(__linux__) && !defined(TW_NO_FUTEX)

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#if !defined(SYS_futex) && defined(SYS_futex_time64)
#define SYS_futex SYS_futex_time64
#endif

void tw_sleep(tw_word *word, unsigned expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, (void *)0, (void *)0, 0);
}

void tw_wake(tw_word *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, (void *)0, (void *)0, 0);
}

void tw_parking_after_fork(void) {}

#else

#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void tw_sleep(tw_word *word, unsigned expected) {
    pthread_mutex_lock(&mutex);
    while (atomic_load(word) == expected) pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
}

void tw_wake(tw_word *word) {
    (void)word;
    /* Whoever has compared the word already holds the mutex until it sleeps. */
    pthread_mutex_lock(&mutex);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

void tw_parking_after_fork(void) {
    pthread_mutex_init(&mutex, (void *)0);
    pthread_cond_init(&changed, (void *)0);
}

#endif
