//! Runs a model that was compiled to a C library, once, from Rust without other crates:
//!
//!   tilewright compile vit.onnx --dim batch=1 --format c -o build/vit
//!   rustc -O -L build/vit -l static=vit main.rs -o vit

use std::alloc::{alloc_zeroed, Layout};
use std::ffi::{c_char, c_int, c_void, CStr};

const ALIGNMENT: usize = 64;
const PIXELS: usize = 3 * 32 * 32;
const Y: usize = 17 * 24;

#[repr(C)]
struct Inputs {
    pixels: *const f32,
}

#[repr(C)]
struct Outputs {
    y: *mut f32,
}

extern "C" {
    fn vit_weights(bytes: *mut usize) -> *const c_void;
    fn vit_memory_bytes(threads: c_int) -> usize;
    fn vit_init(
        memory: *mut c_void,
        memory_bytes: usize,
        weights: *const c_void,
        weight_bytes: usize,
        threads: *const c_void,
        model: *mut *mut c_void,
    ) -> c_int;
    fn vit_run(model: *mut c_void, inputs: *const Inputs, outputs: *mut Outputs) -> c_int;
    fn vit_status_text(status: c_int) -> *const c_char;
}

fn aligned(bytes: usize) -> *mut u8 {
    // SAFETY: the layout is not empty, and the memory is never given back.
    unsafe { alloc_zeroed(Layout::from_size_align(bytes.max(1), ALIGNMENT).unwrap()) }
}

fn checked(status: c_int) {
    if status != 0 {
        // SAFETY: the library gives a constant text for every number.
        let text = unsafe { CStr::from_ptr(vit_status_text(status)) };
        panic!("{}", text.to_string_lossy());
    }
}

fn main() {
    let pixels = aligned(4 * PIXELS) as *mut f32;
    let y = aligned(4 * Y) as *mut f32;
    // SAFETY: the pointers are aligned and as long as vit.h says, and one thread uses the model.
    unsafe {
        for i in 0..PIXELS {
            *pixels.add(i) = (i % 17) as f32 / 17.0;
        }
        let bytes = vit_memory_bytes(1);
        let mut weight_bytes = 0;
        let weights = vit_weights(&mut weight_bytes);
        let mut model = std::ptr::null_mut();
        checked(vit_init(
            aligned(bytes) as *mut c_void,
            bytes,
            weights,
            weight_bytes,
            std::ptr::null(),
            &mut model,
        ));
        checked(vit_run(model, &Inputs { pixels }, &mut Outputs { y }));
        for i in 0..4 {
            println!("{:.6}", *y.add(i));
        }
    }
}
