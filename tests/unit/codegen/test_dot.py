"""Dot instructions: generated code against the meaning of its nest."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels import WIDTHS, run_nest_code, width
from tests.nests.evaluate import pack_tensor
from tests.nests.parse import parse_nest
from tests.nests.verify import verify_nest
from tests.unit.codegen.checks import agree, kernel
from tilewright.compiler.codegen.cpu.lower import lower_nest
from tilewright.compiler.codegen.object import emit_assembly
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Accumulator, Cast, Combiner, Load, Role, Tensor
from tilewright.compiler.loops.index import Axis, affine
from tilewright.compiler.loops.layout import Factor, Layout
from tilewright.compiler.loops.nest import Compute, For, LoopNest, Store, Tile
from tilewright.compiler.loops.semantics import from_memory, to_memory
from tilewright.compiler.loops.text import print_nest
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore:invalid value")


def packed_product(
    types: tuple[DType, DType],
    rows: int,
    columns: int,
    depth: int,
    lanes: int,
    together: int = 4,
    tile: int = 3,
    vectors: int = 2,
) -> LoopNest:
    """C[m, n] = sum of A[m, k] B[k, n] by dot instructions; B in groups of k within panels of n.

    A group is `together` bytes; 8 are those of matrix instructions.
    """
    group = together // types[0].bytes
    total = DType.FLOAT32 if types[0].is_float else DType.INT32
    m, n, k = Axis("m", rows), Axis("n", columns), Axis("k", depth)
    width = vectors * lanes
    panels = Layout((Factor(1, width), Factor(0, group), Factor(1, 1, width), Factor(0, 1, group)))
    a = Tensor("A", (rows, depth), types[0])
    b = Tensor("B", (depth, columns), types[1], panels, role=Role.WEIGHT)
    c = Tensor("C", (rows, columns), total, role=Role.OUTPUT)
    compute = Compute(
        (Store(c[m, n], Accumulator(total)),),
        Cast(a[m, k], total) * Cast(b[k, n], total),
        Combiner.SUM,
        reduce=(Tile(k, 2 * group),),
        unroll=(Tile(k, group), Tile(m), Tile(n, lanes)),
        vector=n,
        dot=k,
    )
    return kernel((a, b, c), For(m, tile, (For(n, width, (compute,)),)))


def narrow(dtype: DType, *shape: int) -> Array:
    """Whole numbers over the range of a type; bfloat16 as it lies."""
    random = np.random.default_rng(sum(shape))
    if dtype is DType.BFLOAT16:
        return to_memory(random.integers(-8, 9, shape).astype(np.float32), dtype)
    limits = np.iinfo(dtype.numpy)
    return random.integers(limits.min, limits.max + 1, shape).astype(dtype.numpy)


BYTES = (DType.UINT8, DType.INT8)
BRAINS = (DType.BFLOAT16, DType.BFLOAT16)


SIZES = [(7, 70, 40), (3, 5, 8), (1, 33, 12), (4, 20, 7), (2, 17, 3), (3, 40, 17), (5, 6, 2)]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
@pytest.mark.parametrize(
    ("types", "feature"),
    [(BYTES, "avx512vnni"), (BYTES[::-1], "avx512vnni"), (BRAINS, "avx512bf16")],
)
def test_dot_instructions(
    types: tuple[DType, DType], feature: str, rows: int, columns: int, depth: int, bits: int
) -> None:
    """By the meaning of the nest; the last group of a sum may have fewer elements than others."""
    if not width(bits).has(feature):
        pytest.skip(f"the host has no {feature}")
    nest = packed_product(types, rows, columns, depth, bits // 32)
    verify_nest(nest)
    assert parse_nest(print_nest(nest)) == nest
    agree(nest, bits, narrow(types[0], rows, depth), narrow(types[1], depth, columns))
    assert re.search(
        r"vpdpbusd|vdpbf16ps", emit_assembly(lower_nest(nest, width(bits)), width(bits))
    )


MATRICES = {
    (DType.UINT8, DType.INT8): "usmmla",
    (DType.INT8, DType.INT8): "smmla",
    (DType.UINT8, DType.UINT8): "ummla",
    BRAINS: "bfmmla",
}
"""Types that Arm cores multiply as matrices."""

SIGNS = [(left, right) for left in (DType.UINT8, DType.INT8) for right in (DType.UINT8, DType.INT8)]
ISAS = ("x86-64-v1", "x86-64-v3", "x86-64-v3+avxvnni", "x86-64-v4", "cascadelake")
"""Without a dot instruction at 128, 256 and 512 bits, and with each of the two encodings of one."""

WORDS = (DType.INT16, DType.INT16)


def runnable(name: str) -> Target:
    """A target of this name, with a feature more or not, that this machine runs."""
    base, _, feature = name.partition("+")
    target = resolve_target(base)
    if feature:
        target = replace(target, name=name, features=(*target.features, f"+{feature}"))
    if not target.runs_on(resolve_target("host")):
        pytest.skip(f"the host is no {name}")
    return target


def all_pairs(types: tuple[DType, DType]) -> tuple[Array, Array]:
    """(256, 4) and (4, 256) bytes whose products have every pair of bytes at every place."""
    every, steps = np.arange(256), np.array([0, 64, 37, 201])
    left, right = every[:, None] + steps, every + steps[::-1, None]
    return tuple(  # type: ignore[return-value]
        part.astype(np.uint8).view(t.numpy) for part, t in zip((left, right), types, strict=True)
    )


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("types", SIGNS)
def test_products_of_bytes_are_exact(types: tuple[DType, DType], name: str) -> None:
    """Every pair of bytes, in every instruction set that this machine runs, does not saturate."""
    target = runnable(name)
    a, b = all_pairs(types)
    nest = packed_product(types, 256, 256, 4, target.vector_bits // 32)
    (found,) = run_nest_code(nest, target, a, pack_tensor(nest.buffers[1], b))
    wide = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(found.reshape(wide.shape), wide)
    assembly = emit_assembly(lower_nest(nest, target), target)
    assert ("vpdpbusd" in assembly) == target.has_int8_dot


@pytest.mark.parametrize("name", ISAS)
def test_products_of_16_bits_are_exact(name: str) -> None:
    """Products at the ends of their range and any others; a sum that overflows int32 on the way
    comes back."""
    target = runnable(name)
    ends = np.array([-32768, -32767, -1, 0, 1, 255, 256, 32766, 32767], np.int16)
    random = np.random.default_rng(0)
    for rows, columns, depth in [*SIZES, (9, 81, 4)]:
        a, b = narrow(WORDS[0], rows, depth), narrow(WORDS[1], depth, columns)
        for each in (a, b):
            chosen = random.random(each.shape) < 0.5
            each[chosen] = random.choice(ends, int(chosen.sum()))
        nest = packed_product(WORDS, rows, columns, depth, target.vector_bits // 32)
        (found,) = run_nest_code(nest, target, a, pack_tensor(nest.buffers[1], b))
        wide = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
        np.testing.assert_array_equal(found.reshape(wide.shape), wide)
    assembly = emit_assembly(lower_nest(nest, target), target)
    assert ("vpdpwssd" in assembly) == (target.factor(WORDS[0]) is not None)


def packed_groups(
    dtype: DType, columns: int, depth: int, lanes: int, *, turned: bool, whole: bool = True
) -> LoopNest:
    """B[k, n], or B[n, k], put into groups of k within panels of n; without room if not `whole`."""
    group = 4 // dtype.bytes
    n, k = Axis("n", columns), Axis("k", depth)
    inner = Factor(0, 1, group) if whole else Factor(0)
    factors = (Factor(1, lanes), Factor(0, group), Factor(1, 1, lanes), inner)
    panels = Layout(factors if whole else (Factor(1), Factor(0)))
    b = Tensor("B", (columns, depth) if turned else (depth, columns), dtype)
    c = Tensor("C", (depth, columns), dtype, panels, role=Role.OUTPUT)
    compute = Compute(
        (Store(c[k, n], Accumulator(dtype)),),
        b[n, k] if turned else b[k, n],
        unroll=(Tile(k, group), Tile(n, lanes)),
        vector=n,
        dot=k,
    )
    return kernel((b, c), For(n, lanes, (For(k, group, (compute,)),)))


@pytest.mark.parametrize("name", ["x86-64-v1", "cascadelake"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [DType.INT8, DType.BFLOAT16])
def test_groups_are_put_side_by_side(dtype: DType, turned: bool, name: str) -> None:
    """From rows or from columns; the last group and the last lanes may be fewer."""
    target = runnable(name)
    for columns, depth in ((37, 12), (20, 7), (16, 3)):
        nest = packed_groups(dtype, columns, depth, target.vector_bits // 32, turned=turned)
        verify_nest(nest)
        assert parse_nest(print_nest(nest)) == nest
        given = narrow(dtype, *nest.buffers[0].shape)
        (found,) = run_nest_code(nest, target, given)
        wanted = given.T if turned else given
        packed = pack_tensor(nest.buffers[1], wanted)
        held = pack_tensor(nest.buffers[1], np.ones_like(wanted)) != 0  # all bytes except room
        np.testing.assert_array_equal(found.reshape(-1)[held], packed[held])


def test_groups_are_not_put_where_they_lie_apart() -> None:
    target = resolve_target("cascadelake")
    nest = packed_groups(DType.INT8, 32, 8, 16, turned=False, whole=False)
    with pytest.raises(ScheduleError, match="does not hold whole groups"):
        lower_nest(nest, target)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("types", SIGNS)
def test_products_of_bytes_have_any_depth(types: tuple[DType, DType], name: str) -> None:
    target = runnable(name)
    for rows, columns, depth in SIZES:
        nest = packed_product(types, rows, columns, depth, target.vector_bits // 32)
        a, b = narrow(types[0], rows, depth), narrow(types[1], depth, columns)
        (found,) = run_nest_code(nest, target, a, pack_tensor(nest.buffers[1], b))
        wide = a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(found.reshape(wide.shape), wide)


@pytest.mark.parametrize(
    ("name", "types", "instruction"),
    [
        ("x86-64-v1", BYTES, "pmaddwd"),
        ("x86-64-v2", BYTES, "pmaddwd"),
        ("x86-64-v3", BYTES, "vpmaddwd"),
        ("x86-64-v4", BYTES, "vpmaddwd"),
        ("cascadelake", (DType.INT8, DType.INT8), "vpdpbusd"),
        ("cascadelake", (DType.UINT8, DType.UINT8), "vpdpbusd"),
        ("neoverse-v1", BYTES, "sudot"),
        ("neoverse-v1", (DType.INT8, DType.INT8), "sdot"),
        ("neoverse-v1", (DType.UINT8, DType.UINT8), "udot"),
        ("neoverse-v1", BRAINS, "bfdot"),
        ("neoverse-n1", BYTES, "sdot|udot"),
        ("neoverse-n1", BRAINS, "fmla"),
        ("x86-64-v2", BRAINS, "mulps"),
        ("x86-64-v3", BRAINS, "vfmadd"),
        ("sapphirerapids", BRAINS, "vdpbf16ps"),
        ("riscv64", BRAINS, "vfm"),
        ("wasm32", BRAINS, "f32x4.mul"),
        ("cortex-a72", BYTES, "smlal"),
        ("cortex-a72", SIGNS[0], "smlal"),
        ("armv7", BYTES, "vmlal.s16"),
        ("riscv64", BYTES, r"vwmaccus\.vx"),
        ("spacemit-x60", SIGNS[0], r"vwmaccu\.vx"),
        ("riscv64-zvl256b", SIGNS[2], r"vwmaccsu\.vx"),
        ("riscv64", SIGNS[3], r"vwmacc\.vx"),
        ("riscv64", (DType.INT16, DType.INT16), r"vwmacc\.vx"),
        ("wasm32", BYTES, "i32x4.dot_i16x8_s"),
        ("wasm32", SIGNS[-1], "i32x4.dot_i16x8_s"),
        *(("wasm32-relaxed", types, "i32x4.relaxed_dot_i8x16_i7x16_add_s") for types in SIGNS[1:]),
        ("wasm32-relaxed", SIGNS[0], "i32x4.dot_i16x8_s"),
        ("cascadelake", (DType.INT16, DType.INT16), "vpdpwssd"),
    ],
)
def test_every_target_multiplies_bytes(
    name: str, types: tuple[DType, DType], instruction: str
) -> None:
    target = resolve_target(name)
    nest = packed_product(types, 3, 12, 16, target.vector_bits // 32)
    assembly = emit_assembly(lower_nest(nest, target), target)
    assert re.search(rf"\b({instruction})", assembly)
    assert "pmaddubsw" not in assembly


@pytest.mark.parametrize("types", SIGNS)
def test_risc_v_multiplies_vectors_by_bytes_as_they_are_loaded(types: tuple[DType, DType]) -> None:
    """Of the elements that stand for all lanes none goes through a vector, or is put together."""
    target = resolve_target("riscv64")
    assembly = emit_assembly(lower_nest(packed_product(types, 6, 64, 64, 4), target), target)
    assert not re.search(r"\bvmv\.x\.s|\bvmacc|\bor\b", assembly)


@pytest.mark.parametrize("name", ISAS)
def test_bfloat16_without_an_instruction_is_float32_without_its_low_half(name: str) -> None:
    """Products of whole numbers are exact, so that the sums are, in any order."""
    target = runnable(name)
    for rows, columns, depth in SIZES:
        nest = packed_product(BRAINS, rows, columns, depth, target.vector_bits // 32)
        a, b = narrow(BRAINS[0], rows, depth), narrow(BRAINS[1], depth, columns)
        (found,) = run_nest_code(nest, target, a, pack_tensor(nest.buffers[1], b))
        wide = from_memory(a, BRAINS[0]) @ from_memory(b, BRAINS[1])
        np.testing.assert_array_equal(found.reshape(wide.shape), wide)


@pytest.mark.parametrize("name", [*ISAS, "znver4"])
def test_products_of_bfloat16_are_those_of_their_numbers(name: str) -> None:
    """Every exponent with every sign and fraction: within float32's rounding of two sums.

    vdpbf16ps treats subnormal numbers as zero, and returns zero for them.
    """
    target = runnable(name)
    every = np.arange(1 << 16, dtype=np.uint16)
    numbers = from_memory(every, DType.BFLOAT16)
    every = every[np.isfinite(numbers) & (np.abs(numbers) >= 2.0**-126)]
    a = every[: every.size // 32 * 32].reshape(-1, 2)
    b = a[[7, 31, 3001, 16000]].T.copy()
    nest = packed_product(BRAINS, len(a), 4, 2, target.vector_bits // 32)
    (found,) = run_nest_code(nest, target, a, pack_tensor(nest.buffers[1], b))
    x, y = (from_memory(part, DType.BFLOAT16).astype(np.float64) for part in (a, b))
    exact, size = x @ y, np.abs(x) @ np.abs(y)
    with np.errstate(over="ignore", invalid="ignore"):
        fits = size < 2.0**127
        error = np.abs(found.reshape(exact.shape) - exact)
    assert (error <= 2.0**-23 * size + 2.0**-125)[fits].all()


def test_dot_instructions_that_do_not_fit_are_refused() -> None:
    halves = packed_product((DType.FLOAT16, DType.FLOAT16), 3, 16, 8, 8)
    with pytest.raises(ScheduleError, match="is not one that a sum of products of two narrow"):
        verify_nest(halves)
    nest = packed_product(BYTES, 3, 16, 8, 16)
    halves = Layout((Factor(1, 8), Factor(0), Factor(1, 1, 8)))
    text = print_nest(nest).replace(f"layout({nest.buffers[1].layout})", f"layout({halves})", 1)
    with pytest.raises(ScheduleError, match="elements of 'B' that are packed do not lie side by"):
        lower_nest(parse_nest(text), resolve_target("znver4"))


@pytest.mark.parametrize("bits", WIDTHS)
def test_elements_of_a_broadcast_group_may_lie_anywhere(bits: int) -> None:
    nest = packed_product(BYTES, 3, 20, 7, bits // 32)
    columns = Layout((Factor(1), Factor(0)))
    turned = parse_nest(print_nest(nest).replace("layout(row)", f"layout({columns})", 1))
    assert turned.buffers[0].layout == columns
    agree(turned, bits, narrow(BYTES[0], 3, 7), narrow(BYTES[1], 7, 20))


@pytest.mark.parametrize("bits", WIDTHS)
def test_groups_that_are_not_full_need_no_room(bits: int) -> None:
    """No load reads behind them, where other elements or unmapped memory may be."""
    nest = packed_product(BYTES, 3, 18, 7, bits // 32)
    tight = Layout((Factor(1), Factor(0)))
    text = print_nest(nest).replace(f"layout({nest.buffers[1].layout})", f"layout({tight})", 1)
    turned = parse_nest(text)
    assert turned.buffers[1].layout == tight
    agree(turned, bits, narrow(BYTES[0], 3, 7), narrow(BYTES[1], 7, 18))


def depthwise(
    types: tuple[DType, DType], taps: int, step: int, lanes: int, *, channels: int, pixels: int
) -> LoopNest:
    """y[c, p] = sum over t of x[c, step p + t] w[c, t]; channels of x are contiguous."""
    outputs = (pixels - taps) // step + 1
    c, p, t = Axis("c", channels), Axis("p", outputs), Axis("t", taps)
    inside = Layout((Factor(0, lanes), Factor(1), Factor(0, 1, lanes)))
    panels = Layout((Factor(0, lanes), Factor(1, 4), Factor(0, 1, lanes), Factor(1, 1, 4)))
    x = Tensor("X", (channels, pixels), types[0], inside)
    w = Tensor("W", (channels, taps), types[1], panels, role=Role.WEIGHT)
    y = Tensor("Y", (channels, outputs), DType.INT32, role=Role.OUTPUT)
    compute = Compute(
        (Store(y[c, p], Accumulator(DType.INT32)),),
        Cast(Load(x, (affine(c), p * step + t)), DType.INT32) * Cast(w[c, t], DType.INT32),
        Combiner.SUM,
        reduce=(Tile(t, 4, unroll=True),),
        unroll=(Tile(t, 4), Tile(p), Tile(c, lanes)),
        vector=c,
        dot=t,
    )
    return kernel((x, w, y), For(c, lanes, (For(p, 2, (compute,)),)))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize(("taps", "step"), [(2, 1), (3, 1), (3, 2), (4, 1), (5, 1), (7, 2), (9, 1)])
@pytest.mark.parametrize("types", SIGNS)
def test_groups_of_elements_that_lie_in_vectors_of_their_own(
    types: tuple[DType, DType], taps: int, step: int, bits: int
) -> None:
    """Groups that are full, those that are not, and a last vector of which a part is used."""
    lanes = bits // 32
    for channels in (lanes, 2 * lanes, lanes + lanes // 2, lanes + 1):
        nest = depthwise(types, taps, step, lanes, channels=channels, pixels=12)
        verify_nest(nest)
        agree(nest, bits, narrow(types[0], channels, 12), narrow(types[1], channels, taps))


@pytest.mark.parametrize(
    "name",
    ["x86-64-v2", "x86-64-v3", "cascadelake", "neoverse-n1", "cortex-a72", "riscv64", "wasm32"],
)
def test_every_target_multiplies_taps(name: str) -> None:
    target = resolve_target(name)
    nest = depthwise(BYTES, 3, 1, target.vector_bits // 32, channels=32, pixels=12)
    assert emit_assembly(lower_nest(nest, target), target)
