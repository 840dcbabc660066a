/* Loading the shared libraries that the service's linkers make, without a dynamic linker: a static
 * executable has none. They need three functions of the C library, no others, no thread-local
 * memory and nothing that runs when they are loaded; one that wants more is refused. */
#ifndef TW_LIBRARY_H
#define TW_LIBRARY_H

#include "text.h"

typedef struct tw_library tw_library;

/* Map a library whose file lies in memory; NULL with the reason if it cannot be. It is never
 * unloaded: the process ends. */
tw_library *tw_library_open(const void *file, size_t size, tw_error *error);

/* The address of the library's symbol `name`; NULL if it has no such symbol. */
void *tw_library_find(const tw_library *library, const char *name);

#endif
