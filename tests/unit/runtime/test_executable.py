"""Executables of hand-written kernels: their results, refusals, and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_int64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import (
    InvalidArgumentError,
    InvalidInputError,
    OutOfMemoryError,
    StoppedError,
)
from tilewright.compiler.runtime.executable import Executable
from tilewright.compiler.runtime.inputs import Placed
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec, KernelSpec
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.runtime.program import (
    BufferRef,
    BufferSpace,
    Copy,
    KernelCall,
    Port,
    Program,
)
from tilewright.compiler.runtime.program_check import check_program
from tilewright.compiler.runtime.program_encoding import encode
from tilewright.compiler.runtime.program_json import program_from_json, program_to_json
from tilewright.compiler.runtime.sizing import sizing_functions
from tilewright.compiler.runtime.stopping import StopFlag
from tilewright.compiler.runtime.weights import WeightBlock

N = 200
ROLES = {"in": (BufferRole.INPUT, N), "out": (BufferRole.OUTPUT, N)}
WEIGHTED = {"in": (BufferRole.INPUT, N), "w": (BufferRole.WEIGHT, N), "out": (BufferRole.OUTPUT, N)}
BIAS = np.arange(N, dtype=np.float32)

AddressOf = Callable[[str], int]


def ref(space: str, offset: int = 0) -> BufferRef:
    return BufferRef(BufferSpace(space), offset)


@pytest.fixture
def program(make_spec: Callable[..., KernelSpec]) -> Program:
    """y = 4 * a + w, z = b (a copy); the arena holds 2 * a and 4 * a."""
    shape = (N // 8, 8)
    return Program(
        name="model",
        inputs=(Port("a", DType.FLOAT32, shape), Port("b", DType.INT64, (3,))),
        outputs=(Port("y", DType.FLOAT32, shape), Port("z", DType.INT64, (3,))),
        kernels=(
            make_spec("twice", {"twice": N}, ROLES, scratch_bytes=100),
            make_spec("add", {"add_weight": N}, WEIGHTED),
        ),
        instructions=(
            KernelCall(0, (ref("input", 0), ref("arena", 0))),
            KernelCall(0, (ref("arena", 0), ref("arena", 832))),
            KernelCall(1, (ref("arena", 832), ref("weights", 64), ref("output", 0))),
            Copy(ref("output", 1), ref("input", 1), 24),
        ),
        arena_bytes=1664,
        weight_bytes=896,
    )


@pytest.fixture
def weights(program: Program) -> np.ndarray:
    block = WeightBlock(896)
    first = replace(program.kernels[1].buffers[1], shape=(8,), bytes=32)
    assert block.add(first, np.full(8, 9, np.float32)) == 0
    assert block.add(program.kernels[1].buffers[1], BIAS + 5) == 64
    assert block.add(program.kernels[1].buffers[1], BIAS + 5) == 64
    assert block.bytes == 896
    return block.built()


@pytest.fixture
def executable(program: Program, weights: np.ndarray, address_of: AddressOf) -> Executable:
    return Executable(program, weights, address_of)


def test_narrow_pointers_are_put_into_the_table_one_by_one(
    program: Program,
    weights: np.ndarray,
    address_of: AddressOf,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a pointer has 32 bits, code that fills tables of 64-bit numbers would overwrite others."""
    calls = []
    monkeypatch.setattr(
        "tilewright.compiler.runtime.context.sizeof", lambda kind: 4 + 4 * (kind is c_int64)
    )
    size, fill = sizing_functions()
    monkeypatch.setattr(
        "tilewright.compiler.runtime.context.sizing_functions",
        lambda: (size, lambda *given: (calls.append(given), fill(*given))),
    )
    narrow = Executable(program, weights, address_of)
    a = np.arange(N, dtype=np.float32).reshape(N // 8, 8)
    for _ in range(2):
        y, _ = narrow.run([a, np.arange(3)])
        np.testing.assert_array_equal(y, 4 * a + (BIAS + 5).reshape(a.shape))
    assert len(calls) == 1, "the code alone"


def inputs(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "a": rng.standard_normal((N // 8, 8)).astype(np.float32),
        "b": rng.integers(-9, 9, 3),
    }


def expect(outputs: list[np.ndarray], given: dict[str, np.ndarray]) -> None:
    expected = 4 * given["a"] + (BIAS + 5).reshape(N // 8, 8)
    np.testing.assert_array_equal(outputs[0], expected)
    np.testing.assert_array_equal(outputs[1], given["b"])
    assert [o.dtype for o in outputs] == [np.float32, np.int64]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_program_computes(executable: Executable, threads: int) -> None:
    executable = executable.with_threads(threads)
    for seed in range(20):
        given = inputs(seed)
        expect(executable.run(given), given)
        expect(executable.run(list(given.values())), given)
        expect(executable.run(tuple(given.values())), given)


def test_outputs_of_two_runs_are_different_arrays(executable: Executable) -> None:
    first_in, second_in = inputs(1), inputs(2)
    first = executable.run(first_in)
    second = executable.run(second_in)
    expect(first, first_in)
    expect(second, second_in)
    assert all(output.ctypes.data % 64 == 0 and output.flags.writeable for output in first)


def test_an_interrupted_run_leaves_its_flag_to_no_other(
    executable: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, flag = inputs(), StopFlag()
    flag.is_set = True
    arrays = list(given.values())

    def interrupted(_program: int) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(executable, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            executable.run_into(arrays, {}, stop=flag)
    expect(executable.run(given), given)
    with pytest.raises(StoppedError):
        executable.run_into(arrays, {}, stop=flag)


def test_inputs_and_outputs_lie_where_they_are_told_to(executable: Executable) -> None:
    given = inputs(5)
    shape, dtype = given["a"].shape, given["a"].dtype
    a, y = (Placed.at_start(aligned_empty(N * 4 + more), shape, dtype) for more in (0, 64))
    a.array[...] = given["a"]
    outputs = executable.run_into([a, given["b"]], {0: y})
    assert outputs[0] is y.array and y.array.ctypes.data == y.address
    expect(outputs, given)
    expect(executable.run(given), given)  # elsewhere again
    block = aligned_empty(N * 4 + 64)
    frozen = block[: N * 4]
    frozen.flags.writeable = False
    for wrong in (block[: N * 4 - 4], block[4:], frozen):
        with pytest.raises(ValueError, match="do not hold 800 to be written"):
            Placed.at_start(wrong, shape, dtype)
    smaller = Placed.at_start(block, (3, 8), dtype)
    with pytest.raises(InvalidInputError, match=r"input 'a' has shape \(3, 8\), expected"):
        executable.run_into([smaller, given["b"]], {})


def test_inputs_may_lie_anyhow(executable: Executable) -> None:
    given = inputs(3)
    transposed = given | {"a": np.asfortranarray(given["a"])}
    wide = np.zeros((N // 8, 16), np.float32)
    wide[:, ::2] = given["a"]
    raw = np.zeros(N * 4 + 64, np.uint8)
    odd = raw[-raw.ctypes.data % 64 + 4 :][: N * 4].view(np.float32).reshape(N // 8, 8)
    odd[:] = given["a"]
    frozen = given["a"].copy()
    frozen.flags.writeable = False
    for a in (transposed["a"], wide[:, ::2], odd, frozen, given["a"].view(np.matrix)):
        expect(executable.run({**given, "a": a}), given)


def test_aligned_inputs_are_read_where_they_lie(
    executable: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {}
    for name, array in inputs(4).items():
        block = aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
        block[...] = array
        given[name] = block

    def refuse(*_: object) -> None:
        raise AssertionError("an input was copied")

    monkeypatch.setattr("tilewright.compiler.runtime.context.RunContext.stage", refuse)
    expect(executable.run(given), given)
    with pytest.raises(AssertionError, match="copied"):
        executable.run({**given, "a": np.asfortranarray(given["a"])})


def test_an_input_without_elements_and_a_read_only_one() -> None:
    """Neither shows its memory as a writable buffer."""
    shapes = {"none": (0, 4), "some": (16,)}
    ports = tuple(Port(name, DType.FLOAT32, shape) for name, shape in shapes.items())
    program = Program(
        name="copies",
        inputs=ports,
        outputs=ports,
        kernels=(),
        instructions=(
            Copy(ref("output", 0), ref("input", 0), 0),
            Copy(ref("output", 1), ref("input", 1), 64),
        ),
        arena_bytes=0,
        weight_bytes=0,
    )
    executable = Executable(program, aligned_empty(0), lambda symbol: 0)
    some = aligned_empty(64).view(np.float32)
    some[:] = np.arange(16)
    some.flags.writeable = False
    none, copied = executable.run([np.zeros((0, 4), np.float32), some])
    assert none.shape == (0, 4)
    np.testing.assert_array_equal(copied, np.arange(16))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_profile_has_the_time_of_every_instruction(executable: Executable, threads: int) -> None:
    executable = executable.with_threads(threads)
    given = inputs(6)
    seconds = executable.profile(given, 5)
    assert seconds.shape == (5, 4)
    assert (seconds >= 0).all() and seconds.any()
    expect(executable.run(given), given)
    with pytest.raises(InvalidInputError, match="missing"):
        executable.profile({"a": given["a"]}, 1)


def test_runs_at_the_same_time(executable: Executable) -> None:
    executable = executable.with_threads(2)

    def run(seed: int) -> None:
        given = inputs(seed)
        for _ in range(30):
            expect(executable.run(given), given)

    with ThreadPoolExecutor(5) as callers:
        list(callers.map(run, range(15)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": None}, "input 'a' is missing"),
        ({"c": np.zeros(3)}, "there is no input 'c', the inputs are 'a', 'b'"),
        ({"b": None, "c": np.zeros(3)}, "input 'b' is missing, got unknown input 'c'"),
        ({"a": np.zeros((8, 25), np.float32)}, r"'a' has shape \(8, 25\), expected \(25, 8\)"),
        ({"a": np.zeros((25, 8), np.float64)}, "'a' has dtype float64, expected float32"),
        ({"a": np.zeros((25, 8), ">f4")}, "'a' has dtype >f4, expected float32"),
        ({"b": [1, 2, 3]}, "'b' is of type list, expected an array of int64"),
        ({"b": np.int64(3)}, r"'b' has shape \(\), expected \(3,\)"),
    ],
)
def test_wrong_inputs_are_named(
    executable: Executable, change: dict[str, object], message: str
) -> None:
    given = {k: v for k, v in {**inputs(), **change}.items() if v is not None}
    with pytest.raises(InvalidInputError, match=message):
        executable.run(given)  # type: ignore[arg-type]
    good = inputs(7)
    expect(executable.run(good), good)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([np.zeros(3)], "expected 2 inputs"),
        (np.zeros((2, 3)), "got ndarray"),
        (None, "got NoneType"),
        ([np.zeros(3), np.zeros(3)], r"'a' has shape \(3,\)"),
    ],
)
def test_wrong_sequences_are_refused(executable: Executable, given: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        executable.run(given)  # type: ignore[arg-type]


def test_a_failed_check_loses_no_context(executable: Executable) -> None:
    for _ in range(3):
        with pytest.raises(InvalidInputError):
            executable.run([np.zeros(1), np.zeros(1)])
        executable.run(inputs())
    assert len(executable._idle) == 1


def test_a_program_reads_back_to_an_equal_value(program: Program) -> None:
    again = program_from_json(json.loads(json.dumps(program_to_json(program))))
    assert again == program
    assert encode(again).code.tolist() == encode(program).code.tolist()


def test_the_code_is_what_the_header_says(program: Program) -> None:
    encoded = encode(program)
    assert encoded.code.tolist() == [
        *(0, 6, 0, 1, 0, N),
        *(0, 6, 2, 1, 0, N),
        *(0, 6, 4, 1, 1, N),
        *(1, 5, 7, 8, 24),
    ]
    assert encoded.symbols == ("twice", "add_weight")
    assert len(encoded.refs) == 9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (KernelCall(2, ()), "there is no kernel 2"),
        (KernelCall(0, (ref("input"),)), "has 2 buffers, got 1"),
        (KernelCall(0, (ref("input"), ref("input"))), "writes to space 'input'"),
        (KernelCall(0, (ref("input"), ref("weights"))), "writes to space 'weights'"),
        (KernelCall(0, (ref("input", 2), ref("arena"))), "input 2 has no 800 bytes"),
        (KernelCall(0, (ref("input", 1), ref("arena"))), "input 1 has no 800 bytes"),
        (KernelCall(0, (ref("input"), ref("arena", 896))), "800 bytes at 896"),
        (KernelCall(0, (ref("input"), ref("arena", 4))), "aligned"),
        (KernelCall(0, (ref("input"), ref("arena", -64))), "negative"),
        (KernelCall(0, (ref("weights", 128), ref("arena"))), "800 bytes at 128"),
        (Copy(ref("arena", 1600), ref("input", 1), 65), "input 1 has no 65 bytes"),
        (Copy(ref("weights"), ref("input", 1), 8), "writes to space 'weights'"),
    ],
)
def test_programs_that_reach_outside_are_refused(
    program: Program, call: KernelCall | Copy, message: str
) -> None:
    wrong = replace(program, instructions=(*program.instructions, call))
    with pytest.raises(ValueError, match=message):
        check_program(wrong)
    with pytest.raises(ValueError, match=message):
        program_from_json(program_to_json(wrong))


@pytest.mark.parametrize("role", [BufferRole.OUTPUT, BufferRole.SHARED])
@pytest.mark.parametrize(
    ("places", "apart"),
    [
        ((ref("arena", 0), ref("arena", 832)), True),
        ((ref("arena", 832), ref("arena", 0)), True),
        ((ref("arena", 0), ref("arena", 0)), False),
        ((ref("arena", 0), ref("arena", 768)), False),
        ((ref("arena", 768), ref("arena", 0)), False),
        ((ref("arena", 0), ref("output", 0)), True),
        ((ref("output", 0), ref("output", 0)), False),
    ],
)
def test_what_a_kernel_writes_lies_apart(
    program: Program,
    make_spec: Callable[..., KernelSpec],
    places: tuple[BufferRef, BufferRef],
    apart: bool,
    role: BufferRole,
) -> None:
    roles = {"in": (BufferRole.INPUT, N), "one": (role, N), "two": (BufferRole.OUTPUT, N)}
    call = KernelCall(2, (ref("input"), *places))
    made = replace(
        program,
        kernels=(*program.kernels, make_spec("both", {"twice": N}, roles)),
        instructions=(call, *program.instructions),
    )
    if apart:
        check_program(made)
    else:
        with pytest.raises(ValueError, match="kernel 'both' has 'one' and 'two' in one place"):
            check_program(made)


def test_an_output_that_nothing_writes_is_refused(program: Program) -> None:
    with pytest.raises(ValueError, match="nothing writes output 'z'"):
        check_program(replace(program, instructions=program.instructions[:-1]))


def test_weights_must_fit(program: Program, weights: np.ndarray, address_of: AddressOf) -> None:
    with pytest.raises(ValueError, match="896 aligned bytes of weights"):
        Executable(program, weights[:-64], address_of)
    with pytest.raises(ValueError, match="threads"):
        Executable(program, weights, address_of, threads=0)


def test_a_weight_of_the_wrong_size_is_refused(program: Program) -> None:
    spec: BufferSpec = program.kernels[1].buffers[1]
    with pytest.raises(ValueError, match="packs into 800 bytes, its buffer has 4"):
        WeightBlock(4096).add(replace(spec, bytes=4), BIAS)
    with pytest.raises(ValueError, match="expected an array of shape"):
        WeightBlock(4096).add(spec, BIAS[:-1])
    with pytest.raises(ValueError, match="takes 800 bytes, 64 are free"):
        WeightBlock(64).add(spec, BIAS)


def test_inputs_that_are_converted_live_until_the_run_is_over(address_of: AddressOf) -> None:
    """Scalars of NumPy become arrays; where such an array lies well it is read there."""
    names = "abcd"
    ports = tuple(Port(name, DType.INT64, ()) for name in names)
    calls = tuple(Copy(ref("output", n), ref("input", n), 8) for n in range(len(names)))
    made = Program("p", ports, ports, (), calls, 0, 0)
    executable = Executable(made, aligned_empty(0), address_of)
    held = []  # so that each run finds other memory free
    for number in range(100):
        held.append(np.array(number))
        given = [np.int64(number + n) for n in range(len(names))]
        assert [int(array) for array in executable.run(given)] == given


def test_bfloat16_has_its_type_where_that_is_installed(
    address_of: AddressOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    port = Port("x", DType.BFLOAT16, (4,))
    copy = Copy(ref("output"), ref("input"), 8)
    echo = Program("echo", (port,), (replace(port, name="y"),), (), (copy,), 0, 0)
    executable = Executable(echo, np.empty(0, np.uint8), address_of)
    given = np.array([1, -2, 0.5, 3], ml_dtypes.bfloat16)
    for form in (given, given.view(np.uint16)):
        (output,) = executable.run({"x": form})
        assert output.dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(output, given)
        (bits,) = executable.run({"x": form}, labels=False)
        assert bits.dtype == np.uint16
        np.testing.assert_array_equal(bits, given.view(np.uint16))
    monkeypatch.setattr("tilewright.compiler.runtime.executable.bfloat16_type", lambda: None)
    without = Executable(echo, np.empty(0, np.uint8), address_of)
    (bits,) = without.run({"x": given})
    assert bits.dtype == np.uint16


class Lender:
    """A tensor of another library."""

    def __init__(self, array: np.ndarray, error: Exception | None = None) -> None:
        self._array = array
        self._error = error

    def __dlpack__(self, **options: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("named", [True, False])
def test_inputs_are_borrowed_and_outputs_lent_by_dlpack(address_of: AddressOf, named: bool) -> None:
    ports = (Port("x", DType.FLOAT32, (4,)), Port("z", DType.FLOAT32, (4,)))
    calls = tuple(Copy(ref("output", n), ref("input", n), 16) for n in range(2))
    echo = Executable(Program("echo", ports, ports, (), calls, 0, 0), aligned_empty(0), address_of)
    x, z = np.arange(4, dtype=np.float32), np.ones(4, np.float32)

    def run(given: Any) -> Any:
        return echo.run({"x": x, "z": given} if named else [x, given])

    outputs = run(Lender(z))
    assert [np.from_dlpack(output).tolist() for output in outputs] == [x.tolist(), z.tolist()]
    with pytest.raises(InvalidInputError, match="'z' has dtype float64, expected float32"):
        run(Lender(z.astype(np.float64)))
    for error in (BufferError("requires grad"), RuntimeError("on a GPU"), TypeError("bfloat16")):
        with pytest.raises(InvalidInputError, match=f"'z' is a Lender that .*: {error}"):
            run(Lender(z, error))


def test_an_arena_that_does_not_fit_into_memory_is_refused(
    program: Program, weights: np.ndarray, address_of: AddressOf
) -> None:
    huge = Executable(replace(program, arena_bytes=1 << 46), weights, address_of)
    with pytest.raises(OutOfMemoryError, match="not enough memory to run 'model': "):
        huge.run(inputs())


@pytest.mark.parametrize("threads", [0, -1, 10**9, 1.5, "2", None])
def test_a_number_of_threads_that_cannot_be_is_refused(
    program: Program, weights: np.ndarray, address_of: AddressOf, threads: int
) -> None:
    with pytest.raises(InvalidArgumentError, match="expected 1 to 256 threads, got"):
        Executable(program, weights, address_of, threads)
