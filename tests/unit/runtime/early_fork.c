/* A fork while another thread is the first to use the pool, run as a process of its own by
 * test_pool.py: the child has workers of its own, and can bind them.
 *
 * The linker puts `__wrap_pthread_atfork` in its place. It says that the thread has come to it, and
 * goes on after the fork.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tilewright.h"

typedef void handler(void);
int __real_pthread_atfork(handler *before, handler *parent, handler *child);
int __wrap_pthread_atfork(handler *before, handler *parent, handler *child);

static int come[2], forked[2]; /* pipes */

static void say(const int *pipe) {
    if (write(pipe[1], "", 1) != 1) _exit(2);
}

static void hear(const int *pipe) {
    char byte;
    if (read(pipe[0], &byte, 1) != 1) _exit(2);
}

int __wrap_pthread_atfork(handler *before, handler *parent, handler *child) {
    say(come);
    hear(forked); /* parent and child each say it once, and each come here once */
    return __real_pthread_atfork(before, parent, child);
}

static void nothing(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                    int64_t hi) {
    (void)buffers, (void)scratch, (void)sizes, (void)lo, (void)hi;
}

static void *call(void *unused) {
    tw_arguments arguments = {0};
    tw_run_stage(nothing, &arguments, 8, 2);
    return unused;
}

int main(void) {
    alarm(40); /* the thread may never come there */
    if (pipe(come) != 0 || pipe(forked) != 0) return 2;
    pthread_t caller;
    pthread_create(&caller, NULL, call, NULL);
    hear(come);
    pid_t child = fork();
    say(forked);
    if (child == 0) {
        alarm(20);
        call(NULL);
        tw_pool_bind(NULL, 0);
        _exit(tw_pool_workers() != 1);
    }
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0)
        fprintf(stderr, "the child ended with status %d\n", status);
    pthread_join(caller, NULL);
    return status != 0;
}
