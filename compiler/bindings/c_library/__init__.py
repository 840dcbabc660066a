"""Export of compiled models as C libraries, which run without Python.

`write_c_library` writes a folder with a typed header (`header.py`), the program as constant tables
(`source.py`), and the runtime that executes it (`native/tw_model.c`, with the interpreter of
`compiler/runtime/native`). A C compiler compiles and archives them (`toolchain.py`).
"""

from tilewright.compiler.bindings.c_library.library import (
    CLibrary,
    WeightPlace,
    library_name,
    write_c_library,
    write_executable,
)
from tilewright.compiler.bindings.c_library.toolchain import ToolchainError
from tilewright.compiler.bindings.c_library.wasm import WasmModule, write_wasm_module

__all__ = [
    "CLibrary",
    "ToolchainError",
    "WasmModule",
    "WeightPlace",
    "library_name",
    "write_c_library",
    "write_executable",
    "write_wasm_module",
]
