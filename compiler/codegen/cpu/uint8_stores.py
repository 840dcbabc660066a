"""Stores of floats that are rounded to uint8, four adjacent vectors at a time.

On AArch64, the left column shows the instructions for four vectors without this module, the right
column those with it: for each vector, and for all four.

    each: frintn, fmaxnm 0, fminnm 255, fcvtzs, xtn, add, uzp1    each: fcvtns, sqxtun (a half)
    all:  three times ins                                      -> all:  uqxtn, uqxtn2, add

The instructions on the right give the same result: the nearest uint8, and 0 for NaN. The reason is
that the conversion to int32 rounds to nearest and saturates, and the two conversions to narrower
types saturate as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tilewright.compiler.codegen.cpu.access import static_part
from tilewright.compiler.codegen.cpu.context import Context
from tilewright.compiler.codegen.cpu.memory import store
from tilewright.compiler.codegen.cpu.points import Point
from tilewright.compiler.codegen.cpu.resolve import Access
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Load, walk
from tilewright.compiler.loops.nest import Store

TOGETHER = 4
"""Number of int32 vectors that fill one vector after conversion to uint8."""


class Uint8Stores:
    """The delayed stores of one `Compute`: four adjacent vectors of rounded uint8 become one store.

    A store to a tensor that the `Compute` also reads is not delayed, because a later load may read
    the stored value.
    """

    def __init__(self, context: Context, stores: Sequence[Store]) -> None:
        self._context = context
        nodes = (node for each in stores for node in walk(each.value))
        self._read = {node.tensor.name for node in nodes if isinstance(node, Load)}
        self._held: dict[Access, dict[int, tuple[Value, Point]]] = {}

    def hold(self, access: Access, value: Value, point: Point, active: int) -> bool:
        """Delay a store of a whole vector of rounded uint8; return whether it was delayed.

        `active` is the number of lanes in use.
        """
        emitter = self._context.emitter
        narrows = emitter.target.family.narrows is not None and value.lanes == TOGETHER == active
        if not narrows or value.name not in emitter.bytes or value.dtype is not access.tensor.dtype:
            return False
        if not access.contiguous or access.packed > 1 or access.repeated:
            return False
        if access.tensor.name in self._read:
            return False
        self._held.setdefault(access, {})[access.offset(point)] = value, point
        return True

    def flush(self) -> None:
        """Emit the delayed stores: four adjacent vectors as one store, others one by one."""
        for access, held in self._held.items():
            row: list[int] = []
            for offset in _in_order(held):
                row = [*row, offset] if row and offset == row[-1] + TOGETHER else [offset]
                added = {self._context.emitter.bytes[held[place][0].name][1] for place in row}
                if len(added) > 1:  # a different number at each point
                    row = [offset]
                if len(row) == TOGETHER:
                    values = [held.pop(place) for place in row]
                    whole = _together(self._context.emitter, [value for value, _ in values])
                    store(self._context, access, whole, values[0][1], whole.lanes)
                    row = []
            for value, point in held.values():
                store(self._context, access, value, point, value.lanes)
        self._held.clear()


def _in_order(offsets: Iterable[int]) -> Iterator[int]:
    """Yield offsets in groups: within a group, they are sorted, and differ by known integers.

    Offsets of different groups differ by a dynamic size, so their order is not known.
    """
    alike: dict[int, list[int]] = {}
    for offset in offsets:
        alike.setdefault(offset - static_part(offset), []).append(offset)
    for each in alike.values():
        yield from sorted(each, key=static_part)


def _together(emitter: Emitter, values: list[Value]) -> Value:
    """Emit one vector of rounded 8-bit integers to replace the four vectors `values`.

    `values` were converted from floats separately. The floats of all four, which `Emitter.bytes`
    has recorded, are converted again by instructions that handle them together.
    """
    assert emitter.target.family.narrows is not None
    nearest, to_halves, to_bytes = emitter.target.family.narrows
    sources = [emitter.bytes[value.name][0] for value in values]
    _, number = emitter.bytes[values[0].name]
    wholes = [emitter.call(DType.INT32, TOGETHER, nearest, source) for source in sources]
    halves = [emitter.call(DType.UINT16, TOGETHER, to_halves, whole) for whole in wholes]
    pairs = [emitter.shuffle(halves[i], halves[i + 1], range(8)) for i in (0, 2)]
    narrow = [emitter.call(DType.UINT8, 8, to_bytes, pair) for pair in pairs]
    result = emitter.shuffle(narrow[0], narrow[1], range(16))._replace(dtype=values[0].dtype)
    assert result.dtype is not None
    number = (number + 128) % 256 - 128
    if number == 0:
        return result
    offset = emitter.const(number, result.dtype, result.lanes)
    return emitter.emit(result.dtype, result.lanes, f"add {result.type} %s, %s", result, offset)
