"""Attention: two products with a softmax between them, one block of query rows at a time.

For each head, the keys are packed once into panels in the thread's scratch memory. If there are
many values, they are packed contiguously, too. For each block of rows, the scores (the products of
queries and keys) are computed and stay in the cache. The softmax then replaces the scores by their
exponentials, in place, and adds up each row. The products of exponentials and values follow, and
one division per row. The matrix of all scores is never stored. Kernel fusion as in Dao et al.,
"FlashAttention" (2022), without its rescaling: a whole row of scores fits a core's cache.

    for head: panels[j, d] = K[head, j, d], values[j, e] = V[head, j, e]
      for a block of rows:
        scores[i, j] = scale * sum[d] Q[head, i, d] * panels[j, d] (+ mask[i, j])
        for each row:
          largest = max[j] scores[i, j]
          total[i] = sum[j] (scores[i, j] = exp(scores[i, j] - largest))
        out[i, head, e] = (sum[j] scores[i, j] * values[j, e]) * (1 / total[i])

For causal attention, the rows are divided into segments. A segment reads only the keys that its
last row may attend to.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from tilewright.compiler.dtypes import DType
from tilewright.compiler.mode import Mode
from tilewright.compiler.schedule.resources import tile_rate, tile_registers, useful_fraction
from tilewright.compiler.schedule.schedule import Choice, Schedule
from tilewright.compiler.schedule.space import Knob
from tilewright.compiler.schedule.structure import unit_stride
from tilewright.compiler.schedule.templates import Template
from tilewright.compiler.schedule.templates.attention_analysis import Attention, analyse, extent
from tilewright.compiler.schedule.templates.attention_lowering import lower

_TILES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)
_VECTORS = (1, 2, 3, 4, 5, 6)
_BLOCKS = (1, 2, 4, 8)
_UNROLLS = (1, 2, 4)
_LANE_UNROLLS = (*_UNROLLS, 8)
"""Unroll factors for targets that load four factors with one instruction."""

_SEGMENTS = (1, 2, 4, 8)
_SEGMENT_ROWS = 8
"""Minimum number of rows of a segment, if the workload has as many. Fewer rows do not fill a
register tile."""

_FEW_ROWS = 8
"""Number of query rows below which keys may be read without transposing them, because transposing
may cost more than it saves."""

_FAR_VALUES = 2
"""Size of a head's values, as a multiple of the first-level cache, beyond which they are packed.
Packing saved 3 % of the time for 1,500 tokens of 6 heads of 64, and nothing for 197 and 128 tokens
(Zen 5)."""

_PAIRED_ROWS = 64
"""Minimum number of rows for which packed values need fewer instructions, including those for
packing."""


# ---- space


def _knobs(found: Attention, mode: Mode) -> tuple[Knob, ...]:
    target = mode.target
    lanes = target.lanes(DType.FLOAT32)
    rows = extent(found.rows)
    widest = -(-max(found.keys.extent, extent(found.lanes)) // lanes)
    return (
        Knob("tile", tuple(t for t in _TILES if t <= rows)),
        Knob("vectors", tuple(v for v in _VECTORS if v <= widest)),
        Knob("rows", tuple(b for b in _BLOCKS if b <= rows)),
        Knob("unroll", _UNROLLS if target.lane_factors == 1 else _LANE_UNROLLS),
        Knob("keys", ("packed", "rows") if _can_dot(found) else ("packed",)),
        *([Knob("values", ("rows", "packed"))] if found.lanes is not None else []),
        *([Knob("segments", _SEGMENTS)] if found.ahead is not None else []),
    )


def _can_dot(found: Attention) -> bool:
    """Whether the scores can be computed as dot products along contiguous elements, without
    packing.

    This requires contiguous queries and keys. It is faster only for few queries.
    """
    few = extent(found.rows) < _FEW_ROWS
    return few and all(unit_stride(load, found.size) for load in (found.query, found.key))


def _lowers(found: Attention, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    """Whether a choice of knob values can be lowered to a kernel.

    The knob `segments` divides the rows of a causal attention. Each segment must have at least as
    many rows as a register tile, unless one tile has all rows. The unrolled code must be small
    enough to compile.
    """
    tile, rows = int(choice["tile"]), extent(found.rows)
    share = -(-rows // int(choice.get("segments", 1)))
    written_out = int(choice["unroll"]) * tile * int(choice["vectors"])
    return not share < tile < rows and written_out <= 300


def _fits(found: Attention, mode: Mode, choice: Mapping[str, Choice]) -> bool:
    """Whether a register tile fits the target.

    The vector registers must hold the sums of the tile, one row of packed keys or values, and one
    broadcast factor. The sums must fill at least half of all registers, unless the tile has all
    rows. The knob `segments` divides the rows of a causal attention. A block of several tiles must
    have fewer than twice the rows of such a segment.
    """
    tile, vectors = int(choice["tile"]), int(choice["vectors"])
    registers, rows = mode.target.vector_registers, extent(found.rows)
    if tile_registers(mode.target, tile, vectors) > registers:
        return False
    if tile * vectors < registers // 2 and tile < rows:
        return False
    share = -(-rows // int(choice.get("segments", 1)))
    return int(choice["rows"]) == 1 or int(choice["rows"]) * tile < 2 * share


def _default(found: Attention, mode: Mode, knobs: tuple[Knob, ...]) -> Schedule:
    """Return the default schedule: the tile with the highest estimated rate.

    Keys and values are packed if so many rows read them that packing saves time.
    """
    target = mode.target
    lanes, registers = target.lanes(DType.FLOAT32), target.vector_registers
    values = {knob.name: knob.values for knob in knobs}
    segments = [int(n) for n in values.get("segments", (1,))]
    count = max(n for n in segments if n == 1 or n * _SEGMENT_ROWS <= extent(found.rows))
    rows, keys = -(-extent(found.rows) // count), -(-found.keys.extent // lanes)

    def score(pair: tuple[int, int]) -> float:
        tile, vectors = pair
        loads = target.scalar_loads(tile, vectors) + vectors
        useful = useful_fraction((rows, tile), (keys, vectors))
        return tile_rate(target, useful, tile * vectors, loads)

    pairs = [
        (int(tile), int(vectors))
        for tile, vectors in product(values["tile"], values["vectors"])
        if int(tile) <= rows and tile_registers(target, int(tile), int(vectors)) <= registers
    ]
    tile, vectors = max(pairs, key=score)
    choice: dict[str, Choice] = {
        "tile": tile,
        "vectors": vectors,
        "rows": max(int(b) for b in values["rows"] if b == 1 or int(b) * tile <= min(32, rows)),
        "unroll": values["unroll"][-1],
        "keys": values["keys"][-1],
    }
    if "values" in values:
        size = found.keys.extent * extent(found.lanes) * found.dot.dtype.bytes
        far = size > _FAR_VALUES * target.core.cache_bytes[0] and rows > _FEW_ROWS
        # Contiguous values are loaded two at a time.
        paired = target.lane_factors > 1 and rows >= _PAIRED_ROWS
        choice["values"] = "packed" if far or paired else "rows"
    if "segments" in values:
        choice["segments"] = count
    return Schedule.of("attention", **choice)


TEMPLATE = Template(
    algorithms=("attention",),
    analyse=analyse,
    preference=lambda found, mode: 3.0,
    knobs=_knobs,
    default=_default,
    lower=lower,
    form=_lowers,
    machine=_fits,
)
