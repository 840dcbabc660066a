"""The registry finds every operator and rule, and the documentation names them."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tilewright.compiler import ops
from tilewright.compiler.ops import registry
from tilewright.compiler.ops.registry import OnnxRule

PAGE = Path(__file__).parents[3] / "docs" / "operators-howto.md"


def test_the_documentation_lists_every_operator_under_its_kind() -> None:
    rows = dict(re.findall(r"^\| (\w+) \| (`.*`) \|$", PAGE.read_text(), re.MULTILINE))
    listed = {kind: set(re.findall(r"`(\w+)`", names)) for kind, names in rows.items()}
    found: dict[str, set[str]] = {}
    for operator in ops.operators().values():
        found.setdefault(operator.kind.value, set()).add(operator.name)
    assert listed == found


def test_the_documentation_lists_every_other_rule() -> None:
    own = {(r.domain, r.op_type) for o in ops.operators().values() for r in o.onnx}
    text = PAGE.read_text().partition("Rules without an operator of their own:")[2]
    listed = set(re.findall(r"\w+", text))
    assert listed == {op_type for domain, op_type in set(ops.onnx_rules()) - own}


def test_operators_in_pieces_say_their_pieces() -> None:
    for operator in ops.operators().values():
        assert (operator.pieces is not None) == (operator.kind is ops.OpKind.PIECES)


def test_native_operators_name_functions_of_the_runtime() -> None:
    for operator in ops.operators().values():
        assert (operator.native is not None) == (operator.kind is ops.OpKind.NATIVE)


def test_a_name_may_be_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    relu = ops.get("relu")
    twice = SimpleNamespace(OPERATORS=(relu, relu), RULES=())
    monkeypatch.setattr(registry, "_families", lambda: (twice,))
    with pytest.raises(ValueError, match="'relu' is defined twice"):
        registry.operators.__wrapped__()
    rule = OnnxRule("Shape", lambda node: node.input(0))
    rules = SimpleNamespace(OPERATORS=(), RULES=(rule, rule))
    monkeypatch.setattr(registry, "_families", lambda: (rules,))
    with pytest.raises(ValueError, match="two rules"):
        registry.onnx_rules.__wrapped__()
