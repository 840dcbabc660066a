// Runs a model that was compiled to a C library, once, from Go:
//
//	tilewright compile vit.onnx --dim batch=1 --format c -o vit
//	CGO_CFLAGS=-I$PWD/vit CGO_LDFLAGS=$PWD/vit/libvit.a go build -o example main.go
package main

// #include <stdlib.h>
// #include "vit.h"
//
// // Go's own memory may not hold pointers into itself while C works, so it comes from C.
// static void *aligned(size_t bytes) {
//     return aligned_alloc(VIT_ALIGNMENT, (bytes + VIT_ALIGNMENT - 1) / VIT_ALIGNMENT * VIT_ALIGNMENT);
// }
import "C"

import (
	"fmt"
	"log"
	"unsafe"
)

func checked(status C.int) {
	if status != C.VIT_OK {
		log.Fatal(C.GoString(C.vit_status_text(status)))
	}
}

func main() {
	bytes := C.vit_memory_bytes(1)
	var model *C.struct_vit
	checked(C.vit_init(C.aligned(bytes), bytes, C.vit_weights(nil), C.VIT_WEIGHT_BYTES, nil, &model))
	pixels := (*C.float)(C.aligned(4 * C.VIT_INPUT_PIXELS_ELEMENTS))
	y := (*C.float)(C.aligned(4 * C.VIT_OUTPUT_Y_ELEMENTS))
	for i, all := 0, unsafe.Slice(pixels, C.VIT_INPUT_PIXELS_ELEMENTS); i < len(all); i++ {
		all[i] = C.float(float32(i%17) / 17)
	}
	inputs := (*C.vit_inputs)(C.malloc(C.size_t(unsafe.Sizeof(C.vit_inputs{}))))
	outputs := (*C.vit_outputs)(C.malloc(C.size_t(unsafe.Sizeof(C.vit_outputs{}))))
	inputs.pixels, outputs.y = pixels, y
	checked(C.vit_run(model, inputs, outputs))
	for _, value := range unsafe.Slice(y, 4) {
		fmt.Printf("%.6f\n", float32(value))
	}
}
