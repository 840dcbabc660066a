"""The cases of the ONNX backend suite, as this compiler is held to them.

The suite's numeric core: all cases of ai.onnx and ai.onnx.ml whose values are dense tensors of
float16, bfloat16, float32, float64, integers and bool. Left out are cases that train or decode
image files, and the `_expanded` variants, which expand an operator's function body: they test
the body's operators once more.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TypeProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.runtime.kernel import BufferRole
from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.program import (
    Branch,
    BufferRef,
    BufferSpace,
    Copy,
    Instruction,
    KernelCall,
    Loop,
    NativeCall,
    Program,
)

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")


class Form(StrEnum):
    """How a case is given to the compiler."""

    PLAIN = "plain"
    """Unchanged: shapes, axes and weights are inputs too."""
    CONSTANT = "constant"
    """With shapes, axes, scales and weights as initializers; data are run-time inputs."""


OTHER_VALUES = re.compile(r"(Sequence|Optional).*|.*(To|From)Sequence|ImageDecoder")
"""Operators on values that are not tensors of numbers."""

PARAMETERS = frozenset(
    [
        *(
            "axes",
            "axis",
            "shape",
            "repeats",
            "starts",
            "ends",
            "steps",
            "split",
            "sizes",
            "scales",
        ),
        *(
            "roi",
            "pads",
            "constant_value",
            "output_shape",
            "dims",
            "target_shape",
            "size",
            "k",
            "K",
        ),
        *("depth", "values", "start", "limit", "delta", "num_classes", "ratio", "training_mode"),
        *("scale", "mean", "var", "input_mean", "input_var", "slope", "W", "R", "w", "weights"),
        *("x_scale", "x_zero_point", "w_scale", "w_zero_point", "y_scale", "y_zero_point"),
        *("a_scale", "a_zero_point", "b_scale", "b_zero_point", "zero_point", "min", "max"),
        *("cos_cache", "sin_cache", "dft_length", "frame_step", "frame_length", "window"),
        *("num_mel_bins", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"),
        *(
            "trip_count",
            "M",
            "block_shape",
            "image_shape",
            "max_output_boxes_per_class",
            "iou_threshold",
        ),
        *("score_threshold", "sequence_lens", "P", "initial_h", "initial_c"),
    ]
)
"""Names that the operators' schemas give to inputs that are parameters rather than data."""

WEIGHTS = {
    "Conv": ("W", "B"),
    "ConvInteger": ("w", "w_zero_point"),
    "ConvTranspose": ("W", "B"),
    "DeformConv": ("W", "B"),
    "QLinearConv": ("w", "B"),
    "GroupNormalization": ("bias",),
    "InstanceNormalization": ("B",),
    "LayerNormalization": ("Scale", "B"),
    "BatchNormalization": ("B",),
    "ConstantOfShape": ("input",),
    "If": ("cond",),
    "Loop": ("cond",),
    "GRU": ("B",),
    "LSTM": ("B",),
    "RNN": ("B",),
}
"""Parameters whose names mean data elsewhere."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case: a model, inputs and outputs for it, and how close the outputs must be."""

    name: str
    model: ModelProto
    data_sets: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.op_type for node in self.model.graph.node))


@cache
def cases() -> dict[str, Case]:
    """The numeric core by name."""
    found: dict[str, Case] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # onnx divides by zero and overflows as it makes its cases
        for kind in KINDS:
            for test in load_model_tests(kind=kind):
                if "_expanded" in test.name:
                    continue
                model = test.model or onnx.load(Path(test.model_dir) / "model.onnx")
                if not _is_numeric(model):
                    continue
                data = test.data_sets or _stored(Path(test.model_dir), model)
                sets = tuple((_arrays(inputs), _arrays(outputs)) for inputs, outputs in data)
                if not _trains(model, sets[0][0]):
                    found[test.name] = Case(test.name, model, sets, test.rtol, test.atol)
    return found


def _is_numeric(model: ModelProto) -> bool:
    """Whether all values are dense tensors of numbers, and all operators those of ai.onnx and
    ai.onnx.ml."""
    nodes = list(_nodes(model.graph))
    return (
        all(node.domain in ("", "ai.onnx", "ai.onnx.ml") for node in nodes)
        and not any(OTHER_VALUES.fullmatch(node.op_type) for node in nodes)
        and all(_is_tensor(info.type) for info in (*model.graph.input, *model.graph.output))
    )


def _trains(model: ModelProto, inputs: tuple[Any, ...]) -> bool:
    """Whether an attribute or an input switches a node to training."""
    given = {i.name: array for i, array in zip(model.graph.input, inputs, strict=False)}
    return any(
        a.i for node in model.graph.node for a in node.attribute if a.name == "training_mode"
    ) or any(
        bool(given[node.input[2]])
        for node in model.graph.node
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in given
    )


def _is_tensor(kind: TypeProto) -> bool:
    return kind.HasField("tensor_type") and kind.tensor_type.elem_type in ONNX_TYPES


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _stored(folder: Path, model: ModelProto) -> list[tuple[list[Any], list[Any]]]:
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        parts = []
        for what, infos in (("input", model.graph.input), ("output", model.graph.output)):
            arrays = []
            for number in range(len(infos)):
                path = data / f"{what}_{number}.pb"
                if not path.exists():
                    break
                tensor = onnx.TensorProto()
                tensor.ParseFromString(path.read_bytes())
                arrays.append(numpy_helper.to_array(tensor))
            parts.append(arrays)
        sets.append((parts[0], parts[1]))
    return sets


def _arrays(values: Iterable[Any]) -> tuple[Any, ...]:
    """Tensors as arrays; None for an input that is left out."""
    return tuple(numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values)


def parameters(model: ModelProto) -> set[str]:
    """Inputs of the graph that some node takes as a parameter."""
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    found = set()
    for node in model.graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = onnx.defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
        own = WEIGHTS.get(node.op_type, ())
        for position, value in enumerate(node.input):
            formal = schema.inputs[min(position, len(schema.inputs) - 1)]
            variadic = formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
            if not variadic and (formal.name in PARAMETERS or formal.name in own):
                found.add(value)
    return found & {info.name for info in model.graph.input}


def given(case: Case, form: Form, inputs: tuple[Any, ...]) -> tuple[ModelProto, dict[str, Any]]:
    """The model in a form, and the arrays for its run-time inputs."""
    names = [info.name for info in case.model.graph.input]
    constants = {tensor.name for tensor in case.model.graph.initializer}
    if len(inputs) < len(names):
        names = [name for name in names if name not in constants]
    feeds = {name: array for name, array in zip(names, inputs, strict=False) if array is not None}
    if form is Form.PLAIN:
        return case.model, feeds
    model = ModelProto()
    model.CopyFrom(case.model)
    for name in sorted(parameters(model) & set(feeds)):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(feeds.pop(name)), name))
    kept = [i for i in model.graph.input if i.name in feeds or i.name in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model, feeds


@dataclass(frozen=True, slots=True)
class _Span:
    """Bytes of a space from `start` up to `end`."""

    space: BufferSpace
    start: int
    end: int

    def meets(self, other: _Span) -> bool:
        return self.space is other.space and self.start < other.end and other.start < self.end

    def holds(self, other: _Span) -> bool:
        return self.space is other.space and self.start <= other.start and other.end <= self.end


def _span(ref: BufferRef, size: int) -> _Span:
    """The bytes of a buffer; an input or output counts as one byte."""
    if ref.space in (BufferSpace.INPUT, BufferSpace.OUTPUT):
        size = 1
    return _Span(ref.space, ref.offset, ref.offset + size)


def computed(program: Program) -> list[bool]:
    """For each output, whether kernels made it from the values of a run-time input.

    Followed through the program's instructions: bytes count as computed once a kernel has written
    them that read an input or computed bytes, or that runs because of a condition in such bytes.
    """
    live = [_Span(BufferSpace.INPUT, i, i + 1) for i in range(len(program.inputs))]
    _follow(program, program.instructions, live, decided=False)
    outputs = [_Span(BufferSpace.OUTPUT, i, i + 1) for i in range(len(program.outputs))]
    return [any(span.meets(old) for old in live) for span in outputs]


def _follow(
    program: Program, instructions: Iterable[Instruction], live: list[_Span], *, decided: bool
) -> None:
    """Change the spans that are computed; `decided` says that computed bytes made these run."""

    def write(spans: list[_Span], reads: bool) -> None:
        live[:] = [old for old in live if not any(span.holds(old) for span in spans)]
        if reads or decided:
            live.extend(spans)

    def meets(ref: BufferRef, size: int) -> bool:
        return decided or any(_span(ref, size).meets(old) for old in live)

    for instruction in instructions:
        match instruction:
            case Branch(condition, then, otherwise):
                chosen = meets(condition, 1)
                ends = [list(live), list(live)]
                for end, part in zip(ends, (then, otherwise), strict=True):
                    _follow(program, part, end, decided=chosen)
                live[:] = [*ends[0], *ends[1]]
            case Loop(counter, trips, going, _, body):
                for _ in range(2):  # one step reads the results of another
                    chosen = meets(trips, 8) or meets(going, 1)
                    write([_span(counter, 8)], chosen)
                    before = list(live)
                    _follow(program, body, live, decided=chosen)
                    live.extend(before)
            case KernelCall(kernel, buffers):
                specs = program.kernels[kernel].buffers
                spans = [_span(r, spec.bytes) for r, spec in zip(buffers, specs, strict=True)]
                roles = [spec.role for spec in specs]
                taken = [
                    s for s, role in zip(spans, roles, strict=True) if role is BufferRole.INPUT
                ]
                made = [
                    s for s, role in zip(spans, roles, strict=True) if role is BufferRole.OUTPUT
                ]
                write(made, any(span.meets(old) for span in taken for old in live))
            case Copy(destination, source, size):
                read = _span(source, size)
                write([_span(destination, size)], any(read.meets(old) for old in live))
            case NativeCall(function, parameters, buffers):
                touched = native_signature(function, parameters)
                sizes = (*touched.inputs, touched.output)
                spans = [_span(r, size) for r, size in zip(buffers, sizes, strict=False)]
                given = [s for s in spans[:-1] for old in live if s.meets(old)]
                if touched.partial:
                    live.extend(spans[-1:] if given or decided else [])
                else:
                    write(spans[-1:], bool(given))
