/* Where a waking worker starts to run.
 *
 * Some schedulers put a woken thread behind its waker on the same processor, also when another one
 * is idle, and move it only after milliseconds: longer than most stages take. So the waker takes
 * its own processor away from the worker for the moment of waking, and the worker takes it back as
 * soon as it runs. No thread of the host program is moved or bound.
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

/* The calling thread may run everywhere again. */
void tw_run_anywhere(void);

#endif
