"""C libraries of other architectures, called by a process of theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.devices.conftest import ALL_MACHINES
from tests.devices.emulators import SOURCE, emulate, emulator, sysroot, zig_environment
from tests.devices.machines import CORTEX_A72, NEOVERSE_V1, RISCV64, Machine
from tests.devices.packages import UnavailableError

pytestmark = [pytest.mark.devices, pytest.mark.timeout(900)]

COMPILE = """\
import sys
from tilewright.service.cli import run
sys.exit(run(["compile", *sys.argv[1:]]))
"""

CALL = """\
import ctypes, sys
import numpy as np

def aligned(array):
    raw = np.zeros(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    place = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    place[...] = array
    return place

library = ctypes.CDLL(sys.argv[1])
library.vit_weights.restype = ctypes.c_void_p
library.vit_memory_bytes.restype = ctypes.c_size_t
size, model = ctypes.c_size_t(), ctypes.c_void_p()
weights = ctypes.c_void_p(library.vit_weights(ctypes.byref(size)))
memory = aligned(np.zeros(library.vit_memory_bytes(1), np.uint8))
place, room = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)
status = library.vit_init(place, room, weights, size, None, ctypes.byref(model))
assert status == 0, status
x, y = aligned(np.load(sys.argv[2])), aligned(np.zeros((1, 17, 24), np.float32))
inputs, outputs = ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)
assert library.vit_run(model, ctypes.byref(inputs), ctypes.byref(outputs)) == 0
np.save(sys.argv[3], y)
"""


@pytest.mark.parametrize("machine", [CORTEX_A72, RISCV64], ids=lambda machine: machine.name)
def test_a_library_runs_on_its_architecture(machine: Machine, tmp_path: Path) -> None:
    try:
        root, qemu = sysroot(machine.architecture), emulator(machine.architecture)
        environment = zig_environment()
    except UnavailableError as error:
        pytest.skip(str(error))
    environment["TILEWRIGHT_DATA_FOLDER"] = str(tmp_path / "data")
    model = SOURCE / "tests/models/vit.onnx"
    pixels = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", pixels)
    asked = ["--dim", "batch=1", "--target", machine.target, "--format", "c"]
    python = [*qemu, "-cpu", machine.cpu, "-L", str(root), str(root / "usr/bin/python3")]
    files = [tmp_path / name for name in ("vit/libvit.so", "x.npy", "y.npy")]
    # the emulated Python has packages of its own architecture
    theirs = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    for command, variables in (
        (
            [sys.executable, "-c", COMPILE, str(model), *asked, "-o", str(tmp_path / "vit")],
            environment,
        ),
        ([*python, "-c", CALL, *map(str, files)], theirs),
    ):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (wanted,) = tilewright.compile_model(model, dims={"batch": 1}).run([pixels])
    # sums of at most 96 products in another order: 96 x 2^-24 of their magnitudes, below 10
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), wanted, atol=6e-5)


def test_sve_of_a_known_length(tmp_path: Path) -> None:
    """Code for 256 bits agrees there, and is refused where registers are shorter."""
    (tmp_path / "machine").mkdir()
    try:
        emulated, environment = emulate(NEOVERSE_V1, tmp_path / "machine"), zig_environment()
    except UnavailableError as error:
        pytest.skip(str(error))
    environment["TILEWRIGHT_DATA_FOLDER"] = str(tmp_path / "data")
    model = SOURCE / "tests/models/vit.onnx"
    pixels = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", pixels)
    for form in (["--format", "c", "-o", "c"], ["-o", "artifact"]):
        target = ["--dim", "batch=1", "--target", "neoverse-v1-sve256", *form]
        command = [sys.executable, "-c", COMPILE, str(model), *target]
        subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True)
    (wanted,) = tilewright.compile_model(model, dims={"batch": 1}).run([pixels])
    theirs = {**environment, "PYTHONPATH": str(emulated.packages)}
    for script, what, said in (
        (CALL, "c/libvit.so", f"AssertionError: {VECTORS}"),
        (LOAD, "artifact", "lacks vectors of 256 bits: it has vectors of 128 bits"),
    ):
        for cpu in (SHORT, NEOVERSE_V1.cpu):
            python = [cpu if word == NEOVERSE_V1.cpu else word for word in emulated.python]
            done = subprocess.run(
                [*python, "-c", script, what, "x.npy", f"{what[0]}.npy"],
                env=theirs, cwd=tmp_path, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert (done.returncode == 0) is (cpu != SHORT), done.stderr
            assert cpu != SHORT or said in done.stderr, done.stderr
        np.testing.assert_allclose(np.load(tmp_path / f"{what[0]}.npy"), wanted, atol=6e-5)


LOAD = """\
import sys
import numpy as np
from tilewright import load_artifact
np.save(sys.argv[3], load_artifact(sys.argv[1]).run([np.load(sys.argv[2])])[0])
"""

SHORT = "max,sve-max-vq=1"
"""The same machine with registers of 128 bits."""

VECTORS = 6
"""The value that a library's `init` returns for short registers."""


def test_32_bits(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """A program reports that memory is exhausted, and a library needs only the C library."""
    if not pytestconfig.getoption(ALL_MACHINES, default=False):
        pytest.skip(f"the first executable makes zig build a C library: {ALL_MACHINES}")
    try:
        qemu, environment = emulator("arm"), zig_environment()
    except UnavailableError as error:
        pytest.skip(str(error))
    environment["TILEWRIGHT_DATA_FOLDER"] = str(tmp_path / "data")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ("n",)) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset), tmp_path / "neg.onnx")
    for form in ("exe", "c"):
        command = [sys.executable, "-c", COMPILE, "neg.onnx", "--target", "armv7", "-o", form]
        command += ["--dim", "n=1..", "--format", form]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    rows = (1 << 30) + 1  # 4 bytes each: 4, to 32 bits
    with (tmp_path / "x.npy").open("wb") as file:
        described = {"descr": "<f4", "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(file, described)
        file.write(bytes(4))
    run = [*qemu, "./exe", "--size", f"n={rows}", "x=x.npy"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: there is no memory for 'x': {4 * rows} bytes\n",
    )
    library = tmp_path / "c/libneg.so"
    listed = subprocess.run(["nm", "-D", "-u", library], capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) <= {"U", "w", "memcpy", "memmove", "memset"}
