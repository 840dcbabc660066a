"""Is a compiled model right? Its outputs against the operators' references on the imported graph.

Where a model chooses by values (the best boxes, the first k, where something is true) rounding may
swap what is nearly equal, and everything behind the choice differs. So choices are verified by
stages:

1. The program says what each of its native functions read and wrote: copies of those buffers are
   further outputs of the same program, of the same kernels on the same memory.
2. The reference runs on the imported graph. At a choice it looks for a call of the program that
   read the same values, within the common tolerance.
3. That call must have chosen *exactly* what the reference chooses from the program's own values:
   no rounding lies between them, so there is nothing to allow for.
4. The reference goes on with the program's choice, and all outputs are compared by number.

By induction over the choices, every value of the program is within the tolerance of a reference
that makes the same choices, each of which was right. If no call matches a choice (it was folded),
the reference keeps its own choice, and what depends on it must agree with that.

A float32 model that rounds or chooses, and differs as a whole, is verified step by step instead
(`service.jobs.certificate`).

A model in a narrower precision is compared with its float32 reference, within what the type allows
(`service.jobs.rounding.tolerances`). What is further off is tested in the same way as what lies
behind choices that cannot be seen:

Choices within the bodies of loops and branches, and loops that computed values end, cannot be seen
from outside. Outputs behind them are compared by number too. If they differ, the reference is
tested whether rounding can be the reason (`service.jobs.rounding`). If it cannot, the program is
wrong. If it may, on every draw of the inputs, these outputs are called unverified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import numpy as np

from compiler import ops
from compiler.dtypes import DType
from compiler.errors import CompilerError
from compiler.graph.ir import Graph, Node
from compiler.loops.semantics import from_memory, to_memory
from compiler.ops.interpret import run_graph
from compiler.runtime.artifact import Artifact
from compiler.runtime.native_functions import native_signature
from compiler.runtime.program import (
    BufferRef,
    BufferSpace,
    Copy,
    Instruction,
    NativeCall,
    Port,
    Program,
)
from compiler.table_rows import table_rows
from service.jobs.certificate import Certificate, WrongProgramError, certify, jumps, together
from service.jobs.device import Device, DeviceError, Loadable
from service.jobs.loadables import LoadableOf, of_artifact
from service.jobs.observation import Observation, with_program
from service.jobs.planning import Planned
from service.jobs.rounding import clearly_wrong, overflowing, tolerances
from service.jobs.verified_sizes import at_verified_sizes
from tuner.measure.model_runs import INPUT_SEED, largest_error

ATTEMPTS = 3
"""Most draws of the inputs, if truth values depend on rounding."""

UNDECIDED_SHARE = 1e-3
"""Share of a choice's truth values that may be undecided, at least one of them: more mean a wrong
program."""

TRIM = "trim"
"""The native function that chooses nothing: it cuts the result of a choice."""


class UndecidedError(WrongProgramError):
    """The inputs that were drawn leave a choice open; others will not."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The findings about an artifact.

    Attributes:
        error: the largest error of the outputs that were verified, relative to each one's largest
            value; None if there are none, or it was not run.
        unverified: outputs that differ from the reference, behind choices that cannot be seen.
        not_run: why it was not run; "" if it was.
        by_steps: the certificate by steps, where rounding takes the whole model elsewhere.
    """

    error: float | None
    unverified: tuple[str, ...] = ()
    not_run: str = ""
    by_steps: Certificate | None = None

    @property
    def complete(self) -> bool:
        """Whether every output was verified, at every size."""
        return self.error is not None and not self.unverified and not self.not_run


def worst(found: Sequence[Verification]) -> Verification:
    """Several verifications (one for each size) as one."""
    errors = [one.error for one in found if one.error is not None]
    unverified = dict.fromkeys(name for one in found for name in one.unverified)
    reason = next((one.not_run for one in found if one.not_run), "")
    steps = [one.by_steps for one in found if one.by_steps is not None]
    by_steps = together(steps) if steps else None
    return Verification(max(errors, default=None), tuple(unverified), reason, by_steps)


@dataclass(frozen=True, slots=True)
class _Call:
    """A native call of a program, and the names of the outputs that hold its buffers."""

    function: str
    parameters: tuple[int, ...]
    inputs: tuple[str, ...]
    output: str

    @property
    def buffers(self) -> tuple[str, ...]:
        return (*self.inputs, self.output)


class Verifier:
    """Verifies what one model was compiled to on a device, at one or several sizes, and at some of
    those of a range.

    `found` has the result. A context: a thread computes the references on the first draw, while the
    caller compiles. If a model chooses by value, its reference follows the program and
    has to wait for it.
    """

    found: Verification

    def __init__(self, planned: Sequence[Planned], device: Device) -> None:
        self._planned = [each for one in planned for each in at_verified_sizes(one)]
        self._device = device
        self._pool = ThreadPoolExecutor(1, "tilewright-reference")
        self._expected: list[Future[list[np.ndarray]] | None] = []

    def __enter__(self) -> Verifier:
        for each in self._planned:
            ahead = self._device.runs(each.target) and not _follows(each.graph)
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
        """`verify_program` at all sizes, as one. Files are not read back for their checksums.

        Raises:
            CompilerError: see `verify_program`.
        """
        pairs = zip(self._planned, self._expected, strict=True)
        self.found = worst(
            [verify_program(p, made, self._device, expected) for p, expected in pairs]
        )


def verify_artifact(planned: Planned, artifact: Artifact, device: Device) -> Verification:
    """`verify_program` of what an artifact has for the sizes of the plan."""
    return verify_program(planned, partial(of_artifact, artifact), device)


def verify_program(
    planned: Planned,
    made: LoadableOf,
    device: Device,
    expected: Future[list[np.ndarray]] | None = None,
) -> Verification:
    """Compare a program with the references, on a device that its target runs on.

    `expected` gives the outputs of the reference on the first draw, if a thread computes them. If
    the device cannot run the program (it is absent, or lacks the memory), the verification says
    so.

    Raises:
        WrongProgramError: if the program must not be used: the error is over the tolerance and
            rounding cannot be the reason, a choice contradicts the values, or the program crashes.
        CompilerError: if a loop of the model does not end.
    """
    if not device.runs(planned.target):
        return Verification(
            None, not_run=f"{device.name} does not run target '{planned.target.name}'"
        )
    loadable = made(planned)
    undecided: UndecidedError | None = None
    found: Verification | None = None
    for attempt in range(ATTEMPTS):
        try:
            seed = INPUT_SEED + attempt
            found = _verify(planned, loadable, device, seed, expected)
        except UndecidedError as error:
            undecided = error
        except DeviceError as error:
            if error.ran:
                raise WrongProgramError(str(error)) from error
            # what an earlier draw has shown holds
            return found or Verification(None, not_run=str(error))
        else:
            if found.complete:
                break
        expected = None
    if found is None:
        assert undecided is not None
        raise undecided
    return found


def _draw(planned: Planned, seed: int) -> dict[str, np.ndarray]:
    """The inputs that a device draws from the same seed."""
    types, made = planned.graph.types, planned.plan.graph
    ports = [
        Port(v, types[v].dtype, types[v].shape, rows=table_rows(made, v))
        for v in planned.graph.inputs
    ]
    return planned.request.given.draw(ports, seed)


def _first_draw(planned: Planned) -> list[np.ndarray]:
    return run_graph(planned.graph, _draw(planned, INPUT_SEED))


def _follows(graph: Graph) -> bool:
    """Whether the reference goes on with what the program chose (`Choices`)."""
    return any(ops.get(n.op).native is not None and n.op != TRIM for n in graph.nodes)


def _verify(
    planned: Planned,
    loadable: Loadable,
    device: Device,
    seed: int,
    ahead: Future[list[np.ndarray]] | None,
) -> Verification:
    graph, threads, precision = planned.graph, planned.threads, planned.precision
    inputs = _draw(planned, seed)
    if any(node.bodies for node in graph.nodes):
        # first: it gives up on loops that do not end
        _ = run_graph(graph, inputs) if ahead is None else ahead.result()
    program, calls = observed(loadable.program)
    looked_at = [name for call in calls for name in call.buffers]
    values: Mapping[str, np.ndarray] = {}
    if calls:
        watched = with_program(loadable, program)
        values = device.check(watched, threads, seed, {}, looked_at).fetched
    choices = Choices(graph, calls, values, precision)
    expected = run_graph(graph, inputs, chosen=choices) if ahead is None else ahead.result()
    ports = [port.name for port in loadable.program.outputs]
    wanted = {p: np.asarray(e) for p, e in zip(ports, expected, strict=True)}
    checked = device.check(loadable, threads, seed, wanted)
    errors = {n: checked.errors[p] for n, p in zip(graph.outputs, ports, strict=True)}
    hidden, allowed = chosen_outputs(graph), tolerances(graph, precision)
    if precision != DType.FLOAT32:
        hidden = frozenset(graph.outputs)  # how far its rounding goes is up to the model
    unverified = tuple(n for n, e in errors.items() if n in hidden and not e <= allowed[n])
    doubted = {name: errors[name] for name in unverified}
    wrong: tuple[str, ...] = ()
    if doubted:
        wrong = clearly_wrong(graph, inputs, expected, doubted, largest_model_error, precision)
    judged = [name for name in errors if name not in unverified or name in wrong]
    # not a number is over any tolerance
    apart = [name for name in judged if not errors[name] <= allowed[name]]
    if (apart or unverified) and precision == DType.FLOAT16:
        _check_range(planned, inputs)
    if (apart or unverified) and precision == DType.FLOAT32:
        seen = Observation(planned.plan, loadable, device, threads, seed)
        by_steps = _by_steps(graph, inputs, seen, dict(zip(graph.outputs, ports, strict=True)))
        if by_steps is not None and jumps(graph):  # else nothing explains the whole
            return Verification(max(errors.values()), by_steps=by_steps)
    if not apart:
        return Verification(max((errors[name] for name in judged), default=None), unverified)
    if choices.undecided:
        raise UndecidedError(f"what '{choices.undecided}' chooses hangs on rounding")
    worst_of = max(apart, key=lambda name: errors[name] / allowed[name])
    raise WrongProgramError(
        f"output '{worst_of}' of the compiled model differs from its reference by "
        f"{errors[worst_of]:.2g} of its largest value, allowed are {allowed[worst_of]:.0e}"
    )


def _by_steps(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    seen: Observation,
    ports: Mapping[str, str],
) -> Certificate | None:
    """The certificate by steps; None if what is wrong lies behind bodies, which nobody looks into,
    or no step is seen: a whole model as one step would excuse what it should find.

    Raises what `certify` does.
    """
    if not seen.is_of_plan:
        return None
    try:
        return certify(graph, inputs, seen, ports)
    except WrongProgramError as error:
        if error.within_bodies:
            return None
        raise


def _check_range(planned: Planned, inputs: Mapping[str, np.ndarray]) -> None:
    """Raises CompilerError, naming the value, if one is infinite in float16 that is not so in
    float32."""
    found = overflowing(planned.plan.graph, inputs)
    if found is not None:
        name, largest = found
        raise CompilerError(
            f"value '{name}' reaches {largest:.3g} on drawn inputs, which is infinite in float16: "
            "compile the model in bfloat16 or float32"
        )


def observed(program: Program) -> tuple[Program, tuple[_Call, ...]]:
    """The program with further outputs: the bytes that its native calls read and wrote."""
    instructions: list[Instruction] = []
    ports = list(program.outputs)
    calls = []

    def copy(source: BufferRef, size: int) -> tuple[str, Copy]:
        number = len(ports)
        name = f"observed {number}"
        while any(port.name == name for port in program.outputs):
            name += "'"
        ports.append(Port(name, DType.UINT8, (size,)))
        return ports[number].name, Copy(BufferRef(BufferSpace.OUTPUT, number), source, size)

    for instruction in program.instructions:
        if not isinstance(instruction, NativeCall) or instruction.function == TRIM:
            instructions.append(instruction)
            continue
        signature = native_signature(instruction.function, instruction.parameters)
        buffers = instruction.buffers[: len(signature.inputs)]
        before = [copy(ref, n) for ref, n in zip(buffers, signature.inputs, strict=True)]
        after = copy(instruction.buffers[len(buffers)], signature.output)
        instructions += [*(c for _, c in before), instruction, after[1]]
        names = tuple(name for name, _ in before)
        calls.append(_Call(instruction.function, instruction.parameters, names, after[0]))
    changed = replace(program, outputs=tuple(ports), instructions=tuple(instructions), slices=None)
    return changed, tuple(calls)


class Choices:
    """Gives the reference its result at a native node: the program's choice, once it is checked.

    `undecided` names a node whose truth values differ from the reference's at so few places that
    rounding may be the reason.
    """

    def __init__(
        self,
        graph: Graph,
        calls: Sequence[_Call],
        values: Mapping[str, np.ndarray],
        precision: str = DType.FLOAT32,
    ) -> None:
        self._graph = graph
        self._calls = calls
        self._values = values
        self._allowed = tolerances(graph, precision)
        self.undecided = ""

    def __call__(
        self, node: Node, operands: Sequence[np.ndarray], result: np.ndarray
    ) -> np.ndarray:
        """The program's own result if a call matches the node, else the given one.

        Raises:
            CompilerError: if the program chose anything else than its own values say.
        """
        operator = ops.get(node.op)
        if operator.native is None or node.op == TRIM:
            return result
        kinds = [self._graph.types[value] for value in node.inputs]
        function, parameters = operator.native(kinds, node.attrs)
        for call in self._calls:
            if (call.function, call.parameters) != (function, parameters):
                continue
            own = [
                self._value(name, kind.dtype, kind.shape)
                for name, kind in zip(call.inputs, kinds, strict=True)
            ]
            if not self._agree(node, own, operands):
                continue
            kind = self._graph.types[node.output]
            made = self._value(call.output, kind.dtype, kind.shape)
            with np.errstate(all="ignore"):
                right = np.asarray(operator.reference(own, node.attrs))
            if not np.array_equal(to_memory(right.reshape(kind.shape), kind.dtype), made):
                raise WrongProgramError(
                    f"'{node.name}' ({node.op}) chose other elements than its own values say"
                )
            return made
        return result

    def _value(self, name: str, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        """A buffer as the reference computes with it."""
        values = from_memory(self._values[name].view(dtype.numpy).reshape(shape), dtype)
        return values.astype(np.float32) if dtype is DType.FLOAT16 else values

    def _agree(self, node: Node, own: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
        """Whether a call read the reference's values: floats within the tolerance, others equal."""
        for name, mine, other in zip(node.inputs, own, theirs, strict=True):
            if mine.dtype.kind == "f":
                if largest_model_error([mine], [other]) > self._allowed[name]:
                    return False
                continue
            differing = int((mine != other).sum())
            if differing:
                if differing <= max(1.0, UNDECIDED_SHARE * mine.size):
                    self.undecided = node.name
                return False
        return True


def largest_model_error(actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Over all outputs, the largest difference relative to the output's largest finite value.

    NaNs and infinities must be at the same places.
    """
    if len(actual) != len(expected):
        return float("inf")
    return max(map(largest_error, actual, expected), default=0.0)


def chosen_outputs(graph: Graph) -> frozenset[str]:
    """The outputs that depend on choices that cannot be seen: native operators within bodies, and
    control flow that computed values decide. A branch that an input decides hides nothing."""
    chosen: set[str] = set()
    for node in graph.nodes:
        given = node.op == "branch" and graph.producer(node.inputs[0]) is None
        hides = _chooses_within(node) if given else bool(node.bodies) and _chooses(node)
        if hides or chosen.intersection(node.inputs):
            chosen.add(node.output)
    return frozenset(chosen.intersection(graph.outputs))


def _chooses(node: Node) -> bool:
    if ops.get(node.op).kind is ops.OpKind.NATIVE or node.op == "branch":
        return True
    return bool(node.attr("decides")) or _chooses_within(node)


def _chooses_within(node: Node) -> bool:
    return any(_chooses(inner) for body in node.bodies for inner in body.nodes)
