"""Verifies a compiled model: compares its values with a float64 reference of the imported graph.

The comparison is done step by step (`service.jobs.evidence.certificate`). Each value that the
program writes is compared with a reference that starts from the previously compared values of the
program. So a rounding tie, or a selection that picks another element, does not affect the
comparison of later values. Values of all types are compared in this way.

A loop or branch is one step: the values inside its body are not compared. A value after a loop or
branch is reported as unverified if rounding may explain its difference on all random inputs.

The outputs of the whole model are compared, too. If a model computes in float32 or wider, and has
no operator that rounds or selects by value, an error up to MODEL_TOLERANCE counts as rounding. For
a large model of this kind, agreement of the outputs suffices, and the steps are not compared
(`service.jobs.evidence.verified_sizes.costs_little`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from types import TracebackType

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.graph.ir import Graph
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.ops.products import HALVES
from tilewright.compiler.program.random_integers import random_integer_range
from tilewright.compiler.runtime.artifact import Artifact
from tilewright.compiler.runtime.program import Port
from tilewright.service.jobs.device.device import Device, DeviceError, Loadable
from tilewright.service.jobs.device.loadables import LoadableOf, of_artifact
from tilewright.service.jobs.evidence.certificate import (
    Certificate,
    WrongProgramError,
    certify,
    together,
)
from tilewright.service.jobs.evidence.observation import Observation
from tilewright.service.jobs.evidence.ties import jumps
from tilewright.service.jobs.evidence.verified_sizes import at_hints, at_other_sizes, costs_little
from tilewright.service.jobs.plan.planning import Planned
from tilewright.tuner.measure.model_runs import largest_error
from tilewright.tuner.protocol.runs import INPUT_SEED

ATTEMPTS = 3
"""Largest number of sets of random inputs. A further set is needed if a value cannot be verified on
the previous one."""

MODEL_TOLERANCE = 1e-4
"""Largest allowed error of a whole model in float32, relative to the largest element of the
output."""

SHORTEST_SECONDS = 1e-3
"""Lower bound in seconds of a verification's duration when the remaining time is divided by it."""

HALF_OVERFLOW = 65520.0
"""Smallest float32 number that is rounded to infinity in float16, whose largest number is 65504."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a program, or all programs of an artifact.

    Attributes:
        error: the largest error of the model's outputs, each relative to the largest element of
            that output; None if the program was not run.
        not_run: the reason why a program was not run; "" if all were run.
        by_steps: the result of the step-by-step comparison; None if only the outputs were compared.
        sizes: the number of verified programs of fixed sizes. Each program with dynamic dimensions
            counts once per verified size.
        cut_short: whether time ran out before all sizes were verified. The size hints (expected
            sizes) are always verified.
    """

    error: float | None
    not_run: str = ""
    by_steps: Certificate | None = None
    sizes: int = 1
    cut_short: bool = False

    @property
    def unverified(self) -> tuple[str, ...]:
        """The names of values computed from a loop or branch that differ from the reference.

        It is unknown whether rounding is the cause of the differences.
        """
        return () if self.by_steps is None else self.by_steps.unverified

    @property
    def complete(self) -> bool:
        """Whether every program was run, and no value remained unverified."""
        return self.error is not None and not self.unverified and not self.not_run


def worst(found: Sequence[Verification]) -> Verification:
    """Combine the verification results of several sizes into one.

    The combined result has the largest error, the first reason why a program was not run, and the
    sum of the counts. It joins the results of the step-by-step comparisons.
    """
    errors = [one.error for one in found if one.error is not None]
    reason = next((one.not_run for one in found if one.not_run), "")
    steps = [one.by_steps for one in found if one.by_steps is not None]
    by_steps = together(steps) if steps else None
    return Verification(
        max(errors, default=None),
        reason,
        by_steps,
        sum(one.sizes for one in found),
        any(one.cut_short for one in found),
    )


def at_each_size(
    planned: Sequence[Planned],
    verify: Callable[[Planned], Verification],
    more_seconds: float,
    clock: Callable[[], float] = monotonic,
) -> Verification:
    """Verify programs at their size hints (expected sizes), then at other sizes if time remains.

    The programs take turns, one further size at a time. So every program gets some of the time,
    even if an object detector has hundreds of programs, one for each data-dependent size. The time
    at a program's size hints gives an estimate for its other sizes. A size that would take longer
    than the remaining time is replaced by a size nearer to the hints.

    Args:
        planned: the plans of the programs.
        verify: verifies a program at the fixed sizes of a plan.
        more_seconds: the time for sizes other than the size hints.
        clock: returns the time in seconds.

    Returns:
        the combined result of all verifications.
    """

    def share(took: float) -> float:
        return max(ends - clock(), 0.0) / max(took, SHORTEST_SECONDS)

    found: list[Verification] = []
    left: list[Iterator[Planned]] = []
    for one in planned:
        began, hints = clock(), at_hints(one)
        found += [verify(each) for each in hints]
        took = (clock() - began) / len(hints)
        left.append(at_other_sizes(one, partial(share, took)))
    ends = clock() + more_seconds
    while left:
        going = []
        for sizes in left:
            if clock() >= ends:
                return replace(worst(found), cut_short=True)
            each = next(sizes, None)
            if each is not None:
                found.append(verify(each))
                going.append(sizes)
        left = going
    return worst(found)


class Verifier:
    """Verifies the programs of one compiled model on a device.

    A program with dynamic dimensions is verified at its size hints (expected sizes) and at other
    sizes. The class is a context manager. While the caller compiles inside the context, a thread
    computes the expected outputs at the size hints for the first random inputs.

    Attributes:
        found: the result; set by `verify`.
    """

    found: Verification

    def __init__(self, planned: Sequence[Planned], device: Device, more_seconds: float) -> None:
        self._planned = planned
        self._device = device
        self._more_seconds = more_seconds
        self._pool = ThreadPoolExecutor(1, "tilewright-reference")
        self._expected: list[Future[list[np.ndarray]] | None] = []

    def __enter__(self) -> Verifier:
        for each in (hint for one in self._planned for hint in at_hints(one)):
            ahead = self._device.runs(each.target)
            self._expected.append(self._pool.submit(_first_draw, each) if ahead else None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def verify(self, made: LoadableOf) -> None:
        """Verify the programs at all sizes, and store the combined result in `found`.

        Args:
            made: returns the compiled program for a plan.

        Raises:
            WrongProgramError: if a program computes wrong values, or crashes.
            CompilerError: if a loop of the model does not end.
        """
        expected = iter(self._expected)  # belongs to the hints, which come first
        self.found = at_each_size(
            self._planned,
            lambda each: verify_program(each, made, self._device, next(expected, None)),
            self._more_seconds,
        )


def verify_artifact(planned: Planned, artifact: Artifact, device: Device) -> Verification:
    """Verify an artifact's program for the sizes of the plan; see `verify_program`."""
    return verify_program(planned, partial(of_artifact, artifact), device)


def verify_program(
    planned: Planned,
    made: LoadableOf,
    device: Device,
    expected: Future[list[np.ndarray]] | None = None,
) -> Verification:
    """Run a program on a device, and compare its values with the float64 reference.

    If the device cannot run the program, for example for lack of memory, the result's attribute
    `not_run` has the reason.

    Args:
        planned: the plan of the program, at fixed sizes.
        made: returns the compiled program for the plan.
        device: the device that runs the program.
        expected: the future of the expected outputs for the first random inputs, if a thread
            computes them; None to compute them here.

    Raises:
        WrongProgramError: if a value differs and rounding cannot be the reason, or the program
            crashes.
        CompilerError: if a loop of the model does not end.
    """
    if not device.runs(planned.target):
        return Verification(None, not_run=device.absence(planned.target))
    loadable = made(planned)
    found: Verification | None = None
    for attempt in range(ATTEMPTS):
        try:
            found = _verify(planned, loadable, device, INPUT_SEED + attempt, expected)
        except DeviceError as error:
            if error.ran:
                raise WrongProgramError(str(error)) from error
            # the findings on earlier random inputs remain valid
            return found or Verification(None, not_run=str(error))
        if found.complete:
            break
        expected = None
    assert found is not None
    return found


def input_ports(planned: Planned) -> list[Port]:
    """Return the inputs of a plan's programs, with their types and shapes.

    An integer input of indices into a constant table has the range of its valid indices, from which
    random inputs are taken.
    """
    types, made = planned.graph.types, planned.plan.graph
    return [
        Port(v, types[v].dtype, types[v].shape, integers=random_integer_range(made, v))
        for v in planned.graph.inputs
    ]


def _draw(planned: Planned, seed: int) -> dict[str, np.ndarray]:
    """Return the inputs of a run: those that the user gave, and random ones for the others.

    A device that gets the same seed generates the same random inputs.
    """
    return planned.request.given.draw(input_ports(planned), seed)


def _first_draw(planned: Planned) -> list[np.ndarray]:
    return run_graph(planned.graph, _draw(planned, INPUT_SEED))


def _verify(
    planned: Planned,
    loadable: Loadable,
    device: Device,
    seed: int,
    ahead: Future[list[np.ndarray]] | None,
) -> Verification:
    graph, threads = planned.graph, planned.mode.threads
    inputs = _draw(planned, seed)
    # first: it gives up on loops that do not end
    expected = run_graph(graph, inputs) if ahead is None else ahead.result()
    names = [port.name for port in loadable.program.outputs]
    ports = dict(zip(graph.outputs, names, strict=True))
    wanted = {p: np.asarray(e) for p, e in zip(names, expected, strict=True)}
    found = device.check(loadable, threads, seed, wanted).errors
    errors = {name: found[port] for name, port in ports.items()}
    worst_of = max(errors, key=lambda name: _order(errors[name]))
    error = errors[worst_of]
    differs = not error <= MODEL_TOLERANCE  # true for NaN, too
    seen = Observation(planned.plan, loadable, device, threads, seed)
    steps = None
    if (differs or _is_narrow(planned) or costs_little(planned)) and seen.is_of_plan:
        try:
            steps = certify(graph, inputs, seen, ports)
        except WrongProgramError:
            if planned.mode.precision == DType.FLOAT16:
                _check_range(planned, inputs)
            raise
        except DeviceError as failed:  # its outputs agree, but its values cannot be read
            if failed.ran or differs or _is_narrow(planned):
                raise
    if differs and (steps is None or _is_firm(planned)):
        raise WrongProgramError(
            f"output '{worst_of}' of the compiled model differs from its reference by "
            f"{error:.2g} of its largest value, allowed are {MODEL_TOLERANCE:.0e}"
        )
    return Verification(error, by_steps=steps)


def _order(error: float) -> float:
    """Return a sort key for errors, in which NaN is larger than any number."""
    return error if error == error else float("inf")


def _is_firm(planned: Planned) -> bool:
    """Whether rounding can change the model's outputs only slightly.

    This holds if all floats are float32 or wider, and no operator rounds or selects by value.
    """
    return not jumps(planned.graph) and not _is_narrow(planned)


def _is_narrow(planned: Planned) -> bool:
    """Whether the model, or its compiled program, contains float16 or bfloat16 values."""
    kinds = (*planned.graph.types.values(), *planned.plan.graph.types.values())
    return any(kind.dtype in HALVES for kind in kinds)


def _check_range(planned: Planned, inputs: Mapping[str, np.ndarray]) -> None:
    """Raise CompilerError if a float16 model overflows on inputs; the message names the value.

    Nothing is raised if no value exceeds the range of float16.
    """
    found = _overflowing(planned.plan.graph, inputs)
    if found is not None:
        name, largest = found
        raise CompilerError(
            f"value '{name}' reaches {largest:.3g} on random inputs, which is infinite in float16: "
            "compile the model in bfloat16 or float32"
        )


def _overflowing(graph: Graph, inputs: Mapping[str, np.ndarray]) -> tuple[str, float] | None:
    """Find the first value that overflows when a graph converts it to float16.

    Returns:
        the name of the value and its largest finite magnitude; None if no value overflows on these
        inputs.
    """
    rounded = [
        node.inputs[0]
        for node in graph.nodes
        if node.op == "cast" and graph.types[node.output].dtype is DType.FLOAT16
    ]
    if not rounded:
        return None
    for name, array in zip(rounded, run_graph(graph.replace(outputs=rounded), inputs), strict=True):
        finite = np.abs(array[np.isfinite(array)], dtype=np.float32)
        largest = float(finite.max(initial=0.0))
        if largest >= HALF_OVERFLOW:
            return name, largest
    return None


def largest_model_error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Return the largest error of all outputs.

    The error of an element is its difference from the expected element, divided by the largest
    expected element of the same output. The result is infinite if NaNs or infinities differ in
    their positions, or the number of outputs differs.
    """
    if len(actual) != len(expected):
        return float("inf")
    return max(map(largest_error, actual, expected), default=0.0)
