/* The time, and files of /proc and /sys as the operating system writes them. */
#ifndef TW_SYSTEM_H
#define TW_SYSTEM_H

#include "text.h"

/* Seconds of a clock that is never set. */
double tw_now(void);

/* The text of a file without blanks around it; "" where it is not there. `root` is the folder that
 * holds `proc` and `sys`, "" for /. */
void tw_read_text(tw_text *text, const char *root, const char *path);

/* The number that a file is; 0 where it is none. */
uint64_t tw_read_number(const char *root, const char *path);

/* Bytes of memory that are free; UINT64_MAX if the system does not report it. */
uint64_t tw_free_bytes(const char *root);

/* The temperature of the hottest sensor, in degrees Celsius; false if no sensor exists. */
bool tw_hottest(const char *root, double *celsius);

/* The average number of runnable processes in the last minute; false if it is not reported. */
bool tw_load(const char *root, double *load);

#endif
