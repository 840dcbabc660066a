"""Operators, one file a family. Members discover themselves: adding an operator is adding an entry.

An entry says everything about an operator: its type inference, its NumPy reference, its tensor
expression, and the ONNX rules that make it.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from compiler.ops.registry import OnnxRule, Operator


@cache
def _entries() -> Mapping[str, Operator]:
    found: dict[str, Operator] = {}
    for module in pkgutil.iter_modules(__path__):
        members = importlib.import_module(f"{__name__}.{module.name}")
        for operator in getattr(members, "OPERATORS", ()):
            if operator.name in found:
                raise ValueError(f"operator '{operator.name}' is defined twice")
            found[operator.name] = operator
    return found


@cache
def onnx_rules() -> Mapping[tuple[str, str], OnnxRule]:
    """The rule for each ONNX operator, by domain and type."""
    rules: dict[tuple[str, str], OnnxRule] = {}
    for module in pkgutil.iter_modules(__path__):
        members = importlib.import_module(f"{__name__}.{module.name}")
        for rule in getattr(members, "ONNX", ()):
            if (rule.domain, rule.name) in rules:
                raise ValueError(f"ONNX operator {rule.name} has two rules")
            rules[rule.domain, rule.name] = rule
    return rules


def get(name: str) -> Operator:
    """The entry of an operator; raises KeyError if there is none."""
    return _entries()[name]


def names() -> tuple[str, ...]:
    """Every operator of the graph IR, sorted."""
    return tuple(sorted(_entries()))
