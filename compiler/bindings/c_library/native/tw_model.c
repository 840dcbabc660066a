/* Running a model from its tables, in memory of the caller's. */
#include "tw_model.h"

#include <stdbool.h>
#include <string.h>

#define LARGEST (INT64_C(1) << 61)

struct tw_state {
    const tw_model *model;
    struct tw_sharing sharing;
    tw_program program;
    int64_t *numbers, *counts, *code;
    void **pointers;
    char *work; /* the arena, then each thread's scratch block */
    int64_t work_bytes;
    bool sized; /* whether the numbers are those of a run */
};

static int64_t aligned(int64_t bytes) { return (bytes + TW_ALIGNMENT - 1) & -(int64_t)TW_ALIGNMENT; }

static bool misplaced(const void *pointer) {
    return pointer == NULL || (uintptr_t)pointer % TW_ALIGNMENT != 0;
}

/* Code is copied where sizes change it. */
static int64_t copied_words(const tw_model *model) {
    return model->dynamic_words.count ? model->words : 0;
}

/* From one thread's scratch block to the next: no line is written by two threads, and blocks of whole
 * pages do not fall into the same cache sets. */
static int64_t scratch_stride(int64_t bytes) { return aligned(bytes) + TW_ALIGNMENT; }

/* What lies before the arena. */
static int64_t head_bytes(const tw_model *model) {
    int64_t words = model->numbers + model->output_count + copied_words(model);
    return aligned((int64_t)sizeof(tw_state)) + aligned(8 * words) +
           aligned(model->references * (int64_t)sizeof(void *));
}

/* Make all numbers for sizes. */
static int size_up(const tw_model *model, const int64_t *sizes, int64_t *numbers) {
    for (int64_t i = 0; i < model->dimensions; i++) {
        const tw_range *range = &model->ranges[i];
        if (sizes[i] < range->low || sizes[i] > range->high || sizes[i] % range->multiple)
            return TW_MODEL_SIZE;
        numbers[i] = sizes[i] / range->multiple;
    }
    const tw_sizing sizing = {model->rules, model->rule_words, numbers, model->dimensions};
    return tw_size(&sizing) == TW_OK ? TW_MODEL_OK : TW_MODEL_MEMORY;
}

/* Bytes of the arena and of all threads' scratch, or -1 where no memory is so large. */
static int64_t work_bytes(const tw_model *model, const int64_t *numbers, int threads) {
    int64_t scratch = scratch_stride(numbers[model->scratch]), arena = aligned(numbers[model->arena]);
    return scratch > LARGEST / threads || arena > LARGEST ? -1 : arena + scratch * threads;
}

size_t tw_model_bytes(const tw_model *model, const int64_t *sizes, int threads, int64_t *numbers) {
    if (threads < 1 || size_up(model, sizes, numbers) != TW_MODEL_OK) return 0;
    int64_t work = work_bytes(model, numbers, threads), all = work + head_bytes(model);
    return work < 0 || (uint64_t)all > SIZE_MAX ? 0 : (size_t)all;
}

int tw_model_init(const tw_model *model, void *memory, size_t bytes, const void *weights,
                  size_t weight_bytes, const struct tw_sharing *sharing, tw_state **state) {
    *state = NULL;
    if (model->vector_bits && model->vector_bits() < model->register_bits) return TW_MODEL_VECTORS;
    if (misplaced(memory) || (model->weight_bytes && misplaced(weights))) return TW_MODEL_POINTER;
    if (weight_bytes != (uint64_t)model->weight_bytes) return TW_MODEL_WEIGHTS;
    const int64_t head = head_bytes(model);
    if ((uint64_t)bytes > INT64_MAX || (int64_t)bytes < head) return TW_MODEL_MEMORY;
    if (sharing && (sharing->threads < 1 || !sharing->share)) return TW_MODEL_POINTER;
#if defined(TW_MATRICES)
    tw_permit_matrices();
#endif
    /* all of it: what no kernel writes is read as zeros, never as a signalling NaN */
    memset(memory, 0, bytes);
    char *place = memory;
    tw_state *made = memory;
    made->model = model;
    if (sharing) made->sharing = *sharing;
    place += aligned((int64_t)sizeof(tw_state));
    made->numbers = (int64_t *)place;
    made->counts = made->numbers + model->numbers;
    made->code = made->counts + model->output_count;
    place += aligned(8 * (model->numbers + model->output_count + copied_words(model)));
    made->pointers = (void **)place;
    made->work = (char *)memory + head;
    made->work_bytes = (int64_t)bytes - head;
    memcpy(made->code, model->code, (size_t)copied_words(model) * sizeof *model->code);
    for (int64_t i = 0; i < model->weights.count; i++)
        made->pointers[model->weights.words[2 * i]] =
            (char *)(uintptr_t)weights + model->weights.words[2 * i + 1];
    for (int64_t i = 0; i < model->counts.count; i++)
        made->pointers[model->counts.words[2 * i]] =
            &made->counts[model->counts.words[2 * i + 1]];
    made->program = (tw_program){
        .code = copied_words(model) ? made->code : model->code,
        .words = model->words,
        .functions = model->functions,
        .arguments = {.buffers = made->pointers, .sharing = sharing ? &made->sharing : NULL},
        .threads = sharing ? sharing->threads : 1,
    };
    *state = made;
    return TW_MODEL_OK;
}

/* Have the numbers of these sizes in code and pointers. */
static int hold(tw_state *state, const int64_t *sizes) {
    const tw_model *model = state->model;
    bool same = state->sized;
    for (int64_t i = 0; same && i < model->dimensions; i++)
        same = state->numbers[i] * model->ranges[i].multiple == sizes[i];
    if (same) return TW_MODEL_OK;
    state->sized = false;
    int status = size_up(model, sizes, state->numbers);
    if (status != TW_MODEL_OK) return status;
    int64_t needed = work_bytes(model, state->numbers, (int)state->program.threads);
    if (needed < 0 || needed > state->work_bytes) return TW_MODEL_MEMORY;
    tw_fill(state->code, 0, model->dynamic_words.words, model->dynamic_words.count, state->numbers);
    for (int64_t i = 0; i < model->places.count; i++)
        state->pointers[model->places.words[2 * i]] =
            state->work + state->numbers[model->places.words[2 * i + 1]];
    state->program.arguments.scratch = state->work + aligned(state->numbers[model->arena]);
    state->program.arguments.scratch_stride =
        scratch_stride(state->numbers[model->scratch]);
    state->sized = true;
    return TW_MODEL_OK;
}

/* Put the caller's arrays where the code looks for them. */
static int place(tw_state *state, const tw_port *ports, int64_t count, const tw_pairs *references,
                 const void *const *arrays) {
    for (int64_t port = 0; port < count; port++)
        if (state->numbers[ports[port].bytes] && misplaced(arrays[port])) return TW_MODEL_POINTER;
    for (int64_t i = 0; i < references->count; i++)
        state->pointers[references->words[2 * i]] =
            (void *)(uintptr_t)arrays[references->words[2 * i + 1]];
    return TW_MODEL_OK;
}

int tw_model_run(tw_state *state, const int64_t *sizes, const void *const *inputs,
                 void *const *outputs, int64_t *counts) {
    const tw_model *model = state->model;
    int status = hold(state, sizes);
    if (status == TW_MODEL_OK)
        status = place(state, model->input_ports, model->input_count, &model->inputs, inputs);
    if (status == TW_MODEL_OK)
        status = place(state, model->output_ports, model->output_count, &model->outputs,
                       (const void *const *)outputs);
    if (status != TW_MODEL_OK) return status;
    status = tw_run_program(&state->program);
    if (counts)
        memcpy(counts, state->counts, (size_t)model->output_count * sizeof *state->counts);
    if (status >= TW_REFUSED) return TW_MODEL_REFUSED + status - TW_REFUSED;
    return status == TW_OK ? TW_MODEL_OK : TW_MODEL_DAMAGED;
}

int tw_model_shape(const tw_model *model, const tw_port *port, const int64_t *sizes,
                   int64_t *numbers, int64_t *shape) {
    int status = size_up(model, sizes, numbers);
    if (status != TW_MODEL_OK) return status;
    for (int64_t axis = 0; axis < port->rank; axis++) shape[axis] = numbers[port->extents[axis]];
    return TW_MODEL_OK;
}

/* Beside the process's pool, which a library does not have (native/pool.c). */

typedef struct {
    tw_stage stage;
    const tw_arguments *arguments;
} job;

static void work(void *argument, int64_t first, int64_t last, int thread) {
    const job *job = argument;
    const tw_arguments *a = job->arguments;
    job->stage(a->buffers, a->scratch + thread * a->scratch_stride, a->sizes, first, last);
}

void tw_run_stage(tw_stage stage, const tw_arguments *arguments, int64_t extent, int threads) {
    if (extent <= 0) return;
    if (threads > 1 && extent > 1) {
        job shared = {stage, arguments};
        arguments->sharing->share(arguments->sharing->context, work, &shared, extent, threads);
    } else {
        stage(arguments->buffers, arguments->scratch, arguments->sizes, 0, extent);
    }
}
