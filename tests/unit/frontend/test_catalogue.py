"""The list of operators."""

from __future__ import annotations

from tilewright.compiler import ops
from tilewright.compiler.dtypes import DType
from tilewright.compiler.frontend.catalogue import catalogue


def test_every_rule_is_listed_with_its_limits() -> None:
    entries = {("" if e.domain == "ai.onnx" else e.domain, e.op_type): e for e in catalogue()}
    assert len(entries) == len(catalogue())
    for key, rule in ops.onnx_rules().items():
        assert entries[key].limits == rule.limits
        assert entries[key].types
    assert entries["", "If"].way == "control flow"
    assert entries["", "Shrink"].way == "function"


def test_opsets_and_types_are_those_of_the_schemas() -> None:
    entries = {e.op_type: e for e in catalogue() if e.domain == "ai.onnx"}
    assert entries["Upsample"].opsets == (1, 9)  # Resize took its place
    assert entries["Attention"].opsets[0] == 23
    assert entries["And"].types == {DType.BOOL}
    assert DType.INT32 in entries["Abs"].types
    assert DType.BOOL not in entries["Abs"].types
