"""A target is one file: no other module of ours names an architecture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tilewright.compiler.targets.families import CoreModel, families, family_of
from tilewright.compiler.targets.target import known_targets

ROOT = Path(__file__).parents[2]
PACKAGES = ("compiler", "tuner", "db", "service")

NAMES = sorted(
    {
        *(name for family in families() for name in (family.name, *family.machines)),
        *(name for family in families() for name in family.cores),
        *(
            feature
            for family in families()
            for feature in family.linux_features
            if len(feature) > 3
        ),
        *known_targets(),
        "riscv",
        "rv64",
        "rv32",
        "wasm",
        "neon",
    }
)
WORDS = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, NAMES))})(?![\w-])")

# Places where a name of an architecture, a CPU or a feature may occur in a string, and why.
ALLOWED = {
    ("compiler/targets/device.py", "rv64"): "how the `isa` line of /proc/cpuinfo begins",
    ("compiler/targets/device.py", "rv32"): "the same",
    ("compiler/bindings/c_library/wasm.py", "wasm"): "how files of modules end",
    ("service/cli/local.py", "wasm"): "a format of files",
    ("compiler/codegen/cpu/ssa.py", "bf16"): "LLVM's name of an element type",
}


def literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """The strings of a module but for its docstrings."""
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant))
    for node in texts:
        if isinstance(node.value, (str, bytes)) and id(node) not in documented:
            yield node


def found(text: str) -> list[tuple[int, str]]:
    """Lines and words that name an architecture, a CPU or a feature."""
    lines: list[tuple[int, str]] = []
    if not any(name in text for name in NAMES):
        return lines  # most modules: parsing them takes seconds
    for node in literals(ast.parse(text)):
        value = node.value.decode("latin-1") if isinstance(node.value, bytes) else str(node.value)
        if match := WORDS.search(value):
            lines.append((node.lineno, match[0]))
    return lines


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if ROOT / "compiler/targets/families" not in path.parents:
                yield path


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_other_module_knows_an_architecture(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    wrong = [(line, word) for line, word in found(path.read_text()) if (name, word) not in ALLOWED]
    assert not wrong, "this belongs in compiler/targets/families"


def test_what_is_allowed_is_there() -> None:
    for name, word in ALLOWED:
        assert word in {each for _, each in found((ROOT / name).read_text())}


def test_the_rule_sees_a_table() -> None:
    assert found("TABLE = {'x86_64': 1}") and found('f"llvm.aarch64.neon.{name}"')
    assert found("x = b'sse4.2'") and found("'''+avx512vnni'''\nif target.arch == 'wasm32': ...")
    assert not found('"""For aarch64."""\nx = 1\n"""Of znver4."""\ny = "a graph"')


MAY_BE_ZERO = ("reorder_buffer", "prefetch_bytes")


@pytest.mark.parametrize("family", families(), ids=lambda family: family.name)
def test_a_family_is_whole(family: object) -> None:
    """Names refer to described things, and numbers are possible for a core."""
    found = family_of(family.name)
    assert found is family and found is not None
    names = {target.name for target in found.targets}
    assert names >= {*found.baselines, *found.processors.values(), *found.known_features}
    assert all(target.arch == found.name and target.family is found for target in found.targets)
    for core in (found.core, *found.cores.values()):
        assert core.set_stride * core.level1_ways == core.cache_bytes[0]
        assert list(core.cache_bytes) == sorted(core.cache_bytes)
        assert list(core.bytes_per_cycle) == sorted(core.bytes_per_cycle, reverse=True)
        for each in fields(CoreModel):
            value = getattr(core, each.name)
            assert isinstance(value, tuple) or value > 0 or each.name in MAY_BE_ZERO
    for instruction in (*found.dot, *found.scale):
        assert instruction.feature in ("", *found.linux_features) or found.modules
