/* Whether heat or a weak power supply slows the device down, and waiting until that is over: as
 * service/worker/heat.py. */
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

/* What slows the device down just now, as a part of a sentence; false if nothing does. */
bool tw_heat_reason(tw_heat *heat, tw_text *reason);

/* Return when nothing slows the device down, or waiting is no use. `pause` waits a second; it
 * returns false where the work is not wanted any more. `say` writes a line of the log. */
void tw_cool_down(tw_heat *heat, bool (*pause)(void *self), void *self,
                  void (*say)(const char *format, ...));

#endif
