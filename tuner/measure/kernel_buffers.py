"""The memory that the candidates of a workload share: packed inputs, weights, outputs, scratch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec
from tilewright.compiler.runtime.packing import aligned_empty, make_weight, pack

POISON = 0xFF
"""Byte that fills memory a kernel must write before it reads: NaN in every float type."""


@dataclass(slots=True)
class Buffers:
    """Packed inputs and weights, and outputs and scratch, shared by equal specifications.

    Candidates that share memory are compared fairly: a different output buffer alone has moved a
    kernel's time by 10 %.
    """

    arrays: Sequence[np.ndarray] = ()
    beside: tuple[Buffers, frozenset[int]] | None = None
    """Those of the workload at other sizes, and which of its inputs are the same there: weights of
    these are packed once."""
    packed: dict[str, np.ndarray] = field(default_factory=dict)
    held_bytes: int = 0

    def forget(self) -> None:
        """Give up everything but the logical inputs."""
        self.packed.clear()
        self.held_bytes = sum(array.nbytes for array in self.arrays)

    def get(self, spec: BufferSpec) -> np.ndarray:
        """The buffer for one argument of a kernel; inputs and weights are filled."""
        if spec.role is BufferRole.WEIGHT and self.beside and spec.source in self.beside[1]:
            return self.beside[0].get(spec)
        identity = json.dumps(_buffer_identity(spec), sort_keys=True)
        found = self.packed.get(identity)
        if found is None:
            found = self._make(spec)
            self.packed[identity] = found
            self.held_bytes += found.nbytes
        return found

    def scratch(self, size: int) -> np.ndarray:
        """Thread-private scratch, grown to the largest that a candidate asked for."""
        found = self.packed.get("scratch")
        if found is None or found.nbytes < size:
            found = aligned_empty(size)
            self.packed["scratch"] = found
        found[:] = POISON
        return found

    def _make(self, spec: BufferSpec) -> np.ndarray:
        match spec.role:
            case BufferRole.INPUT:
                source = self.arrays[spec.source]
                return pack(source, spec.shape, spec.parsed_layout(), spec.halo, spec.dtype)
            case BufferRole.WEIGHT:
                value = self.arrays[spec.source]
                if not spec.einsum:
                    return make_weight(spec, value)
                value = self._transformed(spec, value)
                return pack(value, spec.shape, spec.parsed_layout(), spec.halo, spec.dtype)
            case BufferRole.SHARED | BufferRole.OUTPUT:
                return aligned_empty(spec.bytes)

    def _transformed(self, spec: BufferSpec, source: np.ndarray) -> np.ndarray:
        """A weight after its einsum, row-major: candidates pack the same transform differently."""
        identity = json.dumps([spec.source, spec.parts, spec.einsum, spec.matrices])
        found = self.packed.get(identity)
        if found is None:
            plain = replace(spec, layout=str(ROW_MAJOR), halo=())
            found = make_weight(plain, source)
            self.packed[identity] = found
            self.held_bytes += found.nbytes
        return found.view(spec.dtype.numpy).reshape(spec.shape)


def _buffer_identity(spec: BufferSpec) -> dict[str, Any]:
    data = dict(spec.to_json())
    data.pop("name", None)
    return data
