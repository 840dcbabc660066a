/* Runs a model that was compiled to a C library, once. It builds as C11 and as C++17:
 *
 *   tilewright compile vit.onnx --dim batch=1 --format c -o build/vit
 *   cc -std=c11 -Ibuild/vit main.c build/vit/libvit.a -o vit
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vit.h"

/* Static memory would do as well; nothing is allocated after this. */
static void *aligned_memory(size_t bytes) {
    size_t whole = (bytes + VIT_ALIGNMENT - 1) / VIT_ALIGNMENT * VIT_ALIGNMENT;
    void *made = aligned_alloc(VIT_ALIGNMENT, whole);
    if (!made) {
        fprintf(stderr, "there is no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memset(made, 0, whole);
}

int main(void) {
    size_t bytes = vit_memory_bytes(1);
    vit *model;
    int status = vit_init(aligned_memory(bytes), bytes, vit_weights(NULL), VIT_WEIGHT_BYTES, NULL,
                          &model);
    float *pixels = (float *)aligned_memory(VIT_INPUT_PIXELS_ELEMENTS * sizeof(float));
    float *y = (float *)aligned_memory(VIT_OUTPUT_Y_ELEMENTS * sizeof(float));
    for (int i = 0; i < VIT_INPUT_PIXELS_ELEMENTS; i++) pixels[i] = (float)(i % 17) / 17.0f;
    vit_inputs inputs;
    inputs.pixels = pixels;
    vit_outputs outputs;
    outputs.y = y;
    if (status == VIT_OK) status = vit_run(model, &inputs, &outputs);
    if (status != VIT_OK) {
        fprintf(stderr, "%s\n", vit_status_text(status));
        return 1;
    }
    for (int i = 0; i < 4; i++) printf("%.6f\n", (double)y[i]);
    return 0;
}
