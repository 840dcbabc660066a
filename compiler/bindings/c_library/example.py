"""The example program main.c and its CMake project, which are written to a C library's folder."""

from __future__ import annotations

from tilewright.compiler.bindings.c_library.header import Interface, c_type
from tilewright.compiler.bindings.c_library.names import comment, quoted
from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.program import Port

_SHOWN = 4
"""Number of elements of each output that the generated example program prints."""


def example(interface: Interface, *, weights_inside: bool) -> str:
    """Return the text of main.c (C11 and C++17), which runs the model once on inputs of zeros.

    main.c sets each dynamic dimension to the smallest size above 0 in its range. `weights_inside`
    says whether the library contains the weights; otherwise, main.c reads them from a file.
    """
    name, upper = interface.name, interface.upper
    given = "&sizes, " if interface.sizes else ""
    lines = [
        f"/* Runs the model {name} once, on zeros, and prints how its outputs begin.",
        " * Put your own inputs there. It builds as C11 and as C++17:",
        " *",
        f" *   cc -std=c11 main.c lib{name}.a -o {name}",
        " */",
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "#include <string.h>",
        "",
        f'#include "{name}.h"',
        "",
        "static void tw_check(int status) {",
        f"    if (status == {upper}_OK) return;",
        f'    fprintf(stderr, "error: %s\\n", {name}_status_text(status));',
        "    exit(1);",
        "}",
        "",
        "/* Static memory would do as well: a model itself allocates nothing. */",
        "static void *tw_zeros(size_t bytes) {",
        f"    size_t whole = (bytes / {upper}_ALIGNMENT + 1) * {upper}_ALIGNMENT;",
        f"    void *made = aligned_alloc({upper}_ALIGNMENT, whole);",
        "    if (!made) {",
        '        fprintf(stderr, "error: there is no memory for %zu bytes\\n", bytes);',
        "        exit(1);",
        "    }",
        "    return memset(made, 0, whole);",
        "}",
        "",
        "static int64_t tw_elements(int rank, const int64_t *shape) {",
        "    int64_t count = 1;",
        "    for (int axis = 0; axis < rank; axis++) count *= shape[axis];",
        "    return count;",
        "}",
        "",
    ]
    if not weights_inside:
        lines += _weights_reader(interface)
    lines += ["int main(void) {"]
    if interface.sizes:
        lines += [f"    {name}_sizes sizes;", *_sizes(interface)]
    lines += [
        f"    size_t bytes = {name}_memory_bytes({given}1);",
        f"    struct {name} *model;",
        f"    tw_check({name}_init(tw_zeros(bytes), bytes, "
        + (f"{name}_weights(NULL)" if weights_inside else "tw_weights()")
        + f", {upper}_WEIGHT_BYTES, NULL,",
        "        &model));",
        f"    int64_t shape[{_longest(interface)}];",
    ]
    for kind, members, ports in (
        ("input", interface.inputs, interface.program.inputs),
        ("output", interface.outputs, interface.program.outputs),
    ):
        lines.append(f"    {name}_{kind}s {kind}s;")
        lines.append(f"    memset(&{kind}s, 0, sizeof {kind}s);")
        for member, port in zip(members, ports, strict=True):
            count = f"{kind}_{member}_elements"
            shape = f"{name}_{kind}_shape({given}{upper}_{kind.upper()}_{member.upper()}, shape)"
            pointer = f"{c_type(port.dtype)} *"
            lines += [
                f"    int64_t {count} =",
                f"        tw_elements({shape}, shape);",
                f"    {kind}s.{member} = ({pointer})tw_zeros({count} * sizeof *{kind}s.{member});",
            ]
    lines += [f"    tw_check({name}_run(model, {given}&inputs, &outputs));"]
    for member, port in zip(interface.outputs, interface.program.outputs, strict=True):
        lines += _printed(member, port)
    return "\n".join([*lines, "    return 0;", "}", ""])


def cmake_project(name: str) -> str:
    """Return the text of a CMakeLists.txt that builds main.c with the library in its folder."""
    return (
        "# cmake -S . -B build && cmake --build build\n"
        "cmake_minimum_required(VERSION 3.16)\n"
        f"project({name}_example LANGUAGES C)\n"
        f"find_package({name} CONFIG REQUIRED PATHS ${{CMAKE_CURRENT_SOURCE_DIR}} "
        "NO_DEFAULT_PATH)\n"
        "add_executable(example main.c)\n"
        "set_target_properties(example PROPERTIES C_STANDARD 11 C_STANDARD_REQUIRED ON)\n"
        f"target_link_libraries(example PRIVATE {name}::{name})\n"
    )


def _weights_reader(interface: Interface) -> list[str]:
    name, upper = interface.name, interface.upper
    return [
        "static const void *tw_weights(void) {",
        f"    void *made = tw_zeros({upper}_WEIGHT_BYTES);",
        f'    FILE *file = fopen("{name}.weights", "rb");',
        f"    if (!file || fread(made, 1, {upper}_WEIGHT_BYTES, file) != {upper}_WEIGHT_BYTES) {{",
        f'        fprintf(stderr, "error: cannot read {name}.weights\\n");',
        "        exit(1);",
        "    }",
        "    fclose(file);",
        "    return made;",
        "}",
        "",
    ]


def _sizes(interface: Interface) -> list[str]:
    lines = []
    for member, dimension in zip(interface.sizes, interface.program.dimensions, strict=True):
        least = f"{interface.upper}_{member.upper()}_LEAST"
        lines.append(f"    sizes.{member} = {least if dimension.low else dimension.multiple};")
    return lines


def _longest(interface: Interface) -> int:
    ports = [*interface.program.inputs, *interface.program.outputs]
    return max([len(port.shape) for port in ports] + [1])


def _printed(member: str, port: Port) -> list[str]:
    """Return C lines that print the first elements of an output; 16-bit floats are printed as bits.

    `member` is the name of the output's struct member.
    """
    form, cast = "%lld", "long long"
    if port.dtype in (DType.FLOAT32, DType.FLOAT64):
        form, cast = "%.7g", "double"
    elif port.dtype in (DType.FLOAT16, DType.BFLOAT16):
        form, cast = "0x%04x", "unsigned"
    elif port.dtype is DType.UINT64:
        form, cast = "%llu", "unsigned long long"
    last = f"output_{member}_elements"
    label = f'    printf("%s:", {quoted(comment(port.name))});'
    if port.counted is not None:
        last = f"outputs.{member}_count"
        label = f'    printf("%s (%lld):", {quoted(comment(port.name))}, (long long){last});'
    return [
        label,
        f"    for (int64_t i = 0; i < {_SHOWN} && i < {last}; i++)",
        f'        printf(" {form}", ({cast})outputs.{member}[i]);',
        '    printf("\\n");',
    ]
