"""Splitting of size ranges into intervals, each of which is served by one program.

A range is split where the result of a comparison in the model changes. The first program is
compiled for the intervals that contain the size hints. Programs for other intervals are compiled
when a run needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from tilewright.compiler.errors import CompilerError, InvalidModelError, OutOfMemoryError
from tilewright.compiler.profile import agreeing_size, nearest_size
from tilewright.compiler.runtime.segments import Make, ModelSegment, SegmentBoundary, SegmentGuard
from tilewright.compiler.sizes import Dimension, DynamicSizeError, at, dimensions, is_dynamic
from tilewright.compiler.sizes.ranges import attempted, refinements, turning_point

P = TypeVar("P")

PROGRAMS_LIMIT = 64
"""Maximum number of programs of a boundary. The oldest is evicted. The limit does not apply to a
model without segments, which keeps a program for each combination of sizes that it runs with."""

ENDS_LIMIT = 8
"""Maximum number of split points of a dimension's range."""

MOST_ANSWERS = 3
"""Maximum number of narrower ranges that are tried for an undecided condition until a first program
compiles."""

MOST_FIRST_PARTS = 16
"""Maximum number of combinations of size intervals that are tried until a first program compiles.
Each attempt imports the model."""

MOST_FIRST_SIZES = 64
"""Maximum number of combinations of sizes by which the intervals of a first program are chosen."""


def make_segment(
    cut: SegmentBoundary[P],
    facts: SegmentGuard,
    exact: SegmentGuard,
    compiled: Callable[[], ModelSegment[P]],
) -> ModelSegment[P] | None:
    """Compile a segment (a part of the model), and add it to the boundary before it.

    A guard has the sizes and values of runs that a segment must serve. The result is None if one
    program cannot serve all sizes of the guard. The boundary then has new sizes at which ranges are
    split, or a reason why ranges are impossible (`cut.reason`). The caller tries again with a
    narrower guard: a part of the range, or the sizes of this run alone.

    Args:
        cut: the boundary before the segment.
        facts: the guard of the segment.
        exact: the sizes and values of the run that needs the segment.
        compiled: compiles the segment.

    Raises:
        OutOfMemoryError: if memory does not suffice to compile the segment.
        CompilerError: if the segment does not compile although its guard fixes all sizes.
    """
    try:
        found = attempted(compiled)
    except OutOfMemoryError:
        raise
    except CompilerError as error:
        if not facts.open:
            raise
        cut.reason = str(error)
        return None
    if isinstance(found, DynamicSizeError | InvalidModelError):
        if not facts.open:
            raise found
        _note(cut, facts, exact, found)
        return None
    while not cut.whole and len(cut.made) >= PROGRAMS_LIMIT:
        del cut.made[next(iter(cut.made))]
    cut.made[facts] = found
    return found


def _note(
    cut: SegmentBoundary[P],
    facts: SegmentGuard,
    exact: SegmentGuard,
    error: DynamicSizeError | InvalidModelError,
) -> None:
    """Record that no single program serves all sizes of a guard, as `error` shows.

    If the error names a condition that depends on sizes, a range is split where the result of the
    condition changes. Otherwise, the boundary stores the error, so that each combination of sizes
    gets its own program.

    Args:
        cut: the boundary before the program's part of the model.
        facts: the guard: the sizes and values that a program must serve.
        exact: the sizes of the run that needs the program.
        error: the error of the compilation.
    """
    match error:
        case DynamicSizeError() if _split(cut, facts, exact, error):
            pass
        case _ if not cut.whole:
            cut.reason = str(error)
        case DynamicSizeError():
            cut.asked[facts] = error
        case InvalidModelError():
            cut.refused[facts] = error


def make_first_segment(cut: SegmentBoundary[P], make: Make[P], hints: Mapping[str, int]) -> None:
    """Compile a first program ahead of time, for a model that is compiled as a whole.

    The ranges of sizes are split into intervals. The program serves the intervals that contain the
    size hints. If the model is invalid for these intervals, intervals near them are tried. Nothing
    is compiled if the model is invalid for all of them, or if every combination of sizes needs its
    own program.

    Args:
        cut: the boundary before the whole model.
        make: compiles a program for given sizes (`SegmentCompiler.make`).
        hints: a size for each dimension that is not derived from others, by name.

    Raises:
        OutOfMemoryError: if memory does not suffice to compile a program.
    """
    waiting = [dict(hints)]
    tried: set[SegmentGuard] = set()
    for sizes in waiting:
        values = {
            crossing.name: np.broadcast_to(
                np.zeros((), crossing.dtype.numpy),
                [sizes.get(dim, 1) if isinstance(dim, str) else dim for dim in crossing.dims],
            )
            for crossing in cut.reads.crossings
        }
        exact = cut.reads.exact(values)
        while (facts := cut.wanted(exact)).open and facts not in tried:
            if len(tried) == MOST_FIRST_PARTS:
                return
            tried.add(facts)
            if make(cut, facts, values) is not None:
                return
        waiting += [each for each in _others(cut, sizes) if each not in waiting]
        del waiting[MOST_FIRST_SIZES:]


def _others(cut: SegmentBoundary[P], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes near `sizes` that lie in other intervals.

    The model may be valid for them, although it is invalid for `sizes`.
    """
    for name, ends in cut.ends.items():
        for end in ends:
            yield {**sizes, name: end - 1 if sizes[name] >= end else end}
    for facts, question in cut.asked.items():
        ranges = {d.name: d for d in facts.open}
        for found in refinements(ranges, question)[:MOST_ANSWERS]:
            yield {**sizes, **{n: nearest_size(d, sizes[n]) for n, d in found.items()}}
        agreeing = agreeing_size(question, {name: sizes[name] for name in ranges})
        if agreeing is not None:
            yield {**sizes, agreeing[0]: agreeing[1]}


def _split(
    cut: SegmentBoundary[P], facts: SegmentGuard, exact: SegmentGuard, error: DynamicSizeError
) -> bool:
    """Split ranges at the sizes where the result of the condition in `error` changes.

    If no split is possible, ranges may instead be restricted to multiples of a number.

    Args:
        cut: the boundary (start of a program's part of the model) that stores the split points.
        facts: the guard with the ranges to split: the sizes that one program should serve.
        exact: the sizes of the run that needs the program.
        error: the error of the compilation, which names the condition.

    Returns:
        Whether a split or a multiple was added to the boundary.
    """
    ranges = {d.name: d for d in facts.open}
    added = False
    for name, end in _ends(cut, ranges, exact, error):
        ends = cut.ends.setdefault(name, [])
        if end not in ends and len(ends) < ENDS_LIMIT:
            ends.append(end)
            added = True
    if added or not cut.whole:
        return added
    for name, narrower in (_narrower(cut, ranges, exact, error) or {}).items():
        if narrower.multiple > cut.steps.get(name, ranges[name].multiple):
            cut.steps[name] = narrower.multiple
            added = True
    return added


def _ends(
    cut: SegmentBoundary[P],
    ranges: Mapping[str, Dimension],
    exact: SegmentGuard,
    error: DynamicSizeError,
) -> Iterator[tuple[str, int]]:
    """Yield the sizes at which to split ranges because of the condition in `error`.

    A program was compiled for `ranges`, but the condition, such as a limit on the product of two
    sizes, does not have the same result for all sizes in them. Ranges are split into intervals in
    which it has. Each result is a split point: the name of a dimension, and the first size of a new
    interval. A condition on several dimensions may need a split point for each of them. Nothing is
    yielded if no suitable split point is found.

    Args:
        cut: the boundary before the program's part of the model.
        ranges: the ranges to split, by dimension name.
        exact: the sizes of the run that needs the program.
        error: the error of the compilation, which names the condition.
    """
    if point := turning_point(error.undecided):
        yield point[0].name, point[1]
        return
    found = _narrower(cut, ranges, exact, error)
    for name, new in (found or {}).items():
        old = ranges[name]
        if new.multiple == old.multiple and new.low > old.low:
            yield name, new.low * new.multiple
        if new.multiple == old.multiple and new.high is not None and new.high != old.high:
            yield name, new.high * new.multiple + 1
    if found is not None or len(dimensions(error.unequal)) != 1 or error.may_differ:
        return
    (asked,) = dimensions(error.unequal)
    if cut.whole and asked.low == 0 and at(error.unequal, {asked.name: 0}) == 0:
        yield asked.name, 1
        return
    least = {name: max(d.low, 1) for name, d in ranges.items() if d.multiple == 1}
    name, size = agreeing_size(error, least) or ("", 0)
    if name in least:
        yield from ((name, end) for end in (size, size + 1) if end > least[name])


def _narrower(
    cut: SegmentBoundary[P],
    ranges: Mapping[str, Dimension],
    exact: SegmentGuard,
    error: DynamicSizeError,
) -> Mapping[str, Dimension] | None:
    """Return narrower ranges in which the condition in `error` always has the same result.

    If one program computes the whole model (`cut.whole`), the new ranges contain the sizes of the
    run (`exact`) if possible. Otherwise, one dimension gets a range without its size in `exact`.

    If the sizes are computed from data, the new ranges contain as many sizes as possible. The
    result is None if the condition is an equality, or if the boundary already has segments.

    Args:
        cut: the boundary before the program's part of the model.
        ranges: the present ranges, by dimension name.
        exact: the sizes of the run that needs the program.
        error: the error of the compilation, which names the condition.

    Returns:
        The new range of each dimension whose range changes, by name; None if no such ranges are
            found.
    """
    sizes = dict(exact.sizes)
    if not cut.whole and (cut.made or not is_dynamic(error.undecided)):
        return None
    beside = None
    for found in refinements(ranges, error):
        changed = {name: d for name, d in found.items() if d != ranges[name]}
        if not cut.whole:
            return changed
        if len(changed) > 1 and cut.made:
            continue
        if all(sizes[name] in d for name, d in changed.items()):
            return changed
        is_part = all(d.multiple == ranges[name].multiple for name, d in changed.items())
        if beside is None and len(changed) == 1 and is_part:
            beside = changed
    return beside
