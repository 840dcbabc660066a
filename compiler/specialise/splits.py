"""Where the range of a size is split: what a model asks of its sizes has one answer in each part.

A program is made for the part that holds the sizes of a run; the first one for the part that holds
the size hints. Parts of other sizes are made when a run needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from tilewright.compiler.errors import CompilerError, InvalidModelError, OutOfMemoryError
from tilewright.compiler.profile import agreeing_size, nearest_size
from tilewright.compiler.runtime.stages import DataCut, DataStage, Facts, Make
from tilewright.compiler.sizes import Dimension, OpenSizeError, at, dimensions, is_open
from tilewright.compiler.sizes.ranges import narrowings, turning_point

P = TypeVar("P")

PROGRAMS_LIMIT = 64
"""Programs that are kept behind one cut; the oldest gives way. A model that is not cut has as many
as its runs have sizes."""

ENDS_LIMIT = 8
"""A dimension's range is split at so many sizes at most."""

MOST_ANSWERS = 3
"""Answers to one question that are tried until one has a first program."""

MOST_FIRST_PARTS = 16
"""Parts that are tried until one has a first program: each attempt imports the model."""

MOST_FIRST_SIZES = 64
"""Combinations of sizes that are looked at for such parts."""


def make_stage(
    cut: DataCut[P], facts: Facts, exact: Facts, compiled: Callable[[], DataStage[P]]
) -> DataStage[P] | None:
    """Compile a stage and put it into the cut. Returns None if no program serves these ranges: a
    range was split, or the cut says why sizes have programs of their own.

    Args:
        cut: what the stage is a part of.
        facts: what the stage is for.
        exact: what is known of the run that needs it.
        compiled: compiles it.

    Raises:
        OutOfMemoryError: if memory does not suffice to compile it.
        CompilerError: if a stage for one combination of sizes does not compile.
    """
    try:
        stage = compiled()
    except OutOfMemoryError:
        raise
    except CompilerError as error:
        if not facts.open:
            raise
        if isinstance(error, OpenSizeError) and _split(cut, facts, exact, error):
            return None
        if cut.whole and isinstance(error, OpenSizeError | InvalidModelError):
            cut.refused[facts] = error
        else:
            cut.reason = str(error)
        return None
    while not cut.whole and len(cut.made) >= PROGRAMS_LIMIT:
        del cut.made[next(iter(cut.made))]
    cut.made[facts] = stage
    return stage


def make_first(cut: DataCut[P], make: Make[P], hints: Mapping[str, int]) -> None:
    """Make the stage of the part that holds the hints. If the model refuses that part, make the
    stage of another one; none if it refuses all, or no program serves a range.

    Args:
        cut: a model that is not cut.
        make: makes its stages.
        hints: a size for each dimension that is not derived from others, by name.

    Raises:
        OutOfMemoryError: if memory does not suffice to compile it.
    """
    waiting = [dict(hints)]
    tried: set[Facts] = set()
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


def _others(cut: DataCut[P], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Sizes in other parts, near these, which the model refuses."""
    for name, ends in cut.ends.items():
        for end in ends:
            yield {**sizes, name: end - 1 if sizes[name] >= end else end}
    for facts, error in cut.refused.items():
        if isinstance(error, OpenSizeError):
            ranges = {d.name: d for d in facts.open}
            for found in narrowings(ranges, error)[:MOST_ANSWERS]:
                yield {**sizes, **{n: nearest_size(d, sizes[n]) for n, d in found.items()}}
            agreeing = agreeing_size(error, {name: sizes[name] for name in ranges})
            if agreeing is not None:
                yield {**sizes, agreeing[0]: agreeing[1]}


def _split(cut: DataCut[P], facts: Facts, exact: Facts, error: OpenSizeError) -> bool:
    """Split the ranges of a cut where a question has another answer; False if that is nowhere."""
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
    cut: DataCut[P], ranges: Mapping[str, Dimension], exact: Facts, error: OpenSizeError
) -> Iterator[tuple[str, int]]:
    """Where the answer to a question changes: dimensions, and the first size of each new part.

    What depends on several sizes together, such as a product that is to fit into 32 bits, has the
    same answer up to an end of all of them. Behind such ends it is asked again, and then each size
    has a program of its own: a first range that serves most runs is enough.
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
    cut: DataCut[P], ranges: Mapping[str, Dimension], exact: Facts, error: OpenSizeError
) -> Mapping[str, Dimension] | None:
    """The dimensions whose range must change to decide a question, with their new ranges. These
    hold the sizes of the run; otherwise they are one part of one range, next to these sizes.

    Sizes that the data decide have no hints. For them, the ranges with the most sizes are returned;
    a question for equality is split at the size that agrees (`_ends`).
    """
    sizes = dict(exact.sizes)
    if not cut.whole and (cut.made or not is_open(error.undecided)):
        return None
    beside = None
    for found in narrowings(ranges, error):
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
