#include "arrays.h"

#include "digest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_BYTES = 4 << 20 }; /* size of arrays for which NumPy requests huge pages */

static const tw_dtype DTYPES[] = {
    {"float32", "<f4", 4, ELEMENT_FLOAT},   {"float64", "<f8", 8, ELEMENT_FLOAT},
    {"float16", "<f2", 2, ELEMENT_HALF},    {"int8", "|i1", 1, ELEMENT_SIGNED},
    {"int16", "<i2", 2, ELEMENT_SIGNED},    {"int32", "<i4", 4, ELEMENT_SIGNED},
    {"int64", "<i8", 8, ELEMENT_SIGNED},    {"uint8", "|u1", 1, ELEMENT_UNSIGNED},
    {"uint16", "<u2", 2, ELEMENT_UNSIGNED}, {"uint32", "<u4", 4, ELEMENT_UNSIGNED},
    {"uint64", "<u8", 8, ELEMENT_UNSIGNED}, {"bool", "|b1", 1, ELEMENT_UNSIGNED},
    {"bfloat16", "<u2", 2, ELEMENT_BFLOAT}, /* in files as its bits: the last of that name */
};
enum { DTYPE_COUNT = sizeof DTYPES / sizeof *DTYPES };

const tw_dtype *tw_dtype_of(const char *name) {
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (strcmp(DTYPES[i].name, name) == 0) return &DTYPES[i];
    return NULL;
}

static double half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

#define LOAD(type) (((const type *)data)[index])

double tw_element(const tw_dtype *dtype, const void *data, size_t index) {
    uint32_t wide;
    float narrow;
    switch (dtype->kind) {
    case ELEMENT_FLOAT: return dtype->bytes == 4 ? (double)LOAD(float) : LOAD(double);
    case ELEMENT_HALF: return half(LOAD(uint16_t));
    case ELEMENT_BFLOAT:
        wide = (uint32_t)LOAD(uint16_t) << 16;
        memcpy(&narrow, &wide, sizeof narrow);
        return narrow;
    case ELEMENT_SIGNED:
        return dtype->bytes == 1   ? (double)LOAD(int8_t)
               : dtype->bytes == 2 ? (double)LOAD(int16_t)
               : dtype->bytes == 4 ? (double)LOAD(int32_t)
                                   : (double)LOAD(int64_t);
    default:
        return dtype->bytes == 1   ? (double)LOAD(uint8_t)
               : dtype->bytes == 2 ? (double)LOAD(uint16_t)
               : dtype->bytes == 4 ? (double)LOAD(uint32_t)
                                   : (double)LOAD(uint64_t);
    }
}

void *tw_aligned(size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    char *found =
        aligned_alloc(ARRAY_ALIGNMENT, (bytes / ARRAY_ALIGNMENT + 1) * ARRAY_ALIGNMENT);
#ifdef MADV_HUGEPAGE
    if (found && bytes >= HUGE_BYTES) { /* as NumPy does for its arrays */
        size_t page = (size_t)sysconf(_SC_PAGESIZE), skipped = page - (uintptr_t)found % page;
        madvise(found + skipped, bytes - skipped, MADV_HUGEPAGE);
    }
#endif
    return found;
}

/* For each dimension, the offset that each index adds to an element's place. */
typedef struct {
    int rank;
    int64_t extent[MOST_DIMENSIONS];
    int64_t *steps[MOST_DIMENSIONS];
} tables;

static void free_tables(tables *all) {
    for (int i = 0; i < all->rank; i++) free(all->steps[i]);
}

/* More elements than any buffer has; sums of a few do not overflow. */
#define BEYOND (INT64_C(1) << 58)

/* With `padded`, of the interior and the halo around it. */
static tables tables_of(const tw_buffer *buffer, bool padded) {
    tables all = {.rank = buffer->rank};
    for (int dimension = 0; dimension < buffer->rank; dimension++) {
        int64_t low = buffer->halo[dimension][0], around = low + buffer->halo[dimension][1];
        int64_t extent = buffer->shape[dimension] + (padded ? around : 0), first = padded ? 0 : low;
        int64_t *steps = tw_allocate((size_t)extent * sizeof *steps);
        for (int f = 0; f < buffer->factor_count; f++) {
            int64_t divisor = buffer->factors[f].divisor, modulus = buffer->factors[f].modulus;
            if (buffer->factors[f].dimension != dimension) continue;
            for (int64_t i = 0; i < extent; i++) {
                int64_t digit = (i + first) / divisor, more;
                digit = modulus ? digit % modulus : digit;
                bool beyond = __builtin_mul_overflow(buffer->factors[f].step, digit, &more);
                steps[i] = beyond || more > BEYOND - steps[i] ? BEYOND : steps[i] + more;
            }
        }
        all.extent[dimension] = extent, all.steps[dimension] = steps;
    }
    return all;
}

/* A place after the other in row-major order. */
typedef struct {
    const tables *all;
    int64_t index[MOST_DIMENSIONS];
    bool more;
} walk;

static walk walk_of(const tables *all) {
    walk found = {.all = all, .more = true};
    for (int i = 0; i < all->rank; i++) found.more = found.more && all->extent[i] > 0;
    return found;
}

static size_t next_place(walk *at) {
    int64_t place = 0;
    for (int i = 0; i < at->all->rank; i++) place += at->all->steps[i][at->index[i]];
    int i = at->all->rank;
    while (--i >= 0 && ++at->index[i] == at->all->extent[i]) at->index[i] = 0;
    at->more = i >= 0;
    return (size_t)place;
}

/* Whether every place of a buffer lies in it. */
static bool lies_within(const tw_buffer *buffer) {
    tables all = tables_of(buffer, true);
    int64_t last = 0;
    bool empty = false;
    for (int i = 0; i < all.rank; i++) {
        int64_t most = 0;
        for (int64_t j = 0; j < all.extent[i]; j++)
            if (all.steps[i][j] > most) most = all.steps[i][j];
        empty = empty || all.extent[i] == 0, last += most;
    }
    free_tables(&all);
    return empty || (uint64_t)last < buffer->elements;
}

static bool read_sizes(tw_buffer *buffer, const json *text) {
    enum { MOST = 1 << 28 }; /* of one dimension, so that tables and sums stay small */
    const json *shape = json_get_kind(text, "shape", JSON_ARRAY);
    const json *halo = json_get_kind(text, "halo", JSON_ARRAY);
    const json *factors = json_get_kind(text, "factors", JSON_ARRAY);
    if (!shape || !halo || !factors || shape->count > MOST_DIMENSIONS ||
        factors->count > MOST_FACTORS || (halo->count && halo->count != shape->count))
        return false;
    const json *each = shape->first;
    for (; each; each = each->next, buffer->rank++)
        if (!json_integer(each, 0, MOST, &buffer->shape[buffer->rank])) return false;
    int dimension = 0;
    for (each = halo->first; each; each = each->next, dimension++) {
        if (each->kind != JSON_ARRAY || each->count != 2) return false;
        if (!json_integer(each->first, 0, MOST, &buffer->halo[dimension][0]) ||
            !json_integer(each->first->next, 0, MOST, &buffer->halo[dimension][1]))
            return false;
        buffer->has_halo = true;
    }
    for (each = factors->first; each; each = each->next, buffer->factor_count++) {
        int64_t number[4];
        const json *part = each->kind == JSON_ARRAY && each->count == 4 ? each->first : NULL;
        for (int i = 0; i < 4; i++, part = part ? part->next : NULL)
            if (!json_integer(part, 0, INT64_C(1) << 32, &number[i])) return false;
        if (number[0] >= buffer->rank || number[1] < 1) return false;
        buffer->factors[buffer->factor_count].dimension = number[0];
        buffer->factors[buffer->factor_count].divisor = number[1];
        buffer->factors[buffer->factor_count].modulus = number[2];
        buffer->factors[buffer->factor_count].step = number[3];
    }
    return true;
}

bool tw_buffer_of(tw_buffer *buffer, const json *text, tw_error *error) {
    static const char *const roles[] = {"input", "weight", "shared", "output"};
    const char *role = json_get_text(text, "role"), *array = json_get_text(text, "array");
    int64_t bytes, elements;
    *buffer = (tw_buffer){.dtype = tw_dtype_of(json_get_text(text, "dtype")), .text = text};
    int number = 0;
    while (number < 4 && strcmp(role, roles[number]) != 0) number++;
    bool filled = number == ROLE_INPUT || number == ROLE_WEIGHT;
    if (number == 4 || !buffer->dtype || (filled ? !tw_is_digest(array) : *array != 0) ||
        !json_integer(json_get(text, "bytes"), 0, PTRDIFF_MAX / 4, &bytes) ||
        !json_integer(json_get(text, "elements"), 0, PTRDIFF_MAX / 64, &elements) ||
        !read_sizes(buffer, text))
        return tw_fail(error, "the plan of a kernel makes no sense");
    buffer->role = (tw_role)number;
    buffer->bytes = (size_t)bytes, buffer->elements = (size_t)elements;
    if (filled) memcpy(buffer->array, array, sizeof buffer->array);
    bool fits = buffer->elements * buffer->dtype->bytes <= buffer->bytes;
    if (!fits || !lies_within(buffer))
        return tw_fail(error, "an array of the plan does not lie in its buffer");
    return true;
}

bool tw_pack(const tw_buffer *buffer, const void *array, size_t bytes, void *memory,
             tw_error *error) {
    size_t size = buffer->dtype->bytes, count = 1;
    tables all = tables_of(buffer, false);
    for (int i = 0; i < all.rank; i++) {
        size_t extent = (size_t)all.extent[i];
        count = extent && count > SIZE_MAX / 16 / extent ? SIZE_MAX / 16 : count * extent;
    }
    bool right = count * size == bytes;
    if (right) {
        const char *from = array;
        memset(memory, 0, buffer->bytes);
        for (walk at = walk_of(&all); at.more; from += size)
            memcpy((char *)memory + next_place(&at) * size, from, size);
    }
    free_tables(&all);
    return right || tw_fail(error, "an array is not as large as its buffer");
}

static size_t count_of_others(const tw_buffer *buffer, const char *memory, bool padded) {
    static const char zeros[8];
    size_t size = buffer->dtype->bytes, found = 0;
    tables all = tables_of(buffer, padded);
    for (walk at = walk_of(&all); at.more;)
        found += memcmp(memory + next_place(&at) * size, zeros, size) != 0;
    free_tables(&all);
    return found;
}

bool tw_halo_is_zero(const tw_buffer *buffer, const void *memory) {
    if (!buffer->has_halo) return true;
    return count_of_others(buffer, memory, true) == count_of_others(buffer, memory, false);
}

bool tw_read_npy(tw_array *array, const void *file, size_t size, tw_error *error) {
    const unsigned char *bytes = file;
    char head[512] = {0};
    size_t start = 10, length = 0;
    bool known = size >= 12 && memcmp(bytes, "\x93NUMPY", 6) == 0;
    if (known && bytes[6] == 1)
        length = bytes[8] | (size_t)bytes[9] << 8;
    else if (known && bytes[6] == 2)
        start = 12, length = bytes[8] | (size_t)bytes[9] << 8 | (size_t)bytes[10] << 16 |
                             (size_t)bytes[11] << 24;
    else
        return tw_fail(error, "an expected output is no .npy file");
    if (length > size - start) return tw_fail(error, "an expected output is cut short");
    memcpy(head, bytes + start, length < sizeof head ? length : sizeof head - 1);
    const char *said = strstr(head, "'descr': '");
    const tw_dtype *dtype = NULL;
    for (int i = 0; said && i < DTYPE_COUNT && !dtype; i++) {
        size_t name = strlen(DTYPES[i].file);
        if (strncmp(said + 10, DTYPES[i].file, name) == 0 && said[10 + name] == '\'')
            dtype = &DTYPES[i];
    }
    if (!dtype || strstr(head, "'fortran_order': True"))
        return tw_fail(error, "an expected output is an array of another kind");
    *array = (tw_array){dtype, bytes + start + length, (size - start - length) / dtype->bytes};
    /* files are mapped, and heads padded, so that their elements are aligned; not by everybody */
    if ((uintptr_t)array->data % dtype->bytes)
        return tw_fail(error, "an expected output is not aligned");
    return true;
}

void tw_write_npy(tw_text *text, const tw_dtype *dtype, const int64_t *shape, int rank,
                  const void *data, size_t count) {
    tw_text head = {0};
    tw_text_format(&head, "{'descr': '%s', 'fortran_order': False, 'shape': (", dtype->file);
    for (int i = 0; i < rank; i++) tw_text_format(&head, "%lld, ", (long long)shape[i]);
    tw_text_format(&head, "), }");
    while ((head.length + 11) % 64) tw_text_add(&head, " ", 1);
    tw_text_add(&head, "\n", 1);
    const unsigned char magic[] = {0x93,
                                   'N',
                                   'U',
                                   'M',
                                   'P',
                                   'Y',
                                   1,
                                   0,
                                   (unsigned char)(head.length & 255),
                                   (unsigned char)(head.length >> 8)};
    tw_text_add(text, (const char *)magic, sizeof magic);
    tw_text_add(text, head.data, head.length);
    tw_text_add(text, data, count * dtype->bytes);
    tw_text_free(&head);
}

/* The comparison, an element after the other. */
typedef struct {
    double largest, error;
    bool alike, exact, integers;
} comparison;

static void compare_one(comparison *so_far, double actual, double expected) {
    if (!isfinite(expected)) {
        bool same = isnan(expected) ? isnan(actual) : actual == expected;
        so_far->alike = so_far->alike && same;
        return;
    }
    if (!isfinite(actual)) {
        so_far->alike = false;
        return;
    }
    double size = fabs(expected), distance = fabs(actual - expected);
    if (size > so_far->largest) so_far->largest = size;
    if (distance > so_far->error) so_far->error = distance;
}

static double distance_of(const comparison *found) {
    if (!found->alike) return INFINITY;
    double error = found->largest > 0 ? found->error / found->largest : found->error;
    /* 64-bit integers may differ by less than a double resolves */
    return found->integers && !found->exact && error == 0 ? INFINITY : error;
}

static comparison begin(const tw_dtype *actual, const tw_dtype *expected) {
    bool floats = actual->kind <= ELEMENT_BFLOAT || expected->kind <= ELEMENT_BFLOAT;
    return (comparison){.alike = true, .exact = true, .integers = !floats};
}

static void compare_at(comparison *found, const tw_dtype *dtype, const void *data, size_t place,
                       const tw_array *expected, size_t index) {
    compare_one(found, tw_element(dtype, data, place),
                tw_element(expected->dtype, expected->data, index));
    if (found->integers && dtype->bytes == expected->dtype->bytes)
        found->exact = found->exact && memcmp((const char *)data + place * dtype->bytes,
                                              (const char *)expected->data + index * dtype->bytes,
                                              dtype->bytes) == 0;
}

double tw_compare_buffer(const tw_buffer *buffer, const void *memory, const tw_array *expected) {
    comparison found = begin(buffer->dtype, expected->dtype);
    tables all = tables_of(buffer, false);
    size_t index = 0;
    walk at = walk_of(&all);
    for (; at.more && index < expected->count; index++)
        compare_at(&found, buffer->dtype, memory, next_place(&at), expected, index);
    free_tables(&all);
    return at.more || index != expected->count ? INFINITY : distance_of(&found);
}

double tw_compare(const tw_array *actual, const tw_array *expected) {
    comparison found = begin(actual->dtype, expected->dtype);
    if (actual->count != expected->count) return INFINITY;
    for (size_t i = 0; i < actual->count; i++)
        compare_at(&found, actual->dtype, actual->data, i, expected, i);
    return distance_of(&found);
}
