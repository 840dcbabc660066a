/* Batches of candidates: each is checked on every case, and correct ones are timed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"

enum {
    POISON = 0xFF,
    MOST_CANDIDATES = 4096,
    MOST_THREADS = TW_MAX_THREADS,
};
#ifndef HELD_BYTES /* packed at a time: if there are more, the ready candidates are timed first */
#define HELD_BYTES ((size_t)1 << 30)
#endif

size_t tw_scratch_stride(size_t bytes) {
    return (bytes + ARRAY_ALIGNMENT - 1) / ARRAY_ALIGNMENT * ARRAY_ALIGNMENT + ARRAY_ALIGNMENT;
}

void tw_forget(pool *pool) {
    for (held *each = pool->memory, *next; each; each = next) {
        next = each->next;
        free(each->memory);
        free(each);
    }
    free(pool->scratch);
    *pool = (struct pool){.memory = NULL};
}

/* Where a buffer lies: filled with its array, or poisoned. NULL with the reason. */
static void *memory_of(batch *all, const tw_buffer *buffer, tw_error *error) {
    const json *text = buffer->text;
    held *each = all->pool->memory;
    while (each &&
           !(each->length == text->raw_length && memcmp(each->text, text->raw, each->length) == 0))
        each = each->next;
    if (!each) {
        void *memory = tw_aligned(buffer->bytes);
        const tw_blob *array = buffer->array[0] ? tw_blob_of(all->child, buffer->array) : NULL;
        if (!memory) {
            tw_fail(error, "there is no memory for %zu bytes", buffer->bytes);
        } else if (buffer->array[0] && !array) {
            tw_fail(error, "the plan names an array that was not sent");
        } else if (!array || tw_pack(buffer, array->data, array->size, memory, error)) {
            each = tw_allocate(sizeof *each);
            *each = (held){all->pool->memory, text->raw, text->raw_length, buffer->bytes, memory};
            all->pool->memory = each, all->pool->held_bytes += buffer->bytes;
        }
        if (!each) {
            free(memory);
            return NULL;
        }
    }
    if (!buffer->array[0]) memset(each->memory, POISON, buffer->bytes);
    return each->memory;
}

static bool scratch_of(pool *pool, size_t bytes) {
    if (!pool->scratch || pool->scratch_bytes < bytes) {
        void *memory = tw_aligned(bytes);
        if (!memory) return false;
        /* an earlier kernel of this race may hold the smaller one: it stays until all is forgotten
         */
        held *each = tw_allocate(sizeof *each);
        *each = (held){pool->memory, "", SIZE_MAX, pool->scratch_bytes, pool->scratch};
        pool->memory = each, pool->held_bytes += bytes;
        pool->scratch = memory, pool->scratch_bytes = bytes;
    }
    memset(pool->scratch, POISON, bytes);
    return true;
}

static bool read_stages(batch *all, kernel *made, const json *plan, tw_error *error) {
    const json *stages = json_get_kind(plan, "stages", JSON_ARRAY);
    const json *sizes = json_get_kind(plan, "sizes", JSON_ARRAY);
    int64_t scratch;
    if (!stages || !sizes ||
        !json_integer(json_get(plan, "scratch"), 0, PTRDIFF_MAX / 2 / all->threads - 1024,
                      &scratch))
        return tw_fail(error, "the plan of a kernel makes no sense");
    made->stages = tw_allocate(stages->count * sizeof *made->stages);
    made->extents = tw_allocate(stages->count * sizeof *made->extents);
    made->sizes = tw_allocate(sizes->count * sizeof *made->sizes);
    size_t number = 0;
    for (const json *each = stages->first; each; each = each->next, number++) {
        const json *symbol = each->kind == JSON_ARRAY && each->count == 2 ? each->first : NULL;
        if (!symbol || symbol->kind != JSON_STRING ||
            !json_integer(symbol->next, 0, INT64_MAX / 2, &made->extents[number]))
            return tw_fail(error, "the plan of a kernel makes no sense");
        void *found = tw_library_find(all->library, symbol->string);
        if (!found) return tw_fail(error, "the library has no function '%.200s'", symbol->string);
        memcpy(&made->stages[number], &found, sizeof found);
    }
    number = 0;
    for (const json *each = sizes->first; each; each = each->next, number++)
        if (!json_integer(each, 0, INT64_MAX, &made->sizes[number]))
            return tw_fail(error, "the plan of a kernel makes no sense");
    size_t stride = tw_scratch_stride((size_t)scratch);
    if (!scratch_of(all->pool, stride * (size_t)all->threads))
        return tw_fail(error, "there is no memory");
    made->bound = (tw_bound_kernel){made->stages,
                                    made->extents,
                                    (int64_t)stages->count,
                                    {NULL, all->pool->scratch, (int64_t)stride, made->sizes, NULL},
                                    1};
    return true;
}

static bool bind_kernel(batch *all, kernel *made, const json *plan, tw_error *error) {
    const json *buffers = json_get_kind(plan, "buffers", JSON_ARRAY);
    *made = (kernel){.weight = 1};
    if (!buffers) return tw_fail(error, "the plan of a kernel makes no sense");
    made->buffers = tw_allocate(buffers->count * sizeof *made->buffers);
    made->pointers = tw_allocate(buffers->count * sizeof *made->pointers);
    for (const json *each = buffers->first; each; each = each->next) {
        tw_buffer *buffer = &made->buffers[made->buffer_count];
        if (!tw_buffer_of(buffer, each, error)) return false;
        void *memory = memory_of(all, buffer, error);
        if (!memory) return false;
        made->pointers[made->buffer_count++] = memory;
    }
    if (!read_stages(all, made, plan, error)) return false;
    made->bound.arguments.buffers = made->pointers;
    return true;
}

static void say_checked(batch *all, int64_t number, const char *status, const char *error,
                        double distance) {
    tw_text_format(&all->line, "{\"event\":\"checked\",\"trial\":%lld,\"status\":\"%s\",\"error\":",
                   (long long)(all->first + number), status);
    tw_text_string(&all->line, error, strlen(error));
    tw_text_format(&all->line, ",\"max_error\":");
    if (isfinite(distance) && distance >= 0)
        tw_text_number(&all->line, distance);
    else
        tw_text_format(&all->line, "null");
    tw_text_format(&all->line, "}");
    tw_emit(all->child, &all->line);
}

/* Run a candidate once on poisoned memory; return whether its output is right. */
static bool check(batch *all, int64_t number, size_t at, kernel *made) {
    tw_error error;
    const json *plan = all->plans[at]->first;
    for (int64_t i = 0; i < number && plan; i++) plan = plan->next;
    tw_begin(all->child, all->first + number);
    if (!bind_kernel(all, made, plan, &error)) {
        say_checked(all, number, STATUS_RUN_ERROR, error.text, -1);
        return false;
    }
    size_t output = 0;
    while (output < made->buffer_count && made->buffers[output].role != ROLE_OUTPUT) output++;
    if (output == made->buffer_count) {
        say_checked(all, number, STATUS_RUN_ERROR, "the kernel has no output", -1);
        return false;
    }
    tw_call(&made->bound, all->threads);
    const void *memory = made->pointers[output];
    if (!tw_halo_is_zero(&made->buffers[output], memory)) {
        say_checked(all, number, STATUS_WRONG_ANSWER, "the halo of the output is not zero", -1);
        return false;
    }
    double distance = tw_compare_buffer(&made->buffers[output], memory, &all->cases[at].expected);
    if (!(distance <= all->tolerance)) {
        tw_fail(&error, "relative error %.3g over the tolerance %g", distance, all->tolerance);
        say_checked(all, number, STATUS_WRONG_ANSWER, error.text, distance);
        return false;
    }
    say_checked(all, number, STATUS_OK, "", distance);
    return true;
}

static bool read_cases(batch *all, const json *plan, tw_error *error) {
    const json *cases = json_get_kind(all->request, "cases", JSON_ARRAY);
    const json *plans = json_get_kind(plan, "cases", JSON_ARRAY);
    const json *candidates = json_get_kind(all->request, "candidates", JSON_ARRAY);
    if (!candidates || candidates->count > MOST_CANDIDATES)
        return tw_fail(error, "the request makes no sense");
    if (!cases || !plans || !cases->count || plans->count != cases->count)
        return tw_fail(error, "the plan is not that of the request");
    all->case_count = cases->count;
    all->cases = tw_allocate(cases->count * sizeof *all->cases);
    all->plans = tw_allocate(cases->count * sizeof *all->plans);
    size_t at = 0, weighted = 0;
    const json *each_plan = plans->first;
    for (const json *each = cases->first; each;
         each = each->next, each_plan = each_plan->next, at++) {
        measured_case *found = &all->cases[at];
        const tw_blob *blob = tw_blob_of(all->child, json_get_text(each, "reference_digest"));
        const json *sizes = json_get_kind(each, "sizes", JSON_OBJECT);
        if (!blob || !sizes || !json_number(json_get(each, "weight"), &found->weight) ||
            each_plan->kind != JSON_ARRAY || each_plan->count != candidates->count)
            return tw_fail(error, "the plan is not that of the request");
        if (!tw_read_npy(&found->expected, blob->data, blob->size, error)) return false;
        all->has_sizes = sizes->count > 0, all->plans[at] = each_plan, found->text = each;
        found->timed = found->weight > 0, weighted += found->timed;
    }
    if (!weighted) all->cases[0].timed = true;
    all->timed_count = weighted ? weighted : 1;
    return true;
}

static bool read_request(batch *all, tw_error *error) {
    const json *text = json_get_kind(all->request, "repeat", JSON_OBJECT);
    int64_t samples, seed, threads;
    repeat *found = &all->repeat;
    bool right =
        json_integer(json_get(text, "samples"), 1, MOST_SAMPLES, &samples) &&
        json_number(json_get(text, "sample_seconds"), &found->sample_seconds) &&
        json_number(json_get(text, "round_seconds"), &found->round_seconds) &&
        json_number(json_get(text, "abandon_ratio"), &found->abandon_ratio) &&
        json_number(json_get(text, "margin"), &found->margin) &&
        json_integer(json_get(text, "seed"), INT64_MIN, INT64_MAX, &seed) &&
        json_number(json_get(all->request, "tolerance"), &all->tolerance) &&
        json_integer(json_get(json_get(all->request, "key"), "threads"), 1, MOST_THREADS, &threads);
    if (!right || found->round_seconds > 60 || found->sample_seconds > 60)
        return tw_fail(error, "the request makes no sense");
    if (!json_number(json_get(text, "incumbent_seconds"), &found->incumbent_seconds))
        found->incumbent_seconds = INFINITY;
    found->samples = (int)samples, found->random = (uint64_t)seed;
    all->threads = (int)threads, all->best = found->incumbent_seconds;
    return true;
}

/* Check a candidate on every case that it is timed on, and make it ready for a race. */
static bool make_ready(batch *all, int64_t number, entry *one) {
    size_t at = 0, weights = 0;
    *one = (entry){.number = all->first + number, .kernels = tw_allocate(all->timed_count * sizeof(kernel))};
    for (size_t i = 0; i < all->case_count; i++) {
        if (!all->cases[i].timed) continue;
        kernel *made = &one->kernels[at++];
        if (!check(all, number, i, made)) {
            for (size_t j = 0; j < at; j++) tw_free_kernel(&one->kernels[j]);
            free(one->kernels);
            return false;
        }
        made->weight = all->has_sizes ? all->cases[i].weight : 1;
    }
    for (size_t i = 0; i < one->kernels[0].buffer_count; i++)
        if (one->kernels[0].buffers[i].role == ROLE_WEIGHT)
            weights += one->kernels[0].buffers[i].bytes;
    one->cold = weights >= COLD_BYTES;
    return true;
}

static bool open_code(batch *all, tw_error *error) {
    const tw_blob *code = tw_blob_of(all->child, json_get_text(all->request, "library_digest"));
    if (!code) return tw_fail(error, "the code was not sent");
    all->library = tw_library_open(code->data, code->size, error);
    return all->library != NULL;
}

/* Check candidates on the cases that are not timed, in memory of their own. */
static void check_untimed(batch *all, bool *left, size_t count) {
    pool own = {.memory = NULL}, *shared = all->pool;
    all->pool = &own;
    for (size_t at = 0; at < all->case_count; at++) {
        if (all->cases[at].timed) continue;
        for (size_t i = 0; i < count; i++) {
            kernel made;
            if (!left[i]) continue;
            left[i] = check(all, (int64_t)i, at, &made);
            tw_free_kernel(&made);
            if (own.held_bytes > HELD_BYTES) tw_forget(&own);
        }
        tw_forget(&own);
    }
    all->pool = shared;
}

static bool measure_all(const tw_child *child, batch *batches, const tw_part *parts, size_t count,
                        const bool *wanted, tw_error *error) {
    pool pool = {.memory = NULL};
    bool comparing = false;
    int64_t first = 0;
    for (size_t i = 0; i < count; i++) {
        batch *all = &batches[i];
        *all = (batch){
            .child = child, .request = parts[i].request, .first = first, .pool = &pool};
        if (!read_request(all, error) || !read_cases(all, parts[i].plan, error) ||
            !open_code(all, error))
            return false;
        size_t candidates = json_get(all->request, "candidates")->count;
        all->ready = tw_allocate(candidates * sizeof *all->ready);
        first += (int64_t)candidates;
        comparing = comparing || *json_get_text(all->request, "incumbent");
    }
    tw_probe(child, batches[0].threads);
    for (size_t i = 0; i < count; i++) {
        batch *all = &batches[i];
        size_t candidates = json_get(all->request, "candidates")->count;
        bool *left = tw_allocate(candidates);
        memcpy(left, wanted + all->first, candidates);
        check_untimed(all, left, candidates);
        for (size_t j = 0; j < candidates; j++) {
            if (left[j] && make_ready(all, (int64_t)j, &all->ready[all->ready_count]))
                all->ready_count++;
            if (pool.held_bytes > HELD_BYTES && !comparing) tw_race(batches, i + 1, &pool);
        }
        free(left);
    }
    tw_race(batches, count, &pool);
    tw_probe(child, batches[0].threads);
    return true;
}

bool tw_measure(const tw_child *child, const tw_part *parts, size_t count, const bool *wanted,
                tw_error *error) {
    batch *batches = tw_allocate(count * sizeof *batches);
    bool measured = measure_all(child, batches, parts, count, wanted, error);
    free(batches); /* the process ends, and with it what lies behind them */
    return measured;
}
