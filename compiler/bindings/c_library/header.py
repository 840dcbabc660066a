"""The header of a C library: the declarations that a caller includes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.compiler.bindings.c_library.names import comment, identifier, identifiers
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.ports import ranges_text, shape_text
from tilewright.compiler.runtime.program import Port, Program
from tilewright.compiler.sizes import Dimension, is_dynamic

_TYPES = {
    DType.FLOAT16: "uint16_t",
    DType.BFLOAT16: "uint16_t",
    DType.FLOAT32: "float",
    DType.FLOAT64: "double",
    DType.BOOL: "uint8_t",
}
"""C types of the element types whose C type is not their name followed by `_t`. 16-bit floats are
passed as their bits."""

_PORT_SUFFIXES = ("_rank", "_elements", "_shape", "_count")
"""Suffixes that the header appends to the name of an input or output to form further
identifiers."""


class Statement(NamedTuple):
    """Information about a library that its header file states.

    Attributes:
        model: the model's name.
        target: the name of the target for which the library is compiled.
        version: the version of this package.
        code_bytes: size of the compiled code.
        weights_inside: whether the library contains the weights, in place of a separate file.
    """

    model: str
    target: str
    version: str
    code_bytes: int
    weights_inside: bool


@dataclass(frozen=True, slots=True)
class Interface:
    """The C interface of a model: the names of its functions, sizes, inputs and outputs.

    Attributes:
        name: the name of the library, and the prefix of all names it defines.
        program: the program that the library runs.
        sizes: the struct member of each dynamic dimension, in the program's order.
        inputs, outputs: the struct member of each input and output, in the program's order.
    """

    name: str
    program: Program
    sizes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @staticmethod
    def of(program: Program, name: str) -> Interface:
        """Choose the C names for a program's dimensions, inputs and outputs.

        Raises:
            InvalidArgumentError: if `name` is not a C identifier. Also if runs append rows to an
                input in place (`Mode.in_place`), such as the cached keys of attention. C libraries
                do not support this.
        """
        if identifier(name) != name:
            raise InvalidArgumentError(
                f"'{name}' is not a valid name for a C library; a valid one is '{identifier(name)}'"
            )
        if program.rooms:
            raise InvalidArgumentError(
                "C libraries do not support caches that grow in place: plan with `in_place=False`"
            )
        return Interface(
            name,
            program,
            identifiers(dimension.name for dimension in program.dimensions),
            identifiers((port.name for port in program.inputs), _PORT_SUFFIXES),
            identifiers((port.name for port in program.outputs), _PORT_SUFFIXES),
        )

    @property
    def upper(self) -> str:
        """The prefix of macros: the library's name in upper case."""
        return self.name.upper()

    @property
    def sizes_parameter(self) -> str:
        """C text of the function parameter for the dynamic sizes: `const NAME_sizes *sizes, `.

        It is empty if the model has no dynamic dimensions.
        """
        return f"const {self.name}_sizes *sizes, " if self.sizes else ""

    @property
    def arena_bytes(self) -> int | None:
        """Bytes of memory for all intermediate values; None if they depend on dynamic sizes."""
        return None if self.sizes else self.program.at({}).arena_bytes

    @property
    def counted(self) -> tuple[int, ...]:
        """The indices of the outputs whose shape is known only after a run."""
        return tuple(i for i, p in enumerate(self.program.outputs) if p.counted is not None)


SHORT_VECTORS = "the processor's vector registers are too short for the code"
"""Error message of a generated library on a device whose vector registers are shorter than those of
the library's target."""


def c_type(dtype: DType) -> str:
    """Return the C type of an element, such as `float`; for 16-bit floats, an integer type of 16
    bits.
    """
    return _TYPES.get(dtype, f"{dtype.value}_t")


def header(interface: Interface, statement: Statement) -> str:
    """Return the text of the library's header file, for C11 and C++17.

    `statement` is information about the library that the header states, such as the model's name.
    """
    name, upper, program = interface.name, interface.upper, interface.program
    lines = [
        f"/* {name}: the model '{comment(statement.model)}' for {comment(statement.target)}, "
        f"compiled by Tilewright {comment(statement.version)}.",
        " *",
        " * A model lives in memory that the caller gives: nothing here allocates, and there is no",
        " * state elsewhere. Models of their own memory may run at the same time.",
        " *",
        f" * Code takes {statement.code_bytes} bytes, weights {program.weight_bytes},",
        f" * the arena of a run {interface.arena_bytes or f'what {name}_memory_bytes says'}.",
        " */",
        f"#ifndef TILEWRIGHT_C_{upper}_H",
        f"#define TILEWRIGHT_C_{upper}_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "/* Every pointer that is handed in is a multiple of this. */",
        f"#define {upper}_ALIGNMENT 64",
        f"#define {upper}_WEIGHT_BYTES {program.weight_bytes}",
        "",
        "/* What the functions return. */",
        "enum {",
        f"    {upper}_OK = 0,",
        f"    {upper}_BAD_SIZE = 1,      /* a size is outside of its range */",
        f"    {upper}_BAD_MEMORY = 2,    /* the memory is too small for these sizes */",
        f"    {upper}_BAD_POINTER = 3,   /* a pointer is NULL or not aligned */",
        f"    {upper}_BAD_WEIGHTS = 4,   /* these are not the weights of this model */",
        f"    {upper}_DAMAGED = 5,       /* the library contradicts itself */",
    ]
    lines.append(f"    {upper}_BAD_VECTORS = 6,   /* {SHORT_VECTORS} */")
    for number, reason in enumerate(program.refusals):
        lines.append(f"    {upper}_REFUSED_{number} = {7 + number}, /* {comment(reason)} */")
    lines += ["};", ""]
    lines += _size_lines(interface)
    lines += _port_lines(interface)
    lines += _function_lines(interface, statement)
    lines += ["#ifdef __cplusplus", "}", "#endif", "", "#endif", ""]
    return "\n".join(lines)


def _size_lines(interface: Interface) -> list[str]:
    name, upper = interface.name, interface.upper
    if not interface.sizes:
        return []
    lines = [f"/* The sizes of a run: {comment(ranges_text(interface.program.dimensions))}. */"]
    for member, dimension in zip(interface.sizes, interface.program.dimensions, strict=True):
        low, high = range_of(dimension)
        lines.append(f"#define {upper}_{member.upper()}_LEAST {low}")
        if high is not None:
            lines.append(f"#define {upper}_{member.upper()}_MOST {high}")
        if dimension.multiple > 1:
            lines.append(f"#define {upper}_{member.upper()}_MULTIPLE {dimension.multiple}")
    lines.append("typedef struct {")
    lines += [f"    int64_t {member};" for member in interface.sizes]
    return [*lines, f"}} {name}_sizes;", ""]


def range_of(dimension: Dimension) -> tuple[int, int | None]:
    """Return the minimum and the maximum size of a dimension; the maximum is None if unbounded."""
    high = None if dimension.high is None else dimension.high * dimension.multiple
    return dimension.low * dimension.multiple, high


def _port_lines(interface: Interface) -> list[str]:
    name, upper, program = interface.name, interface.upper, interface.program
    lines: list[str] = []
    kinds: tuple[tuple[str, Sequence[str], Sequence[Port], str], ...] = (
        ("input", interface.inputs, program.inputs, "const "),
        ("output", interface.outputs, program.outputs, ""),
    )
    for kind, members, ports, const in kinds:
        constants: list[str] = []
        fields: list[str] = []
        for index, (member, port) in enumerate(zip(members, ports, strict=True)):
            prefix = f"{upper}_{kind.upper()}_{member.upper()}"
            constants.append(f"#define {prefix} {index}")
            constants.append(f"#define {prefix}_RANK {len(port.shape)}")
            if not is_dynamic(port.bytes):
                constants.append(f"#define {prefix}_ELEMENTS {port.bytes // port.dtype.bytes}")
                if port.shape:
                    extents = ", ".join(map(str, port.shape))
                    constants.append(f"#define {prefix}_SHAPE {{{extents}}}")
            what = f"'{comment(port.name)}': {port.dtype.value} {comment(shape_text(port.shape))}"
            if port.counted is not None:
                what += f", as many along axis {port.counted} as {member}_count says"
            fields.append(f"    {const}{c_type(port.dtype)} *{member}; /* {what} */")
            if port.counted is not None:
                fields.append(f"    int64_t {member}_count; /* written by a run */")
        if not fields:
            fields = ["    char none; /* C has no empty structures */"]
        lines += [
            f"/* The {kind}s: row-major arrays. */",
            *constants,
            "typedef struct {",
            *fields,
            f"}} {name}_{kind}s;",
            "",
        ]
    return lines


def _function_lines(interface: Interface, statement: Statement) -> list[str]:
    name, given = interface.name, interface.sizes_parameter
    lines: list[str] = []
    if statement.weights_inside:
        lines += [
            "/* The weights, which lie in this library; `bytes`, if not NULL, gets their size. */"
        ]
        lines += [f"const void *{name}_weights(size_t *bytes);", ""]
    else:
        lines += [
            f"/* The weights are {name}.weights: read it into aligned memory, or map it. */",
            "",
        ]
    most = " for sizes up to these," if interface.sizes else ""
    zero = "; 0 where a size is outside of its range" if interface.sizes else ""
    lines += [
        f"/* Bytes of memory that a model needs{most} with so many threads{zero}. */",
        f"size_t {name}_memory_bytes({given}int threads);",
        "",
        "/* Threads of the caller's, if a run is to use more than the one that calls it: `share`",
        " * calls work(argument, first, last, thread) for ranges that make up [0, tiles), several",
        " * at a time if each has another `thread` below `threads`, and returns when all are done.",
        " */",
        "typedef struct {",
        "    void (*share)(void *context,",
        "                  void (*work)(void *argument, int64_t first, int64_t last, int thread),",
        "                  void *argument, int64_t tiles, int threads);",
        "    void *context;",
        "    int threads;",
        f"}} {name}_threads;",
        "",
        f"typedef struct {name} {name};",
        "",
        "/* Make a model at the start of `memory`. The weights must stay as long as it is used,",
        " * the description of the threads need not. `threads` may be NULL. */",
        f"int {name}_init(void *memory, size_t memory_bytes, const void *weights,",
        f"    size_t weight_bytes, const {name}_threads *threads, struct {name} **model);",
        "",
        "/* Run it once. It is for one caller at a time; the inputs are only read. */",
        f"int {name}_run(struct {name} *model, {given}const {name}_inputs *inputs,",
        f"    {name}_outputs *outputs);",
        "",
        "/* The shape of an input or output, by its number; returns its rank, or -1. */",
        f"int {name}_input_shape({given}int input, int64_t *shape);",
        f"int {name}_output_shape({given}int output, int64_t *shape);",
        "",
        "/* What a status means, in words. */",
        f"const char *{name}_status_text(int status);",
        "",
    ]
    return lines
