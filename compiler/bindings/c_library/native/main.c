/* A program around one model: reads .npy files, runs the model, writes .npy files, prints times.
 * TW_MODEL, TW_WEIGHTS and TW_STATUS_TEXT are the names of its tables, weights and words. */
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "tw_model.h"

extern const tw_model *TW_MODEL(void);
extern const unsigned char TW_WEIGHTS[];
extern const char *TW_STATUS_TEXT(int status);

enum { HEADER = 1 << 16, RANK = 64, RUNS = 1000000 };

static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("error: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

/* Memory of whole lines; never NULL, and no other than the system's. */
static void *aligned_memory(size_t bytes, const char *what) {
    size_t whole = (bytes + TW_ALIGNMENT) / TW_ALIGNMENT * TW_ALIGNMENT;
    void *made = whole < bytes ? NULL : aligned_alloc(TW_ALIGNMENT, whole);
    if (!made) fail("there is no memory for %s: %zu bytes", what, bytes);
    return made;
}

static int64_t *integers(int64_t count) {
    return aligned_memory((size_t)(count > 0 ? count : 1) * sizeof(int64_t), "numbers");
}

/* How NumPy writes a shape: "(2, 3)", "(2,)", "()". */
static void write_shape(char *text, size_t room, const int64_t *shape, int64_t rank) {
    size_t used = (size_t)snprintf(text, room, "(");
    for (int64_t i = 0; i < rank && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, i ? ", %" PRId64 : "%" PRId64, shape[i]);
    if (used < room) snprintf(text + used, room - used, rank == 1 ? ",)" : ")");
}

/* Where a key's value starts in the header of a .npy file. */
static const char *value_of(const char *header, const char *key) {
    const char *found = strstr(header, key);
    if (!found) return NULL;
    for (found += strlen(key); *found == ' ' || *found == ':'; found++) {
    }
    return found;
}

/* Read an array of a type and shape from a .npy file. */
static void *read_array(const char *path, const tw_port *port, const int64_t *shape, size_t bytes) {
    static char header[HEADER + 1];
    unsigned char start[12];
    FILE *file = fopen(path, "rb");
    if (!file) fail("'%s' cannot be opened", path);
    if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0 || start[6] > 3)
        fail("'%s' is no .npy file", path);
    size_t length = start[8] | (size_t)start[9] << 8;
    if (start[6] > 1) {
        if (fread(start + 10, 1, 2, file) != 2) fail("'%s' is cut off", path);
        length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
    }
    if (length > HEADER || fread(header, 1, length, file) != length) fail("'%s' is cut off", path);
    header[length] = 0;
    const char *type = value_of(header, "'descr'"), *order = value_of(header, "'fortran_order'"),
               *extents = value_of(header, "'shape'");
    if (!type || !order || !extents) fail("'%s' has no header of a .npy file", path);
    char wanted[RANK * 24], quoted[32];
    snprintf(quoted, sizeof quoted, "'%s'", port->type);
    write_shape(wanted, sizeof wanted, shape, port->rank);
    if (strncmp(type, quoted, strlen(quoted)) != 0 || strncmp(order, "False", 5) != 0 ||
        strncmp(extents, wanted, strlen(wanted)) != 0)
        fail("'%s' does not hold what input '%s' takes: %s of shape %s, in C's order", path,
             port->name, port->type, wanted);
    void *array = aligned_memory(bytes, port->name);
    if (fread(array, 1, bytes, file) != bytes) fail("'%s' is cut off", path);
    fclose(file);
    return array;
}

static void write_array(const char *path, const tw_port *port, const int64_t *shape,
                        const void *array, size_t bytes) {
    char text[RANK * 24], header[sizeof text + 256];
    write_shape(text, sizeof text, shape, port->rank);
    int length = snprintf(header, sizeof header,
                          "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", port->type, text);
    int padding = 63 - (10 + length) % 64;
    unsigned char start[10] = "\x93NUMPY\x01";
    start[8] = (unsigned char)((length + padding + 1) & 255);
    start[9] = (unsigned char)((length + padding + 1) >> 8);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(start, 1, 10, file) != 10 ||
        fprintf(file, "%s%*s\n", header, padding, "") != length + padding + 1 ||
        fwrite(array, 1, bytes, file) != bytes || fclose(file) != 0)
        fail("'%s' cannot be written", path);
}

/* The port that NAME=PATH names, and the path; names may hold '=' themselves. */
static const char *named(const char *text, const tw_port *ports, int64_t count, int64_t *port) {
    for (*port = 0; *port < count; (*port)++) {
        size_t length = strlen(ports[*port].name);
        if (strncmp(text, ports[*port].name, length) == 0 && text[length] == '=')
            return text + length + 1;
    }
    return NULL;
}

static int64_t integer(const char *text, const char *what, int64_t least, int64_t most) {
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < least || value > most)
        fail("%s is '%s', expected an integer from %" PRId64 " to %" PRId64, what, text, least, most);
    return value;
}

static void usage(const char *program, const tw_model *model) {
    printf("usage: %s [--size NAME=N] [--runs N] INPUT=FILE.npy ... [-o OUTPUT=FILE.npy ...]\n\n",
           program);
    for (int64_t i = 0; i < model->dimensions; i++) {
        const tw_range *range = &model->ranges[i];
        printf("  size    %s: %" PRId64 " to ", range->name, range->low);
        if (range->high == INT64_MAX)
            printf("what memory allows");
        else
            printf("%" PRId64, range->high);
        if (range->multiple > 1) printf(", a multiple of %" PRId64, range->multiple);
        printf("\n");
    }
    for (int64_t i = 0; i < model->input_count; i++)
        printf("  input   %s: %s, %" PRId64 " axes\n", model->input_ports[i].name,
               model->input_ports[i].type, model->input_ports[i].rank);
    for (int64_t i = 0; i < model->output_count; i++)
        printf("  output  %s: %s, %" PRId64 " axes\n", model->output_ports[i].name,
               model->output_ports[i].type, model->output_ports[i].rank);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static size_t bytes_of(const tw_port *port, const int64_t *shape) {
    size_t bytes = 0;
    sscanf(port->type + 2, "%zu", &bytes);
    for (int64_t axis = 0; axis < port->rank; axis++) bytes *= (size_t)shape[axis];
    return bytes;
}

/* Bytes of a whole array; an address space of 32 bits can be too small for them. */
static size_t port_bytes(const tw_port *port, const int64_t *numbers) {
    if ((uint64_t)numbers[port->bytes] > SIZE_MAX / 2)
        fail("there is no memory for '%s': %" PRId64 " bytes", port->name, numbers[port->bytes]);
    return (size_t)numbers[port->bytes];
}

int main(int count, char **texts) {
    const tw_model *model = TW_MODEL();
    const char **paths = aligned_memory((size_t)(model->input_count + 1) * sizeof *paths, "paths");
    const char **wanted = aligned_memory((size_t)(model->output_count + 1) * sizeof *wanted, "paths");
    void **inputs = aligned_memory((size_t)(model->input_count + 1) * sizeof *inputs, "inputs");
    void **outputs = aligned_memory((size_t)(model->output_count + 1) * sizeof *outputs, "outputs");
    int64_t *sizes = integers(model->dimensions), *numbers = integers(model->numbers), runs = 1, port;
    int64_t shape[RANK], *counts = integers(model->output_count);
    memset(paths, 0, (size_t)model->input_count * sizeof *paths);
    memset(wanted, 0, (size_t)model->output_count * sizeof *wanted);
    for (int64_t i = 0; i < model->dimensions; i++) sizes[i] = -1;
    if (count < 2 && model->input_count) {
        usage(texts[0], model);
        return 2;
    }
    for (int i = 1; i < count; i++) {
        const char *text = texts[i], *rest = i + 1 < count ? texts[i + 1] : "", *value;
        if (strcmp(text, "--help") == 0) {
            usage(texts[0], model);
            return 0;
        } else if (strcmp(text, "--runs") == 0) {
            runs = integer(rest, "--runs", 1, RUNS);
            i++;
        } else if (strcmp(text, "--size") == 0) {
            value = strrchr(rest, '=');
            int64_t dimension = 0;
            for (; value && dimension < model->dimensions; dimension++)
                if (strlen(model->ranges[dimension].name) == (size_t)(value - rest) &&
                    strncmp(rest, model->ranges[dimension].name, (size_t)(value - rest)) == 0)
                    break;
            if (!value || dimension == model->dimensions)
                fail("--size '%s': expected NAME=N with the name of a dimension", rest);
            sizes[dimension] = integer(value + 1, rest, model->ranges[dimension].low,
                                       model->ranges[dimension].high);
            i++;
        } else if (strcmp(text, "-o") == 0) {
            value = named(rest, model->output_ports, model->output_count, &port);
            if (!value) fail("-o '%s': expected OUTPUT=FILE.npy with the name of an output", rest);
            wanted[port] = value;
            i++;
        } else {
            value = named(text, model->input_ports, model->input_count, &port);
            if (!value) fail("'%s': expected INPUT=FILE.npy with the name of an input", text);
            paths[port] = value;
        }
    }
    for (int64_t i = 0; i < model->dimensions; i++)
        if (sizes[i] < 0) fail("dimension '%s' has no size: give one with --size",
                               model->ranges[i].name);
    size_t memory_bytes = tw_model_bytes(model, sizes, 1, numbers);
    if (!memory_bytes) fail("a size is outside of its range, or no memory is so large");
    for (int64_t i = 0; i < model->input_count; i++) {
        const tw_port *p = &model->input_ports[i];
        if (!paths[i]) fail("input '%s' has no file", p->name);
        if (p->rank > RANK || tw_model_shape(model, p, sizes, numbers, shape))
            fail("input '%s' has no shape", p->name);
        inputs[i] = read_array(paths[i], p, shape, port_bytes(p, numbers));
    }
    for (int64_t i = 0; i < model->output_count; i++) {
        const tw_port *p = &model->output_ports[i];
        if (p->rank > RANK || tw_model_shape(model, p, sizes, numbers, shape))
            fail("output '%s' has no shape", p->name);
        outputs[i] = aligned_memory(port_bytes(p, numbers), p->name);
    }
    tw_state *state;
    int status = tw_model_init(model, aligned_memory(memory_bytes, "the model"), memory_bytes,
                               TW_WEIGHTS, (size_t)model->weight_bytes, NULL, &state);
    int64_t *times = integers(runs);
    for (int64_t run = 0; run < runs && status == TW_MODEL_OK; run++) {
        int64_t before = tw_nanoseconds(CLOCK_MONOTONIC);
        status = tw_model_run(state, sizes, (const void *const *)inputs, outputs, counts);
        times[run] = tw_nanoseconds(CLOCK_MONOTONIC) - before;
    }
    if (status != TW_MODEL_OK) fail("%s", TW_STATUS_TEXT(status));
    qsort(times, (size_t)runs, sizeof *times, by_value);
    printf("%" PRId64 " runs: fastest %.3f ms, median %.3f ms; %zu bytes of memory, %" PRId64
           " of weights\n",
           runs, (double)times[0] * 1e-6, (double)times[runs / 2] * 1e-6, memory_bytes,
           model->weight_bytes);
    for (int64_t i = 0; i < model->output_count; i++) {
        const tw_port *p = &model->output_ports[i];
        if (!wanted[i]) continue;
        tw_model_shape(model, p, sizes, numbers, shape);
        if (p->counted >= 0) shape[p->counted] = counts[i];
        write_array(wanted[i], p, shape, outputs[i], bytes_of(p, shape));
    }
    return 0;
}
