"""The native functions: their results, against NumPy, and their limits on programs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.compiler.dtypes import Combination, DType
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.packing import Array, aligned_empty
from tilewright.compiler.runtime.program import (
    BufferRef,
    BufferSpace,
    Copy,
    Instruction,
    NativeCall,
    Port,
    Program,
)
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_encoding import encode
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json

NO_WEIGHTS = aligned_empty(0)
TYPES = [np.dtype(t) for t in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]


def refs(*places: tuple[str, int]) -> tuple[BufferRef, ...]:
    return tuple(BufferRef(BufferSpace(space), offset) for space, offset in places)


def program(
    function: str,
    parameters: Sequence[int],
    arrays: Sequence[Array],
    shape: tuple[int, ...],
    dtype: DType = DType.INT64,
    counted: int | None = None,
) -> Program:
    """One call that reads the inputs and writes the output."""
    places = [("input", i) for i in range(len(arrays))]
    places += [("output", 0), *([("count", 0)] if counted is not None else [])]
    ports = tuple(Port(f"x{i}", DType(a.dtype.name), a.shape) for i, a in enumerate(arrays))
    call = NativeCall(function, tuple(parameters), refs(*places))
    return Program("p", ports, (Port("y", dtype, shape, counted),), (), (call,), 0, 0)


def run(made: Program, arrays: Sequence[Array], threads: int = 1) -> Array:
    (found,) = Executable(made, NO_WEIGHTS, {}.__getitem__, threads).run(arrays)
    return found


def values(dtype: np.dtype, shape: tuple[int, ...]) -> Array:
    """Both ends of the type's range, ties, and of floats infinities, NaN and both zeros."""
    random = np.random.default_rng(3)
    if dtype.kind == "f":
        array = random.integers(-4, 4, shape).astype(dtype)
        special = [np.nan, np.inf, -np.inf, -0.0, 0.0, -np.nan]
    else:
        ends = np.iinfo(dtype)
        array = random.integers(0, 6, shape).astype(dtype)
        special = [ends.min, ends.max, ends.max - 1, ends.min + 1, 1, 2]
    array.reshape(-1)[: len(special)] = special
    return array


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_top_k_is_a_stable_sort(dtype: np.dtype, largest: int, threads: int) -> None:
    x = values(dtype, (3, 17, 5))
    kind = DType(dtype.name)
    for k in (1, 4, 17):
        parameters = (kind.kind, kind.bytes, 3, 17, 5, k, largest)
        found = run(program("top_k", parameters, [x], (3, k, 5)), [x], threads)
        if largest:  # a stable descending sort is an ascending one, read from both ends
            expected = np.flip(16 - np.argsort(np.flip(x, 1), 1, kind="stable"), 1)
        else:
            expected = np.argsort(x, 1, kind="stable")
        np.testing.assert_array_equal(found, expected[:, :k])


@pytest.mark.parametrize("sequence", ["ties", "rising", "falling", "equal", "distinct"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_top_k_of_many(dtype: np.dtype, sequence: str) -> None:
    """A few are inserted, more are sorted, and those of many are sorted in parts."""
    random, kind, count = np.random.default_rng(4), DType(dtype.name), 900
    x = values(dtype, (1, count, 1)) if sequence == "ties" else np.arange(count) % 100
    x = {
        "ties": x, "rising": np.sort(x, axis=None), "falling": np.sort(x, axis=None)[::-1],
        "equal": np.zeros(count), "distinct": random.permutation(count) - count // 2,
    }[sequence].astype(dtype).reshape(1, count, 1)  # fmt: skip
    for k in (1, 63, 64, 65, 100, 449, 450, 451, 900):
        made = program("top_k", (kind.kind, kind.bytes, 1, count, 1, k, 0), [x], (1, k, 1))
        expected = np.argsort(x, 1, kind="stable")[:, :k]
        np.testing.assert_array_equal(run(made, [x]), expected)


def test_bfloat16_has_its_own_infinity() -> None:
    bits = np.array([0x7F80, 0x7C00, 0xFF80, 0x7FC0, 0x0000, 0x8000, 0x3F80], np.uint16)
    made = program("top_k", (DType.BFLOAT16.kind, 2, 1, 7, 1, 7, 1), [bits], (7,))
    # NaN, inf, 2**121, 1, 0, -0, -inf
    assert run(made, [bits]).tolist() == [3, 0, 1, 6, 4, 5, 2]


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_unique_groups_equal_elements(dtype: np.dtype, ordered: int) -> None:
    x = values(dtype, (60,))
    kind = DType(dtype.name)
    made = program("unique", (kind.kind, kind.bytes, 60, 1, ordered), [x], (3, 60))
    first, inverse, counts = run(made, [x])
    wanted = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    order = np.arange(len(wanted[0])) if ordered else np.argsort(wanted[1])
    groups = len(order)
    assert first[:groups].tolist() == wanted[1][order].tolist()
    assert counts[:groups].tolist() == wanted[3][order].tolist()
    assert inverse.tolist() == np.argsort(order)[wanted[2]].tolist()
    assert not first[groups:].any() and not counts[groups:].any()


def test_unique_compares_rows_from_their_first_element_on() -> None:
    x = np.random.default_rng(1).integers(-1, 2, (80, 3)).astype(np.int32)
    found = run(program("unique", (1, 4, 80, 3, 1), [x], (3, 80)), [x])
    rows, first, counts = np.unique(x, axis=0, return_index=True, return_counts=True)
    assert found[0, : len(rows)].tolist() == first.tolist()
    assert found[2, : len(rows)].tolist() == counts.tolist()
    np.testing.assert_array_equal(rows[found[1]], x)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_positions_of_true_elements(share: float) -> None:
    x = np.random.default_rng(2).random(1001) < share
    found = run(program("positions", (1001,), [x], (1001,)), [x])
    expected = np.flatnonzero(x)
    assert found[: expected.size].tolist() == expected.tolist()
    assert not found[expected.size :].any()


@pytest.mark.parametrize("count", [0, 3, 7, 8, -2])
def test_trim_gives_the_array_its_own_size(count: int) -> None:
    x = np.arange(2 * 7 * 3, dtype=np.float32).reshape(2, 7, 3)
    arrays = [x, np.array(count)]
    made = program("trim", (2, 7, 12), arrays, (2, 7, 3), DType.FLOAT32, counted=1)
    for threads in (1, 2):
        found = run(made, arrays, threads)
        np.testing.assert_array_equal(found, x[:, : min(max(count, 0), 7)], strict=True)
        assert found.flags.c_contiguous
    assert program_from_json(program_to_json(made)) == made


@pytest.mark.parametrize("number", [0, 2, 3, 4, -1, 1 << 62])
def test_put_replaces_one_row_if_there_is_one(number: int) -> None:
    rows, row = np.arange(12, dtype=np.int64).reshape(4, 3), np.full(3, -7)
    ports = tuple(Port(n, DType.INT64, s) for n, s in (("x", (4, 3)), ("row", (3,)), ("i", ())))
    output = BufferRef(BufferSpace.OUTPUT, 0)
    calls = (
        Copy(output, BufferRef(BufferSpace.INPUT, 0), 96),
        NativeCall("put", (4, 24), (*refs(("input", 1), ("input", 2)), output)),
    )
    made = Program("p", ports, (Port("y", DType.INT64, (4, 3)),), (), calls, 0, 0)
    expected = rows.copy()
    if 0 <= number < 4:
        expected[number] = row
    found = run(made, [rows, row, np.array(number)])
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="nothing writes output 'y'"):
        check_program(Program("p", ports, made.outputs, (), calls[1:], 0, 0))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("places", [[], [2], [4, 0, 4, -1, 5, 1 << 62], [-(1 << 62), 3]])
def test_scatter_puts_rows_to_their_places(places: list[int], width: int) -> None:
    """Invalid places are left out, and the last row for a place stays."""
    rows = np.arange(5 * width, dtype=np.int16).reshape(5, width)
    given = -1 - np.arange(len(places) * width, dtype=np.int16).reshape(-1, width)
    arrays = [rows, np.array(places, np.int64), given]
    made = program("scatter", (5, 2 * width, len(places)), arrays, (5, width), DType.INT16)
    expected = rows.copy()
    for place, row in zip(places, given, strict=True):
        if 0 <= place < 5:
            expected[place] = row
    kept = rows.copy()
    for threads in (1, 2):
        np.testing.assert_array_equal(run(made, arrays, threads), expected, strict=True)
    np.testing.assert_array_equal(rows, kept)
    assert program_from_json(program_to_json(made)) == made


ARITHMETIC = [dtype for dtype in TYPES if dtype != np.float16]
JOINED = {
    Combination.ADD: np.add,
    Combination.MUL: np.multiply,
    Combination.MAX: np.maximum,
    Combination.MIN: np.minimum,
}


@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("how", Combination)
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_combine_joins_every_update_once(dtype: np.dtype, how: Combination, width: int) -> None:
    """Integers wrap around, a NaN stays, and invalid places are left out."""
    places = np.array([4, 0, 4, -1, 5, 1 << 62, 4, 2])
    rows, given = values(dtype, (5, width + 2))[:, :width], values(dtype, (8, width))[::-1]
    kind = DType(dtype.name)
    arrays: list[Array] = [np.ascontiguousarray(rows), places, np.ascontiguousarray(given)]
    parameters = (kind.kind, kind.bytes, how, 5, width, len(places))
    made = program("combine", parameters, arrays, (5, width), kind)
    inside, expected = (places >= 0) & (places < 5), rows.copy()
    with np.errstate(all="ignore"):
        JOINED[how].at(expected, places[inside], given[inside])
    np.testing.assert_array_equal(run(made, arrays), expected, strict=True)
    np.testing.assert_array_equal(arrays[0], rows)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("how", [Combination.ADD, Combination.MUL])
@pytest.mark.parametrize("dtype", ARITHMETIC, ids=str)
def test_accumulate_runs_along_an_axis(
    dtype: np.dtype, how: Combination, reverse: int, exclusive: int, threads: int
) -> None:
    """A line, few columns and many: each has a loop of its own."""
    kind = DType(dtype.name)
    shapes = [(3, 11, 1), (1, 1, 1), (1, 4, 1), *((2, 5, n) for n in (2, 3, 4, 7, 11, 23, 40))]
    for shape in (*shapes, (2, 3, 1030), (2, 1, 5)):
        x = np.random.default_rng(shape[-1]).integers(1, 4, shape).astype(dtype)
        turned = np.flip(x, 1) if reverse else x
        with np.errstate(over="ignore"):
            expected = JOINED[how].accumulate(turned, 1, dtype=dtype)
        if exclusive:
            first = np.full_like(x[:, :1], JOINED[how].identity)
            expected = np.concatenate([first, expected[:, :-1]], 1)
        expected = np.flip(expected, 1) if reverse else expected
        parameters = (kind.kind, kind.bytes, how, *shape, exclusive, reverse)
        found = run(program("accumulate", parameters, [x], shape, kind), [x], threads)
        np.testing.assert_array_equal(found, expected, strict=True)


def test_products_are_formed_one_by_one() -> None:
    """A factor behind a zero may be infinite, and is not multiplied before."""
    x = np.array([[[2.0], [0.0], *[[1e30]] * 9]], np.float32)
    kind = DType.FLOAT32
    parameters = (kind.kind, kind.bytes, Combination.MUL, *x.shape, 0, 0)
    found = run(program("accumulate", parameters, [x], x.shape, kind), [x])
    assert found[0, 0] == 2 and not found[0, 1:].any()


def test_each_run_counts_for_itself() -> None:
    x = np.arange(5)
    made = program("trim", (1, 5, 8), [x, np.array(0)], (5,), counted=0)
    executable = Executable(made, NO_WEIGHTS, {}.__getitem__)
    found = [executable.run([x, np.array(n)])[0] for n in (4, 1, 0, 5)]
    assert [array.tolist() for array in found] == [[0, 1, 2, 3], [0], [], [0, 1, 2, 3, 4]]
    assert executable.profile([x, np.array(2)], 3).shape == (3, 1)


def test_boxes_that_overlap_a_better_one_go() -> None:
    """Two boxes share a third of their area, the third touches none."""
    boxes = np.array([[[0, 0, 2, 2], [0, 1, 2, 3], [5, 5, 6, 6]]], np.float32)
    scores = np.array([[[0.5, 0.9, 0.2]]], np.float32)

    def chosen(limit: int, most: float, least: float) -> list[int]:
        limits = [np.array(limit), np.array(most, np.float32), np.array(least, np.float32)]
        arrays = [boxes, scores, *limits]
        made = program("non_max_suppression", (1, 1, 3, 3, 0), arrays, (3, 3))
        found = run(made, arrays)
        kept = found[found[:, 0] >= 0]
        assert (found[len(kept) :] == -1).all()
        return [int(box) for box in kept[:, 2]]

    assert chosen(9, 0.3, 0.0) == [1, 2]
    assert chosen(9, 0.34, 0.0) == [1, 0, 2]
    assert chosen(2, 0.34, 0.0) == [1, 0]
    assert chosen(9, 0.3, 0.2) == [1]
    assert chosen(-1, 0.3, 0.0) == []


def test_the_code_of_a_call_is_what_the_header_says() -> None:
    x = np.zeros((3, 4), np.int16)
    made = program("top_k", (1, 2, 3, 4, 1, 2, 1), [x], (3, 2))
    encoded = encode(made)
    # opcode, words, first argument, function, tiles, parameters
    assert encoded.code.tolist() == [2, 12, 0, 0, 3, 1, 2, 3, 4, 1, 2, 1]
    assert (encoded.symbols, encoded.natives) == ((), ("tw_native_top_k",))
    assert made.scratch_bytes == (4 + 2) * 8
    assert native_signature("top_k", (1, 2, 3, 90, 1, 64, 1)).scratch_bytes == (90 + 64) * 8
    assert native_signature("top_k", (1, 2, 3, 90, 1, 65, 1)).scratch_bytes == (5 * 90 + 65) * 8
    assert program_from_json(program_to_json(made)) == made


@pytest.mark.parametrize(
    ("function", "parameters", "message"),
    [
        ("sort", (), "no native function 'sort'"),
        ("top_k", (1, 2, 3), "takes no 3 parameters"),
        ("top_k", (1, 3, 1, 4, 1, 2, 1), "no element of kind 1 with 3 bytes"),
        ("top_k", (9, 4, 1, 4, 1, 2, 1), "no element of kind 9"),
        ("top_k", (2, 1, 1, 4, 1, 2, 1), "no floating-point element with 1 bytes"),
        ("top_k", (1, 2, 1, 4, 1, 5, 1), "the first 5 of 4 elements"),
        ("combine", (2, 2, 0, 3, 4, 5), "16 bits are joined as float32"),
        ("combine", (3, 2, 0, 3, 4, 5), "16 bits are joined as float32"),
        ("combine", (2, 4, 4, 3, 4, 5), "no way 4 to join"),
        ("accumulate", (2, 4, 2, 1, 3, 4, 0, 0), "no way 2 to join"),
        ("positions", (-1,), "a parameter is out of range"),
        ("positions", (1 << 60,), "a parameter is out of range"),
    ],
)
def test_calls_that_no_function_takes_are_refused(
    function: str, parameters: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        native_signature(function, parameters)
    with pytest.raises(ValueError, match=f"instruction 0: .*{message}"):
        check_program(program(function, parameters, [np.zeros(4, np.int16)], (4,)))


IN, OUT, COUNT = ("input", 0), ("output", 0), ("count", 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (NativeCall("positions", (8,), refs(IN)), "positions has 2 buffers, got 1"),
        (NativeCall("positions", (9,), refs(IN, OUT)), "input 0 has no 9 bytes"),
        (NativeCall("positions", (8,), refs(IN, ("input", 1))), "input 1 has no 64 bytes"),
        (NativeCall("positions", (1,), refs(IN, ("input", 1))), "writes to space 'input'"),
        (NativeCall("positions", (1,), refs(IN, ("arena", 0))), "8 bytes at 0 do not lie"),
        (NativeCall("positions", (1,), refs(IN, COUNT)), "counts another value"),
        (NativeCall("positions", (1,), refs(COUNT, OUT)), "output 0 is not counted"),
        (NativeCall("trim", (1, 8, 1), refs(IN, ("input", 1), OUT, OUT)), "counts another"),
        (NativeCall("trim", (1, 8, 1), refs(IN, ("input", 1), OUT, ("count", 1))), "not counted"),
        (NativeCall("positions", (8,), refs(IN, OUT)), "nothing counts output 'y'"),
    ],
)
def test_calls_that_reach_outside_are_refused(call: Instruction, message: str) -> None:
    ports = Port("x", DType.BOOL, (8,)), Port("n", DType.INT64, ())
    outputs = (Port("y", DType.INT64, (8,), 0),)
    with pytest.raises(ValueError, match=message):
        check_program(Program("p", ports, outputs, (), (call,), 0, 0))


def test_a_counted_dimension_must_be_one_of_the_output() -> None:
    made = program("positions", (4,), [np.zeros(4, np.bool_)], (4,))
    data = program_to_json(made)
    data["outputs"][0]["counted"] = 1
    with pytest.raises(ValueError, match="'y' has no dimension 1"):
        program_from_json(data)
