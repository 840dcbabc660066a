"""Methods of loading an element or a vector; one is selected for each access.

The byte offset of each lane determines the method:

- The same for all lanes: a scalar is loaded and later broadcast.
- Contiguous elements: one vector is loaded.
- The same for each n successive lanes, as in an upsampling: one vector is loaded and permuted.
- A stride of a few elements: several vectors are loaded and permuted.
- Any others: each lane is loaded separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.compiler.codegen.cpu.arithmetic import apply, cast
from tilewright.compiler.codegen.cpu.context import Context, RegisterBudget
from tilewright.compiler.codegen.cpu.deinterleaving import has_deinterleaving_loads, load_offsets
from tilewright.compiler.codegen.cpu.points import Points
from tilewright.compiler.codegen.cpu.quads import QUAD, pairs, quads
from tilewright.compiler.codegen.cpu.resolve import Access, holds_groups
from tilewright.compiler.codegen.cpu.runs import in_runs, run_of
from tilewright.compiler.codegen.cpu.shuffles import interleaved
from tilewright.compiler.codegen.cpu.ssa import Emitter, Value
from tilewright.compiler.codegen.cpu.vectors import LoadSite
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.expr import Operation, Space
from tilewright.compiler.sizes import always_less, is_dynamic

LoadPlan = Callable[[LoadSite], Value]
"""Emits the load that the argument describes, and returns the loaded value."""


def load_plan(context: Context, budget: RegisterBudget, access: Access, points: Points) -> LoadPlan:
    """Return a function that emits the load of an access, by the method that suits its lanes.

    The function takes a `LoadSite`, which states the address and the loop depth. `points` are all
    combinations of indices on the unrolled axes at which the access is loaded.
    """
    emitter, dtype, is_full = context.emitter, access.tensor.dtype, access.present >= access.packed
    if access.tensor.space is Space.CONSTANT:
        return _constant
    if not access.is_vector:
        is_split = access.packed * dtype.bytes == 4 and _takes_elements(emitter, dtype)
        if access.is_interleaved or not is_full or is_split:
            return _single_elements
        return _scalars(context, budget, access, points)
    if access.is_interleaved:
        return _interleaved
    if not is_full and not holds_groups(access.tensor, access.packed):
        return _separate_groups
    if access.contiguous:
        return _in_runs_or(_side_by_side(context, budget, access, points))
    return _in_runs_or(_scattered(emitter, access, points))


def _constant(place: LoadSite) -> Value:
    tensor = place.access.tensor
    return place.emitter.const(tensor.values[place.offset // tensor.dtype.bytes], tensor.dtype)


def _scalars(context: Context, budget: RegisterBudget, access: Access, points: Points) -> LoadPlan:
    """Return a plan that loads scalars one by one, or four adjacent ones at once (`quads`)."""
    first_of, paired = quads(context.emitter, budget, access, points)

    def quad(access: Access, first: int) -> Value:
        return place_at(context, budget, access, first, QUAD).vector(QUAD, QUAD)

    def load(place: LoadSite) -> Value:
        first = first_of.get(place.offset)
        if first is None:
            return place.scalar()
        whole = quad(place.access, first)
        if first in paired:  # record it now: this load occurs again in the tile
            quad(place.access, paired[first])
        lane = (place.offset - first) // place.dtype.bytes
        text = f"extractelement {whole.type} %s, i32 {lane}"
        value = place.emitter.emit(place.dtype, 1, text, whole, depth=whole.depth)
        place.emitter.taken.add(value.name)
        return value

    return load


def _single_elements(place: LoadSite) -> Value:
    """Load the elements of one dot-product group separately, and combine them into an integer.

    This is used if the elements are not adjacent, if the memory after an incomplete dot-product
    group may not be read, or if the target multiplies one element of a dot-product group at a time.
    """
    return _group(place, 0)


def _group(place: LoadSite, behind: int) -> Value:
    emitter, access = place.emitter, place.access
    size, whole = access.tensor.dtype.bytes, access.packed_dtype
    raw = DType.UINT8 if size == 1 else DType.UINT16
    group = emitter.const(0, whole)
    parts = []
    for number in range(access.present):
        parts.append(place.scalar(behind + number * access.apart, raw))
        bits = cast(emitter, parts[-1], whole)
        weight = emitter.const(1 << (8 * size * number), whole)
        bits = apply(emitter, Operation.MUL, bits, weight)
        group = apply(emitter, Operation.OR, bits, group) if number else bits
    emitter.parts[group.name] = tuple(parts)
    return group


def _takes_elements(emitter: Emitter, dtype: DType) -> bool:
    return dtype.bytes < 4 and not dtype.is_float and emitter.target.has_scalar_dot


def _separate_groups(place: LoadSite) -> Value:
    """Load the elements of each lane's dot-product group one by one, and return the dot-product
    groups.

    This serves dot-product groups with fewer elements than a lane holds, if it is not known whether
    the memory after such a dot-product group may be read.
    """
    return _collected(place, (_group(place, behind) for behind in place.separate))


def _interleaved(place: LoadSite) -> Value:
    """Load dot-product groups whose elements lie in separate vectors: load these vectors and
    interleave them.

    A dot-product group is one operand of a dot-product instruction, such as four int8. Vectors that
    are adjacent in memory are loaded together. If a dot-product group has fewer elements than a
    lane holds, the missing ones are arbitrary, because the other operand has zeros there.
    """
    emitter, access, lanes, active = place.emitter, place.access, place.lanes, place.active
    size = access.tensor.dtype.bytes
    raw = DType.UINT8 if size == 1 else DType.UINT16
    width = lanes * access.packed
    together = active == lanes and access.apart == lanes * size
    vectors = Value("poison", raw, width)
    number = 0
    while number < access.present:
        count = 1 << ((access.present - number).bit_length() - 1) if together else 1
        first = number * lanes
        used = min(active, lanes) if count == 1 else count * lanes
        part = place.vector(count * lanes, used, number * access.apart, raw)
        wide = emitter.shuffle(part, None, [i if i < part.lanes else None for i in range(width)])
        inside = range(first, first + part.lanes)
        order = [width + i - first if i in inside else i for i in range(width)]
        vectors = emitter.shuffle(vectors, wide, order) if number else wide
        number += count
    return interleaved(emitter, vectors, lanes)


def _in_runs_or(plan: LoadPlan) -> LoadPlan:
    """Return a plan that loads a vector as several contiguous runs of lanes, or else by `plan`.

    The first method is used if the target treats several vector registers as one group (RISC-V),
    and the lanes of the vector form several equal runs.
    """

    def load(place: LoadSite) -> Value:
        run = run_of(place.emitter, place.access, place.active)
        return in_runs(place, run) if run else plan(place)

    return load


def _side_by_side(
    context: Context, budget: RegisterBudget, access: Access, points: Points
) -> LoadPlan:
    """Return a plan that loads contiguous vectors.

    If the target has an instruction that loads two adjacent vectors, both are loaded together.
    """
    beside = pairs(context.emitter, budget, access, points)
    is_written = access.tensor.name in context.written

    def load(place: LoadSite) -> Value:
        value = place.vector(place.lanes, place.active)
        second = None if is_written else beside(place.offset)
        if second is not None:  # record it now: this load occurs again in the tile
            place.vector(place.lanes, place.active, second - place.offset)
        return value

    return load


def _scattered(emitter: Emitter, access: Access, points: Points) -> LoadPlan:
    """Return a plan for lanes that are not contiguous, or not in order.

    The plan tries a permutation of one vector, then of several vectors, then one load per lane.
    """
    first_of = (
        load_offsets([*points], access)
        if has_deinterleaving_loads(emitter.target) and not points.is_ragged
        else {}
    )
    is_known = not any(map(is_dynamic, access.lane_offsets))

    def load(place: LoadSite) -> Value:
        found = _permuted(place) if is_known else None
        if found is not None:
            return found
        offsets = place.separate
        start = first_of.get(place.offset) if place.active == place.lanes else None
        found = _strided(place, start) if is_known else None
        return found or gathered(place, [place.pointer(behind) for behind in offsets])

    return load


def _permuted(place: LoadSite) -> Value | None:
    """Load one aligned vector and permute it; return None unless the vector contains all lanes."""
    access, lanes, size = place.access, place.lanes, place.dtype.bytes
    span = lanes * size
    start = place.offset - place.offset % span
    places = [place.offset - start + o for o in access.lane_offsets]
    picks = [at // size for at in places]
    if access.alignment % span or min(picks) < 0 or max(picks) >= lanes:
        return None
    if any(at % size for at in places):  # groups, which may start anywhere
        return None
    if not always_less(start + span - 1, access.tensor.bytes):
        return None
    return place.emitter.shuffle(place.vector(lanes, lanes, start - place.offset), None, picks)


def _strided(place: LoadSite, start: int | None) -> Value | None:
    """Load lanes with a stride of a few elements: load whole vectors, and select lanes from them.

    Return None if the stride exceeds half the number of lanes, because one load per lane is then as
    good. The last vector ends at the last lane, so that no memory after it is read. If `start` is
    given, the stride is two elements, and two vectors are loaded from byte offset `start`
    (`load_offsets`).
    """
    emitter, lanes, size, active = place.emitter, place.lanes, place.dtype.bytes, place.active
    offsets = place.access.lane_offsets
    stride = offsets[1] // size if lanes > 1 else 0
    if not 1 < stride <= lanes // 2 or offsets != tuple(i * stride * size for i in range(lanes)):
        return None
    span = (active - 1) * stride + 1
    if span < lanes:
        return None
    if start is not None:
        first = place.offset - start
        low, high = (place.vector(lanes, lanes, at - first) for at in (0, lanes * size))
        return emitter.shuffle(low, high, range(first // size, first // size + 2 * lanes, 2))
    joined: Value | None = None
    picks: dict[int, int] = {}
    for first in dict.fromkeys(min(start, span - lanes) for start in range(0, span, lanes)):
        part = place.vector(lanes, lanes, first * size)
        inside = [i for i in range(active) if i not in picks and i * stride < first + lanes]
        here = 0 if joined is None else lanes
        picks |= {lane: here + lane * stride - first for lane in inside}
        if joined is not None or span == lanes:
            order = [picks.get(lane, 0) for lane in range(lanes)]
            part = emitter.shuffle(part if joined is None else joined, joined and part, order)
            picks = {lane: lane for lane in picks}
        joined = part
    return joined


def gathered(place: LoadSite, pointers: Iterable[Value]) -> Value:
    """Load each lane from its own pointer, and return the vector."""
    return _collected(place, map(place.element, pointers))


def _collected(place: LoadSite, items: Iterable[Value]) -> Value:
    emitter, value = place.emitter, Value("poison", place.dtype, place.lanes)
    for lane, item in enumerate(items):
        text = f"insertelement {value.type} %s, {item.type} %s, i32 {lane}"
        value = emitter.emit(value.dtype, value.lanes, text, value, item)
    return value


def place_at(
    context: Context, budget: RegisterBudget, access: Access, offset: int, active: int
) -> LoadSite:
    """Return a description of the load at byte offset `offset`, with its loop depth.

    The loop depth says out of which loops the load is hoisted. A load from a tensor that the stage
    does not write is hoisted if `budget`, the registers that are still available, allows it.
    `active` is the number of lanes of the loaded vector that are in use.
    """
    emitter, base, name = context.emitter, access.base, access.tensor.name
    depth, tag = emitter.depth, ""
    if name in context.written:
        tag = f" ; {context.epochs.get(name, 0)}"
    elif base is not None and (base.depth == depth or budget.allows(base, offset)):
        depth = base.depth
    if is_dynamic(active):  # the users of the lanes stay in the tail
        depth = emitter.depth
    return LoadSite(emitter, access, offset, active, depth, tag)
