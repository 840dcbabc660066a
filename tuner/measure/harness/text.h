/* Growing text, and memory, for both sides of the worker. */
#ifndef TW_TEXT_H
#define TW_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory of `size` bytes, all 0. Out of memory, the process ends: the worker's own needs are
 * limited, and in the sandbox that is a result. */
void *tw_allocate(size_t size);

/* The status of a process that ends so. */
enum { TW_NO_MEMORY_STATUS = 112 };

/* Characters with a 0 behind them. Starts as {0}. */
typedef struct {
    char *data;
    size_t length, room;
} tw_text;

void tw_text_add(tw_text *text, const char *data, size_t length);
void tw_text_format(tw_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void tw_text_reserve(tw_text *text, size_t more); /* so much more is added where it lies */
void tw_text_clear(tw_text *text); /* no characters; the memory stays */
void tw_text_free(tw_text *text);

/* A JSON string with its quotes, in ASCII. `data` is UTF-8; invalid bytes are written as '?'. */
void tw_text_string(tw_text *text, const char *data, size_t length);

/* The shortest number that reads back the same, as Python's repr writes it; 0 for NaN and
 * infinities. */
void tw_text_number(tw_text *text, double value);

/* A list of `count` numbers, of which each is `step` behind the one before. */
void tw_text_numbers(tw_text *text, const double *numbers, size_t count, size_t step);

/* The cause of an error, in a sentence. */
typedef struct {
    char text[400];
} tw_error;

/* Returns false, so that `return tw_fail(...)` sets the error and returns. */
bool tw_fail(tw_error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
