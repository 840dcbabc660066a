/* The device facts that a worker reports, found as in compiler/targets/device.py and core_kinds.py.
 */
#ifndef TW_FACTS_H
#define TW_FACTS_H

#include <sched.h>

#include "text.h"

typedef struct {
    tw_text registration; /* JSON, with the processor's features */
    tw_text brief;        /* the same without: it goes into every measurement */
    uint64_t memory_bytes;
    cpu_set_t cores; /* that candidates run on: the fastest kind */
    bool some_cores; /* whether there are others */
    bool known;      /* whether the system reports its cores */
    char identity[400]; /* of these cores */
    uint64_t kilohertz; /* the highest clock of one; 0 if that is not known */
} tw_facts;

/* Args: root: the folder that holds `proc` and `sys`. */
void tw_find_facts(tw_facts *facts, const char *root);

/* JSON of the device's present condition: temperature, load, governor. */
void tw_condition(tw_text *text, const char *root);

#endif
