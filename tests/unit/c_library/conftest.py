"""Models as C libraries, loaded with ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from tilewright.compiler import driver
from tilewright.compiler.bindings.c_library import WeightPlace, write_c_library, write_wasm_module
from tilewright.compiler.bindings.c_library.header import Interface
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import CompiledProgram, ProgramBuilder
from tilewright.compiler.runtime.packing import aligned_empty
from tilewright.compiler.sizes.ranges import parse_range
from tilewright.compiler.targets.host import host_target, resolve_target

MODELS = Path(__file__).parents[2] / "models"
Arrays = Mapping[str, np.ndarray]


def compiled(model: str | Path | onnx.ModelProto, **dims: int | str) -> CompiledProgram:
    """A model at sizes, or for ranges given as texts."""
    ranges = {n: d if isinstance(d, int) else parse_range(n, d) for n, d in dims.items()}
    target = host_target()
    graph = driver.optimise(driver.load_graph(model, ranges), Mode(target))
    builder = ProgramBuilder(
        None, Mode(target), any_rows=any(isinstance(d, str) for d in dims.values())
    )
    return builder.build(driver.make_plan(graph, Mode(target, in_place=False)))


def for_wasm(
    model: Path | onnx.ModelProto, threads: int = 1, target: str = "wasm32", **dims: int | str
) -> CompiledProgram:
    ranges = {n: d if isinstance(d, int) else parse_range(n, d) for n, d in dims.items()}
    chosen = resolve_target(target)
    graph = driver.optimise(driver.load_graph(model, ranges), Mode(chosen))
    any_rows = any(isinstance(d, str) for d in dims.values())
    builder = ProgramBuilder(None, Mode(chosen, threads), any_rows=any_rows)
    return builder.build(driver.make_plan(graph, Mode(chosen, in_place=False)))


def drawing() -> onnx.ModelProto:
    """x (1, 9) + random numbers from 0 to 1."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        drawing (float[1, 9] x) => (float[1, 9] y) { z = RandomUniformLike (x) y = Add (x, z) }"""
    )


@pytest.fixture(scope="session")
def threaded_vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module for two threads, to copy: `vit`, of one to four images."""
    folder = tmp_path_factory.mktemp("threaded") / "vit"
    made = for_wasm(MODELS / "vit.onnx", threads=2, batch="1..4")
    return write_wasm_module(made, folder, "vit", "a model", threads=2).folder


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that lies at a multiple of 64 bytes."""
    place = aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
    place[...] = array
    return place


class Loaded:
    """A C library with the calls that its header states."""

    def __init__(self, made: CompiledProgram, folder: Path, name: str = "model") -> None:
        self.program = made.program
        self.interface = Interface.of(made.program, name)
        write_c_library(made, folder, name, "a model", WeightPlace.FILE)
        self.library = ctypes.CDLL(str(folder / f"lib{name}.so"))
        self.name = name
        self._kept: list[object] = []
        self.weights = aligned(np.fromfile(folder / f"{name}.weights", np.uint8))
        self("status_text").restype = ctypes.c_char_p
        self("memory_bytes").restype = ctypes.c_size_t

    def __call__(self, function: str) -> ctypes._NamedFuncPointer:
        return getattr(self.library, f"{self.name}_{function}")

    def sizes(self, **sizes: int) -> list[ctypes.Array[ctypes.c_int64]]:
        """The argument that gives sizes, where there are some."""
        named = [sizes[d.name] for d in self.program.dimensions]
        return [(ctypes.c_int64 * len(named))(*named)] if named else []

    def memory(self, threads: int = 1, **sizes: int) -> np.ndarray:
        return aligned_empty(self("memory_bytes")(*self.sizes(**sizes), threads))

    def init(
        self, memory: np.ndarray, threads: object = None, weights: np.ndarray | None = None
    ) -> tuple[int, ctypes.c_void_p]:
        weights = self.weights if weights is None else weights
        made = ctypes.c_void_p()
        self._kept += [memory, weights, threads]  # the model lives there
        status = self("init")(
            ctypes.c_void_p(memory.ctypes.data),
            ctypes.c_size_t(memory.nbytes),
            ctypes.c_void_p(weights.ctypes.data),
            ctypes.c_size_t(weights.nbytes),
            threads,
            ctypes.byref(made),
        )
        return status, made

    def outputs(self, **sizes: int) -> list[np.ndarray]:
        """Arrays of the outputs' shapes, as the library gives them."""
        made = []
        for index, port in enumerate(self.program.outputs):
            shape = (ctypes.c_int64 * 16)()
            rank = self("output_shape")(*self.sizes(**sizes), index, shape)
            made.append(aligned(np.full(tuple(shape[:rank]), 111, port.dtype.numpy)))
        return made

    def run(
        self, model: ctypes.c_void_p, inputs: Arrays, outputs: list[np.ndarray], **sizes: int
    ) -> tuple[int, list[int]]:
        """Status and counts; the results are in `outputs`."""
        arrays = [aligned(inputs[port.name]) for port in self.program.inputs]
        given = (ctypes.c_void_p * max(1, len(arrays)))(*(a.ctypes.data for a in arrays))
        members: list[int] = []
        for array, port in zip(outputs, self.program.outputs, strict=True):
            members += [array.ctypes.data, *([-1] if port.counted is not None else [])]
        taken = (ctypes.c_int64 * max(1, len(members)))(*members)  # 64 bits, as a pointer here
        status = self("run")(model, *self.sizes(**sizes), given, taken)
        counts, place = [], 0
        for port in self.program.outputs:
            place += 1
            if port.counted is not None:
                counts.append(taken[place])
                place += 1
        return status, counts


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Loaded]:
    def load(model: str | Path | onnx.ModelProto, **dims: int | str) -> Loaded:
        return Loaded(compiled(model, **dims), tmp_path / "library")

    return load
