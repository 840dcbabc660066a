"""Writing of a model as a WebAssembly module, with a JavaScript file that runs the module."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.compiler.bindings.c_library.header import Interface, Statement, range_of
from tilewright.compiler.bindings.c_library.library import (
    INCLUDE,
    NATIVE,
    RANDOM,
    compile_objects,
    describe,
    exported_names,
    staged,
    weight_object,
)
from tilewright.compiler.bindings.c_library.toolchain import STACK_BYTES, Toolchain, wasm_toolchain
from tilewright.compiler.dtypes import DType
from tilewright.compiler.package import package_version
from tilewright.compiler.program.builder import CompiledProgram
from tilewright.compiler.runtime.artifact_writer import check_destination
from tilewright.compiler.runtime.ports import dynamic_dims
from tilewright.compiler.runtime.program import Port
from tilewright.compiler.runtime.program_encoding import encode

FORMAT = "tilewright-wasm-module"
_SCRIPT = Path(__file__).parent / "module.mjs"
_THREAD = Path(__file__).parent / "module_thread.mjs"
_THREAD_NAMES = ("pool", "work", "lost")
_PAGE_BYTES = 1 << 16
_SPARE_BYTES = 1 << 20
"""Memory in bytes for data that a module's object files do not contain: data that the linker adds,
and uninitialised variables."""

_ARRAYS = {
    DType.FLOAT32: "Float32Array",
    DType.FLOAT64: "Float64Array",
    DType.FLOAT16: "Uint16Array",
    DType.BFLOAT16: "Uint16Array",
    DType.INT8: "Int8Array",
    DType.INT16: "Int16Array",
    DType.INT32: "Int32Array",
    DType.INT64: "BigInt64Array",
    DType.UINT8: "Uint8Array",
    DType.UINT16: "Uint16Array",
    DType.UINT32: "Uint32Array",
    DType.UINT64: "BigUint64Array",
    DType.BOOL: "Uint8Array",
}
"""JavaScript's typed array for each element type, as in module.mjs."""


@dataclass(frozen=True, slots=True)
class WasmModule:
    """A WebAssembly module that was written to a folder; `bytes` is its size including weights."""

    folder: Path
    name: str
    bytes: int


def write_wasm_module(
    compiled: CompiledProgram, folder: str | Path, name: str, model: str, threads: int = 1
) -> WasmModule:
    """Write a program as a WebAssembly module to a new folder.

    The files are NAME.wasm, NAME.mjs (JavaScript) and NAME.d.mts (TypeScript declarations). The
    folder appears only when it is complete.

    Args:
        compiled: the program, compiled for `threads` threads.
        folder: the destination.
        name: prefix of the module's files and functions; an identifier.
        model: name of the model in comments.
        threads: maximum number of threads per run. With more than one, memory is shared, and each
            thread runs NAME-thread.mjs.

    Raises:
        ArtifactError: if the folder cannot be written.
        InvalidArgumentError: if `name` is not an identifier.
        ToolchainError: if zig is not installed, or reports an error.
    """
    interface = Interface.of(compiled.program, name)
    destination = check_destination(folder)
    tools = wasm_toolchain(compiled.target, threads=threads > 1)
    with staged(destination, "module") as staging:
        staging.joinpath(f"{name}.weights").write_bytes(bytes(compiled.weights))
        statement = Statement(model, compiled.target.name, package_version(), 0, True)
        objects = compile_objects(compiled, interface, statement, staging, tools)
        objects.append(weight_object(name, staging, tools))
        exported = [*exported_names(interface, weights_inside=True), "__heap_base"]
        if RANDOM in encode(compiled.program).natives:
            exported.append(f"{name}_seed")
        pages = 0
        if threads > 1:
            objects.append(_thread_object(name, staging, tools))
            exported += [*(f"{name}_{each}" for each in _THREAD_NAMES), "__stack_pointer"]
            data = sum(staging.joinpath(each).stat().st_size for each in objects)
            pages = -(-(data + STACK_BYTES + _SPARE_BYTES) // _PAGE_BYTES)
            staging.joinpath(f"{name}-thread.mjs").write_text(_THREAD.read_text())
        tools.link_module(staging, objects, exported, f"{name}.wasm", pages * _PAGE_BYTES)
        for each in [*objects, f"{name}.weights", f"{name}.h"]:
            staging.joinpath(each).unlink()
        staging.joinpath(f"{name}.mjs").write_text(script(interface, threads, pages), "utf-8")
        staging.joinpath(f"{name}.d.mts").write_text(declarations(interface), "utf-8")
        describe(FORMAT, interface, staging, compiled.target)
        size = staging.joinpath(f"{name}.wasm").stat().st_size
    return WasmModule(destination, name, size)


def _thread_object(name: str, folder: Path, tools: Toolchain) -> str:
    """Compile the code that starts worker threads of a module; return the object file's name."""
    own = [f"-Dtw_{each}={name}_{each}" for each in _THREAD_NAMES]
    tools.compile(folder, NATIVE / "module_threads.c", f"{name}_threads.o", [*own, *INCLUDE])
    return f"{name}_threads.o"


def script(interface: Interface, threads: int, pages: int) -> str:
    """Return the text of NAME.mjs, the JavaScript that runs the module.

    With several threads, the shared memory has `pages` pages of 64 KiB at first.
    """
    program = interface.program
    ranges = []
    for dimension in program.dimensions:
        low, high = range_of(dimension)
        most = math.inf if high is None else high
        ranges.append(
            {
                "name": dimension.name,
                "least": low,
                "most": most,
                "multiple": dimension.multiple,
            }
        )
    described = {
        "name": interface.name,
        "weightBytes": program.weight_bytes,
        "threads": threads,
        "pages": pages,
        "stackBytes": STACK_BYTES,
        "dimensions": ranges,
        "inputs": [_port(port) for port in program.inputs],
        "outputs": [_port(port) for port in program.outputs],
    }
    # JSON is valid JavaScript, and so is Python's `Infinity`
    return f"const description = {json.dumps(described, indent=1)};\n\n{_SCRIPT.read_text()}"


def _port(port: Port) -> dict[str, Any]:
    described: dict[str, Any] = {
        "name": port.name,
        "type": port.dtype.value,
        "shape": list(dynamic_dims(port.shape)),
    }
    if port.counted is not None:
        described["counted"] = port.counted
    return described


def declarations(interface: Interface) -> str:
    """Return the text of NAME.d.mts, the TypeScript declarations of NAME.mjs."""
    program = interface.program

    def members(ports: tuple[Port, ...]) -> str:
        return "".join(f"  {json.dumps(p.name)}: {_ARRAYS[p.dtype]};\n" for p in ports)

    sizes = "".join(f"  {json.dumps(d.name)}: number;\n" for d in program.dimensions)
    argument = ", sizes: Sizes" if sizes else ""
    return f"""\
export interface Inputs {{
{members(program.inputs)}}}

export interface Outputs {{
{members(program.outputs)}}}

export interface Sizes {{
{sizes}}}

export interface Port {{
  name: string;
  type: string;
  shape: (number | string)[];
  counted?: number;
}}

export const inputs: Port[];
export const outputs: Port[];
export const dimensions: {{name: string; least: number; most: number; multiple: number}}[];

export class Model {{
  readonly threads: number;
  run(inputs: Inputs{argument}): Outputs;
  close(): void;
}}

export function load(
  source?: URL | string | Response | BufferSource,
  options?: {{threads?: number}},
): Promise<Model>;
"""
