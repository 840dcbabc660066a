"""Dot products of groups of 8-bit or 16-bit elements, added to 32-bit accumulators.

An operand is a vector of 32-bit elements, each of which holds a dot-product group of 4 int8 or
uint8, or of 2 int16 or bfloat16. The family of the target defines the instructions. Products of
integers are exact on every target, without intermediate saturation. The first available method is
used:

1. A dot-product instruction for the two types.
2. For 8-bit types, an instruction for the other signedness of one operand. The lower seven bits
have the same value in both types, and bit 7 has opposite values (-128 and 128). The products with
bit 7 are therefore computed separately and subtracted.
3. For 8-bit types, an instruction that requires seven-bit values in one operand. The products with
bit 7 are computed separately: bit 7 is moved to bit 0 before the product, and the product is
shifted left by seven.
4. Widening multiplications of int16 vectors by a scalar (`vwmacc.vx`), for one element of the
dot-product group at a time.
5. For 8-bit types, conversion to dot-product groups of int16: first of the even elements, then of
the odd ones.
6. For dot-product groups of int16, widening multiplications of vectors (`smlal`), or plain
arithmetic.

Dot-product groups of bfloat16 are multiplied by an instruction, or by two float32 multiply-adds. A
bfloat16 is the upper half of a float32: a shift and a mask convert the two elements of a
dot-product group.
"""

from __future__ import annotations

from tilewright.compiler.codegen.cpu.arithmetic import apply, cast
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value, type_text
from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import ScheduleError
from tilewright.compiler.loops.expr import Operation
from tilewright.compiler.targets.families import DotInstruction

Types = tuple[DType, DType]

_SEVEN_BITS, _EIGHTH_BITS, _LOWEST_BITS = 0x7F7F7F7F, ~0x7F7F7F7F, 0x01010101
_BYTES = (DType.UINT8, DType.INT8)
_PAIRS = (DType.INT16, DType.INT16)
_BRAINS = (DType.BFLOAT16, DType.BFLOAT16)
_HIGH_BITS = -(1 << 16)


def multiply_add(
    emitter: Emitter, types: Types, accumulator: Value, left: Value, right: Value
) -> Value:
    """Emit `accumulator + sum(left[i] * right[i])` for each lane, and return it.

    `left` and `right` are vectors with 32 bits per lane. Each lane holds a dot-product group of
    elements, over which i runs. Their types are `types[0]` in `left` and `types[1]` in `right`.

    Raises:
        ScheduleError: if the target has no instruction for the types, and they are not both 8-bit
            integers, int16 or bfloat16.
    """
    found = _direct(emitter, types, accumulator, left, right)
    if found is None and set(types) <= set(_BYTES):
        found = _other_sign(emitter, types, accumulator, left, right) or _seven_bits(
            emitter, types, accumulator, left, right
        )
    if found is None and emitter.target.has_scalar_dot and left.lanes != right.lanes:
        found = _by_elements(emitter, types, accumulator, left, right)
    if found is None and set(types) <= set(_BYTES):
        found = accumulator
        for part in (0, 1):
            x = _halved(emitter, types[0], left, part)
            y = _halved(emitter, types[1], right, part)
            found = multiply_add(emitter, _PAIRS, found, x, y)
    if found is None and types in (_PAIRS, _BRAINS):
        found = _plain(emitter, types[0], accumulator, left, right)
    if found is None:
        raise ScheduleError(
            f"target '{emitter.target.name}' has no instruction that adds products of {types[0]} "
            f"and {types[1]} to {accumulator.dtype}"
        )
    return found


def _direct(
    emitter: Emitter, types: Types, accumulator: Value, left: Value, right: Value
) -> Value | None:
    """Emit a dot-product instruction for these types; return None if the target has none.

    The operands may be swapped, because the product is commutative.
    """
    sums, lanes = accumulator.dtype, accumulator.lanes
    assert sums is not None
    found = emitter.target.dot(*types, sums, lanes)
    if found is not None:
        return _call(emitter, found, accumulator, left, right)
    found = emitter.target.dot(*types[::-1], sums, lanes)
    return None if found is None else _call(emitter, found, accumulator, right, left)


def _other_sign(
    emitter: Emitter, types: Types, accumulator: Value, left: Value, right: Value
) -> Value | None:
    """Emit a dot-product instruction that takes the left operand with the other signedness.

    For example, an int8 operand uses an instruction for uint8. If bit 7 of the left elements is
    known to be clear, as in 4-bit weights, the values are the same in both types. Otherwise, the
    lower seven bits and bit 7 are multiplied by one instruction each, and the second product is
    subtracted from the first. Return None if the target has no such instruction.
    """
    other = _BYTES[types[0] is DType.UINT8], types[1]
    if not emitter.masks.get(left.name, _EIGHTH_BITS) & _EIGHTH_BITS:
        return _direct(emitter, other, accumulator, left, right)
    whole = emitter.splat(left, accumulator.lanes)
    low, high = (
        apply(emitter, Operation.AND, whole, emitter.const(bits, DType.INT32))
        for bits in (_SEVEN_BITS, _EIGHTH_BITS)
    )
    nothing = emitter.const(0, DType.INT32, accumulator.lanes)
    opposite = _direct(emitter, other, nothing, high, right)
    if opposite is None:
        return None
    total = _direct(emitter, other, accumulator, low, right)
    assert total is not None
    return apply(emitter, Operation.SUB, total, opposite)


def _seven_bits(
    emitter: Emitter, types: Types, accumulator: Value, left: Value, right: Value
) -> Value | None:
    """Emit a dot-product instruction that accepts only seven-bit values in one operand.

    Return None if the target has no such instruction. If the values may have bit 7 set, a second
    instruction multiplies these bits separately.
    """
    lanes = accumulator.lanes
    for kinds, x, y in ((types, left, right), (types[::-1], right, left)):
        found = emitter.target.dot(DType.UINT8, kinds[1], DType.INT32, lanes, seven_bits=True)
        if found is None:
            continue
        if not emitter.masks.get(x.name, _EIGHTH_BITS) & _EIGHTH_BITS:
            return _call(emitter, found, accumulator, x, y)
        low, high = (
            apply(emitter, Operation.AND, value, emitter.const(bits, DType.INT32))
            for value, bits in ((x, _SEVEN_BITS), (_shifted(emitter, "lshr", x), _LOWEST_BITS))
        )
        nothing = emitter.const(0, DType.INT32, lanes)
        eighth = _shifted(emitter, "shl", _call(emitter, found, nothing, high, y))
        total = _call(emitter, found, accumulator, low, y)
        return apply(emitter, Operation.SUB if kinds[0].is_signed else Operation.ADD, total, eighth)
    return None


def _shifted(emitter: Emitter, shift: str, value: Value) -> Value:
    """Emit the shift `shift` (`shl` or `lshr`) of each 32-bit lane by seven bits."""
    seven = emitter.const(7, DType.INT32, value.lanes)
    return emitter.emit(DType.INT32, value.lanes, f"{shift} {value.type} %s, %s", value, seven)


def _halved(emitter: Emitter, dtype: DType, value: Value, part: int) -> Value:
    """Convert the even (`part` 0) or odd (1) 8-bit elements of each dot-product group to int16.

    A dot-product group has four elements in 32 bits, so the result has two int16 numbers in 32
    bits.
    """
    lanes = 2 * value.lanes
    text = type_text(DType.INT16, lanes)
    eight = emitter.const(8, DType.INT16, lanes)
    pairs = emitter.emit(DType.INT16, lanes, f"bitcast {value.type} %s to {text}", value)
    if part == 0:
        pairs = emitter.emit(DType.INT16, lanes, f"shl {text} %s, %s", pairs, eight)
    shift = "ashr" if dtype.is_signed else "lshr"
    pairs = emitter.emit(DType.INT16, lanes, f"{shift} {text} %s, %s", pairs, eight)
    return emitter.emit(DType.INT32, value.lanes, f"bitcast {text} %s to {value.type}", pairs)


def _by_elements(
    emitter: Emitter, types: Types, accumulator: Value, left: Value, right: Value
) -> Value | None:
    """Emit dot products as widening multiplications of an int16 vector by an int16 scalar.

    Each multiplication handles one element of every dot-product group, so the elements are
    extracted first. If the dot-product groups were created by interleaving vectors of elements,
    LLVM removes the interleaving and the extraction. Return None for types other than integers.
    """
    if types != _PAIRS and not set(types) <= set(_BYTES):
        return None
    # All elements before the first product: each change of the vectors' type is an instruction.
    places = range(4 // types[0].bytes)
    xs, ys = (
        [_element(emitter, dtype, group, place) for place in places]
        for dtype, group in zip(types, (left, right), strict=True)
    )
    for factors in zip(xs, ys, strict=True):
        wide = [_extended(emitter, factor, accumulator) for factor in factors]
        accumulator = apply(emitter, Operation.FMA, *wide, accumulator)
    return accumulator


def _extended(emitter: Emitter, value: Value, sums: Value) -> Value:
    """Sign-extend a factor to the element type of `sums`, with as many lanes as `sums`.

    A scalar is broadcast to all lanes first and extended afterwards, because LLVM recognises this
    pattern as a widening multiplication.
    """
    assert sums.dtype is not None
    whole = emitter.splat(value, sums.lanes)
    text = type_text(sums.dtype, sums.lanes)
    return emitter.emit(sums.dtype, sums.lanes, f"sext {whole.type} %s to {text}", whole)


def _element(emitter: Emitter, dtype: DType, group: Value, place: int) -> Value:
    """Return element number `place` of each dot-product group as int16; 0 if an incomplete
    dot-product group lacks it.

    A dot-product group is the elements in one 32-bit lane.
    """
    if group.lanes == 1:
        parts = emitter.parts.get(group.name)
        if parts is not None and place >= len(parts):
            return emitter.const(0, DType.INT16)
        if parts is not None:
            return cast(emitter, cast(emitter, parts[place], dtype), DType.INT16)
        bits = emitter.const(8 * dtype.bytes * place, DType.INT32)
        moved = emitter.emit(DType.INT32, 1, f"lshr {group.type} %s, %s", group, bits)
        text = type_text(dtype, 1)
        single = emitter.emit(dtype, 1, f"trunc {group.type} %s to {text}", moved)
        return cast(emitter, single, DType.INT16)
    if dtype.bytes == 1:
        group = _halved(emitter, dtype, group, place % 2)
        place //= 2
    # A shuffle, because LLVM would widen a value truncated from the whole group.
    pairs = type_text(DType.INT16, 2 * group.lanes)
    halves = emitter.emit(
        DType.INT16, 2 * group.lanes, f"bitcast {group.type} %s to {pairs}", group
    )
    return emitter.shuffle(halves, None, range(place, 2 * group.lanes, 2))


def _plain(emitter: Emitter, dtype: DType, accumulator: Value, left: Value, right: Value) -> Value:
    """Emit products of pairs of 16-bit elements without a dot-product instruction, and add them.

    The first elements of all pairs are multiplied before the second ones.
    """
    widening, lanes = emitter.target.widening, accumulator.lanes
    if widening and dtype is DType.INT16 and lanes == widening.lanes:
        for part in (0, 1):
            halves = (emitter.splat(_half(emitter, v, part), lanes) for v in (left, right))
            product = emitter.call(DType.INT32, lanes, widening.intrinsic, *halves)
            accumulator = apply(emitter, Operation.ADD, accumulator, product)
        return accumulator
    element = _brain if dtype is DType.BFLOAT16 else _integer
    for part in (0, 1):
        x, y = (element(emitter, value, part) for value in (left, right))
        accumulator = apply(emitter, Operation.FMA, x, y, accumulator)
    return accumulator


def _half(emitter: Emitter, value: Value, part: int) -> Value:
    """Return the low (`part` 0) or high (1) 16 bits of each 32-bit lane as int16."""
    if part == 1:
        sixteen = emitter.const(16, DType.INT32, value.lanes)
        value = emitter.emit(DType.INT32, value.lanes, f"lshr {value.type} %s, %s", value, sixteen)
    text = type_text(DType.INT16, value.lanes)
    return emitter.emit(DType.INT16, value.lanes, f"trunc {value.type} %s to {text}", value)


def _integer(emitter: Emitter, value: Value, part: int) -> Value:
    """Return the low (`part` 0) or high (1) 16 bits of each 32-bit lane, sign-extended to int32."""
    sixteen = emitter.const(16, DType.INT32, value.lanes)
    if part == 0:
        value = emitter.emit(DType.INT32, value.lanes, f"shl {value.type} %s, %s", value, sixteen)
    return emitter.emit(DType.INT32, value.lanes, f"ashr {value.type} %s, %s", value, sixteen)


def _brain(emitter: Emitter, value: Value, part: int) -> Value:
    """Convert the low (`part` 0) or high (1) bfloat16 of each 32-bit lane to float32."""
    lanes = value.lanes
    if part == 0:
        sixteen = emitter.const(16, DType.INT32, lanes)
        value = emitter.emit(DType.INT32, lanes, f"shl {value.type} %s, %s", value, sixteen)
    else:
        value = apply(emitter, Operation.AND, value, emitter.const(_HIGH_BITS, DType.INT32, lanes))
    text = type_text(DType.FLOAT32, lanes)
    return emitter.emit(DType.FLOAT32, lanes, f"bitcast {value.type} %s to {text}", value)


def _call(
    emitter: Emitter, instruction: DotInstruction, accumulator: Value, left: Value, right: Value
) -> Value:
    lanes = accumulator.lanes
    width, name = next((w, n) for w, n in instruction.intrinsic if w >= lanes)
    dtype, operand = instruction.accumulator, instruction.operand
    elements = width * 4 // operand.bytes
    packed = type_text(operand, elements)
    takes_lanes, alike = emitter.target.lane_factors > 1, instruction.left is instruction.right
    if takes_lanes and alike and left.lanes == 1:
        left, right = right, left  # only the last operand can be a lane
    arguments = [_widened(emitter, accumulator, width)] if instruction.accumulates else []
    for value in (left, right):
        wide = _widened(emitter, _spread(emitter, value, lanes), width)
        if operand is not DType.INT32:
            wide = emitter.emit(operand, elements, f"bitcast {wide.type} %s to {packed}", wide)
        arguments.append(wide)
    if instruction.reversed:
        arguments.reverse()
    result = _narrowed(emitter, emitter.call(dtype, width, name, *arguments), lanes)
    if instruction.accumulates:
        return result
    return apply(emitter, Operation.ADD, result, accumulator)


def _spread(emitter: Emitter, value: Value, lanes: int) -> Value:
    """Broadcast a 32-bit scalar to `lanes` lanes; a vector is returned unchanged.

    On targets whose multiplications accept one lane of a vector as a factor, a scalar from memory
    is moved through a float register. Otherwise, LLVM would choose an instruction that loads and
    broadcasts at once, which does not allow an address offset.
    """
    alone = value.lanes == 1 < lanes and value.const is None and value.name not in emitter.taken
    if not alone or emitter.target.lane_factors == 1:
        return emitter.splat(value, lanes)
    single = emitter.emit(DType.FLOAT32, 1, "bitcast i32 %s to float", value)
    first = f"insertelement {type_text(DType.FLOAT32, lanes)} poison, float %s, i32 0"
    whole = emitter.emit(DType.FLOAT32, lanes, first, single)
    back = f"bitcast {whole.type} %s to {type_text(DType.INT32, lanes)}"
    whole = emitter.emit(DType.INT32, lanes, back, whole)
    return emitter.shuffle(whole, None, [0] * lanes)._replace(dtype=value.dtype)


def _widened(emitter: Emitter, value: Value, lanes: int) -> Value:
    """Return a vector extended to `lanes` lanes, or a scalar broadcast to them.

    The contents of the additional lanes are arbitrary.
    """
    if value.lanes in (1, lanes):
        return emitter.splat(value, lanes)
    return emitter.shuffle(value, None, [min(i, value.lanes - 1) for i in range(lanes)])


def _narrowed(emitter: Emitter, value: Value, lanes: int) -> Value:
    if value.lanes == lanes:
        return value
    if lanes > 1:
        return emitter.shuffle(value, None, range(lanes))
    return emitter.emit(value.dtype, 1, f"extractelement {value.type} %s, i32 0", value)
