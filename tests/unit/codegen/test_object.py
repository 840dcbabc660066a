from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import pytest

from tilewright.compiler.codegen.elf import undefined_symbols
from tilewright.compiler.codegen.object import (
    LIBRARY_SYMBOLS,
    emit_assembly,
    emit_object,
    load_objects,
)
from tilewright.compiler.codegen.spills import most_stack_accesses, spilling_loop
from tilewright.compiler.codegen.statistics import (
    SPILL_MARK,
    InnerLoop,
    KernelStatistics,
    function_statistics,
    inner_loops,
    listing,
    statistics,
    vector_registers,
)
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target

HOST = resolve_target("host")
NATIVE_TARGETS = [
    "x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64", "armv7-vfpv4", "riscv64",
    "rv64gc", "wasm32",
]  # fmt: skip


def axpy(lanes: int, name: str = "axpy") -> str:
    """y[0:lanes] += 3 x[0:lanes], with a vector constant that goes to a constant pool."""
    vector = f"<{lanes} x float>"
    factors = ", ".join(f"float {3.0 + i}" for i in range(lanes))
    return f"""
declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})
define void @{name}(ptr %x, ptr %y) nounwind {{
  %a = load {vector}, ptr %x, align 4
  %b = load {vector}, ptr %y, align 4
  %c = call {vector} @llvm.fma.v{lanes}f32({vector} %a, {vector} <{factors}>, {vector} %b)
  store {vector} %c, ptr %y, align 4
  ret void
}}
"""


def many_accumulators(count: int, lanes: int) -> str:
    """A reduction loop that keeps `count` vectors alive."""
    vector = f"<{lanes} x float>"
    numbers = range(count)
    loads = []
    phis = [f"%p{i} = phi {vector} [ zeroinitializer, %entry ], [ %q{i}, %loop ]" for i in numbers]
    steps = []
    for i in numbers:
        loads += [
            f"%g{i} = getelementptr {vector}, ptr %x, i64 {i}",
            f"%l{i} = load {vector}, ptr %g{i}, align 4",
        ]
        steps += [
            f"%q{i} = call {vector} @llvm.fma.v{lanes}f32("
            f"{vector} %l{i}, {vector} %s, {vector} %p{i})",
        ]
    stores = []
    for i in numbers:
        stores += [
            f"%h{i} = getelementptr {vector}, ptr %y, i64 {i}",
            f"store {vector} %q{i}, ptr %h{i}, align 4",
        ]
    lines = [
        f"declare {vector} @llvm.fma.v{lanes}f32({vector}, {vector}, {vector})",
        "define void @reduce(ptr %x, ptr %y, i64 %n) {",
        "entry:",
        f"%s = load {vector}, ptr %y, align 4",
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %entry ], [ %j, %loop ]",
        *phis,
        *loads,
        *steps,
        "%j = add i64 %i, 1",
        "%more = icmp ult i64 %j, %n",
        "br i1 %more, label %loop, label %exit",
        "exit:",
        *stores,
        "ret void",
        "}",
    ]
    return "\n".join(lines)


def machine_code(code: bytes) -> bytes:
    """The instructions of an object file."""
    sections = llvm.ObjectFileRef.from_data(code).sections()
    return b"".join(s.data() for s in sections if s.is_text() and s.size())


def call_axpy(address: int, lanes: int) -> None:
    x, y = np.arange(lanes, dtype=np.float32), np.ones(lanes, np.float32)
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)
    function(x.ctypes.data, y.ctypes.data)
    np.testing.assert_array_equal(y, 1 + x * (3 + np.arange(lanes)))


@pytest.mark.parametrize("bits", [128, 256, 512])
def test_load_and_call(bits: int) -> None:
    if bits > HOST.vector_bits:
        pytest.skip("the host has no such vectors")
    lanes = bits // 32
    library = load_objects([emit_object(axpy(lanes), HOST)])
    call_axpy(library.address("axpy"), lanes)
    library.close()
    with pytest.raises(CompilerError, match="closed"):
        library.address("axpy")


def test_libraries_are_independent_and_hold_several_objects() -> None:
    first = load_objects([emit_object(axpy(4), HOST), emit_object(axpy(4, "other"), HOST)])
    second = load_objects([emit_object(axpy(4), HOST)])
    assert first.address("axpy") != second.address("axpy")
    second.close()
    call_axpy(first.address("axpy"), 4)
    call_axpy(first.address("other"), 4)


def test_unknown_symbol() -> None:
    library = load_objects([emit_object(axpy(4), HOST)])
    with pytest.raises(CompilerError, match="cannot load 'nothing'"):
        library.address("nothing")


def test_two_definitions_of_one_symbol() -> None:
    code = emit_object(axpy(4), HOST)
    with pytest.raises(CompilerError, match="axpy"):
        load_objects([code, code])


def test_damaged_object() -> None:
    with pytest.raises(CompilerError, match="cannot load object code"):
        load_objects([b"not an object"])


def test_a_call_into_the_maths_library_is_refused() -> None:
    call = "declare float @expf(float)\ndefine float @f(float %x) {\n"
    call += "%y = call float @expf(float %x)\nret float %y\n}"
    with pytest.raises(CompilerError, match="would call expf"):
        emit_object(call, HOST)


def test_memory_functions_are_there() -> None:
    copy = """
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @copy(ptr %to, ptr %from, i64 %bytes) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  ret void
}"""
    code = emit_object(copy, HOST)
    assert undefined_symbols(code) <= set(LIBRARY_SYMBOLS)
    source, target = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    library = load_objects([code])
    ctypes.CFUNCTYPE(None, *kinds)(library.address("copy"))(
        target.ctypes.data, source.ctypes.data, source.nbytes
    )
    np.testing.assert_array_equal(target, source)


@pytest.mark.parametrize("name", NATIVE_TARGETS)
def test_every_target_emits(name: str) -> None:
    target = resolve_target(name)
    if not target.fma and name != "wasm32":
        pytest.skip("axpy has a fused operation")
    code = emit_object(axpy(4), target)
    assert code.startswith(b"\0asm" if name == "wasm32" else b"\x7fELF")
    assert "axpy" in function_statistics(emit_assembly(axpy(4), target), target)


@pytest.mark.parametrize("name", NATIVE_TARGETS[:-2])
def test_fma_is_an_instruction_where_the_target_says_so(name: str) -> None:
    target = resolve_target(name)
    if target.fma:
        assert statistics(emit_assembly(axpy(4), target), target).fmas == 1
        assert not undefined_symbols(emit_object(axpy(4), target))
    else:
        with pytest.raises(CompilerError, match=f"'{name}' would call fmaf"):
            emit_object(axpy(4), target)


def test_same_text_gives_same_bytes() -> None:
    assert emit_object(axpy(4), HOST) == emit_object(axpy(4), HOST)


def test_invalid_ir() -> None:
    with pytest.raises(CompilerError, match="LLVM, for target"):
        emit_object("define void @broken() {", HOST)


def test_unknown_triple() -> None:
    target = Target("odd", "vax-dec-ultrix", "x", (), 128, 16)
    with pytest.raises(CompilerError, match="odd"):
        emit_object(axpy(4), target)


def test_threads_compile_alike() -> None:
    target = resolve_target("x86-64-v4")
    texts = [many_accumulators(count, 16) for count in (8, 40)]
    expected = [emit_object(text, target) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda text: emit_object(text, target), texts * 12))
    assert results == expected * 12


@pytest.mark.parametrize(
    ("name", "lanes", "registers"),
    [
        ("x86-64-v4", 16, 32),
        ("x86-64-v4", 8, 32),
        ("x86-64-v3", 8, 16),
        ("aarch64", 4, 32),
        ("riscv64", 4, 32),
    ],
)
def test_spills_are_counted(name: str, lanes: int, registers: int) -> None:
    target = resolve_target(name)
    few = registers // 2 - 4
    fits = statistics(emit_assembly(many_accumulators(few, lanes), target), target)
    assert fits.spills == 0
    assert fits.inner_fmas == fits.fmas == few
    assert few <= fits.inner_instructions < fits.instructions
    spills = statistics(emit_assembly(many_accumulators(registers + 8, lanes), target), target)
    assert spills.spill_stores >= 8
    assert spills.spill_reloads >= 8
    assert 8 <= spills.inner_spills <= spills.spills
    assert spills.fmas == registers + 8


@pytest.mark.parametrize(
    ("name", "lanes"),
    [("x86-64-v4", 16), ("x86-64-v3", 8), ("aarch64", 4), ("cortex-a7", 4), ("riscv64", 16)],
)
def test_registers_are_counted_and_code_is_listed(name: str, lanes: int) -> None:
    target = resolve_target(name)
    few = emit_assembly(many_accumulators(3, lanes), target)
    (loop,) = inner_loops(few, target)
    assert 3 < loop.registers <= vector_registers(few, target) <= 8
    many = emit_assembly(many_accumulators(target.vector_registers + 8, lanes), target)
    assert vector_registers(many, target) == target.vector_registers
    lines = list(listing(many, target))
    counted = statistics(many, target)
    marked = [line for line in lines if line.endswith(SPILL_MARK)]
    assert 8 <= len(marked) == counted.spills
    assert sum(line.startswith("    ") for line in lines) == counted.instructions
    assert [line.endswith("<- innermost loop") for line in lines].count(True) == 1
    assert not any(line.strip().startswith((".cfi", ".p2align", "#", "//")) for line in lines)


@pytest.mark.parametrize(
    ("name", "code", "count"),
    [
        ("x86-64-v4", "vaddps\t(%rax), %xmm1, %ymm17\n\tvaddps\t%zmm1, %zmm2, %zmm1", 3),
        ("aarch64", "fmul\tv0.4s, v1.4s, v0.s[0]\n\tldr\td1, [x9, #32]\n\tb.ge\t.LBB0_3", 2),
        ("armv7", "vmul.f32\tq8, q9, d4[0]\n\tvadd.f32\ts8, s9, s10\n\tadd\tr5, r6, #8", 3),
    ],
)
def test_a_register_has_many_names(name: str, code: str, count: int) -> None:
    assembly = f"# -- Begin function f\nf:\n\t{code}\n# -- End function\n"
    assert vector_registers(assembly, resolve_target(name)) == count


@pytest.mark.parametrize(
    ("name", "lanes"), [("x86-64-v4", 16), ("x86-64-v4", 8), ("x86-64-v3", 8), ("aarch64", 4)]
)
def test_a_loop_that_lives_on_the_stack_is_found(name: str, lanes: int) -> None:
    target = resolve_target(name)
    printed: list[str] = []

    def judge(count: int) -> InnerLoop | None:
        text = many_accumulators(count, lanes)
        code = emit_object(text, target)
        assembly = emit_assembly(text, target)
        counted = statistics(assembly, target).inner_spills
        scanned = most_stack_accesses(code, target)
        assert scanned == pytest.approx(counted, abs=2)
        return spilling_loop(code, lambda: printed.append(name) or assembly, target)

    assert judge(target.vector_registers // 2 - 4) is None
    assert not printed, "code without stack traffic is not printed"
    loop = judge(2 * target.vector_registers)
    assert loop is not None and printed
    assert loop.spills > target.vector_registers and loop.fmas == 2 * target.vector_registers


def test_few_spills_among_many_instructions_are_no_reason() -> None:
    """Like Winograd's F(6) transform: 80 of 640 instructions."""
    target = resolve_target("x86-64-v4")
    head = "# -- Begin function f\n.LBB0_1: # =>This Inner Loop Header: Depth=1\n"
    spill, other = "\tvmovaps\t64(%rsp), %zmm0\n", "\tvaddps\t%zmm0, %zmm1, %zmm1\n"
    load = b"\x62\xf1\x7c\x48\x28\x44\x24\x01"
    suspect = load * 80 + b"\x48\x83\xf8\x10\x0f\x8c\x76\xfd\xff\xff"
    assert most_stack_accesses(suspect, target) == 80

    def judge(spills: int, others: int) -> InnerLoop | None:
        assembly = head + spill * spills + other * others + "# -- End function\n"
        return spilling_loop(suspect, lambda: assembly, target)

    assert judge(80, 560) is None
    assert judge(20, 10) is None
    found = judge(80, 200)
    assert found is not None and found.spills == 80


def test_callee_saved_registers_are_no_spills() -> None:
    target = resolve_target("aarch64")
    assembly = emit_assembly(many_accumulators(14, 4), target)
    assert "d8" in assembly
    assert statistics(assembly, target).spills == 0


def test_numbers_are_no_comments() -> None:
    target = resolve_target("aarch64")
    head = "# -- Begin function f\nf:\n.LBB0_1: // =>This Inner Loop Header: Depth=1\n"
    line = "\tldur\ts18, [x15, #-8] // 4-byte Folded Reload\n\tb.ne\t.LBB0_1\n"
    (loop,) = inner_loops(head + line + "# -- End function\n", target)
    assert loop.instructions == ("ldur s18, [x15, #-8]", "b.ne .LBB0_1")


def test_a_frame_pointer_is_a_pointer_unless_a_frame_is_set_up() -> None:
    target = resolve_target("x86-64-v3")
    line = "\tvmovups\t(%rbp), %ymm0\n"
    head, tail = "# -- Begin function f\nf:\n", "# -- End function\n"
    assert statistics(head + line + tail, target).spills == 0
    framed = statistics(head + "\tmovq\t%rsp, %rbp\n" + line + tail, target)
    assert (framed.spill_stores, framed.spill_reloads) == (0, 1)
    store = "\tmovq\t%rsp, %rbp\n\tvmovups\t%ymm0, -32(%rbp)\n"
    assert statistics(head + store + tail, target).spill_stores == 1


def test_statistics_are_kept_by_function_and_add_up() -> None:
    target = resolve_target("x86-64-v3")
    text = axpy(8) + axpy(8, "other").split("\n", 2)[2]
    assembly = emit_assembly(text, target)
    parts = function_statistics(assembly, target)
    assert set(parts) == {"axpy", "other"}
    total = statistics(assembly, target)
    assert total == parts["axpy"] + parts["other"]
    assert total.fmas == 2
    assert KernelStatistics.from_json(total.to_json()) == total


@pytest.mark.parametrize("name", ["x86-64-v4", "x86-64-v3", "aarch64", "riscv64"])
def test_innermost_loops_hold_what_the_statistics_count(name: str) -> None:
    target = resolve_target(name)
    assembly = emit_assembly(many_accumulators(40, 4) + axpy(4).split("\n", 2)[2], target)
    total = statistics(assembly, target)
    (loop,) = inner_loops(assembly, target)
    assert loop.function == "reduce"
    assert (len(loop.instructions), loop.fmas) == (total.inner_instructions, total.inner_fmas)
    assert loop.spills == total.inner_spills > 0
    assert loop.fmas == 40 < total.fmas == 41, "one more is in no loop"
    multiply_adds = [
        i for i in loop.instructions if "fmadd" in i or i.startswith(("vfmacc", "fmla"))
    ]
    assert len(multiply_adds) == 40


def test_nothing_of_a_module_stays_in_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's global context keeps types, constants and metadata for ever: a tuner's memory grew by
    that."""
    contexts = []

    def created() -> llvm.ContextRef:
        contexts.append(make())
        return contexts[-1]

    make = llvm.create_context
    monkeypatch.setattr(llvm, "create_context", created)
    emit_object(axpy(4), HOST)
    emit_assembly(axpy(4), HOST)
    with pytest.raises(CompilerError):
        emit_object("no IR", HOST)
    assert len(contexts) == 3 and all(context.closed for context in contexts)
