/* A compiled model as an engine that takes turns: c_turns OUTPUTS HUGE FILE...
 *
 * FILE... are the inputs as raw bytes, in order. It runs once and writes the outputs to OUTPUTS, one
 * behind the other. For each line "COUNT" of the standard input it makes one run to warm up and COUNT
 * timed ones, and answers with a line of their seconds. If HUGE is 1, memory and weights lie on large
 * pages, as NumPy has its arrays. It is for models without ranges. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "model.h"

enum { PAGE = 2 << 20, MOST = 1 << 16 };
static double seconds[MOST];

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void *memory(size_t bytes, int huge) {
    size_t unit = huge ? PAGE : MODEL_ALIGNMENT, whole = (bytes + unit) / unit * unit;
    void *made = aligned_alloc(unit, whole);
    if (!made) fail("no memory");
    if (huge) madvise(made, whole, MADV_HUGEPAGE);
    return memset(made, 0, whole);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int count, char **words) {
    if (count < 3) fail("c_turns OUTPUTS HUGE FILE...");
    int huge = words[2][0] == '1';
    /* The structures of ports are pointers in order. */
    void *inputs[sizeof(model_inputs) / sizeof(void *)];
    void *outputs[sizeof(model_outputs) / sizeof(void *)];
    size_t sizes[sizeof outputs / sizeof *outputs];
    if ((size_t)count - 3 != sizeof inputs / sizeof *inputs) fail("a file for each input");
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        FILE *file = fopen(words[3 + i], "rb");
        if (!file || fseek(file, 0, SEEK_END)) fail(words[3 + i]);
        size_t bytes = (size_t)ftell(file);
        inputs[i] = memory(bytes, 0);
        rewind(file);
        if (fread(inputs[i], 1, bytes, file) != bytes) fail(words[3 + i]);
        fclose(file);
    }
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        int64_t shape[16], rank = model_output_shape((int)i, shape);
        sizes[i] = OUTPUT_ELEMENT_BYTES;
        for (int64_t dim = 0; dim < rank; dim++) sizes[i] *= (size_t)shape[dim];
        outputs[i] = memory(sizes[i], 0);
    }
    size_t bytes = model_memory_bytes(1);
    const void *weights = model_weights(NULL);
    if (huge) weights = memcpy(memory(MODEL_WEIGHT_BYTES, 1), weights, MODEL_WEIGHT_BYTES);
    struct model *made;
    if (model_init(memory(bytes, huge), bytes, weights, MODEL_WEIGHT_BYTES, NULL, &made)) fail("init");
    const model_inputs *in = (const model_inputs *)(const void *)inputs;
    model_outputs *out = (model_outputs *)(void *)outputs;
    if (model_run(made, in, out)) fail("run");
    FILE *file = fopen(words[1], "wb");
    if (!file) fail(words[1]);
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) fwrite(outputs[i], 1, sizes[i], file);
    if (fclose(file)) fail(words[1]);
    puts("ready");
    fflush(stdout);
    for (int turns; scanf("%d", &turns) == 1 && turns <= MOST; fflush(stdout)) {
        model_run(made, in, out);
        for (int turn = 0; turn < turns; turn++) {
            double start = now();
            model_run(made, in, out);
            seconds[turn] = now() - start;
        }
        for (int turn = 0; turn < turns; turn++) printf("%.9f ", seconds[turn]);
        putchar('\n');
    }
    return 0;
}
