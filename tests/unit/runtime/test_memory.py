"""Large allocations check the free memory first, since the system would end the process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright.compiler.errors import OutOfMemoryError
from tilewright.compiler.runtime import memory
from tilewright.compiler.runtime.memory import available_bytes, check_memory

GIB = 1 << 30


def machine(root: Path, available: int, limit: str = "", used: int = 0, cached: int = 0) -> Path:
    """A root folder of a system that reports these numbers of bytes."""
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: 99999999 kB\nMemAvailable:   {available // 1024} kB\n"
    )
    if limit:
        folder = root / "sys/fs/cgroup"
        folder.mkdir(parents=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    return root


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path) -> None:
    assert available_bytes(machine(tmp_path / "a", 8 * GIB)) == 8 * GIB
    assert available_bytes(machine(tmp_path / "b", 8 * GIB, "max", GIB)) == 8 * GIB
    contained = machine(tmp_path / "c", 8 * GIB, str(4 * GIB), 3 * GIB, GIB)
    assert available_bytes(contained) == 2 * GIB
    assert available_bytes(tmp_path / "nothing") is None


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    root = machine(tmp_path, 2 * GIB)
    check_memory(2 * GIB, "to run", root)
    with pytest.raises(
        OutOfMemoryError, match=r"memory to run: 2147483649 bytes .* 2147483648 are"
    ):
        check_memory(2 * GIB + 1, "to run", root)
    check_memory(1 << 60, "to run", tmp_path / "nothing")


def test_runs_and_arrays_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda root: GIB)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MatMul", ["x", "z"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    ports = [value("x", TensorProto.FLOAT, [20000, 1]), value("z", TensorProto.FLOAT, [1, 20000])]
    graph = helper.make_graph(nodes, "g", ports, [value("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    inputs = {"x": np.ones((20000, 1), np.float32), "z": np.ones((1, 20000), np.float32)}
    with pytest.raises(OutOfMemoryError, match=r"to run 'g': .* 1073741824 are available"):
        tilewright.compile_model(model).run(inputs)
