"""The catalogue of supported ONNX operators, with opsets, element types and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx.defs import OpSchema, get_all_schemas_with_history

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.frontend.model_file import NEWEST_OPSET
from tilewright.compiler.frontend.sequences import SEQUENCES
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.expr import Expr, Load, Tensor
from tilewright.compiler.loops.index import Affine, Axis
from tilewright.compiler.ops.cast import ONNX_TYPES
from tilewright.compiler.ops.registry import Operator, OpKind, Source

ML_DOMAIN = "ai.onnx.ml"
NEWEST_ML_OPSET = 5
"""The newest opset of ai.onnx.ml that the import rules support."""

_NAMES = {"float": DType.FLOAT32, "double": DType.FLOAT64} | {t.value: t for t in DType}

_FAMILIES: Sequence[tuple[str, frozenset[DType]]] = (
    ("floats", frozenset(t for t in DType if t.is_float)),
    ("signed integers", frozenset(t for t in DType if "int" in t.value and t.is_signed)),
    ("unsigned integers", frozenset(t for t in DType if t.value.startswith("uint"))),
    ("bool", frozenset([DType.BOOL])),
)

CONTROL_FLOW = {
    "If": "branches need equal shapes unless the condition is a constant",
    "Loop": "if shapes differ between steps: at most 4096 steps, their number known at import; "
    "collected outputs: a trip count or counter limit known at import",
    "Scan": "if shapes differ between steps: at most 4096 steps",
}
"""ONNX operators with subgraphs -> the documented limits of their support. The import unrolls them,
or imports them as nodes with bodies."""

SEQUENCE_LIMIT = "the length of the sequence is known at import; not an input of the model"
"""The documented limit for every operator on sequences."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One ONNX operator that the import supports.

    Attributes:
        op_type, domain: the operator's name and domain.
        opsets: the first and the last version of the domain that has the operator.
        types: element types of the first operand, or of the result of an operator without operands.
        way: how the operator is imported: "rule", "function" (by the function body of its ONNX
            schema) or "control flow".
        limits: unsupported attributes or operands, as a phrase; empty if all are supported.
    """

    op_type: str
    domain: str
    opsets: tuple[int, int]
    types: frozenset[DType]
    way: str
    limits: str


def catalogue() -> tuple[CatalogueEntry, ...]:
    """Return an entry for every supported operator, sorted by domain and name."""
    history = _history("", NEWEST_OPSET)
    others = {ML_DOMAIN: _history(ML_DOMAIN, NEWEST_ML_OPSET)}
    scalar = {
        (rule.domain, rule.op_type): operator
        for operator in ops.operators().values()
        if operator.kind is OpKind.ELEMENTWISE
        for rule in operator.onnx
    }
    entries = []
    for (domain, op_type), rule in ops.onnx_rules().items():
        schemas = (history if not domain else others.get(domain, {})).get(op_type, ())
        types = _types(schemas) if schemas else frozenset(rule.types)
        operator = scalar.get((domain, op_type))
        if operator is not None:
            types = frozenset(t for t in types if _compiles(operator, schemas, t))
        newest = NEWEST_ML_OPSET if domain == ML_DOMAIN else NEWEST_OPSET
        opsets = _opsets(schemas, newest) if schemas else (1, 1)
        entries.append(
            CatalogueEntry(op_type, domain or "ai.onnx", opsets, types, "rule", rule.limits)
        )
    ruled = {op_type for domain, op_type in ops.onnx_rules() if not domain}
    for op_type, schemas in history.items():
        newest = schemas[-1]
        if op_type in CONTROL_FLOW:
            limits = CONTROL_FLOW[op_type]
            entry = (_opsets(schemas, NEWEST_OPSET), _types(schemas), "control flow", limits)
        elif op_type in SEQUENCES:
            kinds = _types(schemas) or frozenset(DType)
            entry = (_opsets(schemas, NEWEST_OPSET), kinds, "rule", SEQUENCE_LIMIT)
        elif op_type not in ruled and _is_function(newest, ruled, history):
            entry = (_opsets(schemas, NEWEST_OPSET), _types(schemas), "function", "")
        else:
            continue
        if entry[1]:  # the other operators support strings only
            entries.append(CatalogueEntry(op_type, "ai.onnx", *entry))
    return tuple(sorted(entries, key=lambda e: (e.domain, e.op_type)))


def page() -> str:
    """Return the catalogue of supported operators in Markdown.

    `tilewright show operators` prints it, and docs/operators.md stores it.
    """
    entries = catalogue()
    lines = [
        "# Operators",
        "",
        "For people who want to know whether a model compiles. At the end you know which ONNX",
        "operators compile, in which forms, and which rules decide where specification and",
        f"runtimes differ. {len(entries)} operators compile; [add another](operators-howto.md).",
        "`tilewright show operators` prints this page.",
        "",
        "- `opsets` are the supported versions, `types` the element types of the first operand.",
        "- `how`: `rule` is code in the compiler, `function` the function body in ONNX's schema.",
        "- Operands that decide shapes must be known at import: axes, shapes, pads, sizes, depths.",
        "  `onnx_backend` compiles again when they change.",
        "- Text is supported in operators that move elements, in `Equal`, `Shape` and `Size`, and",
        "  in the label operators of ai.onnx.ml. Texts of an input that do not occur in the model",
        "  are not distinguished, so an output cannot contain them.",
        "",
        "Results follow the specification. Where it says nothing, they follow ONNX Runtime. In",
        "three cases ONNX Runtime differs from the specification, and results do not follow it:",
        "",
        "- trees: a missing value goes to the branch that its node tracks, in every mode;",
        "- trees: the label is the class of the larger score;",
        "- equal keys: the last one counts.",
        "",
        "Where all runtimes differ from the specification, results follow the runtimes: `Resize`",
        "with `align_corners` divides by the extent of the result, and finds ties in float32.",
        "",
        "| operator | opsets | types | how | limits |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [_row(entry) for entry in entries]
    return "\n".join(lines) + "\n"


def _row(entry: CatalogueEntry) -> str:
    name = entry.op_type if entry.domain == "ai.onnx" else f"{entry.op_type} ({entry.domain})"
    first, last = entry.opsets
    opsets = str(first) if first == last else f"{first}-{last}"
    cells = (f"`{name}`", opsets, ", ".join(_named(entry.types)), entry.way, entry.limits)
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _named(types: frozenset[DType]) -> Iterator[str]:
    """Yield names for a set of element types, such as "signed integers" and `float32`.

    Groups such as the signed integers have a name, which is yielded if the set contains the whole
    group. Types of an incomplete group are yielded separately.
    """
    for name, family in _FAMILIES:
        if family <= types:
            yield name
        else:
            yield from (t.value for t in DType if t in family & types)


def _history(domain: str, last: int) -> Mapping[str, Sequence[OpSchema]]:
    """Return all versions of the schemas of a domain's operators, up to opset `last`.

    The result maps the name of an operator to its schemas, oldest first.
    """
    found: dict[str, list[OpSchema]] = {}
    for schema in get_all_schemas_with_history():
        if schema.domain == domain and schema.since_version <= last:
            found.setdefault(schema.name, []).append(schema)
    return {
        name: sorted(schemas, key=lambda s: s.since_version)
        for name, schemas in sorted(found.items())
    }


def _opsets(schemas: Sequence[OpSchema], newest: int) -> tuple[int, int]:
    """The first and the last opset version in which an operator exists.

    `schemas` are the versions of the operator's schema, oldest first. `newest` is the newest opset
    of its domain.
    """
    schema = schemas[-1]
    last = schema.since_version - 1 if schema.deprecated else newest
    return int(schemas[0].since_version), int(last)


def _types(schemas: Sequence[OpSchema]) -> frozenset[DType]:
    """The supported element types of an operator's first operand, by the operator's newest schema.

    If the operator has no operands, these are the types of its result.
    """
    schema = next(s for s in reversed(schemas) if not s.deprecated)
    formal = schema.inputs[0] if schema.inputs else schema.outputs[0]
    names = {name.removeprefix("tensor(").removesuffix(")") for name in formal.types}
    return frozenset(_NAMES[name] for name in names if name in _NAMES) & set(ONNX_TYPES.values())


def _is_function(
    schema: OpSchema, ruled: set[str], history: Mapping[str, Sequence[OpSchema]]
) -> bool:
    """Whether an ONNX schema defines its operator by a function body of supported operators only.

    `ruled` has the names of the operators with an import rule, and `history` all schemas by
    operator name. If ONNX generates the body for each node from its types and attributes, the
    result is True without a check.
    """
    if schema.has_context_dependent_function:
        return True
    if not schema.has_function:
        return False
    return all(
        node.op_type in ruled
        or node.op_type in CONTROL_FLOW
        or (node.op_type in history and _is_function(history[node.op_type][-1], ruled, history))
        for node in schema.function_body.node
    )


def _compiles(operator: Operator, schemas: Sequence[OpSchema], dtype: DType) -> bool:
    """Whether an elementwise operator has a tensor expression for operands of type `dtype`.

    Operators with attributes, or with operands of several types, are assumed to support all types
    of their schema.
    """
    schema = schemas[-1] if schemas else None
    if schema and (schema.attributes or len({i.type_str for i in schema.inputs}) > 1):
        return True
    for count in (1, 2, 3):
        tensors = [Tensor(f"x{number}", (2,), dtype) for number in range(count)]
        types = [TensorType(dtype, (2,))] * count
        try:
            operator.infer(types, ())
            operator.expression([_source(t) for t in tensors], types, (), (Affine(),), Axis)
        except CompilerError:
            continue
        return True
    return False


def _source(tensor: Tensor) -> Source:
    def read(index: tuple[Affine, ...], indirect: tuple[tuple[int, Expr], ...] = ()) -> Expr:
        return Load(tensor, index, indirect)

    return read
