/* How fast a core computes and reads, by functions that the service sends: as
 * compiler/runtime/speeds.py has it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../../compiler/runtime/native/clock.h"
#include "child.h"
#include "library.h"

typedef struct {
    const tw_child *child;
    tw_text *line;
    tw_error *error;
} rates;

typedef void (*peak_function)(int64_t rounds, float *memory);
typedef void (*read_function)(int64_t rounds, float *memory, int64_t bytes);

/* Products that a dot-product instruction of a narrow type sums; 0 for any other type. */
static int products_of(const char *type) {
#define PRODUCTS(name, products)                                                                   \
    if (strcmp(type, name) == 0) return products;
    DOTS(PRODUCTS)
    return 0;
}

static double thread_seconds(int64_t start) {
    return fmax(1e-9, 1e-9 * (double)(tw_nanoseconds(CLOCK_THREAD_CPUTIME_ID) - start));
}

static double operations(rates *all, tw_library *library, const char *name, int64_t vector_bytes,
                         int group) {
    char symbol[64] = "peak_";
    strncat(symbol, name, sizeof symbol - 6);
    void *found = tw_library_find(library, *name ? symbol : "peak");
    float *memory = tw_aligned(3 * (size_t)vector_bytes);
    peak_function peak;
    if (!found || !memory)
        return tw_fail(all->error, "the speed of '%.40s' cannot be measured", symbol);
    memcpy(&peak, &found, sizeof peak);
    int64_t lanes = vector_bytes / 4;
    for (int64_t i = 0; i < 3 * lanes; i++) memory[i] = i < lanes ? 0.5f : 1.0f; /* stays near 2 */
    double least = INFINITY;
    for (int i = 0; i <= PEAK_SAMPLES; i++) { /* the first is not timed */
        int64_t start = tw_nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        peak(PEAK_ROUNDS, memory);
        if (i) least = fmin(least, thread_seconds(start));
    }
    free(memory);
    return 2.0 * (double)lanes * group * CHAINS * PEAK_ROUNDS / least;
}

static double rate(rates *all, read_function read, int64_t wanted, int64_t vector_bytes) {
    int64_t step = CHAINS * vector_bytes,
            size = wanted / step * step > step ? wanted / step * step : step;
    int64_t rounds = READ_BYTES / size > 1 ? READ_BYTES / size : 1;
    if (size > PTRDIFF_MAX / 2) /* more than 32 bits address */
        return tw_fail(all->error, "there is no memory for %lld bytes", (long long)size);
    float *memory = tw_aligned((size_t)size);
    if (!memory) return tw_fail(all->error, "there is not enough memory");
    memset(memory, 0, (size_t)size);
    double least = INFINITY;
    for (int i = 0; i <= READ_SAMPLES; i++) {
        int64_t start = tw_nanoseconds(CLOCK_THREAD_CPUTIME_ID);
        read(rounds, memory, size);
        if (i) least = fmin(least, thread_seconds(start));
    }
    free(memory);
    return (double)rounds * (double)size / least;
}

static bool add_level(rates *all, const char *name, int64_t size, double found) {
    if (!(found > 0)) return false;
    tw_text_format(all->line, "[\"%s\",%lld,", name, (long long)size);
    tw_text_number(all->line, found);
    tw_text_add(all->line, "]", 1);
    return true;
}

bool tw_speeds(const tw_child *child, const json *work, tw_text *line, tw_error *error) {
    rates made = {child, line, error}, *all = &made;
    const json *caches = json_get_kind(work, "cache_bytes", JSON_ARRAY),
               *dots = json_get(work, "dots");
    const tw_blob *code = tw_blob_of(all->child, json_get_text(work, "library"));
    int64_t vector_bytes, memory_bytes, smaller = 1 << 12, largest = 0;
    tw_begin_step(all->child, "run");
    if (!code || !caches ||
        !json_integer(json_get(work, "vector_bytes"), 4, 1 << 12, &vector_bytes) ||
        !json_integer(json_get(work, "memory_bytes"), 0, BYTES_LIMIT, &memory_bytes))
        return tw_fail(all->error, "the request makes no sense");
    tw_library *library = tw_library_open(code->data, code->size, all->error);
    void *found = library ? tw_library_find(library, "read") : NULL;
    read_function read;
    if (!found) return library ? tw_fail(all->error, "the library has no function 'read'") : false;
    memcpy(&read, &found, sizeof read);
    tw_text_format(all->line, ",\"speeds\":{\"levels\":[");
    int number = 0;
    for (const json *each = caches->first; each; each = each->next) {
        int64_t size;
        char name[16] = "L";
        if (!json_integer(each, 0, INT64_C(1) << 32, &size) || ++number > 9)
            return tw_fail(all->error, "the request makes no sense");
        if (!size) continue;
        name[1] = (char)('0' + number);
        /* too large for the next smaller cache, and with a margin in this one */
        double block = sqrt((double)smaller * (double)size);
        if (!add_level(all, name, size, rate(all, read, (int64_t)block, vector_bytes)))
            return false;
        tw_text_add(all->line, ",", 1);
        smaller = size, largest = size > largest ? size : largest;
    }
    int64_t most = 4 * largest < MEMORY_BYTES ? 4 * largest : MEMORY_BYTES;
    if (memory_bytes / 8 < most) most = memory_bytes / 8;
    if (most < READ_BYTES) most = READ_BYTES;
    if (!add_level(all, "memory", 0, rate(all, read, most, vector_bytes))) return false;
    double flops = operations(all, library, "", vector_bytes, 1);
    if (!(flops > 0)) return false;
    tw_text_format(all->line, "],\"flops_per_second\":");
    tw_text_number(all->line, flops);
    tw_text_format(all->line, ",\"dots\":{");
    for (const json *each = dots && dots->kind == JSON_ARRAY ? dots->first : NULL; each;
         each = each->next) {
        int group = each->kind == JSON_STRING ? products_of(each->string) : 0;
        if (!group) return tw_fail(all->error, "the request makes no sense");
        double peak = operations(all, library, each->string, vector_bytes, group);
        if (!(peak > 0)) return false;
        tw_text_format(all->line, "%s\"%s\":", each == dots->first ? "" : ",", each->string);
        tw_text_number(all->line, peak);
    }
    tw_text_format(all->line, "}}");
    return true;
}
