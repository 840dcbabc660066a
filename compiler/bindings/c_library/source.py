"""Generation of a C library's source: the program as constant tables, and typed functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.compiler.bindings.c_library.header import SHORT_VECTORS, Interface, range_of
from tilewright.compiler.bindings.c_library.names import quoted
from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.context import PortForm, ProgramForm
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.program import BufferRef, BufferSpace, Port
from tilewright.compiler.runtime.program_encoding import EncodedProgram, encode

_UNLIMITED = "INT64_MAX"
_TABLES = ("dynamic_words", "places", "weights", "inputs", "outputs", "counts")
"""Fields of the C struct `tw_model` that are tables of integer pairs, in the order of
declaration."""


def source(interface: Interface, *, weights_inside: bool, register_bits: int = 0) -> str:
    """Return the text of NAME.c, which includes native/tw_model.h and NAME.h.

    Args:
        interface: the C names and the program.
        weights_inside: whether the library contains the weights.
        register_bits: the length of scalable vector registers that the kernels assume, in bits;
            NAME.c checks it at run time. 0 if the kernels assume none.
    """
    program = interface.program
    encoded = encode(program)
    form = ProgramForm(program, encoded, np.empty(0, np.uintp), aligned_empty(0))
    lines = [
        f'#include "{interface.name}.h"',
        "",
        '#include "tw_model.h"',
        "",
        *_functions(encoded),
        *_words("code", encoded.code.tolist()),
        *_words("rules", form.rules.tolist()),
        *_pairs("dynamic_words", form.dynamic_words.tolist()),
        *_pairs("places", form.places.tolist()),
        *_pairs("weights", _references(encoded, BufferSpace.WEIGHTS)),
        *_pairs("inputs", _references(encoded, BufferSpace.INPUT)),
        *_pairs("outputs", _references(encoded, BufferSpace.OUTPUT)),
        *_pairs("counts", _references(encoded, BufferSpace.COUNT)),
        *_ports("input", program.inputs, form.inputs),
        *_ports("output", program.outputs, form.outputs),
        *_ranges(interface),
        "static const tw_model tw_tables = {",
        f"    tw_code, {encoded.code.size}, tw_functions, {len(encoded.refs)},",
        *(f"    {{tw_{name}_words, tw_{name}_count}}," for name in _TABLES),
        f"    tw_rules, {form.rules.size}, {form.count}, {form.given}, tw_ranges,",
        f"    {form.arena_bytes}, {form.scratch_bytes}, {program.weight_bytes},",
        f"    tw_input_ports, tw_output_ports, {len(program.inputs)}, {len(program.outputs)},",
        f"    {register_bits}, {'tw_vector_bits' if register_bits else 0},",
        "};",
        f"enum {{ TW_NUMBERS = {max(1, form.count)} }};",
        "",
        *(_weights(interface.name) if weights_inside else []),
        *_wrappers(interface),
    ]
    return "\n".join(lines)


def _functions(encoded: EncodedProgram) -> list[str]:
    names = [*encoded.symbols, *encoded.natives]
    parameters = "void *const *, void *, const int64_t *, int64_t, int64_t"
    lines = [f"void {symbol}({parameters});" for symbol in dict.fromkeys(names)]
    table = ", ".join(names) or "0"
    return [*lines, f"static const tw_stage tw_functions[] = {{{table}}};", ""]


def _words(name: str, words: Sequence[int]) -> list[str]:
    """Return C lines that define the constant array `tw_NAME` of 64-bit integers.

    An empty array gets one 0, because C does not allow arrays without elements.
    """
    return [f"static const int64_t tw_{name}[] = {{", *_rows(map(_word, words or [0])), "};", ""]


def _word(word: int) -> str:
    # the smallest 64-bit integer has no literal in C
    return f"INT64_C({word})" if abs(word) >= 1 << 31 else str(word)


def _rows(words: Iterable[str], width: int = 16) -> list[str]:
    listed = list(words)
    return [f"    {', '.join(listed[i : i + width])}," for i in range(0, len(listed), width)]


def _pairs(name: str, pairs: Sequence[Sequence[int]]) -> list[str]:
    flat = [word for pair in pairs for word in pair]
    return [*_words(f"{name}_words", flat)[:-1], f"enum {{ tw_{name}_count = {len(pairs)} }};", ""]


def _references(encoded: EncodedProgram, space: BufferSpace) -> list[tuple[int, int]]:
    """List where a program refers to buffers of one memory space, such as packed weights.

    Each item is a pair: an index in `encoded.refs`, the program's list of buffer references; and
    the byte offset of the buffer within the memory block of this space.
    """

    def within(ref: BufferRef) -> bool:
        return ref.space is space

    return [(i, ref.offset) for i, ref in enumerate(encoded.refs) if within(ref)]


def _ports(kind: str, ports: Sequence[Port], forms: Sequence[PortForm]) -> list[str]:
    lines, entries = [], []
    for index, (port, form) in enumerate(zip(ports, forms, strict=True)):
        lines += _words(f"{kind}_{index}_extents", form.shape)[:-1]
        counted = -1 if port.counted is None else port.counted
        entries.append(
            f"    {{{quoted(port.name)}, {quoted(file_type(port.dtype))}, {len(port.shape)}, "
            f"tw_{kind}_{index}_extents, {form.bytes}, {counted}}},"
        )
    entries = entries or ["    {0, 0, 0, 0, 0, 0},"]
    return [*lines, f"static const tw_port tw_{kind}_ports[] = {{", *entries, "};", ""]


def file_type(dtype: DType) -> str:
    """Return the name of an element type in the .npy format, such as `<f4` for float32."""
    return dtype.numpy.newbyteorder("<").str


def _ranges(interface: Interface) -> list[str]:
    entries = []
    for dimension in interface.program.dimensions:
        low, high = range_of(dimension)
        most = _UNLIMITED if high is None else high
        entries.append(f"    {{{quoted(dimension.name)}, {low}, {most}, {dimension.multiple}}},")
    return ["static const tw_range tw_ranges[] = {", *(entries or ["    {0, 0, 0, 1},"]), "};", ""]


def _weights(name: str) -> list[str]:
    return [
        f"extern const unsigned char {name}_tw_weights[];",
        f"const void *{name}_weights(size_t *bytes) {{",
        "    if (bytes) *bytes = (size_t)tw_tables.weight_bytes;",
        f"    return {name}_tw_weights;",
        "}",
        "",
    ]


def _wrappers(interface: Interface) -> list[str]:
    name, upper, given = interface.name, interface.upper, interface.sizes_parameter
    sizes = ", ".join(f"sizes->{member}" for member in interface.sizes)
    values = f"    const int64_t values[] = {{{sizes or 0}}};"
    inputs = ", ".join(f"inputs->{member}" for member in interface.inputs)
    outputs = ", ".join(f"outputs->{member}" for member in interface.outputs)
    unused = [
        f"    (void){kind};"
        for kind, members in (("inputs", interface.inputs), ("outputs", interface.outputs))
        if not members
    ]
    counts = [
        f"    outputs->{interface.outputs[index]}_count = counts[{index}];"
        for index in interface.counted
    ]
    shape = [
        line
        for kind in ("input", "output")
        for line in (
            f"int {name}_{kind}_shape({given}int {kind}, int64_t *shape) {{",
            "    int64_t numbers[TW_NUMBERS];",
            values,
            f"    if ({kind} < 0 || {kind} >= tw_tables.{kind}_count) return -1;",
            f"    const tw_port *port = &tw_tables.{kind}_ports[{kind}];",
            "    int status = tw_model_shape(&tw_tables, port, values, numbers, shape);",
            "    return status == TW_MODEL_OK ? (int)port->rank : -1;",
            "}",
            "",
        )
    ]
    reasons = [
        f"    case {upper}_REFUSED_{number}: return {quoted(reason)};"
        for number, reason in enumerate(interface.program.refusals)
    ]
    return [
        f"size_t {name}_memory_bytes({given}int threads) {{",
        "    int64_t numbers[TW_NUMBERS];",
        values,
        "    return tw_model_bytes(&tw_tables, values, threads, numbers);",
        "}",
        "",
        f"int {name}_init(void *memory, size_t memory_bytes, const void *weights,",
        f"    size_t weight_bytes, const {name}_threads *threads, struct {name} **made) {{",
        "    struct tw_sharing sharing;",
        "    tw_state *state;",
        "    if (threads) {",
        "        sharing.share = threads->share;",
        "        sharing.context = threads->context;",
        "        sharing.threads = threads->threads;",
        "    }",
        "    int status = tw_model_init(&tw_tables, memory, memory_bytes, weights, weight_bytes,",
        "        threads ? &sharing : NULL, &state);",
        f"    *made = (struct {name} *)state;",
        "    return status;",
        "}",
        "",
        f"int {name}_run(struct {name} *state, {given}const {name}_inputs *inputs,",
        f"    {name}_outputs *outputs) {{",
        *unused,
        values,
        f"    const void *const given[] = {{{inputs or 0}}};",
        f"    void *const made[] = {{{outputs or 0}}};",
        f"    int64_t counts[{max(1, len(interface.outputs))}] = {{0}};",
        "    int status = tw_model_run((tw_state *)state, values, given, made, counts);",
        *counts,
        "    return status;",
        "}",
        "",
        *shape,
        f"const char *{name}_status_text(int status) {{",
        "    switch (status) {",
        f'    case {upper}_OK: return "all is well";',
        f'    case {upper}_BAD_SIZE: return "a size is outside of its range";',
        f'    case {upper}_BAD_MEMORY: return "the memory is too small for these sizes";',
        f'    case {upper}_BAD_POINTER: return "a pointer is NULL or not aligned";',
        f'    case {upper}_BAD_WEIGHTS: return "these are not the weights of this model";',
        f'    case {upper}_DAMAGED: return "the library contradicts itself";',
        f'    case {upper}_BAD_VECTORS: return "{SHORT_VECTORS}";',
        *reasons,
        '    default: return "there is no such status";',
        "    }",
        "}",
        "",
        "/* What a program that knows the model by its tables alone uses. */",
        f"const tw_model *{name}_model(void);",
        f"const tw_model *{name}_model(void) {{ return &tw_tables; }}",
        "",
    ]
