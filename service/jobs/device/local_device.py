"""The local machine as the device of a job."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from tilewright.compiler.targets.detection import this_device
from tilewright.compiler.targets.device import DeviceFacts
from tilewright.compiler.targets.host import runs_here
from tilewright.compiler.targets.target import Target
from tilewright.db.review_state import Attestation, ClaimReporter
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.device.program_runs import ProgramRuns
from tilewright.service.jobs.inputs.given_inputs import NONE_GIVEN, GivenInputs
from tilewright.tuner.measure.harness.build import HarnessError
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.run_packing import Blobs, request_name
from tilewright.tuner.measure.runner import Runner
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest

LIMIT_SECONDS = 300.0
"""Time limit in seconds of one step of a run: loading a program, or running it once."""


class LocalDevice(ProgramRuns):
    """Measures kernels and runs whole programs on this machine, in a separate harness process.

    A context manager; its exit stops the harness. The methods block until a result is available.

    Args:
        given: the user's input values for the model; other inputs are random.
    """

    def __init__(self, given: GivenInputs = NONE_GIVEN) -> None:
        super().__init__("local", None, LIMIT_SECONDS, given)
        self._facts = this_device()
        self._runner: LocalRunner | None = None

    def __enter__(self) -> LocalDevice:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._runner is not None:
            self._runner.close()

    @property
    def name(self) -> str:
        return "this machine"

    @property
    def facts(self) -> DeviceFacts:
        return self._facts

    @property
    def runner(self) -> Runner:
        """The runner that measures kernels; it is created at the first access."""
        return self.local_runner

    @property
    def trusted(self) -> bool:
        return True

    def second_opinion(self, first: ClaimReporter) -> LocalDevice:
        return self

    def worth(self, first: ClaimReporter) -> Attestation:
        return Attestation.OWN

    @property
    def local_runner(self) -> LocalRunner:
        if self._runner is None:
            self._runner = LocalRunner("local", self._facts.brief().to_json())
        return self._runner

    def runs(self, target: Target) -> bool:
        return runs_here(target)

    def absence(self, target: Target) -> str:
        return f"{self.name} does not run target '{target.name}'"

    def _await(self, target: Target) -> None:
        """Do nothing: this machine is always available."""

    @property
    def _where(self) -> str:
        return self.name

    def _answered(
        self, request: RunRequest, blobs: Blobs, target: Target | None
    ) -> tuple[RunResult, str]:
        request = replace(request, request_id=request_name(request)[:32])
        try:
            result = self.local_runner.run(request, blobs)
        except (OSError, RuntimeError, ValueError, HarnessError) as error:
            raise DeviceError(f"{self.name}: {error}") from error
        if result.status is not RunStatus.OK:
            ran = result.status not in (RunStatus.OUT_OF_MEMORY, RunStatus.REFUSED)
            raise DeviceError(f"{self.name}: {result.error}", ran=ran)
        return result, ""
