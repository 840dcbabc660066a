"""A small compiled model, and worker processes, for tests of runs on leased devices."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from compiler import driver
from compiler.codegen.link import link_shared
from compiler.codegen.object import emit_object
from compiler.program_builder import CompiledProgram, ProgramBuilder
from compiler.target import Target, host_target
from service.jobs.device import Loadable

K, N = 300, 400
"""The weights have 480,000 and 16,000 bytes: one travels by itself, one with others."""


def model_bytes(seed: int = 3) -> bytes:
    """relu(x @ w1) @ w2, of a batch of 4; the weights are drawn."""
    rng = np.random.default_rng(seed)
    parameters = {
        "w1": rng.standard_normal((K, N), dtype=np.float32) / np.float32(K**0.5),
        "w2": rng.standard_normal((N, 10), dtype=np.float32) / np.float32(N**0.5),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"], "fc1"),
            helper.make_node("Relu", ["h"], ["r"], "relu"),
            helper.make_node("MatMul", ["r", "w2"], ["y"], "fc2"),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, K])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 10])],
        [numpy_helper.from_array(array, name) for name, array in parameters.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())


def compile_program(target: Target | None = None) -> CompiledProgram:
    """The model, untuned, by a builder of its own."""
    target = target or host_target()
    graph = driver.load_graph(model_bytes())
    plan = driver.make_plan(driver.optimise(graph, target), target)
    return ProgramBuilder(None, target).build(plan)


def loadable(compiled: CompiledProgram) -> Loadable:
    return Loadable(
        compiled.program,
        compiled.weights,
        partial(driver.load_program, compiled),
        partial(linked, compiled.objects),
    )


def linked(objects: Sequence[bytes]) -> bytes:
    """Objects as one shared library."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        link_shared(list(objects), library)
        return library.read_bytes()


def broken(model: Loadable, instruction: str, only: int | None = None) -> Loadable:
    """The model with other code: each kernel (or the first ones only) does one LLVM instruction."""
    symbols = [stage.symbol for kernel in model.program.kernels for stage in kernel.stages]
    ends = "" if instruction.startswith(("br", "ret")) else "  unreachable\n"
    text = "declare void @llvm.trap()\n" + "".join(
        f'define void @"{symbol}"() {{\n  br label %entry\nentry:\n  {instruction}\n{ends}}}\n'
        for symbol in symbols[:only]
    )
    code = emit_object(text, host_target())
    return replace(model, link=lambda: linked([code]))


@contextmanager
def worker_process(
    url: str, token: str, spool: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as a user starts it; it ends with the context, if it has not before."""
    spool.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "service.worker", "--server", url, "--token", token]
    with (spool / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--spool", str(spool), *options],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=log,
            stderr=log,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                process.kill()
                # shown where a test fails
                sys.stderr.write((spool / "log").read_text(errors="replace"))
