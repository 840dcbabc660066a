/* A function called so that a fault in it comes back as the number of its signal. */

#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

typedef void (*stage_function)(void *, void *, void *, int64_t, int64_t);

static const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
enum { FAULT_COUNT = sizeof FAULTS / sizeof FAULTS[0], STACK_BYTES = 1 << 16 };

static struct sigaction before[NSIG];
static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t within;

static void on_fault(int number) {
    if (within)
        siglongjmp(back, number);
    sigaction(number, &before[number], NULL); /* it is met again, and that one takes it */
    if (number == SIGALRM)
        raise(SIGALRM); /* of another thread, or between two calls */
}

/* Take over the faults; those outside of a call stay with the handlers before. */
int guarded_start(void) {
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK};
    for (int i = 0; i < FAULT_COUNT; i++)
        if (sigaction(FAULTS[i], &action, &before[FAULTS[i]]))
            return -1;
    return 0;
}

/* 0, the signal that ended the function, or -1. The alarm of a test that takes too long ends it,
   too, and is passed on. */
int guarded_call(stage_function function, void *buffers, void *scratch, void *sizes, int64_t low,
                 int64_t high) {
    struct sigaction action = {.sa_handler = on_fault}, alarm_before;
    stack_t stack = {.ss_sp = malloc(STACK_BYTES), .ss_size = STACK_BYTES}, stack_before;
    if (!stack.ss_sp || sigaltstack(&stack, &stack_before)) {
        free(stack.ss_sp);
        return -1;
    }
    sigaction(SIGALRM, NULL, &alarm_before);
    if (alarm_before.sa_handler != on_fault)
        before[SIGALRM] = alarm_before;
    sigaction(SIGALRM, &action, NULL);
    int number = sigsetjmp(back, 1);
    if (!number) {
        within = 1;
        function(buffers, scratch, sizes, low, high);
    }
    within = 0;
    sigaction(SIGALRM, &alarm_before, NULL);
    sigaltstack(&stack_before, NULL);
    free(stack.ss_sp);
    if (number == SIGALRM)
        raise(SIGALRM);
    return number;
}
