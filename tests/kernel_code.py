"""Kernels in C for tests of harnesses, linked as the service links them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tilewright.compiler.bindings.c_library.toolchain import wasm_toolchain
from tilewright.compiler.codegen.link import link_shared
from tilewright.compiler.targets.target import Target
from tilewright.tuner.measure.harness.binary import host_compiler


def library_of(source: str, folder: Path) -> bytes:
    """C as a library of kernels, as the service links them."""
    (folder / "kernels.c").write_text(source)
    command = [*host_compiler(), "-O1", "-fPIC", "-ffreestanding", "-w", "-c", "-DBEYOND=16"]
    subprocess.run([*command, "kernels.c", "-o", "kernels.o"], cwd=folder, check=True)
    link_shared([(folder / "kernels.o").read_bytes()], folder / "kernels.so")
    return (folder / "kernels.so").read_bytes()


def module_of(target: Target, source: str, folder: Path) -> bytes:
    """C as a module of kernels."""
    (folder / "kernels.c").write_text(source)
    options = ["-Wno-error", "-DBEYOND=0xfffffff0u"]
    wasm_toolchain(target).compile(folder, "kernels.c", "kernels.o", options)
    link_shared([(folder / "kernels.o").read_bytes()], folder / "kernels.wasm")
    return (folder / "kernels.wasm").read_bytes()
