/* Detects throttling by heat or a weak power supply, like service/worker/heat.py, and waits for its
 * end. */
#ifndef TW_HEAT_H
#define TW_HEAT_H

#include <sched.h>

#include "text.h"

typedef struct {
    const char *root; /* that holds `sys` */
    cpu_set_t cores;  /* that candidates run on */
    uint64_t throttled;
    bool in_vain;
} tw_heat;

/* Begin to look, at these cores. */
void tw_heat_begin(tw_heat *heat, const char *root, const cpu_set_t *cores);

/* The cause that slows the device down at the moment, as part of a sentence; false if none does. */
bool tw_heat_reason(tw_heat *heat, tw_text *reason);

/* Return when nothing slows the device down, or after the longest wait. After a wait in vain, later
 * calls return at once until the device has recovered. `pause` waits a second; it returns false if
 * the work was cancelled. `say` writes a line of the log. */
void tw_cool_down(tw_heat *heat, bool (*pause)(void *self), void *self,
                  void (*say)(const char *format, ...));

#endif
