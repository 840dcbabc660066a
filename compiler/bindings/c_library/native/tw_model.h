/* A compiled model as constant tables, and what runs it.
 *
 * It has no state beside the memory that the caller gives it, and allocates nothing. The tables are
 * generated (compiler/bindings/c_library/source.py); this is what a library's typed functions call.
 */
#ifndef TILEWRIGHT_MODEL_H
#define TILEWRIGHT_MODEL_H

#include <stddef.h>
#include <stdint.h>

#include "tilewright.h"

#define TW_ALIGNMENT 64

/* `count` pairs of words. */
typedef struct {
    const int64_t *words;
    int64_t count;
} tw_pairs;

/* The sizes that an open dimension may have: multiples of `multiple` from `low` to `high`. */
typedef struct {
    const char *name;
    int64_t low, high, multiple;
} tw_range;

/* An input or output: a row-major array. `extents` and `bytes` say which numbers these are. */
typedef struct {
    const char *name;
    const char *type; /* as NumPy's files name it: "<f4" */
    int64_t rank;
    const int64_t *extents;
    int64_t bytes;
    int64_t counted; /* the axis whose extent a run finds out, or -1 */
} tw_port;

typedef struct {
    const int64_t *code;
    int64_t words;
    const tw_stage *functions;
    int64_t references; /* pointers that the code indexes */
    tw_pairs dynamic_words; /* (word, number): what sizes decide */
    tw_pairs places;     /* (reference, number): bytes into the arena */
    tw_pairs weights;    /* (reference, bytes into the weights) */
    tw_pairs inputs, outputs, counts; /* (reference, port) */
    const int64_t *rules; /* see `tw_sizing` */
    int64_t rule_words, numbers, dimensions;
    const tw_range *ranges;
    int64_t arena, scratch; /* the numbers of their bytes */
    int64_t weight_bytes;
    const tw_port *input_ports, *output_ports;
    int64_t input_count, output_count;
    int64_t register_bits;        /* the shortest vector registers that the code works with, */
    int64_t (*vector_bits)(void); /* and what tells those of the device; NULL where all do */
} tw_model;

enum {
    TW_MODEL_OK = 0,
    TW_MODEL_SIZE = 1,    /* a size is outside of its range */
    TW_MODEL_MEMORY = 2,  /* the memory is too small for these sizes */
    TW_MODEL_POINTER = 3, /* a pointer is NULL or no multiple of TW_ALIGNMENT */
    TW_MODEL_WEIGHTS = 4, /* these are not the model's weights */
    TW_MODEL_DAMAGED = 5, /* the library contradicts itself */
    TW_MODEL_VECTORS = 6, /* the processor's vector registers are too short for the code */
    TW_MODEL_REFUSED = 7, /* and more: the reason of this number less TW_MODEL_REFUSED */
};

/* Runs tiles on threads of the caller's: calls work(argument, first, last, thread) for ranges that
 * make up [0, tiles), any number of them at a time, each with another `thread` below `threads`, and
 * returns when all are done. */
struct tw_sharing {
    void (*share)(void *context, void (*work)(void *argument, int64_t first, int64_t last, int thread),
                  void *argument, int64_t tiles, int threads);
    void *context;
    int threads;
};

typedef struct tw_state tw_state;

/* Ask the system for registers that hold matrices, for all threads of this process: where the CPU has
 * some, they are the system's to grant. */
void tw_permit_matrices(void);

/* Bytes that a model needs for sizes up to these and so many threads; 0 where a size is outside of
 * its range, or no memory is so large. `numbers` has room for the model's numbers. */
size_t tw_model_bytes(const tw_model *model, const int64_t *sizes, int threads, int64_t *numbers);

/* Make the state of a model at the start of its memory. */
int tw_model_init(const tw_model *model, void *memory, size_t bytes, const void *weights,
                  size_t weight_bytes, const struct tw_sharing *sharing, tw_state **state);

/* Run a model once. `counts`, if not NULL, gets how many elements each counted output has. */
int tw_model_run(tw_state *state, const int64_t *sizes, const void *const *inputs,
                 void *const *outputs, int64_t *counts);

/* The shape of a port with these sizes; 0, or TW_MODEL_SIZE. */
int tw_model_shape(const tw_model *model, const tw_port *port, const int64_t *sizes,
                   int64_t *numbers, int64_t *shape);

#endif
