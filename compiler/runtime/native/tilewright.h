/* The C runtime of Tilewright: a thread pool, an interpreter of programs and a benchmark harness.
 *
 * Portable C11 with POSIX threads. It does not use Python's C API; compiler/runtime/native.py loads
 * it with ctypes.
 */
#ifndef TILEWRIGHT_H
#define TILEWRIGHT_H

#include <stdint.h>

/* Raised when a struct or a function below changes, or the tiles of a native function: LIBRARY_ABI of
 * compiler/runtime/native.py is the same. Kernels and artifacts have a version of their own. */
#define TW_ABI_VERSION 2
#define TW_MAX_THREADS 256

#if defined(__GNUC__)
#define TW_EXPORT __attribute__((visibility("default")))
#else
#define TW_EXPORT
#endif

/* One stage of a kernel; compiler/runtime/kernel.py states what the arguments are. */
typedef void (*tw_stage)(void *const *buffers, void *scratch, const int64_t *sizes, int64_t lo,
                         int64_t hi);

/* Everything that stays the same over the threads and the tiles of a stage. */
typedef struct {
    void *const *buffers;
    char *scratch;          /* thread t has the block at scratch + t * scratch_stride */
    int64_t scratch_stride; /* bytes, a multiple of 64 */
    const int64_t *sizes;
    const struct tw_sharing *sharing; /* in a C library: whose threads run the tiles */
} tw_arguments;

/* pool.c */

/* Run tiles [0, extent) of a stage on at most `threads` threads, the caller being one of them.
 * Returns when all tiles are done. Where the pool is busy with another caller's stage, the caller
 * runs all tiles itself. */
void tw_run_stage(tw_stage stage, const tw_arguments *arguments, int64_t extent, int threads);

/* Bind worker w (from 1) to processors[(w - 1) % count], those that run and those to come; a count of
 * 0 lets them run everywhere. Returns 0; i + 1 if this process may not run on processors[i]; -1 where
 * the system does not bind threads. */
TW_EXPORT int tw_pool_bind(const int *processors, int count);

TW_EXPORT int tw_pool_workers(void);
TW_EXPORT int tw_pool_sleeping(void);

/* random.c */

/* Count one caller more (1) or less (-1) for whom random numbers without a seed are the same in each
 * run, as those of the references are: they are while the count is above 0. Returns the count. */
TW_EXPORT int tw_pin_random_keys(int change);

/* program.c */

enum {
    TW_STOPPED = -1, /* `stop` of the program was not 0 */
    TW_OK = 0,
    TW_BAD_OPCODE = 1,
    TW_BAD_LENGTH = 2,
    TW_TOO_LARGE = 3,
    /* this and more: the program refuses to run on, for the reason of this number less TW_REFUSED */
    TW_REFUSED = 4,
};

/* An instruction is a list of words: opcode, number of words in all, operands. */
enum {
    /* first argument, number of stages, then for each stage: function, extent; then what the
     * functions find in `sizes` */
    TW_KERNEL = 0,
    /* argument copied to, argument copied from, bytes */
    TW_COPY = 1,
    /* first argument, function, extent, then what the function finds in `sizes` */
    TW_NATIVE = 2,
    /* first of three arguments (int64 counter, int64 steps, a byte: whether there is another step),
     * most steps, then the instructions of the body */
    TW_LOOP = 3,
    /* argument (a byte), number of words of the instructions to run where it is not 0, these, then
     * those to run where it is 0 */
    TW_BRANCH = 4,
    /* the number of a reason, from 0 in the order of the code */
    TW_REFUSAL = 5,
    /* a size, the last one of the instructions that follow, their number of words, these, then those
     * to run where the size is above the last one */
    TW_SIZE_BRANCH = 6,
};

/* A program bound to its memory: one pointer for a caller in Python, whose calls cost by argument.
 * `functions` and `pointers` are what the words of `code` index; a kernel's buffers are consecutive
 * pointers. */
typedef struct {
    const int64_t *code;
    int64_t words;
    const tw_stage *functions;
    tw_arguments arguments; /* `buffers` are all pointers of the program */
    int64_t threads;
    const volatile uint8_t *stop; /* a byte that ends the run before the next instruction, once it is
                                     not 0; another thread may write it; NULL: there is none */
} tw_program;

/* Run a program. Returns TW_OK, TW_STOPPED, why it is refused, or what is wrong with the code. */
TW_EXPORT int tw_run_program(const tw_program *program);

/* The same, with the seconds of each instruction in seconds[its first word]: CPU time where threads
 * is 1, wall time otherwise. What runs several times counts each time, what does not run counts 0, and
 * a loop or a branch of either kind is what it costs beside the instructions in it. */
TW_EXPORT int tw_profile_program(double *seconds, const tw_program *program);

/* sizing.c */

/* How the open numbers of a program follow from its sizes. A number is given, or made by a rule of
 * those before it; rules stand one after the other, as words:
 *
 *   divisor (> 0), constant, number of terms, then for each term: coefficient, number of factors,
 *   the factors' numbers: the sum of constant and terms, divided by the divisor and rounded down
 *
 *   0, count, numbers: the largest of these, at least 0
 */
typedef struct {
    const int64_t *rules;
    int64_t words;
    int64_t *numbers; /* the first `given` are set by the caller */
    int64_t given;
} tw_sizing;

/* Make the numbers. Returns TW_OK, or TW_TOO_LARGE where one does not fit 62 bits. */
TW_EXPORT int tw_size(const tw_sizing *sizing);

/* For each of `count` pairs (index, number): put the number at values[index], plus a base. */
TW_EXPORT void tw_fill(int64_t *values, int64_t base, const int64_t *pairs, int64_t count,
                       const int64_t *numbers);

/* vectors.c */

/* Bits of a vector register whose length the device decides (SVE, RISC-V's V); 0 if it has none. */
TW_EXPORT int64_t tw_vector_bits(void);

/* bench.c */

/* A kernel bound to its buffers. */
typedef struct {
    const tw_stage *stages;
    const int64_t *extents;
    int64_t stage_count;
    tw_arguments arguments;
    int64_t inner; /* runs a sample */
} tw_bound_kernel;

/* One run of a kernel. */
TW_EXPORT void tw_call(const tw_bound_kernel *kernel, int threads);

/* `samples` samples of one kernel, in seconds a run: CPU time of this thread where threads is 1,
 * wall time otherwise. */
/* Drop a block from the caches, so that the next read comes from memory. */
TW_EXPORT void tw_evict(const void *block, int64_t bytes);

TW_EXPORT void tw_bench(const tw_bound_kernel *kernel, int threads, int64_t samples,
                        double *seconds);

/* Seconds of two pieces of work that never change: 2^20 multiply-adds, and 2^12 loads of a block of
 * zeros that depend on each other. `bytes` is a power of two. Clocks as in `tw_bench`. */
TW_EXPORT void tw_reference(int threads, const void *zeros, int64_t bytes, double *seconds);

TW_EXPORT int tw_abi_version(void);

#endif
