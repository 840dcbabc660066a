"""Register tiles in tile registers (AMX), each of which holds a matrix.

A register tile of 20 rows and two vectors of columns, on registers of 16 rows:

    sums       right 0, right 1
    left 0     sums 0,  sums 1      rows 0 to 15
    left 1     sums 2,  sums 3      rows 16 to 19

The sums stay in their registers throughout the reduction. Then they are stored to the stack, and
all further operations are computed on vectors, row by row.

Each register has its own shape, so that tails are smaller matrices and nothing is padded. The
shapes are loaded (`ldtilecfg`) before a register tile whose shapes differ from the previous one's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.compiler.codegen.cpu.combining import Partial
from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.points import Point, Points
from tilewright.compiler.codegen.cpu.resolve import Access, Accesses
from tilewright.compiler.codegen.cpu.ssa import Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Load
from tilewright.compiler.loops.index import Axis
from tilewright.compiler.loops.nest import Compute, Tile, dot_operands
from tilewright.compiler.targets.families import TileProduct, TileRegisters

_SUMS = Value("%tile_sums", None)
_SHAPES = Value("%tile_shapes", None)
"""Pointers to the stack: `_SUMS` to the matrices of sums, one after the other; `_SHAPES` to the
address of the tile shapes in use."""

_SUM_BYTES = 4


def tile_registers(
    context: Context, compute: Compute, spatial: Sequence[Tile]
) -> RegisterMatrices | None:
    """Return the register tile of a `Compute` that uses tile registers; None for any other.

    Raises:
        ScheduleError: if the target has no tile registers that multiply the operands' types.
    """
    operands = dot_operands(compute.body)
    if compute.rows is None or operands is None:
        return None
    target = context.emitter.target
    right, left = sorted(operands, key=lambda load: _moves(load, compute.rows))
    product = target.tile_product(left.dtype, right.dtype, compute.body.dtype)
    if target.tiles is None or product is None:
        raise ScheduleError(
            f"target '{target.name}' has no registers that multiply matrices of {left.dtype} and "
            f"{right.dtype}"
        )
    return RegisterMatrices(context, target.tiles, product, left, right, compute, spatial)


def _moves(load: Load, axis: Axis | None) -> bool:
    return any(axis in index.axes() for index in load.index)


class RegisterMatrices:
    """Code generation for a register tile whose sums are in tile registers (AMX)."""

    def __init__(
        self,
        context: Context,
        registers: TileRegisters,
        product: TileProduct,
        left: Load,
        right: Load,
        compute: Compute,
        spatial: Sequence[Tile],
    ) -> None:
        self._context = context
        self._emitter = context.emitter
        self._registers = registers
        self._product = product
        self._left, self._right = left, right
        self._spatial = [tile.axis for tile in spatial]
        self._places = {tile.axis: i for i, tile in enumerate(compute.unroll)}
        assert compute.rows is not None and compute.vector is not None and compute.dot is not None
        self._rows, self._vector, self._dot = compute.rows, compute.vector, compute.dot
        deepest = next(tile.step for tile in reversed(compute.reduce) if tile.axis == self._dot)
        self._groups = -(-min(deepest, self._dot.extent) // compute.group)
        self._heights: list[int] = []
        self._vectors = self._lanes = 1

    def begin(self, points: Points) -> None:
        """Emit instructions that set the shapes of the tile registers, and all sums to zero.

        `points` are all combinations of indices on the unrolled axes that are not reduced.

        Raises:
            ScheduleError: if the tile does not fit into the registers.
        """
        registers, emitter = self._registers, self._emitter
        counts = [variable.count for variable in points.variables]
        rows = counts[self._spatial.index(self._rows)]
        self._vectors, self._lanes = counts[self._spatial.index(self._vector)], points.lanes
        whole, rest = divmod(rows, registers.rows)
        self._heights = [registers.rows] * whole + [rest] * (rest > 0)
        width = self._lanes * _SUM_BYTES
        shapes = [(height, width) for height in self._heights for _ in range(self._vectors)]
        shapes += [(height, self._groups * _SUM_BYTES) for height in self._heights]
        shapes += [(self._groups, width)] * self._vectors
        if len(shapes) > registers.count:
            raise ScheduleError(f"{len(shapes)} matrices, there are {registers.count} registers")
        if max(width, self._groups * _SUM_BYTES) > registers.row_bytes:
            raise ScheduleError(f"rows of more than {registers.row_bytes} bytes in a register")
        self._configure(shapes)
        for number in range(len(self._heights) * self._vectors):
            emitter.do(registers.zero, number)

    def _configure(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Emit code that sets the shapes of the tile registers, unless they are set already.

        A shape is a pair (rows, bytes per row).
        """
        emitter, registers = self._emitter, self._registers
        name = "@tiles_" + "_".join(f"{rows}x{width}" for rows, width in shapes)
        content = registers.shapes(shapes)
        text = "".join(f"\\{byte:02X}" for byte in content)
        emitter.declarations.add(
            f'{name} = private unnamed_addr constant [{len(content)} x i8] c"{text}", align 64'
        )
        size = (registers.count - 2) * registers.rows * registers.row_bytes
        emitter.open(f"%tile_stack = alloca [{size} x i8], align 64")
        # After this, reads of sums are not counted as register spills.
        emitter.open(f'{_SUMS.name} = call ptr asm "", "=r,0"(ptr %tile_stack)')
        emitter.open(f"{_SHAPES.name} = alloca ptr, align 8")
        emitter.open(f"store ptr null, ptr {_SHAPES.name}, align 8")
        wanted = Value(name, None)
        present = emitter.again(None, 1, "load ptr, ptr %s, align 8", _SHAPES)
        differ = emitter.emit(DType.BOOL, 1, "icmp ne ptr %s, %s", present, wanted)
        turns = emitter.emit(DType.INT64, 1, "zext i1 %s to i64", differ)

        def load(counter: Value, values: list[Value]) -> list[Value]:
            emitter.do(registers.configure, wanted)
            emitter.effect(f"store ptr {name}, ptr {_SHAPES.name}, align 8")
            return values

        emitter.loop(emitter.const(0, DType.INT64), turns, (), load, may_be_empty=True)
        self._context.uses_tile_registers = True

    def multiply(self, accesses: Accesses, points: Points) -> None:
        """Emit the products of one step of the reduction, added to the sums.

        Raises:
            ScheduleError: if the operands are not matrices in memory whose rows are contiguous.
        """
        emitter, registers = self._emitter, self._registers
        if points.variables[self._places[self._dot]].count != self._groups:
            raise ScheduleError(f"axis {self._dot.name} ends inside of a matrix")
        left = self._factor(accesses, self._left, self._vector)
        right = self._factor(accesses, self._right, self._rows)
        if left.is_vector or self._step(left, self._dot) != _SUM_BYTES * (self._groups > 1):
            raise ScheduleError(f"rows of '{left.tensor.name}' do not lie in one piece")
        if right.is_vector and not right.contiguous:
            raise ScheduleError(f"rows of '{right.tensor.name}' do not lie in one piece")
        first = len(self._heights) * self._vectors
        second = first + len(self._heights)
        for row, _ in enumerate(self._heights):
            below = self._step(left, self._rows)
            self._load(left, first + row, row * registers.rows * below, below)
            for vector in range(self._vectors):
                if row == 0:
                    beside = vector * self._step(right, self._vector)
                    self._load(right, second + vector, beside, self._step(right, self._dot))
                sums = row * self._vectors + vector
                emitter.do(self._product.intrinsic, sums, first + row, second + vector)

    def _factor(self, accesses: Accesses, load: Load, other: Axis) -> Access:
        """Return the access of an operand, and check that its elements form a matrix in memory.

        `other` is the row or column axis of the other operand. The operand's elements must not
        depend on the index on this axis.
        """
        access, name = accesses[load], load.tensor.name
        if not isinstance(access, Access) or access.guards or access.repeated:
            raise ScheduleError(f"rows of '{name}' are not a matrix in memory")
        if access.packed != access.present or access.is_interleaved or self._step(access, other):
            raise ScheduleError(f"groups of '{name}' do not lie side by side")
        return access

    def _step(self, access: Access, axis: Axis) -> int:
        """Return the distance in bytes between successive indices of an unrolled axis."""
        return next((s for i, s in access.unrolled if i == self._places[axis]), 0)

    def _load(self, access: Access, register: int, moved: int, apart: int) -> None:
        emitter = self._emitter
        assert access.base is not None
        where = emitter.offset(access.base, access.constant + moved)
        emitter.do(self._registers.load, register, where, emitter.size(apart))

    def sums(self) -> Mapping[Point, Partial]:
        """Emit stores of all sums from tile registers to the stack, and return the sums by tile
        point.

        A tile point is one index per unrolled output axis; the sums are vectors. Each look-up in
        the returned mapping emits a load from the stack.
        """
        emitter, registers = self._emitter, self._registers
        apart = emitter.const(registers.row_bytes, DType.INT64)
        for number in range(len(self._heights) * self._vectors):
            where = emitter.offset(_SUMS, number * registers.rows * registers.row_bytes)
            emitter.do(registers.store, number, where, apart)
        return _Sums(self)

    def points(self) -> Iterator[Point]:
        for row in range(sum(self._heights)):
            for vector in range(self._vectors):
                found = {self._rows: row, self._vector: vector}
                yield tuple(found[axis] for axis in self._spatial)

    def vector(self, point: Point) -> Value:
        """Emit a load, from the stack, of the vector of sums at a tile point.

        A tile point is one index per unrolled output axis.
        """
        registers, at = self._registers, dict(zip(self._spatial, point, strict=True))
        block, row = divmod(at[self._rows], registers.rows)
        number = block * self._vectors + at[self._vector]
        place = (number * registers.rows + row) * registers.row_bytes
        sums = Value("", self._product.accumulator, self._lanes)
        where = self._emitter.offset(_SUMS, place)
        text = f"load {sums.type}, ptr %s, align {registers.row_bytes}"
        return self._emitter.again(sums.dtype, sums.lanes, text, where)


class _Sums(Mapping[Point, Partial]):
    """A mapping from tile points to sums, each of which is loaded from the stack at its look-up.

    A tile point is one index per unrolled output axis. All sums together would not fit into the
    vector registers.
    """

    def __init__(self, matrices: RegisterMatrices) -> None:
        self._matrices = matrices
        self._points = list(matrices.points())

    def __getitem__(self, point: Point) -> Partial:
        return (self._matrices.vector(point),)

    def __iter__(self) -> Iterator[Point]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)


def release(context: Context) -> None:
    """Emit the instruction that marks all tile registers as unused, if the stage used any."""
    registers = context.emitter.target.tiles
    if context.uses_tile_registers and registers is not None:
        context.emitter.do(registers.release)
