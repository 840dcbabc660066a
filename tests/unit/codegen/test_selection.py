"""No code ends the process that compiles it: LLVM aborts where it finds no instruction."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Sequence

import pytest

from tests.kernels import HOST, in_child
from tests.unit.codegen.test_arithmetic import elementwise, operations
from tilewright.compiler.codegen import out_of_process
from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.codegen.object import emit_assembly, emit_object
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.loops.expr import Cast, Expr
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target, known_targets

WASM = resolve_target("wasm32")
NARROW = (DType.FLOAT16, DType.BFLOAT16)
PROVEN = [dtype for dtype in DType if dtype not in NARROW]

ABORTS = """
define void @f(ptr %x, ptr %y) {
  %a = load bfloat, ptr %x
  %b = fpext bfloat %a to float
  store float %b, ptr %y
  ret void
}
"""
"""WebAssembly has no instruction for it, and LLVM has no replacement."""

HANGS = """
define void @f(ptr %x, ptr %y) {
  %a = load <4 x half>, ptr %x
  %b = load <4 x half>, ptr %y
  %c = fcmp ogt <4 x half> %a, %b
  %d = select <4 x i1> %c, <4 x half> %a, <4 x half> %b
  store <4 x half> %d, ptr %y
  ret void
}
"""
"""LLVM never ends for WebAssembly."""

FINE = """
define void @f(ptr %x, ptr %y) {
  %a = load <4 x half>, ptr %x
  store <4 x half> %a, ptr %y
  ret void
}
"""


@pytest.fixture(autouse=True, scope="module")
def one_process() -> Iterator[None]:
    """No process outlives these tests; tests that end it start another one."""
    yield
    out_of_process.close()


def all_operations(target: Target, dtype: DType, others: Sequence[DType]) -> Iterator[str]:
    """Every operation on values of a type, and conversions to others: in vectors with a masked
    tail, then in scalars."""

    def make(x: Expr, y: Expr, c: Expr) -> list[Expr]:
        casts = [Cast(x, to) for to in others if to is not dtype]
        return [*(f(x, y, c) for _, f in operations(dtype)), *casts]

    for lanes, vector in ((target.lanes(DType.FLOAT32), True), (1, False)):
        types = (dtype, dtype, DType.BOOL)
        nest, _, _ = elementwise(lanes, 3 * lanes - 1, types, make, vector=vector)
        yield backend_of(target).lower(nest, target).text


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", sorted(known_targets()))
def test_every_operation_on_narrow_floats_is_compiled_without_a_library(
    name: str, dtype: DType
) -> None:
    """Kernels are linked with nothing: no conversion may be a call, such as to __extendhfsf2."""
    target = known_targets()[name]
    for text in all_operations(target, dtype, tuple(DType)):
        assembly = out_of_process.emit_assembly(text, target)
        calls = re.findall(r"\b__\w*(?:[hb]f|gnu)\w*", assembly)
        assert not calls, sorted(set(calls))


@pytest.mark.parametrize("name", sorted(known_targets()))
def test_every_operation_on_a_proven_type_is_selected(name: str) -> None:
    """Vectors, a masked tail and scalars; conversions to every proven type, too."""
    target = known_targets()[name]
    texts = [text for dtype in PROVEN for text in all_operations(target, dtype, PROVEN)]

    def emit() -> None:
        try:
            for text in texts:
                emit_object(text, target)
        except CompilerError:
            traceback.print_exc()
            os.abort()

    in_child(emit)


def test_an_abort_is_an_error_of_its_code_alone() -> None:
    with pytest.raises(CompilerError, match=r"'wasm32': Cannot select: .*bf16"):
        out_of_process.emit_object(ABORTS, WASM)
    assert out_of_process.emit_object(FINE, WASM) == emit_object(FINE, WASM)


def test_code_that_llvm_never_ends_with_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_process, "LIMIT_SECONDS", 1)
    with pytest.raises(CompilerError, match="it does not end in 1 s"):
        out_of_process.emit_object(HANGS, WASM)


def test_code_is_the_same_from_either_process() -> None:
    assert out_of_process.emit_object(FINE, HOST) == emit_object(FINE, HOST)
    assert out_of_process.emit_assembly(FINE, HOST) == emit_assembly(FINE, HOST)
    with pytest.raises(CompilerError, match="expected"):
        out_of_process.emit_object("define void @f(half %x", HOST)


def test_only_unproven_types_are_compiled_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        out_of_process, "emit_object", lambda text, target: asked.append(text) or b"apart"
    )
    for dtype in DType:
        nest, _, _ = elementwise(4, 11, [dtype], lambda x: (x,))
        text = backend_of(HOST).lower(nest, HOST).text
        assert (backend_of(HOST).compile(text, HOST) == b"apart") == (dtype in NARROW)
    assert len(asked) == len(NARROW)


def test_a_fork_has_a_process_of_its_own() -> None:
    """Two processes that share one pipe would get each other's answers."""
    out_of_process.emit_object(FINE, HOST)
    expected = emit_object(FINE, WASM)

    def ask() -> None:
        if out_of_process.emit_object(FINE, WASM) != expected:
            os.abort()
        out_of_process.close()

    in_child(ask)
    assert out_of_process.emit_object(FINE, WASM) == expected


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", sorted(known_targets()))
def test_a_masked_tail_of_narrow_floats_is_moved_on_every_target(name: str, dtype: DType) -> None:
    """LLVM aborts on masked vectors of 8 bfloat16 elements for Neoverse V1."""
    target = known_targets()[name]
    nest, _, _ = elementwise(8, 23, [dtype], lambda x: (x,))
    assert out_of_process.emit_object(backend_of(target).lower(nest, target).text, target)
