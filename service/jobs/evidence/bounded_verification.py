"""Verifies a job's program in a child process with memory and time limits.

Verification computes the model's expected outputs, which may take unlimited time (a loop of 10**9
steps) and memory. So the child computes the expected outputs. For each run of the program on the
device, the child sends a request to the parent process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never, cast

import numpy as np

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.process.bounded import BoundedChild, Limits, NoAnswer, Reason, Stop
from tilewright.compiler.runtime.program import Program
from tilewright.compiler.targets.target import Target
from tilewright.service.jobs.device.device import Checked, Device, Loadable
from tilewright.service.jobs.device.loadables import LoadableOf
from tilewright.service.jobs.evidence.observation import with_program
from tilewright.service.jobs.evidence.verification import Verification, at_each_size, verify_program
from tilewright.service.jobs.plan.bounded_planning import memory_limit, tell_bug, without_model
from tilewright.service.jobs.plan.planning import Planned
from tilewright.service.jobs.process.interrupts import JobCancelled

if TYPE_CHECKING:
    from tilewright.service.settings import Settings

Ask = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class VerificationBound:
    """The limits of a child process that verifies a program.

    Attributes:
        limits: the memory and time limits.
        stop: the token that stops the child at once.
    """

    limits: Limits
    stop: Stop


def verification_limits(settings: Settings) -> Limits:
    """Return the configured memory and time limits of a child process that verifies a program."""
    return Limits(memory_limit(settings), settings.verification_seconds)


@dataclass(slots=True)
class BoundedVerifier:
    """Verifies the programs of one model like `Verifier`, but in a child process with limits.

    The child verifies one size after the other. The parent process runs the programs on the device
    when the child requests it.

    Attributes:
        planned: one plan per program: the model graph, its partition into kernels, and its sizes.
        device: the device that runs the programs.
        bound: the memory and time limits of the child process.
        more_seconds: the time for verifying further sizes, after the typical sizes (size hints).
        found: the result; set by `verify`.
    """

    planned: Sequence[Planned]
    device: Device
    bound: VerificationBound
    more_seconds: float
    found: Verification = field(init=False)

    def verify(self, made: LoadableOf) -> None:
        """Verify the programs at all sizes, and store the result in `found`.

        A size at which the child exceeds its limits is not verified; the attribute `not_run` of
        `found` then has the reason.

        Args:
            made: returns the program to verify for a plan, which states the sizes.

        Raises:
            WrongProgramError: if a program computes wrong values, or crashes.
            CompilerError: if a loop of the model does not end, or the child process crashes.
            JobCancelled: if the job was stopped during verification.
        """
        child = BoundedChild(self.bound.limits)
        try:
            self.found = at_each_size(
                self.planned,
                lambda each: _verify(each, made, self.device, self.bound, child),
                self.more_seconds,
            )
        finally:
            child.stop()
            child.close()


def _verify(
    planned: Planned,
    made: LoadableOf,
    device: Device,
    bound: VerificationBound,
    child: BoundedChild,
) -> Verification:
    """Call `verify_program` in the child process and return its result.

    If the child exceeds its limits, the result has the reason in `not_run`.
    """
    if not device.runs(planned.target):
        return verify_program(planned, made, device)
    loadable = made(planned)

    def check(
        program: Program,
        threads: int,
        seed: int,
        expected: Mapping[str, np.ndarray],
        fetch: Sequence[str],
    ) -> Checked:
        same = program == loadable.program
        asked = loadable if same else with_program(loadable, program)
        return device.check(asked, threads, seed, expected, fetch)

    shown = (loadable.program, loadable.mixing)
    given = (without_model(planned), *shown, device.name, device.fetch_bytes)
    found = child.ask(verified, given, bound.stop, check)
    if not isinstance(found, NoAnswer):
        return found
    what = "the reference of the model"
    match found.reason:
        case Reason.ENDED:
            raise JobCancelled("while its program was verified")
        case Reason.MEMORY:
            gib = f"{bound.limits.memory_bytes / (1 << 30):.3g} GiB"
            return Verification(
                None,
                not_run=f"{what} takes more memory than {gib} (TILEWRIGHT_PLANNING_MEMORY_BYTES)",
            )
        case Reason.TIME:
            return Verification(
                None,
                not_run=f"{what} takes longer than {bound.limits.seconds:g} s "
                "(TILEWRIGHT_VERIFICATION_SECONDS)",
            )
        case Reason.CRASHED:
            tell_bug(found)
            raise CompilerError(f"the verification of the model failed: {found.text}")
        case _:
            assert_never(found.reason)


def verified(
    planned: Planned,
    program: Program,
    mixing: frozenset[str],
    name: str,
    fetch_bytes: int,
    ask: Ask,
) -> Verification:
    """Verify a program and return the result; the entry point of the child process.

    Args:
        planned: the plan of the program.
        program: the program, without weights and code, because the child does not run it.
        mixing: the symbols of kernels in which the rounding error of a large element also reaches
            results that do not depend on the element (`Loadable.mixing`).
        name: the device's name.
        fetch_bytes: the largest total size of the outputs that a run may fetch, in bytes.
        ask: sends a request for a run to the parent process and returns the result.
    """
    loadable = Loadable(program, np.zeros(0, np.uint8), _never, _never, mixing)
    device = cast(Device, _AskedDevice(name, fetch_bytes, ask))  # no other method is called
    return verify_program(planned, lambda _: loadable, device)


def _never(*arguments: object) -> Any:
    raise AssertionError("the child runs no program")


@dataclass(frozen=True, slots=True)
class _AskedDevice:
    """The device as seen by the child process; `check` forwards each run to the parent process."""

    name: str
    fetch_bytes: int
    ask: Ask

    def runs(self, target: Target) -> bool:
        return True

    def check(
        self,
        loadable: Loadable,
        threads: int,
        seed: int,
        expected: Mapping[str, np.ndarray],
        fetch: Sequence[str] = (),
    ) -> Checked:
        found: Checked = self.ask(loadable.program, threads, seed, expected, fetch)
        return found
