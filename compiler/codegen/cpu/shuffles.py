"""Permutations of 8-bit and 16-bit elements in vectors."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.compiler.codegen.cpu.arithmetic import apply, cast, extract_lane
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Operation
from tilewright.compiler.targets.families import BytePermute


def interleaved(emitter: Emitter, vectors: Value, lanes: int) -> Value:
    """Interleave four vectors of 8-bit elements, or two of 16-bit elements, to `lanes` int32.

    Each int32 has one element of each vector. `vectors` is the concatenation of the vectors, with
    `lanes` elements each. 8-bit elements are permuted in groups of four first, then within each 128
    bits: many instruction sets have both permutations, but few have one that combines them.
    """
    count = vectors.lanes // lanes
    text = type_text(DType.INT32, lanes)
    if count == 4 and lanes % 4 == 0:
        quarter = lanes // 4
        fours = emitter.emit(DType.INT32, lanes, f"bitcast {vectors.type} %s to {text}", vectors)
        fours = emitter.shuffle(fours, None, [i % 4 * quarter + i // 4 for i in range(lanes)])
        vectors = emitter.emit(
            vectors.dtype, vectors.lanes, f"bitcast {text} %s to {vectors.type}", fours
        )
        order = [i // 16 * 16 + i % 4 * 4 + i % 16 // 4 for i in range(vectors.lanes)]
    else:
        order = [i % count * lanes + i // count for i in range(vectors.lanes)]
    groups = emitter.shuffle(vectors, None, order)
    return emitter.emit(DType.INT32, lanes, f"bitcast {groups.type} %s to {text}", groups)


def looked_up(
    emitter: Emitter, lookup: BytePermute, parts: Sequence[Value], places: Value
) -> Value:
    """Look up 8-bit elements in a table at the positions `places` (uint8).

    `parts` are the four quarters of the table as vectors. The instruction `lookup` permutes the
    bytes of two of them, so it is emitted twice.
    """
    lanes = range(places.lanes)
    padded = [i if i in lanes else None for i in range(lookup.bytes)]
    wide = emitter.shuffle(places, None, padded)
    low, high = (
        emitter.shuffle(
            emitter.call(DType.UINT8, lookup.bytes, lookup.name, parts[i], wide, parts[i + 1]),
            None,
            lanes,
        )
        for i in (0, 2)
    )
    last = emitter.const(2 * lookup.bytes - 1, DType.UINT8, places.lanes)
    return apply(emitter, Operation.SELECT, apply(emitter, Operation.LT, last, places), high, low)


def separate_bytes(emitter: Emitter, vector: Value) -> list[Value]:
    """Return each element of a vector of 4 n uint8 as an int64.

    A word of eight or four elements is moved to a scalar register and shifted there: x86-64 takes
    two instructions to extract one element from a vector. Lanes without a defined value become
    arbitrary elements.
    """
    size = 4 if vector.lanes % 8 else 8
    word, count = DType.INT64 if size == 8 else DType.INT32, vector.lanes // size
    vector = emitter.emit(vector.dtype, vector.lanes, f"freeze {vector.type} %s", vector)
    text = type_text(word, count)
    words = emitter.emit(word, count, f"bitcast {vector.type} %s to {text}", vector)
    found = []
    for lane in range(vector.lanes):
        whole = words if count == 1 else extract_lane(emitter, words, lane // size)
        moved = emitter.emit(word, 1, f"lshr {whole.type} %s, {lane % size * 8}", whole)
        last = emitter.emit(word, 1, f"and {whole.type} %s, 255", moved)
        found.append(cast(emitter, last, DType.INT64))
    return found
