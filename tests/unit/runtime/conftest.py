"""Kernels compiled by the system's C compiler, so that the runtime is tested without codegen."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.compiler.dtypes import DType
from tilewright.compiler.runtime.kernel import (
    ABI_VERSION,
    BufferRole,
    BufferSpec,
    KernelSpec,
    StageSpec,
)

HERE = Path(__file__).parent


def spec_of(
    name: str,
    stages: dict[str, int],
    buffers: dict[str, tuple[BufferRole, int]],
    scratch_bytes: int = 0,
    dtype: DType = DType.FLOAT32,
) -> KernelSpec:
    """A kernel with 1-D row-major buffers of so many elements."""
    return KernelSpec(
        ABI_VERSION,
        name,
        tuple(StageSpec(symbol, extent) for symbol, extent in stages.items()),
        tuple(
            BufferSpec(
                buffer,
                role,
                dtype,
                (size,),
                "row",
                (),
                size * dtype.bytes,
                source=i if role in (BufferRole.INPUT, BufferRole.WEIGHT) else -1,
            )
            for i, (buffer, (role, size)) in enumerate(buffers.items())
        ),
        scratch_bytes,
    )


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., KernelSpec]:
    return spec_of


@pytest.fixture(scope="session")
def library_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    subprocess.run(
        ["cc", "-O1", "-std=c11", "-shared", "-fPIC", "-o", path, HERE / "kernels.c"], check=True
    )
    return path


@pytest.fixture(scope="session")
def address_of(library_path: Path) -> Callable[[str], int]:
    library = ctypes.CDLL(str(library_path))

    def address(symbol: str) -> int:
        value = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        assert value
        return value

    return address
