"""Kernels that add two arrays, as a worker not written in Python meets them: queued, and
measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tilewright.compiler.targets.target import Target
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.tuner.protocol.batches import (
    Candidate,
    Case,
    InputSpec,
    MeasureRequest,
    RepeatSettings,
)
from tilewright.tuner.protocol.blobs import array_to_bytes, digest_bytes
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey

SIZE = 256


def submit(
    device: LeasedDevice,
    target: Target,
    library: bytes,
    symbols: Sequence[str],
    phase: Phase,
    limit_seconds: float = 1.0,
) -> None:
    """Queue kernels that add two arrays."""
    device.runner.submit(*adding(target, library, symbols, phase, limit_seconds))


def adding(
    target: Target,
    library: bytes,
    symbols: Sequence[str],
    phase: Phase,
    limit_seconds: float = 1.0,
) -> tuple[MeasureRequest, dict[str, bytes]]:
    """A request to measure kernels that add two arrays, and its blobs."""
    inputs = (InputSpec((SIZE,), "float32", 1), InputSpec((SIZE,), "float32", 2))
    expected = array_to_bytes(inputs[0].draw() + inputs[1].draw())
    request = MeasureRequest(
        request_id="r1",
        key=RecordKey("w", target.key),
        candidates=tuple(
            Candidate(symbol, {"algorithm": symbol, "choices": {}}, symbol, _kernel(symbol), "o")
            for symbol in symbols
        ),
        library_digest=digest_bytes(library),
        cases=(Case(inputs, digest_bytes(expected)),),
        tolerance=1e-6,
        incumbent="" if phase is Phase.SCREEN else symbols[0],
        phase=phase,
        repeat=RepeatSettings(
            5, 1e-4, round_seconds=0.0, abandon_ratio=1e3, limit_seconds=limit_seconds
        ),
    )
    return request, {digest_bytes(b): b for b in (library, expected)}


def measure(
    device: LeasedDevice, target: Target, library: bytes, symbols: Sequence[str], phase: Phase
) -> dict[str, Measurement]:
    """The worker's results for kernels that add two arrays, through the queue of leases."""
    submit(device, target, library, symbols, phase)
    ends = time.monotonic() + 120
    while not (results := device.runner.poll(1.0)):
        assert time.monotonic() < ends
    return dict(results[0].measurements)


def _kernel(symbol: str) -> dict[str, Any]:
    """The specification of a kernel: a buffer and constant weights go in, another comes out."""

    def buffer(name: str, role: str, source: int) -> dict[str, Any]:
        size = {"dtype": "float32", "shape": [SIZE], "layout": "row", "bytes": 4 * SIZE}
        return {"name": name, "role": role, "source": source, **size}

    buffers = [buffer("a", "input", 0), buffer("b", "weight", 1), buffer("out", "output", -1)]
    stages = [[symbol, 1]]
    return {"abi": 1, "name": symbol, "stages": stages, "buffers": buffers, "scratch_bytes": 64}
