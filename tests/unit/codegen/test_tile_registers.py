"""Registers that hold matrices: the instructions, and code for them, against plain arithmetic.

On a CPU without them they are emulated, and the rules of the emulator are tested here too.
"""

from __future__ import annotations

import ctypes
import faulthandler
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.devices.amx import amx_target, emulated_amx, has_amx
from tests.devices.packages import UnavailableError
from tests.kernels import in_child, run_nest_code
from tests.nests.evaluate import pack_tensor, run_nest
from tests.nests.parse import parse_nest
from tests.nests.verify import verify_nest
from tests.unit.codegen.test_dot import BRAINS, BYTES, SIGNS, all_pairs, narrow, packed_product
from tilewright.compiler.codegen.backend import backend_of
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Const
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Tile
from tilewright.compiler.loops.semantics import from_memory
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.targets.host import resolve_target

Array = np.ndarray[Any, Any]
Types = tuple[DType, DType]
Shape = tuple[int, int]

INSTRUCTIONS = {
    (DType.UINT8, DType.INT8): "tdpbusd",
    (DType.INT8, DType.INT8): "tdpbssd",
    (DType.UINT8, DType.UINT8): "tdpbuud",
    (DType.INT8, DType.UINT8): "tdpbsud",
    BRAINS: "tdpbf16ps",
}


@pytest.fixture(autouse=True, scope="module")
def amx() -> Iterator[ctypes.CDLL]:
    try:
        with emulated_amx() as library:
            yield library
    except UnavailableError as error:
        pytest.skip(str(error))


# ---- single instructions


def product_ir(instruction: str) -> str:
    """C += A B, and the configuration read back: registers 2, 5 and 7, which no other code uses."""
    names = ("ldtilecfg", "sttilecfg")
    return "\n".join(
        [
            *(f"declare void @llvm.x86.{name}(ptr)" for name in names),
            "declare void @llvm.x86.tilerelease()",
            "declare void @llvm.x86.tilezero(i8 immarg)",
            "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
            "declare void @llvm.x86.tileloaddt164(i8 immarg, ptr, i64)",
            "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
            f"declare void @llvm.x86.{instruction}(i8 immarg, i8 immarg, i8 immarg)",
            "define void @multiply(ptr %shapes, ptr %a, ptr %b, ptr %c, i64 %sa, i64 %sb, i64 %sc,"
            " ptr %read) {",
            "  call void @llvm.x86.ldtilecfg(ptr %shapes)",
            "  call void @llvm.x86.sttilecfg(ptr %read)",
            "  call void @llvm.x86.tilezero(i8 2)",
            "  call void @llvm.x86.tileloadd64(i8 2, ptr %c, i64 %sc)",
            "  call void @llvm.x86.tileloadd64(i8 5, ptr %a, i64 %sa)",
            "  call void @llvm.x86.tileloaddt164(i8 7, ptr %b, i64 %sb)",
            f"  call void @llvm.x86.{instruction}(i8 2, i8 5, i8 7)",
            "  call void @llvm.x86.tilestored64(i8 2, ptr %c, i64 %sc)",
            "  call void @llvm.x86.tilerelease()",
            "  ret void",
            "}",
        ]
    )


def shapes_of(c: Shape, a: Shape, b: Shape) -> Array:
    """The configuration for LDTILECFG, with registers 2, 5 and 7 in use."""
    found = np.zeros(64, np.uint8)
    found[0] = 1
    for number, (rows, width) in {2: c, 5: a, 7: b}.items():
        found[16 + 2 * number], found[48 + number] = width, rows
    return found


Multiply = Callable[[Array, Array, Array, Array], Array]


@contextmanager
def multiplier(types: Types) -> Iterator[Multiply]:
    """`c + a @ b` by the instruction itself.

    a is (rows, depth), b (depth / group, columns, group), c (rows, columns); each may be a view
    whose row stride is larger than its rows.
    """
    target = amx_target()
    backend = backend_of(target)
    library = backend.load([backend.compile(product_ir(INSTRUCTIONS[types]), target)])
    pointer, word = ctypes.c_void_p, ctypes.c_int64
    call = ctypes.CFUNCTYPE(None, *[pointer] * 4, *[word] * 3, pointer)
    function = call(library.address("multiply"))

    def multiply(a: Array, b: Array, c: Array, shapes: Array | None = None) -> Array:
        width = [x[0].nbytes for x in (c, a, b)]
        own = [(len(x), w) for x, w in zip((c, a, b), width, strict=True)]
        given = shapes_of(*own) if shapes is None else shapes
        sums, read = np.zeros((len(c), 40), c.dtype), np.ones(64, np.uint8)
        sums[:, : c.shape[1]] = c
        function(
            *(x.ctypes.data for x in (given, a, b, sums)),
            *(x.strides[0] for x in (a, b, sums)),
            read.ctypes.data,
        )
        np.testing.assert_array_equal(read, given)
        assert not sums[:, c.shape[1] :].any()  # the padding after each row is left alone
        return sums[:, : c.shape[1]]

    yield multiply  # type: ignore[misc]
    library.close()


def grouped(b: Array) -> Array:
    """(depth, columns) -> (depth / group, columns, group)."""
    group = 4 // b.itemsize
    return np.ascontiguousarray(b.reshape(-1, group, b.shape[1]).transpose(0, 2, 1))


@pytest.mark.parametrize("types", SIGNS)
def test_every_pair_of_bytes(types: Types) -> None:
    """At each place of a group; sums wrap and do not saturate."""
    a, b = all_pairs(types)
    start = np.full((16, 16), 2**31 - 100, np.int32)
    exact = a.astype(np.int64) @ b.astype(np.int64) + start[0, 0]
    wrapped = exact.astype(np.int32)
    assert (wrapped != exact).any()
    with multiplier(types) as multiply:
        for m in range(0, 256, 16):
            for n in range(0, 256, 16):
                found = multiply(a[m : m + 16], grouped(b[:, n : n + 16]), start)
                np.testing.assert_array_equal(found, wrapped[m : m + 16, n : n + 16])


@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(16, 64, 16), (1, 4, 1), (5, 12, 16), (16, 60, 7), (9, 64, 3)]
)
@pytest.mark.parametrize("types", [*SIGNS, BRAINS])
def test_any_shape(types: Types, rows: int, depth: int, columns: int) -> None:
    """Smaller matrices, whose row stride is larger than their rows."""
    depth //= types[0].bytes
    a, b = narrow(types[0], rows, depth + 8), narrow(types[1], depth, columns)
    c = np.arange(rows * columns).reshape(rows, columns).astype(np.int32)
    kind = np.float64 if types == BRAINS else np.int64
    x, y = (from_memory(part, t).astype(kind) for part, t in zip((a, b), types, strict=True))
    c = c.astype(np.float32) if types == BRAINS else c
    with multiplier(types) as multiply:
        np.testing.assert_array_equal(multiply(a[:, :depth], grouped(b), c), c + x[:, :depth] @ y)


def test_bfloat16_by_the_rules_of_the_manual() -> None:
    """Even and odd elements have separate sums, each step with one rounding; then both sums are
    added, then the earlier contents. Subnormal numbers are zeros, before and after each
    operation."""
    random = np.random.default_rng(0)
    bits = random.integers(0, 1 << 16, (16 * 32 + 32 * 16)).astype(np.uint16)
    bits &= 0xBFFF  # below 2
    bits[::3] &= 0x8FFF  # many subnormal and very small numbers
    bits[1::3] = bits[1::3] & 0x87FF | 0x3800  # many about one
    a, b = bits[:512].reshape(16, 32), bits[512:].reshape(32, 16)
    c = random.standard_normal((16, 16)).astype(np.float32)
    c[0] = 1e-39
    x, y = (_flushed(from_memory(part, DType.BFLOAT16).astype(np.float32)) for part in (a, b))
    sums = np.zeros((2, 16, 16), np.float32)
    for k in range(32):
        exact = x[:, k, None].astype(np.longdouble) * y[k].astype(np.longdouble) + sums[k % 2]
        sums[k % 2] = _flushed(exact.astype(np.float32))
    expected = _flushed(_flushed(c) + _flushed(sums[0] + sums[1]))
    with multiplier(BRAINS) as multiply:
        found = multiply(a, grouped(b), c)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


def _flushed(values: Array) -> Array:
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.copysign(0, values), values)


BAD = {
    "no palette": (0, 2),
    "17 rows": (50, 17),
    "rows and no bytes": (48, 1),
    "a reserved byte": (5, 1),
    "columns that do not fit": (20, 60),
    "a depth that does not fit": (26, 60),
}


@pytest.mark.parametrize(("place", "value"), BAD.values(), ids=BAD)
def test_shapes_that_no_cpu_takes(amx: ctypes.CDLL, place: int, value: int) -> None:
    """They raise the same error as any unknown instruction: the emulator hides no mistake."""
    shapes = shapes_of((16, 64), (16, 64), (16, 64))
    shapes[place] = value
    zeros = np.zeros((16, 64), np.uint8)
    with multiplier(BYTES) as multiply:

        def work() -> None:
            amx.amx_stop()
            faulthandler.disable()  # it would print all that runs
            amx.amx_start()
            multiply(zeros, zeros.reshape(16, 16, 4), zeros.view(np.int32), shapes)

        with pytest.raises(AssertionError, match="SIGILL|SIGSEGV" if has_amx() else "SIGILL"):
            in_child(work)


# ---- register tiles


def matrix_nest(
    types: Types, rows: int, columns: int, depth: int, step: int, tile: int, vectors: int = 2
) -> LoopNest:
    """C[m, n] = sum of A[m, k] B[k, n] by matrices of `step` bytes of k."""
    nest = packed_product(types, rows, columns, depth, 16, 4, tile, vectors=vectors)
    (stage,) = nest.stages
    (outer,) = stage.body
    assert isinstance(outer, For) and isinstance(outer.body[0], For)
    (inner,) = outer.body
    (compute,) = inner.body
    assert isinstance(compute, Compute) and compute.dot is not None
    deep = (Tile(compute.dot, step // types[0].bytes),)
    return with_compute(nest, replace(compute, rows=outer.axis, reduce=deep))


def with_compute(nest: LoopNest, compute: Compute) -> LoopNest:
    (stage,) = nest.stages
    (outer,) = stage.body
    assert isinstance(outer, For) and isinstance(outer.body[0], For)
    body = (replace(outer, body=(replace(outer.body[0], body=(compute,)),)),)
    return replace(nest, stages=(replace(stage, body=body),))


TILES = [
    # rows, columns, bytes of the sum, of a step, rows and vectors of a tile
    (40, 70, 128, 64, 32, 2),
    (5, 33, 24, 24, 16, 2),
    (100, 20, 64, 64, 48, 1),
    (16, 96, 192, 48, 16, 3),
    (21, 8, 320, 64, 32, 1),
    (2, 3, 8, 8, 2, 1),
]


@pytest.mark.parametrize(("rows", "columns", "depth", "step", "tile", "vectors"), TILES)
@pytest.mark.parametrize("types", [BYTES, (DType.INT8, DType.INT8), BRAINS])
def test_products_in_registers_of_matrices(
    types: Types, rows: int, columns: int, depth: int, step: int, tile: int, vectors: int
) -> None:
    """By the meaning of the nest, between guard pages; tails are smaller matrices."""
    depth //= types[0].bytes
    nest, target = matrix_nest(types, rows, columns, depth, step, tile, vectors), amx_target()
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest and "rows m" in print_nest(nest)
    packed = [narrow(types[0], rows, depth), narrow(types[1], depth, columns)]
    packed = [pack_tensor(t, x) for t, x in zip(nest.buffers, packed, strict=False)]
    (found,) = run_nest_code(nest, target, *packed, random=np.random.default_rng(0))
    meaning = [*packed, np.zeros(rows * columns, nest.buffers[-1].dtype.numpy)]
    run_nest(nest, meaning)
    np.testing.assert_array_equal(found.reshape(-1), meaning[-1])
    instruction = INSTRUCTIONS[types]
    assert re.search(rf"\b{instruction}\b", emit_assembly(lower_nest(nest, target), target))


def test_a_sum_stays_in_its_register() -> None:
    """Nothing but loads and products in the innermost loop, and the shapes are loaded once."""
    nest = matrix_nest(BYTES, 64, 64, 256, 64, 32)
    assembly = emit_assembly(lower_nest(nest, amx_target()), amx_target())
    blocks = re.split(r"(?m)^(?=\.LBB\w+:)", assembly)
    (loop,) = [
        block.split("\tj")[0]
        for block in blocks
        if "tdpbusd" in block and re.search(rf"\tj\w+\t{re.escape(block.split(':')[0])}\b", block)
    ]
    assert loop.count("tdpbusd") == 4 and loop.count("tileloadd") == 4
    assert "tilestored" not in loop and "tilezero" not in loop
    assert assembly.count("ldtilecfg") == 1 and assembly.count("tilerelease") == 1


def test_registers_are_given_back(amx: ctypes.CDLL) -> None:
    nest, target = matrix_nest(BYTES, 33, 40, 128, 64, 32), amx_target()
    backend = backend_of(target)
    code = backend.lower(nest, target)
    library = backend.load([backend.compile(code.text, target)])
    kinds = [t.bytes for t in nest.buffers]
    buffers = [np.zeros(size + 64, np.uint8) for size in kinds]
    starts = [b.ctypes.data + -b.ctypes.data % 64 for b in buffers]
    before = amx.amx_executed()
    stage = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2)
    stage(library.address(code.stages[0].symbol))(
        ctypes.addressof((ctypes.c_void_p * 3)(*starts)), None, None, 0, code.stages[0].extent
    )
    library.close()
    assert has_amx() or amx.amx_executed() > before
    assert not amx.amx_configured()


def changed(nest: LoopNest, **fields: Any) -> LoopNest:
    return with_compute(nest, replace(nest.computes[0], **fields))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: {"dot": None}, "of no product of matrices"),
        (lambda c: {"rows": c.vector}, "of no product of matrices"),
        (lambda c: {"reduce": ()}, "of no product of matrices"),
        (lambda c: {"init": Const(0, DType.INT32)}, "start at zero"),
        (lambda c: {"prefetch": 64}, "start at zero"),
        (lambda c: {"unroll": (*c.unroll[:1], Tile(c.rows, 2), c.unroll[2])}, "are not what is"),
        (lambda c: {"unroll": (c.unroll[0], c.unroll[2])}, "are not what is unrolled"),
    ],
)
def test_what_is_no_product_of_matrices(
    change: Callable[[Compute], dict[str, Any]], message: str
) -> None:
    nest = matrix_nest(BYTES, 32, 32, 64, 64, 32)
    verify_nest(nest)
    with pytest.raises(ScheduleError, match=message):
        verify_nest(changed(nest, **change(nest.computes[0])))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((64, 64, 128, 64, 64, 2), "matrices, there are 8 registers"),
        ((32, 32, 128, 128, 32, 2), "rows of more than 64 bytes"),
        ((32, 32, 96, 64, 32, 2), "ends inside of a matrix"),
        ((32, 32, 62, 64, 32, 2), "ends inside|groups of 'A'|whole groups|lie side by side"),
    ],
)
def test_what_registers_do_not_hold(sizes: Sequence[int], message: str) -> None:
    rows, columns, depth, step, tile, vectors = sizes
    nest = matrix_nest(BYTES, rows, columns, depth, step, tile, vectors)
    with pytest.raises(ScheduleError, match=message):
        lower_nest(nest, amx_target())


def test_a_target_without_them() -> None:
    nest = matrix_nest(BYTES, 32, 32, 64, 64, 32)
    with pytest.raises(ScheduleError, match="no registers that multiply matrices of uint8 and"):
        lower_nest(nest, resolve_target("cascadelake"))
