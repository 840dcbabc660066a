/* Reading JSON (RFC 8259) strictly.
 *
 * Besides invalid JSON it refuses: nesting deeper than JSON_DEPTH, more than JSON_NODES values,
 * invalid UTF-8, and U+0000.
 */
#ifndef TW_JSON_H
#define TW_JSON_H

#include "text.h"

enum { JSON_DEPTH = 64, JSON_NODES = 4 << 20 };

typedef enum {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT,
} json_kind;

/* A value. Those of an array or an object hang together by `next`. */
typedef struct json {
    json_kind kind;
    const char *key; /* in an object; ends with a 0, as `string` does */
    size_t key_length;
    const char *string; /* of a string its characters, of a number its digits */
    size_t length;
    const char *raw; /* as it stood in the text, which must still be there; no 0 behind it */
    size_t raw_length;
    struct json *first, *next;
    size_t count;
} json;

/* Holds all that was read until it is freed. Starts as {0}. */
typedef struct {
    struct json_block *blocks;
    size_t nodes;
    size_t most_nodes; /* that it may have; 0: JSON_NODES */
} json_document;

/* The value that a text is; NULL where it is none. */
const json *json_parse(json_document *document, const char *text, size_t length);
void json_free(json_document *document);

/* The value of a name in an object; NULL if it is not an object or lacks the name. */
const json *json_get(const json *object, const char *name);

/* The same of a kind alone. */
const json *json_get_kind(const json *object, const char *name, json_kind kind);

/* Its text, "" where it has none. */
const char *json_get_text(const json *object, const char *name);

/* Whether it is a finite number, an integer from `least` to `most`. */
bool json_number(const json *value, double *found);
bool json_integer(const json *value, int64_t least, int64_t most, int64_t *found);

#endif
