"""Loads and stores of vectors as several contiguous runs of lanes, one instruction per run.

They are used on targets that process several vector registers together, as one long vector
(`Family.joined`, RISC-V). The lanes of a long vector may lie in several blocks of a layout such as
`NCHW8c`. They may also fill only a part of the registers, such as one and a half; a mask for this
would occupy a register.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tilewright.compiler.codegen.cpu.resolve import LINE, Access
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.codegen.cpu.vectors import LoadSite
from tilewright.compiler.dtypes import DType
from tilewright.compiler.sizes import is_dynamic

_FEWEST = 4
"""Minimum number of lanes of a contiguous run that is loaded or stored by one instruction."""


def run_of(emitter: Emitter, access: Access, active: int) -> int:
    """Return the number of lanes per run, if an access can be split into contiguous runs, else 0.

    One load or store then covers one run. The target must treat several vector registers as one
    group, and the `active` lanes must form equal runs of at least four lanes.
    """
    feature, _ = emitter.target.family.joined
    if not emitter.target.has(feature) or is_dynamic(active):
        return 0
    lanes, run = len(access.lane_offsets), access.run
    if access.contiguous and active < lanes and lanes > emitter.target.lanes(DType.FLOAT32):
        run = gcd(lanes, active)
    return run if run >= _FEWEST and active % run == 0 else 0


def in_runs(place: LoadSite, run: int) -> Value:
    """Load a vector as contiguous runs of `run` lanes, and return it.

    If one block of the layout contains all lanes, the whole block is loaded at once.
    """
    if place.access.contiguous and _is_inside(place):
        return place.vector(place.lanes, place.lanes)
    emitter, lanes = place.emitter, place.lanes
    joined: Value | None = None
    for first in range(0, place.active, run):
        piece = place.vector(run, run, place.access.lane_offsets[first])
        wide = emitter.shuffle(piece, None, [i if i < run else None for i in range(lanes)])
        inside = range(first, first + run)
        order = [lanes + i - first if i in inside else i for i in range(lanes)]
        joined = wide if joined is None else emitter.shuffle(joined, wide, order)
    assert joined is not None
    return joined


def _is_inside(place: LoadSite) -> bool:
    """Return whether memory for all lanes of a vector may be read, although only some are in use.

    This holds if the vector is exactly one of the layout's innermost blocks, starts at a cache
    line, and the lanes in use reach into its last cache line.
    """
    access, lanes, tensor = place.access, place.lanes, place.access.tensor
    size, layout = tensor.dtype.bytes, tensor.layout.resolved(len(tensor.shape))
    in_blocks = layout[-1].mod == lanes and layout[-1].div == 1
    on_line = all(b % LINE == 0 for b in (place.offset, access.alignment, lanes * size))
    return (
        access.packed == 1 and in_blocks and on_line and place.active * size > lanes * size - LINE
    )


def pieces(
    emitter: Emitter, access: Access, run: int, active: int, value: Value
) -> Iterator[tuple[int, Value]]:
    """Split a vector for storing into runs of `run` contiguous lanes.

    Yield for each run its byte offset, relative to the first lane of the vector, and its lanes as a
    shorter vector.
    """
    for first in range(0, active, run):
        lanes = range(first, first + run)
        yield access.lane_offsets[first], emitter.shuffle(value, None, lanes)
