"""What the parts of the lowering share while they emit one stage.

The state is here, below every module that changes it: what an axis stands for, what register
tensors hold, and how often a tensor was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.compiler.codegen.cpu.access import Bound, Linear
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Role, Tensor
from tilewright.compiler.loops.index import Axis


@dataclass(slots=True)
class Context:
    """One stage while it is emitted.

    Attributes:
        emitter: builds the function's text, for its target.
        slots: byte offset of each buffer's pointer in the array of pointers.
        scratch: byte offset of each scratch tensor in a thread's block.
        written: names of the memory tensors that the stage stores to.
        environment: what each axis stands for in the open scopes.
        ranges: what the innermost loop over each axis runs over.
        registers: elements of register tensors, by `RegisterAccess.key`.
        epochs: how often each tensor was stored to so far.
        masks: whether tails of vectors get a mask that is made at run time.
        cuts: whether tiles that loops inside split have one code, be they full or not.
        has_matrices: whether something was multiplied in registers that hold matrices.
    """

    emitter: Emitter
    slots: Mapping[str, int]
    scratch: Mapping[str, int]
    written: frozenset[str]
    environment: dict[Axis, Bound] = field(default_factory=dict)
    ranges: dict[Axis, Bound] = field(default_factory=dict)
    registers: dict[tuple[object, ...], Value] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    masks: bool = False
    cuts: bool = False
    has_matrices: bool = False

    @property
    def lanes(self) -> int:
        """Lanes of a vector that joins what it sums: as many as the target has for float32."""
        return self.emitter.target.lanes(DType.FLOAT32)

    def open_axis(self, axis: Axis) -> None:
        """Let an axis stand for its whole extent, unless an outer loop has tiled it."""
        if axis not in self.environment:
            self.environment[axis] = Bound(Linear(), axis.extent)

    def base(self, tensor: Tensor) -> Value:
        """The pointer to a tensor's buffer."""
        if tensor.role is Role.SCRATCH:
            return self.emitter.offset(Value("%scratch", None), self.scratch[tensor.name])
        slot = self.emitter.offset(Value("%buffers", None), self.slots[tensor.name])
        aligned = self.emitter.target.family.pointer_bytes
        base = self.emitter.emit(None, 1, f"load ptr, ptr %s, align {aligned}", slot)
        self.emitter.forward.add(base.name)
        return base


@dataclass(slots=True)
class RegisterBudget:
    """How many loads of one compute may move out of loops: each holds a register all along.

    Attributes:
        registers: vector registers of the target.
        accumulators: those that the compute's sums take.
        factors: those that hold factors for several rows or steps.
    """

    registers: int
    accumulators: int = 0
    factors: int = 0
    _hoisted: set[tuple[str, int]] = field(default_factory=set)

    def allows(self, base: Value, offset: int) -> bool:
        """Whether the element at this place may stay in a register; it is counted if so."""
        key = (base.name, offset)
        if key not in self._hoisted:
            # Two registers remain for the operands of a multiply-add.
            if len(self._hoisted) + self.accumulators + 2 > self.registers:
                return False
            self._hoisted.add(key)
        return True
