"""Profiles a run of a program: the time of each instruction, as a table or as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, assert_never

from tilewright.compiler.runtime.artifact import Artifact
from tilewright.compiler.runtime.kernel import BufferRole, KernelSpec
from tilewright.compiler.runtime.ports import sizes_text
from tilewright.compiler.runtime.program import (
    Branch,
    Copy,
    Instruction,
    KernelCall,
    Loop,
    NativeCall,
    Program,
    Refuse,
    SizeBranch,
)
from tilewright.service.show.units import threads_text

SAMPLES = 9
"""Number of runs of the whole model. The fastest time of each instruction is reported."""


class StepKind(StrEnum):
    """The kind of an instruction. The time of a loop or branch does not include its body."""

    KERNEL = "kernel"
    NATIVE = "native"
    COPY = "copy"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class ProfileStep:
    """One instruction of a program, with its time.

    Attributes:
        number: the number of the instruction in the program, from 1.
        kind: the kind of the instruction.
        name: a readable name.
        seconds: the time of all runs of the instruction in one run of the program; 0 if it did not
            run.
    """

    number: int  # from 1, in the order of the code
    kind: StepKind
    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The time of each instruction of a program. With one thread, times are CPU time, else wall
    time.

    Attributes:
        program: the name of the program.
        target: the name of the target.
        device: the name of the device on which the program ran.
        threads: the number of threads of the run.
        steps: the instructions with their times.
        sizes: the sizes of the program's dynamic dimensions in this run.
    """

    program: str
    target: str
    device: str
    threads: int
    steps: tuple[ProfileStep, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The program's name, followed by the sizes of its dynamic dimensions."""
        if not self.sizes:
            return self.program
        return f"{self.program} at {sizes_text(tuple(self.sizes.items()))}"

    @property
    def seconds(self) -> float:
        """The sum of the fastest times of all instructions, in seconds."""
        return sum(step.seconds for step in self.steps)

    def by_name(self) -> list[tuple[str, StepKind, int, float]]:
        """Group the instructions by name.

        Returns:
            for each name: the name, the kind, the number of instructions, and their seconds; the
            longest time first.
        """
        found: dict[tuple[str, StepKind], list[float]] = {}
        for step in self.steps:
            found.setdefault((step.name, step.kind), []).append(step.seconds)
        rows = [(name, kind, len(each), sum(each)) for (name, kind), each in found.items()]
        return sorted(rows, key=lambda row: -row[3])

    def to_json(self) -> dict[str, Any]:
        """Return the profile as data for `json.dumps`."""
        return {**asdict(self), "seconds": self.seconds}


def steps_of(
    program: Program,
    seconds: Iterable[float],
    kernels: Sequence[str] = (),
    operators: Mapping[str, Sequence[str]] | None = None,
) -> list[ProfileStep]:
    """Return the instructions of a program with their times.

    Args:
        program: the program that ran, at fixed sizes.
        seconds: the time of each instruction, in the order of `program.walk()`.
        kernels: the names of the kernel calls in that order; if empty, a call is named by its
            operators and the shapes that it writes.
        operators: the operators by kernel symbol, as `operators_of` reads them from an artifact.
    """
    given, known = iter(kernels), operators or {}
    return [
        ProfileStep(number, *_named(instruction, program, given, known), float(each))
        for number, (instruction, each) in enumerate(
            zip(program.walk(), seconds, strict=True), start=1
        )
    ]


def traces(profiles: Sequence[ModelProfile]) -> dict[str, Any]:
    """Convert profiles to the Trace Event Format, which Perfetto and chrome://tracing display.

    Each profile is a process of the trace. Its instructions follow each other without gaps; the
    duration of an instruction is its fastest time.
    """
    events: list[dict[str, Any]] = []
    for process, profile in enumerate(profiles, 1):
        ended = 0.0
        thread = f"{profile.target}, {threads_text(profile.threads)}"
        events.append(_named_thread(process, "process_name", profile.title))
        events.append(_named_thread(process, "thread_name", thread))
        for step in profile.steps:
            took = 1e6 * step.seconds
            event = {"name": step.name, "cat": step.kind.value, "ph": "X", "ts": ended, "dur": took}
            about = {"pid": process, "tid": 1, "args": {"instruction": step.number}}
            events.append({**event, **about})
            ended += took
    first = profiles[0]
    about = {"device": first.device, "target": first.target, "threads": first.threads}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _named_thread(process: int, kind: str, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": 1, "args": {"name": name}}


def _named(
    instruction: Instruction,
    program: Program,
    kernels: Iterator[str],
    operators: Mapping[str, Sequence[str]],
) -> tuple[StepKind, str]:
    match instruction:
        case KernelCall(kernel, _, sizes):
            spec = program.kernels[kernel]
            name = next(kernels, "") or kernel_text(spec, operators.get(spec.name, ()), sizes)
            return StepKind.KERNEL, name
        case NativeCall(function):
            return StepKind.NATIVE, function
        case Copy(_, _, size):
            return StepKind.COPY, f"copy of {size} bytes"
        case Loop() | Branch() | SizeBranch() | Refuse():
            return StepKind.CONTROL, type(instruction).__name__.lower()
        case _:
            assert_never(instruction)


def operators_of(artifact: Artifact) -> dict[str, Sequence[str]]:
    """Return the operators of each kernel of an artifact, by the kernel's symbol.

    Malformed entries in the artifact's metadata are ignored.
    """
    schedules = artifact.metadata.get("schedules")
    found: dict[str, Sequence[str]] = {}
    for said in schedules.values() if isinstance(schedules, dict) else ():
        if isinstance(said, dict) and isinstance(said.get("operators"), list):
            found[str(said.get("kernel"))] = [x for x in said["operators"] if isinstance(x, str)]
    return found


def kernel_text(spec: KernelSpec, operators: Sequence[str], sizes: tuple[int, ...] = ()) -> str:
    """Return a readable name of a kernel call, such as `matmul +relu 2x4`.

    The name consists of the kernel's operators and the shapes that it writes. If no operators are
    given, the first letters of the kernel's symbol replace them.

    Args:
        spec: the kernel.
        operators: the kernel's operators; may be empty.
        sizes: the sizes of the kernel's dynamic dimensions in the call.
    """
    shapes = [
        "x".join(str(spec.given(extent, sizes) if sizes else extent) for extent in buffer.shape)
        for buffer in spec.buffers
        if buffer.role is BufferRole.OUTPUT
    ]
    name = " +".join(operators[:4]) if operators else spec.name[:15]
    return f"{name} {', '.join(shape or '1' for shape in shapes)}"
