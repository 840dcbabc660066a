"""The example program of a C library, for models that differ from a plain one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from onnx import ModelProto, TensorProto, helper

from tests.unit.c_library.conftest import MODELS, compiled
from tilewright.compiler.bindings.c_library import WeightPlace, write_c_library
from tilewright.compiler.bindings.c_library.toolchain import WARNINGS

STRICT = (*WARNINGS, "-pedantic", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_it_runs_the_least_sizes_with_weights_of_a_file(tmp_path: Path) -> None:
    made = compiled(MODELS / "vit.onnx", batch="2..6")
    write_c_library(made, tmp_path / "vit", "vit", "vit", WeightPlace.FILE)
    program = built(tmp_path / "vit", "vit")
    assert printed(program).startswith("y: ")
    (tmp_path / "vit/vit.weights").unlink()
    done = subprocess.run(
        [program], cwd=program.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "error: cannot read vit.weights\n")


@pytest.mark.parametrize("name", ["model", "sizes", "shape", "inputs", "bytes", "outputs"])
def test_a_library_may_be_called_what_the_program_calls_its_variables(
    name: str, tmp_path: Path
) -> None:
    evil = 'x */ %s" \\n'
    write_c_library(compiled(negated(evil, TensorProto.FLOAT)), tmp_path / name, name, evil)
    for language in (("-std=c11",), ("-std=c++17", "-x", "c++")):
        checked = [*language, *WARNINGS, "-pedantic", "-fsyntax-only", tmp_path / name / "main.c"]
        done = subprocess.run(["c++" if len(language) > 1 else "cc", *checked], check=False)
        assert done.returncode == 0


def test_it_prints_each_type(tmp_path: Path) -> None:
    types = {
        TensorProto.FLOAT16: "0x0000",
        TensorProto.DOUBLE: "0",
        TensorProto.INT8: "0",
        TensorProto.INT64: "0",
        TensorProto.UINT64: "0",
        TensorProto.BOOL: "0",
    }
    nodes, ports, outputs = [], [], []
    for kind in types:
        name = TensorProto.DataType.Name(kind)
        nodes.append(helper.make_node("Transpose", [f"x{name}"], [name], perm=[1, 0]))
        ports.append(helper.make_tensor_value_info(f"x{name}", kind, (2, 1)))
        outputs.append(helper.make_tensor_value_info(name, kind, (1, 2)))
    nodes.append(helper.make_node("NonZero", ["xDOUBLE"], ["found"]))
    outputs.append(helper.make_tensor_value_info("found", TensorProto.INT64, (2, "n")))
    graph = helper.make_graph(nodes, "g", ports, outputs)
    made = compiled(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    write_c_library(made, tmp_path / "all", "all", "all")
    lines = printed(built(tmp_path / "all", "all")).splitlines()
    wanted = [f"{TensorProto.DataType.Name(kind)}: {zero} {zero}" for kind, zero in types.items()]
    assert lines == [*wanted, "found (0):"]


def negated(name: str, kind: int) -> ModelProto:
    values = [helper.make_tensor_value_info(each, kind, (2,)) for each in (name, "y")]
    graph = helper.make_graph([helper.make_node("Neg", [name], ["y"])], "g", *([v] for v in values))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def built(folder: Path, name: str) -> Path:
    """The program of a library's folder, with the sanitizers."""
    command = ["cc", "-std=c11", *STRICT, "main.c", f"lib{name}.a", "-o", "example"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "example"


def printed(program: Path) -> str:
    # memory that a program has not freed when it ends does not count as a leak
    quiet = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [program], cwd=program.parent, env=quiet, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
