/* Where a waking worker starts to run.
 *
 * Some schedulers put a woken thread behind its waker on the same processor, also when another one
 * is idle, and move it only after milliseconds: longer than most stages take. So the waker takes
 * its own processor away from the worker for the moment of waking, and the worker takes it back as
 * soon as it runs. Where the host program has bound the workers to processors, nothing of this
 * happens. No thread of the host program itself is moved or bound.
 *
 * Only on Linux; elsewhere these do nothing.
 */
#ifndef TILEWRIGHT_PLACEMENT_H
#define TILEWRIGHT_PLACEMENT_H

#include <pthread.h>

/* Learn which processors this process may use; returns how many. Before all of the below. */
int tw_placement_prepare(void);

/* A number that names the calling thread to tw_start_elsewhere. */
int tw_placement_self(void);

/* A thread made with these attributes starts on a processor that is not the caller's. */
void tw_create_elsewhere(pthread_attr_t *attributes);

/* A sleeping thread will wake up on a processor that is not the caller's. */
void tw_wake_elsewhere(int thread);

/* The calling worker goes where it may run: everywhere, or to the processor it is bound to. */
void tw_settle(int worker);

/* From now on worker w (from 1) belongs on processors[(w - 1) % count]; a count of 0 takes that back.
 * Returns 0, or -1 where the system does not bind threads. Those that run already are moved by
 * tw_move. One thread at a time. */
int tw_bind(const int *processors, int count);

/* Move a worker, by the number that tw_placement_self gave, to where it may run now. */
void tw_move(int thread, int worker);

/* Whether this process may run on a processor; moves the calling thread there and back. */
int tw_may_run_on(int processor);

#endif
