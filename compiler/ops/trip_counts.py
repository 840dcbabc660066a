"""Trip-count analysis for loops that end when a counter reaches a bound.

    s = 0                                       t = s + 1
    loop: t = s + 1; s = t                      going = less(cast(t), cast(n))
    -> n steps, for a size n of at least 1

TensorFlow's exporter writes loops without a trip count: a state counts the steps, and the body
compares it with the length of a sequence. A counter is a value that changes by the same integer in
each step. The condition may compare two counters, or a counter with a constant or a size, through
casts that are exact for all their values. This analysis is also called scalar evolution (Bachmann,
Wang and Zima, "Chains of recurrences", 1994).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf

from tilewright.compiler.dtypes import DType
from tilewright.compiler.graph.ir import Node
from tilewright.compiler.loops.semantics import from_memory
from tilewright.compiler.ops.builder import GraphBuilder
from tilewright.compiler.ops.size_arithmetic import exact_integers
from tilewright.compiler.sizes import always_larger, always_smaller, bounds, is_dynamic

_PASSING = ("cast", "reshape", "identity", "add", "sub")
"""Operators whose result is a counter if their operands are. A counter changes by the same integer
in each step of a loop."""

_NESTED = 32
"""Maximum length of a chain of loop states, each of which is updated from the next. The analysis of
such a chain is recursive."""


@dataclass(frozen=True, slots=True)
class TripCount:
    """The maximum number of steps of a loop, if its first step is taken.

    `most` may be a dynamic size. `exact` is true if the loop always takes the maximum, because no
    other condition ends it.
    """

    most: int
    exact: bool


@dataclass(frozen=True, slots=True)
class State:
    """A state of a loop, which each step passes to the next one.

    `start` is the initial value, if it is an integer or a size known at import, else None.
    `following` is the value of the body's graph that becomes the state of the next step.
    """

    start: int | None
    following: str


@dataclass(frozen=True, slots=True)
class _Counter:
    """A value that changes by the same integer in each step: `first + each * k` in step k.

    If `states` is 1, the value is this number plus the value of a loop state. Such counters occur
    only while a state is analysed: if the next state is `state + d`, each step adds d.
    """

    first: int
    each: int = 0
    states: int = 0

    def __add__(self, other: _Counter) -> _Counter:
        return _Counter(
            self.first + other.first, self.each + other.each, self.states + other.states
        )

    def __neg__(self) -> _Counter:
        return _Counter(-self.first, -self.each, -self.states)


def trip_count(
    body: GraphBuilder, going: str, step: str, states: Mapping[str, State]
) -> TripCount | None:
    """Find the maximum number of steps of a loop whose body decides whether another step follows.

    Args:
        body: the graph of the body, under construction.
        going: the value of the body that decides whether another step follows.
        step: the input of the body with the index of the step, from 0 on.
        states: the loop's states, by the name of the body's input.

    Returns:
        The trip count; None if no counter is found that ends the loop.
    """
    found = _Analysis(body, step, states)
    ends, exact = found.ends(going)
    if not ends:
        return None
    most = ends[0]
    for other in ends[1:]:
        found_smaller = always_smaller(most, other)
        exact &= found_smaller is not None
        most = most if found_smaller is None else found_smaller  # either of them bounds the steps
    return TripCount(most, exact) if found.holds(most) else None


def known_integer(builder: GraphBuilder, value: str) -> int | None:
    """Return the integer or dynamic size in a value of one element that is known at import.

    The result is None for any other value.
    """
    kind, known = builder.types[value], builder.known(value)
    if kind.elements != 1:
        return None
    if known is not None:
        (item,) = from_memory(known, kind.dtype).flat
        return int(item) if float(item).is_integer() else None
    sizes = builder.sizes.get(value)
    return None if sizes is None else sizes.item()


class _Analysis:
    """The analysis of one loop body, which finds counters and their element types."""

    def __init__(self, body: GraphBuilder, step: str, states: Mapping[str, State]) -> None:
        self._body = body
        self._step = step
        self._states = states
        self._maker = cache(body.maker)
        self._symbols: list[str | None] = [None]
        self._found: defaultdict[str | None, dict[str, _Counter | None]] = defaultdict(dict)
        self._resolved: dict[str, _Counter | None] = {}
        self._seen: list[tuple[_Counter, DType]] = []

    def ends(self, condition: str) -> tuple[list[int], bool]:
        """Return the numbers of steps after which the comparisons in a condition end the loop.

        The condition may be a conjunction (AND) of comparisons. If dynamic sizes leave the number
        for a comparison open, an upper bound is returned instead, or no number if no bound is
        known. The second result is true if all numbers are exact and the condition has no other
        terms.
        """
        found: list[int] = []
        whole = True
        visited, waiting = set[str](), [condition]
        while waiting:
            value = waiting.pop()
            if value in visited:
                continue
            visited.add(value)
            node, single = self._maker(value), self._body.types[value].elements == 1
            known = self._body.known(value)
            if single and known is not None:
                found += [] if bool(known.reshape(-1)[0]) else [1]
            elif single and node is not None and node.op in ("reshape", "identity", "logical_and"):
                waiting += reversed(node.inputs)
            elif single and node is not None:
                ends, exact = self._compared(node)
                found += ends
                whole &= exact
            else:
                whole = False
        return found, whole

    def _compared(self, node: Node) -> tuple[list[int], bool]:
        """Return the results of `ends` for the single comparison `node`."""
        match node.op:
            case "less" | "less_or_equal":
                left, right = map(self._counter, node.inputs)
            case "greater" | "greater_or_equal":
                right, left = map(self._counter, node.inputs)
            case _:
                return [], False
        if left is None or right is None:
            return [], False
        margin = right + -left
        over = margin.first + (1 if node.op.endswith("equal") else 0)
        low, high = bounds(over)
        if margin.each >= 0:
            return ([1] if high <= 0 else []), low > 0 or high <= 0
        pace = -margin.each
        first = always_larger(over, 0)
        if first is not None:
            return [(first + pace - 1) // pace + 1], True
        # this bounds the steps if there is a first one
        return ([(over - int(low) + pace - 1) // pace + 1] if low > -inf else []), False

    def holds(self, steps: int) -> bool:
        """Whether all counters fit exactly into their element types in the first `steps` steps."""
        for counter, dtype in self._seen:
            first, last = exact_integers(dtype)
            for value in (counter.first, counter.first + counter.each * steps):
                low, high = bounds(value)
                # An unbounded dimension stays far below the range of 64 bits.
                endless = dtype.bytes == 8 and not dtype.is_float and high == inf
                if low < first or (high > last and not endless):
                    return False
        return True

    def _counter(self, value: str) -> _Counter | None:
        """Return the value as a counter; None if it is not a counter, or has more than one element.

        Operands are visited first, each once, and without recursion, because a body may be deep.
        """
        found = self._found[self._symbols[-1]]
        waiting = [value]
        while waiting:
            missing = [each for each in self._operands(waiting[-1]) if each not in found]
            if missing:
                waiting += missing
                continue
            each = waiting.pop()
            if each not in found:
                found[each] = counter = self._made(each)
                if counter is not None:
                    self._seen.append((counter, self._body.types[each].dtype))
        return found[value]

    def _operands(self, value: str) -> tuple[str, ...]:
        """Return the operands that must be counters so that `value` is a counter.

        If an operator such as `add` computes `value`, these are all of its operands: a sum of
        counters is a counter. For other operators, constants, loop states and the index of the
        step, the result is empty.
        """
        node = self._maker(value)
        if (
            value in (self._symbols[-1], self._step)
            or value in self._states
            or not self._counts(value)
        ):
            return ()
        if node is None or node.op not in _PASSING or known_integer(self._body, value) is not None:
            return ()
        return tuple(node.inputs)

    def _counts(self, value: str) -> bool:
        kind = self._body.types[value]
        return kind.elements == 1 and kind.dtype is not DType.BOOL

    def _made(self, value: str) -> _Counter | None:
        """Return the value as a counter; None if it is not a counter, or has more than one element.

        The operands of the value must have been visited before.
        """
        if not self._counts(value):
            return None
        if value == self._symbols[-1]:
            return _Counter(0, 0, 1)
        if value == self._step:
            return _Counter(0, 1)
        if value in self._states:
            return self._state(value)
        operands = self._operands(value)
        if not operands:
            known = known_integer(self._body, value)
            return None if known is None else _Counter(known)
        counters = [self._found[self._symbols[-1]][each] for each in operands]
        known_ones = [each for each in counters if each is not None]
        node = self._maker(value)
        if node is None or len(known_ones) < len(counters):
            return None
        total = known_ones[0]
        for other in known_ones[1:]:
            total += -other if node.op == "sub" else other
        return total

    def _state(self, name: str) -> _Counter | None:
        """Return a loop state as a counter; None unless each step adds the same integer to it."""
        if name in self._resolved:
            return self._resolved[name]
        # placeholder: two states that update each other are not counters
        self._resolved[name] = None
        start, first = self._states[name].start, len(self._seen)
        if start is None or len(self._symbols) > _NESTED:
            return None
        self._symbols.append(name)
        moved = self._counter(self._states[name].following)
        self._symbols.pop()
        found = None
        if moved is not None and (moved.each, moved.states) == (0, 1):
            found = None if is_dynamic(moved.first) else _Counter(start, moved.first)
        if found is not None:
            self._seen[first:] = [
                (_Counter(found.first + each.first, found.each) if each.states else each, dtype)
                for each, dtype in self._seen[first:]
            ]
        self._resolved[name] = found
        return found
