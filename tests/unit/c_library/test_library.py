"""C libraries against executables of the same programs, and the programs that they refuse."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.unit.c_library.conftest import MODELS, Arrays, Loaded, aligned, compiled, drawing
from tilewright.compiler import driver
from tilewright.compiler.api import compile_model
from tilewright.compiler.bindings.c_library import (
    ToolchainError,
    WeightPlace,
    write_c_library,
    write_executable,
)
from tilewright.compiler.bindings.c_library import toolchain as tools
from tilewright.compiler.bindings.c_library.header import SHORT_VECTORS, Interface
from tilewright.compiler.bindings.c_library.library import NATIVE_FUNCTIONS
from tilewright.compiler.bindings.c_library.toolchain import WARNINGS, Toolchain, toolchain
from tilewright.compiler.driver import load_program
from tilewright.compiler.errors import ArtifactError, InvalidArgumentError
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.runtime import native
from tilewright.compiler.sizes.ranges import parse_range
from tilewright.compiler.targets.host import host_target, resolve_target
from tilewright.compiler.targets.target import Target

Load = Callable[..., Loaded]
OK, SIZE, MEMORY, POINTER, WEIGHTS, _, VECTORS, REFUSED = range(8)
VIT = MODELS / "vit.onnx"


def pixels(batch: int = 1) -> Arrays:
    rng = np.random.default_rng(batch)
    return {"pixels": rng.normal(size=(batch, 3, 32, 32)).astype(np.float32)}


def test_a_model_gives_what_its_executable_gives(load: Load) -> None:
    library = load(VIT, batch=1)
    status, model = library.init(library.memory())
    outputs = library.outputs()
    assert status == OK
    for seed in (1, 2):  # the second run does not depend on the first
        given = {"pixels": np.roll(pixels()["pixels"], seed)}
        assert library.run(model, given, outputs) == (OK, [])
        np.testing.assert_array_equal(
            outputs[0], load_program(compiled(VIT, batch=1)).run(given)[0]
        )


def test_one_library_runs_all_sizes_of_its_ranges(load: Load) -> None:
    library = load(VIT, batch="1..6")
    executable = load_program(compiled(VIT, batch="1..6"))
    status, model = library.init(library.memory(batch=5))
    assert status == OK
    for batch in (5, 1, 3, 3, 2):
        outputs = library.outputs(batch=batch)
        assert library.run(model, pixels(batch), outputs, batch=batch) == (OK, [])
        np.testing.assert_array_equal(outputs[0], executable.run(pixels(batch))[0])


def test_sizes_outside_of_ranges_and_of_memory_are_refused(load: Load) -> None:
    library = load(VIT, batch="2..6")
    for batch in (-1, 0, 1, 7, 1 << 62):
        assert library("memory_bytes")(*library.sizes(batch=batch), 1) == 0
        assert library("output_shape")(*library.sizes(batch=batch), 0, None) == -1
    assert library("memory_bytes")(*library.sizes(batch=2), 0) == 0
    assert library("output_shape")(*library.sizes(batch=2), 1, None) == -1
    _, model = library.init(library.memory(batch=2))
    outputs = library.outputs(batch=6)
    assert library.run(model, pixels(6), outputs, batch=7) == (SIZE, [])
    assert library.run(model, pixels(6), outputs, batch=6) == (MEMORY, [])
    assert (outputs[0] == 111).all()
    assert library.run(model, pixels(2), library.outputs(batch=2), batch=2) == (OK, [])


def test_bad_memory_pointers_and_weights_are_refused(load: Load) -> None:
    library = load(VIT, batch=1)
    memory = library.memory()
    short, outputs = library.init(memory[:-1])[1], library.outputs()
    assert library.run(short, pixels(), outputs) == (MEMORY, [])
    assert library.init(memory[:64])[0] == MEMORY
    assert library.init(memory[1:])[0] == POINTER
    assert library.init(memory, weights=library.weights[:-64])[0] == WEIGHTS
    shifted = np.zeros(library.weights.nbytes + 128, np.uint8)
    start = 1 - shifted.ctypes.data % 64 % 64
    assert library.init(memory, weights=shifted[start:][: library.weights.nbytes])[0] == POINTER
    _, model = library.init(memory)
    spare = library.outputs()[0].reshape(-1)
    assert library.run(model, pixels(), [spare[1:]]) == (POINTER, [])
    texts = [library("status_text")(status) for status in (*range(8), -1)]
    assert texts[POINTER] == b"a pointer is NULL or not aligned"
    assert all(texts)


def test_tiles_are_shared_out_to_the_callers_threads(load: Load) -> None:
    library = load(VIT, batch=1)
    work_type = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int
    )
    shared = []

    @ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, work_type, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    )
    def share(_: int, work: Callable[..., None], argument: int, tiles: int, threads: int) -> None:
        shared.append(tiles)
        for thread, first in enumerate(range(0, tiles, -(-tiles // threads))):
            work(argument, first, min(tiles, first + -(-tiles // threads)), thread)

    class Threads(ctypes.Structure):
        _fields_ = (
            ("share", type(share)),
            ("context", ctypes.c_void_p),
            ("threads", ctypes.c_int),
        )

    status, model = library.init(library.memory(3), ctypes.byref(Threads(share, None, 3)))
    outputs = library.outputs()
    assert (status, library.run(model, pixels(), outputs)) == (OK, (OK, []))
    assert shared
    np.testing.assert_array_equal(
        outputs[0], compile_model(VIT, dims={"batch": 1}).run(pixels())[0]
    )
    assert library.init(library.memory(3), ctypes.byref(Threads(share, None, 0)))[0] == POINTER


def test_counted_outputs_say_how_many(load: Load) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["found"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 5))],
        [helper.make_tensor_value_info("found", TensorProto.INT64, (2, "n"))],
    )
    library = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    _, model = library.init(library.memory())
    x = np.array([[0, 1, 0, 2, 0], [3, 0, 0, 0, 4]], np.float32)
    outputs = library.outputs()
    assert library.run(model, {"x": x}, outputs) == (OK, [4])
    np.testing.assert_array_equal(outputs[0].reshape(-1)[:8].reshape(2, 4), np.nonzero(x))


def test_random_numbers_differ_from_run_to_run(load: Load) -> None:
    library = load(drawing())
    status, model = library.init(library.memory())
    assert status == OK
    drawn = []
    for _ in range(3):
        outputs = library.outputs()
        assert library.run(model, {"x": np.zeros((1, 9), np.float32)}, outputs) == (OK, [])
        drawn.append(np.array(outputs[0]))
    assert len(np.unique(drawn)) == 27 and np.min(drawn) >= 0 and np.max(drawn) < 1


def test_names_cannot_break_out_of_the_header(tmp_path: Path) -> None:
    evil = 'x */ int broken; /* "\n#error here'
    node = helper.make_node("Neg", [evil], ["sizes"])
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(evil, TensorProto.FLOAT, (2,))],
        [helper.make_tensor_value_info("sizes", TensorProto.FLOAT, (2,))],
    )
    made = compiled(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    for name in ("inputs", "made", "sizes", "model", "status"):  # words of the header itself
        write_c_library(made, tmp_path / name, name, evil)
        for compiler, language in (("cc", ("-std=c11",)), ("c++", ("-std=c++17", "-x", "c++"))):
            header = tmp_path / name / f"{name}.h"
            command = [compiler, *language, *WARNINGS, "-pedantic", "-fsyntax-only", str(header)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def test_libraries_share_no_name_and_call_nothing_but_memory_functions(tmp_path: Path) -> None:
    write_c_library(compiled(VIT, batch=1), tmp_path / "a", "one", "vit")
    lines = subprocess.run(
        ["nm", tmp_path / "a/libone.a"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    symbols = [line.split()[-2:] for line in lines if len(line.split()) > 1]
    defined = {name for kind, name in symbols if kind.isupper() and kind != "U"}
    kernels = {name for name in defined if name.startswith("tw_")}
    assert all(name.startswith("one_") for name in defined - kernels)
    assert all(len(name) > 24 for name in kernels)  # named after their code: equal code, one name
    wanted = {name for kind, name in symbols if kind == "U"} - defined
    assert wanted - {"_GLOBAL_OFFSET_TABLE_"} <= {"memcpy", "memset", "memmove"}
    # and no state: data that a loader writes once, because it holds pointers, is constant in C
    constant = {"tw_functions", "tw_input_ports", "tw_output_ports", "tw_ranges", "tw_tables"}
    assert {name for kind, name in symbols if kind in "BbDdCc"} <= constant


def test_what_is_there_is_replaced_only_if_it_is_ours(tmp_path: Path) -> None:
    made = compiled(VIT, batch=1)
    folder = tmp_path / "library"
    written = write_c_library(made, folder, "vit", "vit", WeightPlace.FILE)
    assert (folder / "vit.weights").stat().st_size == written.weight_bytes
    written = write_c_library(made, folder, "vit", "vit")
    assert not (folder / "vit.weights").exists()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {p.name for p in folder.iterdir()} - {"manifest.json"}
    assert str(written.code_bytes) in (folder / "vit.h").read_text()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").touch()
    with pytest.raises(ArtifactError, match="is not an artifact"):
        write_c_library(made, other, "vit", "vit")
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_run_that_is_refused_counts_nothing(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["found"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (64,))],
        [helper.make_tensor_value_info("found", TensorProto.INT64, (1, "n"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    write_c_library(compiled(model), tmp_path / "count", "count", "m")
    tmp_path.joinpath("user.c").write_text(USED_STACK)
    for command in (
        ["cc", "-O1", "user.c", "-Icount", "count/libcount.a", "-o", "user"],
        ["./user"],
    ):
        assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0


USED_STACK = """\
#include "count.h"

static _Alignas(64) char memory[1 << 16];
static _Alignas(64) float x[64];

static __attribute__((noinline)) void use(void) {
    volatile char used[4096];
    for (int i = 0; i < 4096; i++) used[i] = 90;
}

int main(void) {
    size_t bytes;
    const void *weights = count_weights(&bytes);
    count *model;
    if (count_init(memory, sizeof memory, weights, bytes, NULL, &model)) return 1;
    count_inputs inputs = {x};
    count_outputs outputs = {NULL, -1};
    use();
    if (count_run(model, &inputs, &outputs) != COUNT_BAD_POINTER) return 2;
    return outputs.found_count != 0;
}
"""


def test_processors_with_short_vectors_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An x86 has no vectors whose length it decides. The executable says the reason in words."""
    monkeypatch.setattr(Target, "register_bits", property(lambda self: 256))
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "g",
        *([helper.make_tensor_value_info(name, TensorProto.FLOAT, (4,))] for name in "xy"),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    program = write_executable(compiled(model), tmp_path / "neg", "neg")
    np.save(tmp_path / "x.npy", np.zeros(4, np.float32))
    assert told(program, f"x={tmp_path}/x.npy") == (2, f"error: {SHORT_VECTORS}\n")


def test_an_executable_is_static_wherever_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    host = resolve_target("host")
    here = shutil.which("cc")
    assert toolchain(host, executable=True).static == ("-static",)
    assert toolchain(host, executable=True).compiler == (here,)  # CI's has a libc.a
    monkeypatch.setattr(tools, "_has_static_library", lambda compiler: False)
    assert toolchain(host, executable=True).compiler[:3] == (sys.executable, "-m", "ziglang")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert toolchain(host, executable=True) == Toolchain((str(here),), (str(shutil.which("ar")),))


def test_names_that_differ_in_case_or_are_macros(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    names = ["x", "X", "x_rank", "NULL", "linux"]
    graph = helper.make_graph(
        [
            helper.make_node("Sum", names, ["f_count"]),
            helper.make_node("NonZero", ["f_count"], ["f"]),
        ],
        "g",
        [value(name, TensorProto.FLOAT, ("n", "N")) for name in names],
        [value("f", TensorProto.INT64, (2, "k")), value("f_count", TensorProto.FLOAT, ("n", "N"))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    write_c_library(compiled(model, n="2..4", N="1..3"), tmp_path / "made", "made", "m")
    tmp_path.joinpath("user.c").write_text('#include "made.h"\n')
    command = ["cc", "-std=gnu11", "-Werror", "-I", "made", "-c", "user.c"]  # where `linux` is 1
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0


def test_caches_with_room_are_refused() -> None:
    graph = helper.make_graph(
        [helper.make_node("Concat", ["past", "new"], ["present"], axis=0)],
        "g",
        [
            helper.make_tensor_value_info("past", TensorProto.FLOAT, ("past", 4)),
            helper.make_tensor_value_info("new", TensorProto.FLOAT, (1, 4)),
        ],
        [helper.make_tensor_value_info("present", TensorProto.FLOAT, ("all", 4))],
    )
    target, past = host_target(), parse_range("past", "0..8")
    graph_ = driver.optimise(
        driver.load_graph(helper.make_model(graph), {"past": past}), Mode(target)
    )
    plan = driver.make_plan(graph_, Mode(target))
    with pytest.raises(InvalidArgumentError, match="do not support caches that grow in place"):
        Interface.of(ProgramBuilder(None, Mode(target), any_rows=True).build(plan).program, "cache")


def test_a_compiler_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compiled(VIT, batch=1)
    with pytest.raises(InvalidArgumentError, match="a valid one is 'x_int'"):
        write_c_library(made, tmp_path / "library", "int", "vit")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="no C compiler for 'cortex-a72'"):
        write_c_library(
            replace(made, target=resolve_target("cortex-a72")), tmp_path / "library", "vit", "vit"
        )
    with pytest.raises(ToolchainError, match="false"):
        Toolchain(("false",), ("ar",), ()).compile(tmp_path, "x.c", "x.o")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An executable with the sanitizers: an access outside its memory ends it."""
    host = toolchain(resolve_target("host"))
    checked = (*host.compiler, "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g")
    path = tmp_path_factory.mktemp("executable") / "vit"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tilewright.compiler.bindings.c_library.library.toolchain",
            lambda target, executable: replace(host, compiler=checked, static=()),
        )
        return write_executable(compiled(VIT, batch="1..4"), path, "vit")


def told(program: Path, *arguments: object) -> tuple[int, str]:
    # memory that a program has not freed when it ends does not count as a leak
    quiet = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_an_executable_reads_and_writes_npy_files(program: Path, tmp_path: Path) -> None:
    executable = load_program(compiled(VIT, batch="1..4"))
    for batch in (1, 4):
        np.save(tmp_path / "x.npy", pixels(batch)["pixels"])
        files = f"pixels={tmp_path}/x.npy", "-o", f"y={tmp_path}/y.npy", "--runs", 3
        status, text = told(program, "--size", f"batch={batch}", *files)
        assert (status, text.split(":")[0]) == (0, "3 runs"), text
        wanted = executable.run(pixels(batch))[0]
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)


def test_an_executable_refuses_what_does_not_fit(program: Path, tmp_path: Path) -> None:
    good = pixels()["pixels"]
    for name, array in {
        "good": good,
        "double": good.astype(np.float64),
        "fortran": np.asfortranarray(good),
        "long": pixels(2)["pixels"],
    }.items():
        np.save(tmp_path / f"{name}.npy", array)
    whole = (tmp_path / "good.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-1])
    (tmp_path / "start.npy").write_bytes(whole[:20])
    (tmp_path / "text.npy").write_bytes(b"hello")
    size = "--size", "batch=1"
    for name, words in {
        "double": "does not hold what input 'pixels' takes",
        "fortran": "does not hold",
        "long": "does not hold",
        "cut": "is cut off",
        "start": "is cut off",
        "text": "is no .npy file",
        "absent": "cannot be opened",
    }.items():
        status, text = told(program, *size, f"pixels={tmp_path}/{name}.npy")
        assert (status, words in text) == (2, True), (name, text)
    good_file = f"pixels={tmp_path}/good.npy"
    for arguments, words in (
        ((), "size    batch: 1 to 4"),
        ((good_file,), "dimension 'batch' has no size"),
        (size, "input 'pixels' has no file"),
        (("--size", "batch=9", good_file), "expected an integer from 1 to 4"),
        (("--size", "rows=1", good_file), "the name of a dimension"),
        ((*size, "rows=x.npy"), "the name of an input"),
        ((*size, good_file, "-o", "z=z.npy"), "the name of an output"),
        ((*size, good_file, "-o", f"y={tmp_path}/no/y.npy"), "cannot be written"),
        ((*size, good_file, "--runs", "many"), "expected an integer"),
    ):
        status, text = told(program, *arguments)
        assert (status, words in text) == (2, True), (arguments, text)


def test_weights_lie_in_a_section_unless_a_file_is_asked_for(tmp_path: Path) -> None:
    made: CompiledProgram = compiled(VIT, batch=1)
    write_c_library(made, tmp_path / "vit", "vit", "vit")
    library = ctypes.CDLL(str(tmp_path / "vit/libvit.so"))
    size = ctypes.c_size_t()
    library.vit_weights.restype = ctypes.c_void_p
    start = library.vit_weights(ctypes.byref(size))
    assert start % 64 == 0
    assert ctypes.string_at(start, size.value) == aligned(made.weights).tobytes()


def test_a_library_links_every_native_function() -> None:
    """A missing one would be found where the library is used."""
    folder = Path(native.__file__).parent / "native"
    names = {path.stem: path.read_text() for path in folder.glob("*.c")}
    having = {stem for stem, text in names.items() if "TW_EXPORT void tw_native_" in text}
    assert "selection" in having and having <= {*NATIVE_FUNCTIONS, "random"}
