/* Whole programs: checked, raced, profiled. The numbers are those of tuner/protocol/runs.py. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../compiler/runtime/native/clock.h"
#include "child.h"
#include "digest.h"
#include "library.h"

enum { MOST_PROGRAMS = 64 };
#define PROFILE_SECONDS 2.0
#define MOST_BYTES (PTRDIFF_MAX / 2) /* of one block: sums of two fit into a size */

typedef struct {
    const char *name;
    const tw_dtype *dtype;
    int64_t shape[MOST_DIMENSIONS], counted;
    int rank;
    void *memory;
} port;

typedef struct {
    tw_program bound;
    const json *refusals;
    int64_t *code, *starts, *counts;
    size_t start_count, input_count, output_count;
    tw_stage *functions;
    void **pointers;
    port *inputs, *outputs;
    bool loaded;
} program;

typedef struct {
    const tw_child *child;
    const json *request, *plan;
    int threads;
    program programs[MOST_PROGRAMS];
    struct {
        char *memory;
        size_t bytes;
    } blocks[MOST_PROGRAMS];
    tw_text line;
    tw_error *error;
} run;

/* The native functions of the C runtime (compiler/runtime/native_functions.py). */
#define NATIVES(each)                                                                              \
    each(top_k) each(positions) each(unique) each(trim) each(put) each(scatter)                    \
        each(combine) each(accumulate) each(random_key) each(non_max_suppression) each(descend)
#define DECLARE(name)                                                                              \
    extern void tw_native_##name(void *const *, void *, const int64_t *, int64_t, int64_t);
NATIVES(DECLARE)
#define ENTRY(name) {"tw_native_" #name, tw_native_##name},
static const struct {
    const char *name;
    tw_stage function;
} NATIVE[] = {NATIVES(ENTRY)};

static bool senseless(run *all) {
    return tw_fail(all->error, "the plan of a program makes no sense");
}

static const json *nth(const json *list, int64_t number) {
    const json *each = list && list->kind == JSON_ARRAY ? list->first : NULL;
    for (; each && number > 0; number--) each = each->next;
    return each;
}

/* A list of integers, as memory of its own; NULL where it is none. */
static int64_t *integers(const json *list, size_t *count) {
    if (!list || list->kind != JSON_ARRAY) return NULL;
    int64_t *found = tw_allocate(list->count * sizeof *found);
    *count = 0;
    for (const json *each = list->first; each; each = each->next)
        if (!json_integer(each, INT64_MIN, INT64_MAX, &found[(*count)++])) return NULL;
    return found;
}

static bool load_ports(run *all, const json *texts, port **ports, size_t *count) {
    if (!texts || texts->kind != JSON_ARRAY) return senseless(all);
    *ports = tw_allocate(texts->count * sizeof **ports);
    for (const json *each = texts->first; each; each = each->next) {
        port *found = &(*ports)[(*count)++];
        const json *shape = json_get_kind(each, "shape", JSON_ARRAY);
        int64_t bytes, elements = 1;
        found->name = json_get_text(each, "name");
        found->dtype = tw_dtype_of(json_get_text(each, "dtype"));
        if (!found->dtype || !shape || shape->count > MOST_DIMENSIONS ||
            !json_integer(json_get(each, "bytes"), 0, MOST_BYTES, &bytes) ||
            !json_integer(json_get(each, "counted"), -1, (int64_t)shape->count - 1,
                          &found->counted))
            return senseless(all);
        for (const json *extent = shape->first; extent; extent = extent->next) {
            if (!json_integer(extent, 0, MOST_BYTES, &found->shape[found->rank++]) ||
                __builtin_mul_overflow(elements, found->shape[found->rank - 1], &elements))
                return senseless(all);
        }
        if (elements > bytes / (int64_t)found->dtype->bytes) return senseless(all);
        found->memory = tw_aligned((size_t)bytes);
        if (!found->memory) return tw_fail(all->error, "there is not enough memory");
        const char *array = json_get_text(each, "array");
        if (!*array) continue;
        const tw_blob *blob = tw_blob_of(all->child, array);
        if (!blob || blob->size > (size_t)bytes) return senseless(all);
        memcpy(found->memory, blob->data, blob->size);
    }
    return true;
}

static bool load_weights(run *all, const json *parts, int64_t block) {
    char *memory = all->blocks[block].memory;
    for (const json *each = json_get_kind(parts, "parts", JSON_ARRAY)->first; each;
         each = each->next) {
        int64_t start, offset, bytes;
        const tw_blob *blob =
            each->kind == JSON_ARRAY && each->count == 4 && each->first->kind == JSON_STRING
                ? tw_blob_of(all->child, each->first->string)
                : NULL;
        if (!blob || !json_integer(nth(each, 1), 0, MOST_BYTES, &start) ||
            !json_integer(nth(each, 2), 0, MOST_BYTES, &offset) ||
            !json_integer(nth(each, 3), 0, MOST_BYTES, &bytes) ||
            (size_t)(start + bytes) > blob->size ||
            (size_t)(offset + bytes) > all->blocks[block].bytes)
            return tw_fail(all->error, "a part of the weights leaves its block");
        memcpy(memory + offset, (const char *)blob->data + start, (size_t)bytes);
    }
    return true;
}

static bool load_block(run *all, const json *parts, int64_t least, int64_t *block) {
    int64_t bytes;
    if (!json_integer(json_get(parts, "block"), 0, MOST_PROGRAMS - 1, block) ||
        !json_get_kind(parts, "parts", JSON_ARRAY) ||
        !json_integer(nth(json_get(all->request, "block_bytes"), *block), least, MOST_BYTES,
                      &bytes))
        return tw_fail(all->error, "the request makes no sense");
    if (!all->blocks[*block].memory) {
        void *memory = tw_aligned((size_t)bytes);
        if (!memory) return tw_fail(all->error, "there is not enough memory");
        memset(memory, 0, (size_t)bytes);
        all->blocks[*block].memory = memory, all->blocks[*block].bytes = (size_t)bytes;
    }
    return load_weights(all, parts, *block);
}

static bool load_functions(run *all, program *made, const json *plan, const json *parts) {
    const json *symbols = json_get_kind(plan, "symbols", JSON_ARRAY);
    const json *natives = json_get_kind(plan, "natives", JSON_ARRAY);
    const char *digest = json_get_text(parts, "library");
    const tw_blob *code = *digest ? tw_blob_of(all->child, digest) : NULL;
    tw_library *library = NULL;
    if (!symbols || !natives || (*digest && !code)) return senseless(all);
    if (code && !(library = tw_library_open(code->data, code->size, all->error))) return false;
    made->functions = tw_allocate((symbols->count + natives->count) * sizeof *made->functions);
    size_t number = 0;
    for (const json *each = symbols->first; each; each = each->next, number++) {
        if (each->kind != JSON_STRING) return senseless(all);
        void *found = library ? tw_library_find(library, each->string) : NULL;
        if (!found)
            return tw_fail(all->error, "the library has no function '%.200s'", each->string);
        memcpy(&made->functions[number], &found, sizeof found);
    }
    for (const json *each = natives->first; each; each = each->next, number++) {
        if (each->kind != JSON_STRING) return senseless(all);
        for (size_t i = 0; i < sizeof NATIVE / sizeof *NATIVE; i++)
            if (strcmp(NATIVE[i].name, each->string) == 0)
                made->functions[number] = NATIVE[i].function;
        if (!made->functions[number])
            return tw_fail(all->error, "the runtime has no function '%.200s'", each->string);
    }
    return true;
}

/* Where a program's arguments lie. */
static bool load_pointers(run *all, program *made, const json *plan, int64_t block) {
    const json *references = json_get_kind(plan, "references", JSON_ARRAY);
    int64_t arena_bytes, scratch;
    if (!references || !json_integer(json_get(plan, "arena"), 0, MOST_BYTES, &arena_bytes) ||
        !json_integer(json_get(plan, "scratch"), 0, MOST_BYTES / all->threads - 1024, &scratch))
        return senseless(all);
    size_t stride = tw_scratch_stride((size_t)scratch), number = 0;
    char *arena = tw_aligned((size_t)arena_bytes),
         *work = tw_aligned(stride * (size_t)all->threads);
    if (!arena || !work) return tw_fail(all->error, "there is not enough memory");
    memset(arena, 0, (size_t)arena_bytes); /* its pages are there before anything is timed */
    memset(work, 0, stride * (size_t)all->threads);
    made->pointers = tw_allocate(references->count * sizeof *made->pointers);
    made->counts = tw_allocate(made->output_count * sizeof *made->counts);
    const struct {
        const char *name;
        char *memory;
        port *ports;
        size_t most;
    } spaces[] = {
        {"arena", arena, NULL, (size_t)arena_bytes},
        {"weights", all->blocks[block].memory, NULL, all->blocks[block].bytes},
        {"input", NULL, made->inputs, made->input_count},
        {"output", NULL, made->outputs, made->output_count},
        {"count", NULL, NULL, made->output_count},
    };
    for (const json *each = references->first; each; each = each->next, number++) {
        const json *name = nth(each, 0);
        int64_t offset;
        size_t i = 0;
        if (!name || name->kind != JSON_STRING || !json_integer(name->next, 0, MOST_BYTES, &offset))
            return senseless(all);
        while (i < 5 && strcmp(spaces[i].name, name->string) != 0) i++;
        /* an empty value may lie at an end */
        if (i == 5 || (size_t)offset > spaces[i].most ||
            (i > 1 && (size_t)offset == spaces[i].most))
            return senseless(all);
        made->pointers[number] = spaces[i].memory  ? spaces[i].memory + offset
                                 : spaces[i].ports ? spaces[i].ports[offset].memory
                                                   : (void *)&made->counts[offset];
    }
    made->bound.arguments = (tw_arguments){made->pointers, work, (int64_t)stride, NULL, NULL};
    return true;
}

/* A program with its code, weights and inputs; NULL with the reason. */
static program *load(run *all, int64_t number) {
    tw_begin_step(all->child, "load");
    if (number < 0 || number >= MOST_PROGRAMS) {
        senseless(all);
        return NULL;
    }
    program *made = &all->programs[number];
    if (made->loaded) return made;
    const json *plan = nth(json_get(all->plan, "programs"), number);
    const json *parts = nth(json_get(all->request, "programs"), number);
    size_t words = 0;
    int64_t block, weights;
    made->code = integers(json_get(plan, "code"), &words);
    made->starts = integers(json_get(plan, "starts"), &made->start_count);
    made->refusals = json_get(plan, "refusals");
    if (!made->code || !made->starts ||
        !json_integer(json_get(plan, "weights"), 0, MOST_BYTES, &weights)) {
        senseless(all);
        return NULL;
    }
    made->bound =
        (tw_program){.code = made->code, .words = (int64_t)words, .threads = all->threads};
    if (!load_block(all, parts, weights, &block) || !load_functions(all, made, plan, parts) ||
        !load_ports(all, json_get(plan, "inputs"), &made->inputs, &made->input_count) ||
        !load_ports(all, json_get(plan, "outputs"), &made->outputs, &made->output_count) ||
        !load_pointers(all, made, plan, block))
        return NULL;
    made->bound.functions = made->functions;
    made->loaded = true;
    return made;
}

static bool ran(run *all, const program *one, int status) {
    if (status == TW_OK) return true;
    const json *reason = status >= TW_REFUSED ? nth(one->refusals, status - TW_REFUSED) : NULL;
    if (reason && reason->kind == JSON_STRING) return tw_fail(all->error, "%.300s", reason->string);
    return tw_fail(all->error, "the program's code makes no sense (%d)", status);
}

static bool run_once(run *all, program *one) { return ran(all, one, tw_run_program(&one->bound)); }

static tw_array output_of(const program *one, size_t number, int64_t shape[MOST_DIMENSIONS]) {
    const port *found = &one->outputs[number];
    size_t elements = 1;
    for (int i = 0; i < found->rank; i++) {
        shape[i] = found->shape[i];
        int64_t counted = one->counts[number];
        if (i == found->counted && counted >= 0 && counted < shape[i]) shape[i] = counted;
        elements *= (size_t)shape[i];
    }
    return (tw_array){found->dtype, found->memory, elements};
}

static size_t output_named(const program *one, const char *name) {
    size_t number = 0;
    while (number < one->output_count && strcmp(one->outputs[number].name, name) != 0) number++;
    return number;
}

static bool check_one(run *all, program *one, const json *wanted) {
    int64_t shape[MOST_DIMENSIONS];
    const tw_blob *blob =
        wanted->kind == JSON_STRING ? tw_blob_of(all->child, wanted->string) : NULL;
    size_t number = output_named(one, wanted->key);
    tw_array expected;
    if (!blob || number == one->output_count)
        return tw_fail(all->error, "there is no output '%.200s'", wanted->key);
    if (!tw_read_npy(&expected, blob->data, blob->size, all->error)) return false;
    tw_array actual = output_of(one, number, shape);
    if (actual.dtype->kind == ELEMENT_BFLOAT && expected.dtype->bytes == 2)
        expected.dtype = actual.dtype;
    double error = tw_compare(&actual, &expected);
    tw_text_string(&all->line, wanted->key, wanted->key_length);
    tw_text_add(&all->line, ":", 1);
    if (isfinite(error))
        tw_text_number(&all->line, error);
    else
        tw_text_format(&all->line, "null");
    return true;
}

static bool fetch_one(run *all, program *one, const json *name) {
    int64_t shape[MOST_DIMENSIONS];
    size_t number = name->kind == JSON_STRING ? output_named(one, name->string) : one->output_count;
    if (number == one->output_count)
        return tw_fail(all->error, "there is no such output to bring back");
    tw_array found = output_of(one, number, shape);
    if (found.count * found.dtype->bytes > FETCH_BYTES)
        return tw_fail(all->error, "an output of more than %d bytes is not brought back",
                       FETCH_BYTES);
    tw_text file = {0};
    tw_write_npy(&file, found.dtype, shape, one->outputs[number].rank, found.data, found.count);
    tw_text_string(&all->line, name->string, name->length);
    tw_text_format(&all->line, ":\"");
    tw_to_base64(&all->line, (const unsigned char *)file.data, file.length);
    tw_text_add(&all->line, "\"", 1);
    tw_text_free(&file);
    return true;
}

static bool check(run *all, const json *work) {
    int64_t number;
    const json *expected = json_get_kind(work, "expected", JSON_OBJECT);
    const json *fetch = json_get_kind(work, "fetch", JSON_ARRAY);
    if (!expected || !fetch || !json_integer(json_get(work, "program"), 0, MOST_PROGRAMS, &number))
        return tw_fail(all->error, "the request makes no sense");
    program *one = load(all, number);
    if (!one) return false;
    tw_begin_step(all->child, "run");
    if (!run_once(all, one)) return false;
    tw_text_format(&all->line, ",\"errors\":{");
    for (const json *each = expected->first; each; each = each->next) {
        if (each != expected->first) tw_text_add(&all->line, ",", 1);
        if (!check_one(all, one, each)) return false;
    }
    tw_text_format(&all->line, "},\"fetched\":{");
    for (const json *each = fetch->first; each; each = each->next) {
        if (each != fetch->first) tw_text_add(&all->line, ",", 1);
        if (!fetch_one(all, one, each)) return false;
    }
    tw_text_add(&all->line, "}", 1);
    return true;
}

/* Programs that run one by one. */
typedef struct {
    program *programs[MOST_PROGRAMS];
    size_t count;
} variant;

static bool load_variant(run *all, variant *found, const json *numbers) {
    *found = (variant){.count = 0};
    if (numbers->kind != JSON_ARRAY || !numbers->count || numbers->count > MOST_PROGRAMS)
        return tw_fail(all->error, "the request makes no sense");
    for (const json *each = numbers->first; each; each = each->next) {
        int64_t number;
        if (!json_integer(each, 0, MOST_PROGRAMS - 1, &number)) return senseless(all);
        if (!(found->programs[found->count++] = load(all, number))) return false;
    }
    return true;
}

static clockid_t clock_of(const run *all) {
    return all->threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
}

/* Seconds of `count` runs; below 0 if one refuses. */
static double timed(run *all, const variant *one, int64_t count) {
    int64_t start = tw_nanoseconds(clock_of(all));
    for (int64_t i = 0; i < count; i++)
        for (size_t j = 0; j < one->count; j++)
            if (!run_once(all, one->programs[j])) return -1;
    return 1e-9 * (double)(tw_nanoseconds(clock_of(all)) - start);
}

static double wall(void) { return 1e-9 * (double)tw_nanoseconds(CLOCK_MONOTONIC); }
static bool compare(run *all, const variant *challenger, const variant *incumbent) {
    double ratios[RACE_PAIRS + 1];
    size_t found = 0;
    const variant *const both[] = {challenger, incumbent};
    for (int i = 0; i < 2; i++) {
        tw_begin_step(all->child, "run");
        if (timed(all, both[i], 1) < 0) return false;
    }
    double once = fmax(1e-9, timed(all, incumbent, 1)), ends = wall() + RACE_SECONDS;
    int64_t count = (int64_t)fmax(1, round(RACE_SAMPLE_SECONDS / once));
    while (found < RACE_PAIRS && !(found >= RACE_LEAST_PAIRS && wall() >= ends)) {
        tw_begin_step(all->child, "run");
        double before = timed(all, incumbent, count), first = timed(all, challenger, count);
        double second = timed(all, challenger, count), after = timed(all, incumbent, count);
        if (before > 0 && first > 0) ratios[found++] = first / before;
        if (after > 0 && second > 0) ratios[found++] = second / after;
        if (before < 0 || after < 0 || first < 0 || second < 0) return false;
        if (!tw_may_be_faster(ratios, found < RACE_PAIRS ? found : RACE_PAIRS, RACE_PAIRS)) break;
    }
    tw_text_format(&all->line, "[\"untuned\",");
    tw_text_numbers(&all->line, ratios, found, 1);
    tw_text_add(&all->line, "]", 1);
    return true;
}

static bool race(run *all, const json *work) {
    const json *variants = json_get_kind(work, "variants", JSON_ARRAY);
    variant incumbent, other;
    if (!variants || !variants->count) return tw_fail(all->error, "the request makes no sense");
    if (!load_variant(all, &incumbent, variants->first)) return false;
    tw_text_format(&all->line, ",\"race\":{\"comparisons\":[");
    for (const json *each = variants->first->next; each; each = each->next) {
        if (each != variants->first->next) tw_text_add(&all->line, ",", 1);
        if (!load_variant(all, &other, each) || !compare(all, &other, &incumbent)) return false;
    }
    tw_begin_step(all->child, "run");
    double least = INFINITY, ends = wall() + RACE_SECONDS;
    for (int i = 0; i < RACE_RUNS && (i == 0 || wall() < ends); i++) {
        double seconds = timed(all, &incumbent, 1);
        if (seconds < 0) return false;
        least = fmin(least, seconds);
    }
    tw_text_format(&all->line, "],\"incumbent_seconds\":");
    tw_text_number(&all->line, fmax(least, LEAST_SECONDS));
    tw_text_add(&all->line, "}", 1);
    return true;
}

static bool profile(run *all, const json *work) {
    int64_t number, samples;
    if (!json_integer(json_get(work, "program"), 0, MOST_PROGRAMS, &number) ||
        !json_integer(json_get(work, "samples"), 1, SAMPLES_LIMIT, &samples))
        return tw_fail(all->error, "the request makes no sense");
    program *one = load(all, number);
    if (!one) return false;
    size_t words = (size_t)one->bound.words;
    double *seconds = tw_allocate(words * sizeof *seconds),
           *best = tw_allocate(words * sizeof *best);
    for (size_t i = 0; i < words; i++) best[i] = INFINITY;
    tw_begin_step(all->child, "run");
    double said = wall();
    bool right = run_once(all, one);
    for (int64_t sample = 0; right && sample < samples; sample++) {
        if (wall() - said > PROFILE_SECONDS) {
            tw_begin_step(all->child, "run");
            said = wall();
        }
        right = ran(all, one, tw_profile_program(seconds, &one->bound));
        for (size_t i = 0; i < words; i++) best[i] = fmin(best[i], seconds[i]);
    }
    if (right && one->start_count > words) right = senseless(all);
    for (size_t i = 0; right && i < one->start_count; i++) {
        bool inside = one->starts[i] >= 0 && (size_t)one->starts[i] < words;
        if (!inside) right = senseless(all);
        if (inside) seconds[i] = best[one->starts[i]];
    }
    tw_text_format(&all->line, ",\"seconds\":");
    if (right) tw_text_numbers(&all->line, seconds, one->start_count, 1);
    free(seconds);
    free(best);
    return right;
}

static bool speeds(run *all, const json *work) {
    return tw_speeds(all->child, work, &all->line, all->error);
}

bool tw_run(const tw_child *child, const tw_part *part, tw_error *error) {
    const json *request = part->request;
    static const struct {
        const char *name;
        bool (*work)(run *, const json *);
    } kinds[] = {{WORK_KIND_CHECK, check},
                 {WORK_KIND_RACE, race},
                 {WORK_KIND_PROFILE, profile},
                 {WORK_KIND_SPEEDS, speeds}};
    run *all = tw_allocate(sizeof *all);
    const json *work = json_get_kind(request, "work", JSON_OBJECT);
    const char *wanted = json_get_text(work, "do");
    int64_t threads;
    if (!json_integer(json_get(request, "threads"), 1, TW_MAX_THREADS, &threads))
        return tw_fail(error, "the request makes no sense");
    all->child = child, all->request = request, all->plan = part->plan, all->error = error;
    all->threads = (int)threads;
    tw_pin_random_keys(1); /* the references use the same random numbers */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(kinds[i].name, wanted) != 0) continue;
        tw_text_format(&all->line, "{\"event\":\"result\"");
        if (!kinds[i].work(all, work)) return false;
        tw_text_add(&all->line, "}", 1);
        tw_emit(child, &all->line);
        return true;
    }
    return tw_fail(error, "there is no work '%.40s'", wanted);
}
