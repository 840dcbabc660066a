"""Compilation of all segments of a model ahead of time, to store them in an artifact.

A model is divided into segments where the data of a run determine a size. At such a boundary, the
sizes select one of several compiled segments that may follow. Segments are compiled for the
following cases:
- sizes above 0: one segment per interval of sizes for which all comparisons in the model have the
  same result;
- one dimension of size 0 and the others above 0, for each dimension, and all dimensions of size 0;
- each value of the booleans that select a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import TypeVar

import numpy as np

from tilewright.compiler.dtypes import DType
from tilewright.compiler.errors import CompilerError, InvalidArgumentError, OutOfMemoryError
from tilewright.compiler.runtime.packing import Array
from tilewright.compiler.runtime.segments import (
    LiveIn,
    ModelSegment,
    SegmentBoundary,
    SegmentGuard,
)
from tilewright.compiler.sizes.ranges import default_range
from tilewright.compiler.specialise.jit import JitBoundary, SegmentCompiler
from tilewright.compiler.specialise.splits import PROGRAMS_LIMIT

P = TypeVar("P")
T = TypeVar("T")

MOST_TRUTHS = 4
"""Maximum number of booleans in a live-in for which a segment is compiled for each combination of
their values."""


def enumerate_segments(
    segment_compiler: SegmentCompiler[P], first: JitBoundary[P], *, behind: bool = True
) -> None:
    """Compile every segment that a run may need, and store the segments at their boundaries.

    A model is divided into segments at boundaries, where the data of a run determine a size. The
    new segments after a boundary replace those compiled before (`SegmentBoundary.made`).

    Args:
        segment_compiler: compiles the segments.
        first: the boundary before the whole model.
        behind: whether to compile the segments after all boundaries; if false, only those after
            `first` are compiled.

    Raises:
        CompilerError: if no segment after a boundary compiles for sizes above 0; if the data may
            select more than `PROGRAMS_LIMIT` programs at a boundary; or if programs are selected by
            elements that are neither sizes nor booleans, or whose number is dynamic.
    """
    waiting: list[SegmentBoundary[P]] = [first]
    while waiting:
        cut = waiting.pop()
        cut.made = _stages(segment_compiler, cut)
        if behind:
            waiting += [stage.behind for stage in cut.made.values() if stage.behind is not None]


def _stages(
    segment_compiler: SegmentCompiler[P], cut: SegmentBoundary[P]
) -> dict[SegmentGuard, ModelSegment[P]]:
    """Compile the segments (parts of the model) after a boundary.

    A segment is compiled for each guard, a condition on the sizes and values of a run. No segment
    is compiled for sizes at which the model is invalid or the compilation fails. A run with such
    sizes raises an error.

    Returns:
        The segments by guard.
    """
    tried: dict[SegmentGuard, ModelSegment[P] | None] = {}
    first: CompilerError | None = None
    while True:
        wanted = {_wanted(cut, values): values for values in _cases(cut)}
        if len(wanted) > PROGRAMS_LIMIT:
            raise _too_many(len(wanted))
        fresh = [facts for facts in wanted if facts not in tried]
        if not fresh:
            made = {f: stage for f in wanted if (stage := tried[f]) is not None}
            if first is not None and not any(all(size for _, size in f.sizes) for f in made):
                raise first  # only segments for sizes 0 compiled
            return made
        for facts in fresh:
            try:
                found = _tried(segment_compiler, cut, facts, wanted[facts])
            except OutOfMemoryError:
                raise
            except CompilerError as error:
                found, first = None, first or error
            if found is None and _wanted(cut, wanted[facts]) != facts:
                break  # the range was split, which changes the cases
            tried[facts] = found


def _wanted(cut: SegmentBoundary[P], values: Mapping[str, Array]) -> SegmentGuard:
    return cut.wanted(cut.reads.exact(values))


def _tried(
    segment_compiler: SegmentCompiler[P],
    cut: SegmentBoundary[P],
    facts: SegmentGuard,
    values: Mapping[str, Array],
) -> ModelSegment[P] | None:
    """Compile a segment (a part of the model); return None if no single program suffices.

    A guard has the sizes and values of runs that a segment must serve. If no program serves all of
    them, the ranges at the boundary may be split. The caller then determines the guards again.

    Args:
        segment_compiler: compiles the segment.
        cut: the boundary before the segment.
        facts: the guard.
        values: arrays for the segment's inputs, by name.

    Raises:
        OutOfMemoryError: if memory does not suffice to compile the segment.
        CompilerError: if the segment does not compile, for example because the model is invalid for
            these sizes.
    """
    found = segment_compiler.make(cut, facts, values)
    reason, cut.reason = cut.reason, ""
    if reason:
        raise InvalidArgumentError(
            f"no program serves all values that the data may determine ({reason}): compile such a "
            "model on the device that runs it"
        )
    return found


def _cases(cut: SegmentBoundary[P]) -> Iterator[dict[str, Array]]:
    """Yield one set of live-ins, by name, for each segment to compile after a boundary.

    A live-in is a value that is computed before the boundary and read after it. The shapes of the
    live-ins determine which segment is compiled. So do the elements of live-ins that are sizes or
    select a branch; all other elements are zeros.
    """
    crossings = cut.reads.crossings
    given = isinstance(cut, JitBoundary) and cut.is_first
    names = dict.fromkeys(
        name for c in crossings for name in (*(d for d in c.dims if isinstance(d, str)), *_own(c))
    )
    parts = [_parts(cut, name) for name in names]
    combinations = [dict(zip(names, each, strict=True)) for each in _products(parts)]
    base = combinations[0]
    if not given and names:  # the caller's own dimensions stay within their ranges
        combinations += [{**base, name: 0} for name in names]
        combinations.append(dict.fromkeys(names, 0))
    truths = [c for c in crossings if c.deciding and not _own(c)]
    for crossing in (c for c in crossings if c.deciding):
        varies = any(isinstance(dim, str) for dim in crossing.dims)
        is_truth = crossing.dtype is DType.BOOL and _count(crossing) <= MOST_TRUTHS
        if varies or (crossing in truths and not is_truth):
            raise InvalidArgumentError(
                f"shapes depend on the values of '{crossing.name}', of {crossing.dtype}: compile "
                "such a model on the device that runs it"
            )
    choices = [list(product((True, False), repeat=_count(c))) for c in truths]
    for sizes in combinations:
        for chosen in _products(choices):
            yield {
                c.name: _array(c, sizes, dict(zip(truths, chosen, strict=True))) for c in crossings
            }


def _products(parts: list[list[T]]) -> list[tuple[T, ...]]:
    count = prod(map(len, parts))
    if count > PROGRAMS_LIMIT:
        raise _too_many(count)
    return list(product(*parts))


def _too_many(count: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the data select one of {count} programs at one cut, an artifact holds at most "
        f"{PROGRAMS_LIMIT}: compile such a model on the device that runs it"
    )


def _own(crossing: LiveIn) -> tuple[str, ...]:
    """Names of a live-in's elements, such as `count_0`, if the elements are sizes; else empty."""
    if not crossing.deciding or crossing.dtype.numpy.kind not in "iu" or not _count(crossing):
        return ()
    return tuple(f"{crossing.label}_{k}" for k in range(_count(crossing)))


def _count(crossing: LiveIn) -> int:
    """Return the number of elements of a live-in, whose shape must be fixed."""
    return prod(dim for dim in crossing.dims if isinstance(dim, int))


def _parts(cut: SegmentBoundary[P], name: str) -> list[int]:
    """The smallest size above 0 of each interval into which a dimension's range is split.

    `name` is the dimension, and `cut` the boundary that has its split points.
    """
    whole = cut.reads.ranges.get(name) or default_range(name)
    least = max(whole.low, 1) * whole.multiple
    inside = (end for end in sorted(cut.ends.get(name, ())) if end > least and end in whole)
    return [least, *inside]


def _array(
    crossing: LiveIn, sizes: Mapping[str, int], truths: Mapping[LiveIn, tuple[bool, ...]]
) -> Array:
    """Return an array for a live-in, as `_cases` yields it.

    An array of zeros is broadcast from one element, so that it takes no memory per element.

    Args:
        crossing: the live-in.
        sizes: the size of each dynamic dimension, and the value of each element that is a size, by
            name.
        truths: the elements of live-ins that select branches.
    """
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in crossing.dims]
    numpy = crossing.dtype.numpy
    if crossing in truths:
        return np.array(truths[crossing], numpy).reshape(shape)
    if own := _own(crossing):
        return np.array([sizes[name] for name in own], numpy).reshape(shape)
    return np.broadcast_to(np.zeros((), numpy), shape)
