"""Views: concatenations, slices and transposes that are computed in place, without a copy.

Before:                                     After:
    {conv}: a; {conv}: b                        {conv}: a; {conv}: b, each writing into y
    {concat(a, b)}: y                           y needs no copy

An operand of a concatenation that a kernel writes can be written in place, if the operands are
consecutive in memory: along channels if the batch is 1, along the outermost dimension otherwise.
Other operands (an input, a constant, a value that already has another place) are copied. A slice
whose elements are contiguous is read in place, and so are rows of channels of a channels-last image
(`layout_transposes.py`). In a dense block (Huang et al., 2017) all features are then in one buffer
that grows by the output of each layer. Also called memory-efficient concatenation, or concat
elimination (TensorRT).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler import ops
from tilewright.compiler.graph.ir import Graph, Node
from tilewright.compiler.graph.names import fresh
from tilewright.compiler.graph.types import TensorType
from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.ops.attributes import integer, ints
from tilewright.compiler.plan.fusion import Group
from tilewright.compiler.plan.layout_transposes import turns
from tilewright.compiler.plan.layouts.options import Demand, LayoutChoice, channels_last
from tilewright.compiler.plan.placement import Placement, distance, same_storage
from tilewright.compiler.plan.regions import ALIGNMENT_BYTES, Region, Regions
from tilewright.compiler.plan.workload import Halo, stored_bytes
from tilewright.compiler.sizes import disjoint, typical

ROW = Placement()


@dataclass(frozen=True, slots=True)
class PlacedPiece:
    """An operand of a concatenation: its value, and the index of its first element in the result.

    `value` is the operand, or a copy of it under another name.
    """

    value: str
    start: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Link:
    """The position of the value `part` inside the larger value `whole`.

    `start` is the index in `whole` of the first element of `part`.
    """

    whole: str
    part: str
    start: tuple[int, ...]


class Views:
    """The concatenations, slices and transposes of a graph that are views, and thus need no kernel.

    The concatenations and slices in `copied` are kernels.

    Attributes:
        concats: maps the output of each concatenation that is a view to the position of each
            operand.
        slices: maps the output of each slice that is a view to the index of its first element.
        turned: the outputs of the transposes that are views.
        types: the types of the graph's values, and of values that were added as copies.
    """

    def __init__(
        self,
        graph: Graph,
        work: Sequence[tuple[Group, LayoutChoice]],
        copied: Container[str] = (),
    ) -> None:
        self._graph = graph
        self._copied = copied
        self.types: dict[str, TensorType] = dict(graph.types)
        self._places: dict[str, Placement] = dict.fromkeys(graph.inputs, ROW)
        self._regions = Regions()
        self._links: dict[str, list[_Link]] = {}
        self._dense: set[str] = set()
        self._written: set[str] = set()
        self._rows: dict[str, str] = {}
        self._fixed = _fixed(graph, work)
        self.concats: dict[str, tuple[PlacedPiece, ...]] = {}
        self.slices: dict[str, tuple[int, ...]] = {}
        self.turned: set[str] = set()
        self._turns = turns(graph)
        for value in graph.inputs:
            self._add(value, ROW, written=True)
        for group, choice in work:
            self._enter(group, choice)

    def halos(self, wishes: Mapping[str, Sequence[Demand]]) -> dict[str, Halo]:
        """Return the halo of each value that a group computes: the widths of the zeros around it.

        `wishes` has the layouts and halos in which groups read each value. All values of a region
        (values that share memory) get the same halo, so that their strides agree. Values in the
        caller's buffers, reshaped values and results of native operators get no halo. A reader that
        needs a halo there reads a copy. A region also gets no halo if its zeros would take more
        memory than such copies, or would overlap other values.
        """
        result: dict[str, Halo] = {}
        done: set[int] = set()
        for value in self._places:
            region = self._regions.of(value)
            if id(region) in done:
                continue
            done.add(id(region))
            halo = self._halo(region, wishes)
            result.update(dict.fromkeys(region.members, halo))
        return result

    def _enter(self, group: Group, choice: LayoutChoice) -> None:
        """Record how a group's output is stored: separately, or as a view of another value."""
        output, (node, *more) = group.output, group.nodes
        place = ROW if self._graph.returns(output) else Placement(choice.output)
        if group.is_native:
            self._add(output, place, written=True)
            self._dense.add(output)
        elif group.is_view:
            self._reshape(node)
        elif node.name in self._turns and self._is_turned(node, choice):
            self._turn(node, place)
        elif not more and node.op == "concat" and not self._moves(output):
            self._concat(node, place)
        elif not more and node.op == "slice" and not self._moves(output):
            self._slice(node, place)
        else:
            self._add(output, place, written=True)
            if not more and node.op == "identity" and self._graph.returns(output):
                self._rows.setdefault(node.inputs[0], output)  # a row-major copy of the operand

    def _moves(self, value: str) -> bool:
        """Whether a concatenation or slice must copy: its output is in a buffer of the caller,
        or in `copied`."""
        return value in self._fixed or value in self._copied

    def _add(self, value: str, place: Placement, *, written: bool) -> None:
        self._places[value] = place
        self._regions.add(value, self._bytes(value, place), written=written)
        if written:
            self._written.add(value)

    def _bytes(self, value: str, place: Placement) -> int:
        return stored_bytes(self.types[value], place.layout, place.halo)

    def _named(self, base: str, like: str) -> str:
        """Add a new value of the type of `like`, and return its name, which starts with `base`."""
        name = fresh(base, self.types)
        self.types[name] = self.types[like]
        return name

    def _reshape(self, node: Node) -> None:
        """Record a reshape as a view of its operand, or of a row-major copy of the operand."""
        (source,), output = node.inputs, node.output
        if source not in self._places:  # a constant, which is copied to be reshaped
            self._add(output, ROW, written=True)
            return
        if not same_storage(self.types[source].shape, self._places[source], ROW):
            if source not in self._rows:
                self._rows[source] = self._named(f"{source}.rows", source)
                self._add(self._rows[source], ROW, written=True)
            source = self._rows[source]
        if source in self._fixed:
            self._fixed.add(output)
        self._add(output, ROW, written=False)
        self._dense |= {source, output}
        self._regions.join(source, output, view_offset(node))

    def _is_turned(self, node: Node, choice: LayoutChoice) -> bool:
        """Whether a transpose between NCHW and channels-last leaves the bytes of its operand
        unchanged.
        """
        (source,), output = node.inputs, node.output
        held, wish = self._places.get(source), choice.demands[source].layout
        last = channels_last(len(self.types[output].shape))
        if held is None or wish is None or output in self._fixed or self._graph.returns(source):
            return False
        return held == Placement(wish) and {wish, choice.output} == {ROW_MAJOR, last}

    def _turn(self, node: Node, place: Placement) -> None:
        (source,), output = node.inputs, node.output
        if source in self._fixed:
            self._fixed.add(output)
        self._add(output, place, written=False)
        self._dense |= {source, output}
        self._regions.join(source, output, 0)
        self.turned.add(output)

    def _slice(self, node: Node, place: Placement) -> None:
        link = _Link(node.inputs[0], node.output, ints(node.attrs, "starts"))
        apart = None
        if (
            self._places.get(link.whole) == place
            and link.whole not in self._fixed
            and set(ints(node.attrs, "steps")) == {1}
        ):
            apart = self._apart(link, place)
        self._add(link.part, place, written=apart is None)
        if apart is not None:
            self.slices[link.part] = link.start
            self._join(link, apart)

    def _concat(self, node: Node, place: Placement) -> None:
        output = node.output
        slots = self._slots(node)
        offsets = [self._apart(_Link(output, slot.value, slot.start), place) for slot in slots]
        known = [offset for offset in offsets if offset is not None]
        direct: list[bool] = []
        if slots and len(known) == len(slots):
            direct = self._direct(slots, known, place)
        self._add(output, place, written=not any(direct))
        if not any(direct):
            return
        placed: list[PlacedPiece] = []
        for slot, offset, in_place in zip(slots, known, direct, strict=True):
            value = slot.value
            if not in_place or not self._regions.can_join(output, value, offset):
                value = self._named(f"{output}.piece", value)
                self._add(value, place, written=True)
            self._join(_Link(output, value, slot.start), offset)
            placed.append(PlacedPiece(value, slot.start))
        self.concats[output] = tuple(placed)

    def _slots(self, node: Node) -> list[PlacedPiece]:
        """Return where each operand of a concatenation starts in the result.

        The result is empty if an operand has no elements.
        """
        pieces = ops.get(node.op).pieces
        assert pieces is not None
        boxes = pieces([self.types[v] for v in node.inputs], node.attrs)
        if len(boxes) != len(node.inputs):
            return []
        return [PlacedPiece(v, box.offset) for v, box in zip(node.inputs, boxes, strict=True)]

    def _apart(self, link: _Link, place: Placement) -> int | None:
        """Return the distance in bytes from a value to its part, if both have the placement
        `place`.

        A placement is a layout and a halo. The result is None if the part is not stored like a
        separate tensor, or is not aligned.
        """
        types = self.types
        elements = distance(
            types[link.whole].shape, place, types[link.part].shape, place, link.start
        )
        if elements is None:
            return None
        apart = elements * types[link.whole].dtype.bytes
        return apart if apart % ALIGNMENT_BYTES == 0 else None

    def _join(self, link: _Link, apart: int) -> None:
        self._regions.join(link.whole, link.part, apart)
        for value in (link.whole, link.part):
            self._links.setdefault(value, []).append(link)

    def _direct(
        self, slots: Sequence[PlacedPiece], offsets: Sequence[int], place: Placement
    ) -> list[bool]:
        """Return for each operand of a concatenation whether its kernel can write it directly into
        the result.

        Writing an operand into the result moves its whole region, if the operand shares memory with
        other values. The moved region must not overlap other operands. `slots` are the operands,
        `offsets` their starts in the result in bytes, and `place` is the placement of the result.
        """
        spans = [
            (offset, offset + self._bytes(slot.value, place))
            for slot, offset in zip(slots, offsets, strict=True)
        ]
        together: dict[tuple[int, int], list[int]] = {}
        for number, (slot, offset) in enumerate(zip(slots, offsets, strict=True)):
            held = self._places.get(slot.value)
            if held is None or slot.value in self._fixed:
                continue
            if same_storage(self.types[slot.value].shape, held, place):
                region = self._regions.of(slot.value)
                shift = offset - region.members[slot.value]
                together.setdefault((id(region), shift), []).append(number)
        direct = [False] * len(slots)
        for (_, shift), numbers in together.items():
            region = self._regions.of(slots[numbers[0]].value)
            others = [span for number, span in enumerate(spans) if number not in numbers]
            moved = [(low + shift, high + shift) for low, high in region.spans]
            if all(disjoint(span, other) for span in moved for other in others):
                for number in numbers:
                    direct[number] = True
        return direct

    def _halo(self, region: Region, wishes: Mapping[str, Sequence[Demand]]) -> Halo:
        if any(value in self._fixed or value in self._dense for value in region.members):
            return ()
        halo: Halo = ()
        copies = 0
        for value in region.members:
            wanted: Halo = ()
            for wish in wishes.get(value, ()):
                if wish.halo and self._agrees(value, wish):
                    wanted = union(wanted, wish.halo)
            if wanted:
                halo = union(halo, wanted)
                dense = self._places[value]
                copies += self._bytes(value, dense)
                copies += self._bytes(value, Placement(dense.layout, wanted))
        if not halo or len(region.members) == 1:
            return halo
        return halo if self._holds(tuple(region.members), halo, copies) else ()

    def _agrees(self, value: str, wish: Demand) -> bool:
        if wish.layout is None:
            return True
        shape = self.types[value].shape
        return same_storage(shape, self._places[value], Placement(wish.layout))

    def _holds(self, members: Sequence[str], halo: Halo, copies: int) -> bool:
        """Whether all values of a region (values that share memory) can have a halo.

        Each value must keep its distance to the others. The added zeros must take at most `copies`
        bytes, the size of the copies that readers would need without the halo.
        """
        regions = Regions()
        zeros = 0
        places = {v: Placement(self._places[v].layout, halo) for v in members}
        for value in members:
            written = value in self._written
            regions.add(value, self._bytes(value, places[value]), written=written)
            if written:
                size = self._bytes(value, self._places[value])
                zeros += self._bytes(value, places[value]) - size
        for value in members:
            for link in self._links.get(value, ()):
                apart = self._apart(link, places[link.whole])
                if apart is None or not regions.can_join(link.whole, link.part, apart):
                    return False
                regions.join(link.whole, link.part, apart)
        return typical(zeros - copies) <= 0


def view_offset(node: Node) -> int:
    """Return the byte offset of a view from the start of its operand."""
    return integer(node.attrs, "offset", 0)


def _fixed(graph: Graph, work: Sequence[tuple[Group, LayoutChoice]]) -> set[str]:
    """Return the values in the caller's buffers: inputs, outputs, and values of which an output is
    a view.

    `work` has the groups of the graph in order, each with its layouts.
    """
    fixed = {*graph.inputs, *graph.outputs}
    for group, _ in reversed(work):
        if group.is_view and group.output in fixed:
            fixed.add(group.inputs[0])
    return fixed


def union(first: Halo, second: Halo) -> Halo:
    """Return the smallest halo that covers both arguments."""
    if not first or not second:
        return first or second
    return tuple((max(a[0], b[0]), max(a[1], b[1])) for a, b in zip(first, second, strict=True))
