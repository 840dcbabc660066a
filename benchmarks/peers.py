"""Engines that are optional in a race: torch, torch.compile, IREE, TVM and ncnn, all in float32.

Each loader has the signature of `benchmarks.engines.Engine.load`, and imports its engine itself.
The packages of these engines conflict with each other. Create an environment for each with numpy
and onnx, and pass its interpreter: `--python iree=/path/to/python`.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Run = Callable[[], list[NDArray[Any]]]


def load_torch(model: Any, feeds: Arrays, threads: int, schedules: str) -> Run:
    """Load a model in PyTorch's eager mode, which executes one operator at a time."""
    module, inputs = _torch_module(model, feeds, threads)
    return _torch_run(module, inputs)


def load_inductor(model: Any, feeds: Arrays, threads: int, schedules: str) -> Run:
    """Compile a model by torch.compile with frozen weights, so that constants can be folded."""
    module, inputs = _torch_module(model, feeds, threads)
    import torch
    from torch._inductor import config

    config.freezing = True
    torch._dynamo.config.allow_rnn = True
    return _torch_run(torch.compile(module, fullgraph=True, dynamic=False), inputs)


def _torch_module(model: Any, feeds: Arrays, threads: int) -> tuple[Any, list[Any]]:
    import torch

    from benchmarks.torch_import import OnnxModule

    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("highest")
    module = OnnxModule(model).eval()
    return module, [torch.from_numpy(array) for array in feeds.values()]


def _torch_run(function: Callable[..., Any], inputs: list[Any]) -> Run:
    import torch

    def run() -> list[NDArray[Any]]:
        with torch.no_grad():
            return [output.numpy() for output in function(*inputs)]

    run()  # compiles
    return run


def load_iree(model: Any, feeds: Arrays, threads: int, schedules: str) -> Run:
    """Compile a model by IREE's LLVM backend for this CPU.

    With one thread, it runs without IREE's task system.
    """
    import iree.compiler
    import iree.runtime
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    newer = at_least_opset(model, 17)  # what the importer is made for
    info = onnx_importer.ModelInfo(onnx.shape_inference.infer_shapes(newer, data_prop=True))
    with ir.Context() as context:
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        text = module.get_asm(assume_verified=True)
    binary = iree.compiler.compile_str(
        text,
        input_type="onnx",
        target_backends=["llvm-cpu"],
        extra_args=[
            "--iree-llvmcpu-target-cpu=host",
            "--iree-opt-level=O3",
            # normalisations over 384 values need a little more stack than it allows itself
            "--iree-llvmcpu-fail-on-out-of-bounds-stack-allocation=false",
        ],
    )
    iree.runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    config = iree.runtime.Config("local-sync" if threads == 1 else "local-task")
    loaded = iree.runtime.load_vm_module(
        iree.runtime.VmModule.copy_buffer(config.vm_instance, binary), config
    )
    main = next(
        name
        for name in loaded.vm_module.function_names
        if not name.endswith("$async") and not name.startswith("__")
    )
    inputs = [iree.runtime.asdevicearray(config.device, array) for array in feeds.values()]

    def run() -> list[NDArray[Any]]:
        outputs = loaded[main](*inputs)
        outputs = outputs if isinstance(outputs, list | tuple) else [outputs]
        return [np.asarray(output.to_host()) for output in outputs]

    return run


def load_tvm(model: Any, feeds: Arrays, threads: int, schedules: str) -> Run:
    """Compile a model by TVM with the MetaSchedule records in `schedules`/tvm.

    Without records, TVM's default schedules are used.
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = from_onnx(model, keep_params_in_input=False)
    host = tvm.target.codegen.llvm_get_system_cpu()
    target = tvm.target.Target({"kind": "llvm", "mcpu": host})
    with target:
        module = relax.get_pipeline("zero")(module)
        records = Path(schedules) / "tvm"
        if schedules and records.exists():
            module = relax.transform.MetaScheduleApplyDatabase(str(records))(module)
        built = tvm.compile(module, target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    inputs = [tvm.runtime.tensor(array) for array in feeds.values()]
    main = machine["main"]

    def run() -> list[NDArray[Any]]:
        outputs = main(*inputs)
        outputs = [outputs] if hasattr(outputs, "numpy") else list(outputs)
        return [output.numpy() for output in outputs]

    return run


def load_ncnn(model: Any, feeds: Arrays, threads: int, schedules: str) -> Run:
    """Convert a model by pnnx and load it in ncnn, with all 16-bit storage and arithmetic disabled.

    ncnn has no batch dimension, so the first dimension of size 1 is removed from each input. Raises
    NotImplementedError for inputs other than float32 and for operators that pnnx ignores.
    """
    import ncnn

    if any(array.dtype != np.float32 for array in feeds.values()):
        raise NotImplementedError("ncnn: an input that is not float32")
    net = ncnn.Net()
    net.opt.num_threads = threads
    for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage"):
        setattr(net.opt, f"use_{option}", False)
    spec = find_spec("pnnx")
    assert spec is not None
    assert spec.origin is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        # pnnx takes an old Softmax, which flattens, for a new one
        onnx.save(at_least_opset(model, 13), path)
        # weights in float32, which is not the converter's default
        command = [str(Path(spec.origin).parent / "pnnx"), str(path), "fp16=0"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        parameters = Path(folder) / "model.ncnn.param"
        if done.returncode or not parameters.exists():
            raise RuntimeError(f"pnnx failed with status {done.returncode}: {done.stderr[-200:]}")
        ignored = [line for line in done.stderr.splitlines() if line.startswith("ignore ")]
        if ignored:
            raise NotImplementedError(f"pnnx: {ignored[0].removeprefix('ignore ').strip()}")
        if net.load_param(str(parameters)) or net.load_model(str(parameters.with_suffix(".bin"))):
            raise RuntimeError("ncnn refused what pnnx wrote")
    shapes = [
        tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in model.graph.output
    ]
    inputs = []
    for array in feeds.values():
        batch = array.shape.index(1)
        inputs.append(ncnn.Mat(np.ascontiguousarray(array.squeeze(batch))).clone())

    def run() -> list[NDArray[Any]]:
        extractor = net.create_extractor()
        for number, array in enumerate(inputs):
            extractor.input(f"in{number}", array)
        outputs = []
        for number, shape in enumerate(shapes):
            status, output = extractor.extract(f"out{number}")
            if status:
                raise RuntimeError(f"ncnn: extracting output {number} gave {status}")
            outputs.append(np.array(output).reshape(shape))
        return outputs

    return run


def at_least_opset(model: Any, version: int) -> Any:
    """Return the model, converted by onnx to this opset if its own is older."""
    if model.opset_import[0].version >= version:
        return model
    return onnx.version_converter.convert_version(model, version)
