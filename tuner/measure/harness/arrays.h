/* Arrays of an expanded request's plan (tuner/measure/plain_form.py): packed into a kernel's input
 * buffers, unpacked from its output buffers, and compared with the expected arrays. */
#ifndef TW_ARRAYS_H
#define TW_ARRAYS_H

#include "json.h"

enum { MOST_DIMENSIONS = 16, MOST_FACTORS = 64, ARRAY_ALIGNMENT = 64 };

/* The type of an array's elements. */
typedef struct {
    const char *name;
    const char *file; /* its name in an .npy file */
    size_t bytes;
    enum { ELEMENT_FLOAT, ELEMENT_HALF, ELEMENT_BFLOAT, ELEMENT_SIGNED, ELEMENT_UNSIGNED } kind;
} tw_dtype;

/* The type of this name; NULL for an unknown name. */
const tw_dtype *tw_dtype_of(const char *name);

/* Element `index` as a number. */
double tw_element(const tw_dtype *dtype, const void *data, size_t index);

typedef enum { ROLE_INPUT, ROLE_WEIGHT, ROLE_SHARED, ROLE_OUTPUT } tw_role;

/* An argument of a kernel: its array, and where each element of that lies. */
typedef struct {
    tw_role role;
    const tw_dtype *dtype;
    size_t bytes, elements;
    int rank, factor_count;
    bool has_halo;
    int64_t shape[MOST_DIMENSIONS], halo[MOST_DIMENSIONS][2];
    struct {
        int64_t dimension, divisor, modulus, step;
    } factors[MOST_FACTORS];
    char array[65];   /* digest of the array that fills it; "" if none does */
    const json *text; /* equal ones can share memory */
} tw_buffer;

/* Read a plan's description of a buffer; false if an element lies outside its bytes. */
bool tw_buffer_of(tw_buffer *buffer, const json *text, tw_error *error);

/* Write a row-major array to memory; the halo and the padding of a layout are 0. */
bool tw_pack(const tw_buffer *buffer, const void *array, size_t bytes, void *memory,
             tw_error *error);

/* Whether there is nothing but zeros around the interior. */
bool tw_halo_is_zero(const tw_buffer *buffer, const void *memory);

/* An .npy file, whose elements lie in row-major order. */
typedef struct {
    const tw_dtype *dtype;
    const void *data;
    size_t count;
} tw_array;

bool tw_read_npy(tw_array *array, const void *file, size_t size, tw_error *error);
void tw_write_npy(tw_text *text, const tw_dtype *dtype, const int64_t *shape, int rank,
                  const void *data, size_t count);

/* The largest error relative to the largest expected value; infinite if the counts differ, or the
 * positions of infinities and NaNs. */
double tw_compare_buffer(const tw_buffer *buffer, const void *memory, const tw_array *expected);
double tw_compare(const tw_array *actual, const tw_array *expected);

/* Memory for an array, aligned for every vector; NULL if out of memory. */
void *tw_aligned(size_t bytes);

#endif
