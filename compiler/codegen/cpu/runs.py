"""Vectors whose lanes lie in several pieces of memory, each of which is loaded or stored at once.

Instructions of some targets work on several vectors together (`Family.joined`). Their lanes
lie in several blocks of channels, or are those of one and a half vectors, which a mask would cost
a register.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import gcd

from tilewright.compiler.codegen.cpu.resolve import LINE, Access
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.codegen.cpu.vectors import vector_load
from tilewright.compiler.dtypes import DType
from tilewright.compiler.sizes import is_open, known_divisor

_FEWEST = 4
"""Lanes of a piece."""


def run_of(emitter: Emitter, access: Access, active: int) -> int:
    """How many lanes at a time lie side by side, where `active` ones are loaded or stored in
    several such pieces; 0 where that is one, or there are others than whole ones."""
    feature, _ = emitter.target.family.joined
    if not emitter.target.has(feature) or is_open(active):
        return 0
    lanes, run = len(access.lane_offsets), access.run
    if access.contiguous and active < lanes and lanes > emitter.target.lanes(DType.FLOAT32):
        run = gcd(lanes, active)
    return run if run >= _FEWEST and active % run == 0 else 0


def in_runs(
    emitter: Emitter,
    access: Access,
    base: Value,
    offset: int,
    active: int,
    run: int,
    dtype: DType,
    depth: int,
    tag: str,
) -> Value:
    """Lanes in pieces; a block that has room for all of them is read whole."""
    lanes = len(access.lane_offsets)

    def load(behind: int, count: int = run) -> Value:
        place = offset + behind
        where = emitter.offset(base, place, depth)
        align = max(dtype.bytes, gcd(LINE, known_divisor(place), access.alignment))
        return vector_load(emitter, where, dtype, count, count, align, depth, tag)

    if access.contiguous and _is_inside(access, offset, active):
        return load(0, lanes)
    return _joined(emitter, access, run, active, load)


def _is_inside(access: Access, offset: int, active: int) -> bool:
    """Whether all lanes are inside of the tensor, where only so many are asked for.

    These lie in one of its innermost blocks, which are as long as the vector. The block starts
    where the vector does, if that is where a line starts, and they take more than all other lines.
    """
    lanes, tensor = len(access.lane_offsets), access.tensor
    size, layout = tensor.dtype.bytes, tensor.layout.resolved(len(tensor.shape))
    in_blocks = layout[-1].mod == lanes and layout[-1].div == 1
    on_line = all(b % LINE == 0 for b in (offset, access.alignment, lanes * size))
    return access.packed == 1 and in_blocks and on_line and active * size > lanes * size - LINE


def _joined(
    emitter: Emitter, access: Access, run: int, active: int, load: Callable[[int], Value]
) -> Value:
    """A vector from pieces of so many lanes, put behind one another.

    Args:
        load: a piece from bytes behind the first one.
    """
    lanes = len(access.lane_offsets)
    joined: Value | None = None
    for first in range(0, active, run):
        piece = load(access.lane_offsets[first])
        wide = emitter.shuffle(piece, None, [i if i < run else None for i in range(lanes)])
        inside = range(first, first + run)
        order = [lanes + i - first if i in inside else i for i in range(lanes)]
        joined = wide if joined is None else emitter.shuffle(joined, wide, order)
    assert joined is not None
    return joined


def pieces(
    emitter: Emitter, access: Access, run: int, active: int, value: Value
) -> Iterator[tuple[int, Value]]:
    """Pieces of a vector, each with its bytes behind the first one."""
    for first in range(0, active, run):
        lanes = range(first, first + run)
        yield access.lane_offsets[first], emitter.shuffle(value, None, lanes)
