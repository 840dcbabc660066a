/* Sleeping on a word in memory, as a futex does. */
#ifndef TILEWRIGHT_PARKING_H
#define TILEWRIGHT_PARKING_H

#include <stdatomic.h>

typedef atomic_uint tw_word;

/* Sleep while *word == expected. May return early. The comparison and the falling asleep are one
 * step with respect to tw_wake. */
void tw_sleep(tw_word *word, unsigned expected);

/* Wake those who sleep on the word; the caller has changed it before. */
void tw_wake(tw_word *word);

/* In a new child process: forget what other threads of the parent held. */
void tw_parking_after_fork(void);

#endif
