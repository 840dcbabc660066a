"""Emission of a program's instructions from the steps of a plan.

The body of a loop or branch has a separate plan. The enclosing step provides the memory of the
body's inputs and outputs, and the body's arena lies inside the arena of the enclosing plan. The
instructions of bodies are therefore ordinary instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.plan.intervals import RangePiece, SizeSplit, leaves
from tilewright.compiler.plan.memory import MemoryPlan, may_overwrite
from tilewright.compiler.plan.plan import (
    BranchStep,
    GraphPlan,
    KernelStep,
    LoopStep,
    NativeStep,
    RefusalStep,
    ViewStep,
    bodies_of,
)
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.kernels import KernelTree
from tilewright.compiler.runtime.kernel import BufferRole, BufferSpec, KernelSpec
from tilewright.compiler.runtime.native_functions import native_signature
from tilewright.compiler.runtime.program import (
    ENDLESS,
    Branch,
    BufferRef,
    BufferSpace,
    Copy,
    Instruction,
    KernelCall,
    Loop,
    NativeCall,
    Refuse,
    SizeBranch,
)
from tilewright.compiler.runtime.weights import PackedWeights
from tilewright.compiler.sizes import Dimension, dynamic_size, substituted
from tilewright.compiler.timings import Timings, timed


class ProgramEmitter:
    """Emits the instructions of one program.

    Attributes:
        kernels: the kernels that the instructions call, each with its index in the program.

    Args:
        built: the kernels of each workload.
        weights: the packed weights, to which constants are added.
        timings: adds up the time of packing.
        dimensions: the plan's dynamic dimensions.
    """

    def __init__(
        self,
        built: Mapping[Workload, KernelTree],
        weights: PackedWeights,
        timings: Timings | None = None,
        dimensions: Iterable[Dimension] = (),
    ) -> None:
        """Create an emitter; the class describes the arguments."""
        self.kernels: dict[KernelSpec, int] = {}
        self._dimensions = {dimension.name: dimension for dimension in dimensions}
        self._built = built
        self._weights = weights
        self._timings = timings

    def whole(self, plan: GraphPlan, memory: MemoryPlan) -> tuple[Instruction, ...]:
        """Return the instructions of a program's outermost plan.

        The plan's inputs and outputs are the inputs and outputs of the program.
        """
        ports = {v: BufferRef(BufferSpace.INPUT, i) for i, v in enumerate(plan.graph.inputs)}
        ports |= {v: BufferRef(BufferSpace.OUTPUT, i) for i, v in enumerate(plan.graph.outputs)}
        return self._steps(_Places(plan, memory, ports, 0))

    def _steps(self, places: _Places) -> tuple[Instruction, ...]:
        calls: list[Instruction] = []
        for position, step in enumerate(places.plan.steps):
            match step:
                case KernelStep():
                    tree = self._built[step.workload]
                    calls.append(self._kernels(tree, step, places, position))
                case NativeStep():
                    calls.append(self._native(step, places))
                case LoopStep():
                    calls += self._loop(step, places, position)
                case BranchStep():
                    calls.append(self._branch(step, places, position))
                case RefusalStep():
                    calls.append(Refuse(step.message))
                case ViewStep():
                    pass  # nothing runs
                case _:
                    assert_never(step)
        return tuple(calls)

    def _kernels(
        self, tree: KernelTree, step: KernelStep, places: _Places, position: int
    ) -> KernelCall | SizeBranch:
        """Return the call of a step's kernel, or a branch that selects one of its kernels by the
        sizes.
        """
        if isinstance(tree, SizeSplit):
            return SizeBranch(
                self._dimensions[step.sizes[tree.position]],
                tree.last,
                (self._kernels(tree.below, step, places, position),),
                (self._kernels(tree.above, step, places, position),),
            )
        spec, known = tree.lowered.spec, self._dimensions
        sizes = tuple(in_graph(step, dynamic_size(d), known, tree.piece) for d in spec.sizes)
        number = self.kernels.setdefault(spec, len(self.kernels))
        with timed(self._timings, "pack weights"):
            refs = tuple(self._buffer(b, tree.piece, step, places, position) for b in spec.buffers)
        return KernelCall(number, refs, sizes)

    def _buffer(
        self,
        buffer: BufferSpec,
        piece: RangePiece,
        step: KernelStep,
        places: _Places,
        position: int,
    ) -> BufferRef:
        match buffer.role:
            case BufferRole.INPUT:
                return places.value(step.inputs[buffer.source])
            case BufferRole.OUTPUT:
                return places.value(step.output)
            case BufferRole.WEIGHT:
                array = places.plan.graph.constants[step.inputs[buffer.source]]
                return BufferRef(BufferSpace.WEIGHTS, self._weights.add(buffer, array))
            case BufferRole.SHARED:
                # A kernel has at most one such buffer: the packed operand.
                sizes = shared_bytes(step, self._built[step.workload], self._dimensions)
                own = in_graph(step, buffer.bytes, self._dimensions, piece)
                return places.temporary(position)[sizes.index(own)]

    def _native(self, step: NativeStep, places: _Places) -> NativeCall:
        """Return the call of a native function: its inputs, its output, and possibly a count.

        Some functions determine the number of elements of their output at run time. The count is
        the place where such a function stores this number. Constants are stored row-major, not
        packed.
        """
        refs = [self._operand(v, places) for v in step.inputs]
        refs.append(places.value(step.output))
        if native_signature(step.function, step.parameters).counts:
            refs.append(BufferRef(BufferSpace.COUNT, places.plan.graph.outputs.index(step.output)))
        return NativeCall(step.function, step.parameters, tuple(refs))

    def _operand(self, name: str, places: _Places) -> BufferRef:
        """Return the location of an operand that an instruction other than a kernel reads.

        A constant is stored row-major, because only kernels read packed constants.
        """
        array = places.plan.graph.constants.get(name)
        if array is None:
            return places.value(name)
        kind = places.plan.graph.types[name]
        buffer = BufferSpec(
            name, BufferRole.WEIGHT, kind.dtype, kind.shape, str(ROW_MAJOR), (), kind.bytes
        )
        return BufferRef(BufferSpace.WEIGHTS, self._weights.add(buffer, array))

    def _loop(self, step: LoopStep, places: _Places, position: int) -> list[Instruction]:
        """Return the instructions of a loop.

        They copy the initial states to the locations from which the body reads them. After each
        iteration, they append the rows that it computed to the collected outputs, and copy its new
        states to the locations of the old ones.
        """
        block = places.value(step.output)
        counter, going, *results = (_after(block, offset) for offset in step.offsets)
        trips, begin, *given = (self._operand(v, places) for v in step.inputs)
        states, rows = results[: step.states], results[step.states :]
        graph = step.body.graph
        sizes = [graph.types[value].bytes for value in graph.outputs]
        kept = [*([going] if step.decides else []), *states]
        arena, *made = places.temporary(position)
        inside = places.inside(position, 0, {}, arena)
        direct = [inside.may_replace(k, k - step.decides) for k in range(len(kept))]
        for k, state in enumerate(kept):
            if direct[k]:
                made[k] = state
        entering = [counter, *states, *given[step.states :]]
        inside.ports.update(zip(graph.inputs, entering, strict=True))
        inside.ports.update(zip(graph.outputs, made, strict=True))
        body = list(self._steps(inside))
        for row, whole in zip(step.rows, rows, strict=True):
            parameters = 0 if step.most is None else step.most, sizes[row]
            body.append(NativeCall("put", parameters, (made[row], counter, whole)))
        body += [
            Copy(state, new, size)
            for state, new, size, done in zip(kept, made, sizes, direct, strict=False)
            if not done
        ]
        first = [
            Copy(going, begin, 1),
            *(
                Copy(state, source, size)
                for state, source, size in zip(states, given, sizes[step.decides :], strict=False)
            ),
        ]
        most = ENDLESS if step.most is None else step.most
        return [*first, Loop(counter, trips, going, most, tuple(body))]

    def _branch(self, step: BranchStep, places: _Places, position: int) -> Branch:
        """Return the instructions of a branch; both bodies write their results directly into its
        output.
        """
        block = places.value(step.output)
        condition, *given = (self._operand(v, places) for v in step.inputs)
        results = [_after(block, offset) for offset in step.offsets]
        (arena,) = places.temporary(position)
        bodies = []
        for number, body in enumerate((step.then, step.otherwise)):
            ports = dict(zip(body.graph.inputs, given, strict=True))
            ports |= zip(body.graph.outputs, results, strict=True)
            bodies.append(self._steps(places.inside(position, number, ports, arena)))
        return Branch(condition, *bodies)


def shared_bytes(step: KernelStep, tree: KernelTree, known: Mapping[str, Dimension]) -> list[int]:
    """Return the distinct sizes, in bytes, of the thread-shared buffers of a step's kernels.

    The step may have several kernels, of which a run executes one; each kernel has at most one
    shared buffer. `known` has the dimensions of the graph, by name.
    """
    sizes = [
        in_graph(step, buffer.bytes, known, kernel.piece)
        for kernel in leaves(tree)
        for buffer in kernel.lowered.spec.buffers
        if buffer.role is BufferRole.SHARED
    ]
    return list(dict.fromkeys(sizes))


def in_graph(
    step: KernelStep, size: int, known: Mapping[str, Dimension], piece: RangePiece | None = None
) -> int:
    """Express a size in the dimensions of the graph instead of a workload's own dimensions.

    A workload (fused subgraph) may be divided into pieces, each for an interval of its dynamic
    sizes. Each piece has dimensions of its own.

    Args:
        step: the step that runs the workload.
        size: an integer, or a formula (`compiler.sizes.Size`) over the dimensions of the workload
            or of `piece`.
        known: the dimensions of the graph, by name.
        piece: the piece to whose dimensions `size` refers; None if `size` refers to those of the
            whole workload.
    """
    dimensions, names = step.workload.dimensions, step.sizes
    if piece is not None:
        dimensions = piece.workload.dimensions
        names = tuple(step.sizes[position] for position in piece.positions)
    own = zip(dimensions, names, strict=True)
    stood_for: dict[Dimension, int] = {d: dynamic_size(known[name]) for d, name in own}
    return substituted(size, lambda dimension: stood_for[dimension] // dimension.multiple)


@dataclass(frozen=True, slots=True)
class _Places:
    """The locations of a plan's values.

    `ports` has the locations of the plan's inputs and outputs. `base` is the offset of the plan's
    arena in the arena of the program.
    """

    plan: GraphPlan
    memory: MemoryPlan
    ports: dict[str, BufferRef]
    base: int

    def value(self, name: str) -> BufferRef:
        port = self.ports.get(self.memory.roots[name])
        if port is not None:
            return port
        return BufferRef(BufferSpace.ARENA, self.base + self.memory.offsets[name])

    def temporary(self, position: int) -> Sequence[BufferRef]:
        """Return the buffers that are used only while the step at `position` of the plan runs."""
        shared = self.memory.shared[position]
        return [BufferRef(BufferSpace.ARENA, self.base + offset) for offset in shared]

    def may_replace(self, output: int, state: int) -> bool:
        """Whether a loop's body may write an output directly over the state that the output
        replaces.

        This holds if no step reads the state after the first step that writes the output. That
        first step may read the state only if each element of the output needs just the element of
        the state that it overwrites. A negative `state` stands for the loop condition, which no
        body reads.
        """
        if state < 0:
            return True
        plan, roots = self.plan, self.memory.roots
        held = plan.graph.inputs[1 + state]
        target = roots[plan.graph.outputs[output]]
        steps = [(i, s) for i, s in enumerate(plan.steps) if not isinstance(s, ViewStep)]
        first = next(i for i, s in steps if roots[s.output] == target)
        readers = [
            (position, operand)
            for position, step in steps
            for operand, value in enumerate(step.inputs)
            if roots.get(value) == held and position >= first
        ]
        return all(
            position == first and may_overwrite(plan, position, operand)
            for position, operand in readers
        )

    def inside(
        self, position: int, body: int, ports: dict[str, BufferRef], arena: BufferRef
    ) -> _Places:
        """Return the locations of the values in a step's body.

        `body` is the index of the body, `ports` has the locations of its inputs and outputs, and
        `arena` is the location of its arena.
        """
        step = self.plan.steps[position]
        plan = bodies_of(step)[body]
        return _Places(plan, self.memory.bodies[position][body], ports, arena.offset)


def _after(block: BufferRef, offset: int) -> BufferRef:
    """Return the reference to the byte `offset` bytes after the start of a block."""
    return BufferRef(block.space, block.offset + offset)
