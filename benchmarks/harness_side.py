"""Child process of `benchmarks.harnesses`, which measures with the harness of one checkout.

The harness is the code that times kernels. The parent starts this module in each checkout, and
sends requests as pickles.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks import models
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.targets.host import host_target
from tilewright.service.jobs.device.loadables import of_compiled
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.tuner.protocol.batches import MeasureRequest


class Side:
    """Measures kernels and whole programs on this machine with the harness of one checkout.

    The harness is the code that times kernels, and a local tuning job measures in the same way.
    """

    def __init__(self, device: LocalDevice) -> None:
        self._device = device
        self._programs: dict[str, Any] = {}

    def kernel(self, request: Mapping[str, Any], blobs: Mapping[str, bytes]) -> list[float | None]:
        """Measure the compiled candidates in a request.

        `blobs` has the files that the request refers to by digest, such as libraries. Returns the
        seconds per run of each candidate, or None for a failed one.
        """
        runner = self._device.local_runner
        runner.submit(MeasureRequest.from_json(request), blobs)
        while not (results := runner.poll(60.0)):
            continue
        return [measurement.run_seconds for _, measurement in results[0].measurements]

    def program(self, name: str, threads: int) -> list[float | None]:
        """Time a whole model with default schedules; a list with the seconds of the fastest run."""
        if name not in self._programs:
            mode = Mode(host_target())
            plan = driver.make_plan(
                driver.optimise(driver.load_graph(models.build(name)), mode), mode
            )
            self._programs[name] = of_compiled(ProgramBuilder(None, mode).build(plan))
        return [self._device.race([[self._programs[name]]], threads).incumbent_seconds]


def main() -> None:
    channel = sys.stdout.buffer
    sys.stdout = sys.stderr  # a library that prints does not end the conversation
    with LocalDevice() as device:
        side = Side(device)
        while True:
            try:
                work, arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            pickle.dump(getattr(side, work)(*arguments), channel)
            channel.flush()


if __name__ == "__main__":
    main()
