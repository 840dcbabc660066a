"""State that the lowering's modules share while one stage is emitted.

It consists of the ranges of axes, the contents of register tensors, and the number of writes to
each tensor.
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
    """The state of code generation for one stage, a part of a kernel between two thread barriers.

    Attributes:
        emitter: builds the function's text, for its target.
        slots: byte offset of each buffer's pointer in the function's argument `buffers`.
        scratch: byte offset of each scratch tensor in a thread's block.
        written: names of the memory tensors that the stage stores to.
        environment: for each axis, the range of indices for which code is currently emitted: the
            tile of the innermost open loop over the axis.
        ranges: for each axis, the range of indices that the innermost loop over the axis divides
            into tiles.
        registers: elements of register tensors, by `RegisterAccess.key`.
        epochs: number of stores to each tensor so far.
        masks: whether a vector that is only partly used at the end of an axis gets a run-time mask.
        partial_tiles: whether one copy of the code serves full tiles and the shorter last tile, if
            inner loops split the tiles further (`Tail.PARTIAL`).
        uses_tile_registers: whether the stage used tile registers (AMX).
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
    partial_tiles: bool = False
    uses_tile_registers: bool = False

    @property
    def lanes(self) -> int:
        """Number of lanes in the accumulators of a reduction along the vector axis.

        It is the number of float32 lanes in a vector of the target, for every element type. After
        the reduction, the lanes are combined to a scalar.
        """
        return self.emitter.target.lanes(DType.FLOAT32)

    def open_axis(self, axis: Axis) -> None:
        """Set the range of an axis to its whole extent, unless an outer loop already divides it."""
        if axis not in self.environment:
            self.environment[axis] = Bound(Linear(), axis.extent)

    def base(self, tensor: Tensor) -> Value:
        """Emit the pointer to the start of a tensor's buffer."""
        if tensor.role is Role.SCRATCH:
            return self.emitter.offset(Value("%scratch", None), self.scratch[tensor.name])
        slot = self.emitter.offset(Value("%buffers", None), self.slots[tensor.name])
        aligned = self.emitter.target.family.pointer_bytes
        base = self.emitter.emit(None, 1, f"load ptr, ptr %s, align {aligned}", slot)
        self.emitter.forward.add(base.name)
        return base


@dataclass(slots=True)
class RegisterBudget:
    """The vector registers that one `Compute` may use for loads that are hoisted out of loops.

    A hoisted value occupies a register throughout the computation.

    Attributes:
        registers: the number of vector registers of the target.
        accumulators: the number of registers that hold accumulators.
        factors: the number of registers that hold four scalar factors each (module `quads`).
    """

    registers: int
    accumulators: int = 0
    factors: int = 0
    _hoisted: set[tuple[str, int]] = field(default_factory=set)

    def allows(self, base: Value, offset: int) -> bool:
        """Return whether the load at an address may be hoisted; if so, reserve a register for it.

        A load that was already hoisted needs no further register.
        """
        key = (base.name, offset)
        if key not in self._hoisted:
            # Two registers remain for the operands of a multiply-add.
            if len(self._hoisted) + self.accumulators + 2 > self.registers:
                return False
            self._hoisted.add(key)
        return True
