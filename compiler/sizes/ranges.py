"""Ranges of dynamic dimensions: users' notation, defaults, and narrowing of undecided ranges.

The notation is `7`, `1..512`, `32..640:32` or `1..`; `hinted_ranges.py` adds size hints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import log
from operator import index
from typing import TypeAlias, TypeVar

from tilewright.compiler.errors import CompilerError, InvalidArgumentError, InvalidModelError
from tilewright.compiler.limits import LARGEST_SIZE
from tilewright.compiler.sizes import (
    Dimension,
    DynamicSizeError,
    bounds,
    dimensions,
    dynamic_size,
    is_dynamic,
    substituted,
)

T = TypeVar("T")

SizeRange: TypeAlias = "int | str | range | Dimension"
"""A size or a range of sizes: an integer, a text such as `1..512`, a Python `range` (which excludes
its end), or a Dimension."""

DEFAULT_LAST = 4096
"""Largest size of a dynamic dimension without a stated range. The smallest size is 1, or 0 for the
length of a cache."""

MOST_NARROWINGS = 32
"""Maximum number of combinations of ranges that are tried for a model. Each attempt imports the
model."""

_ANSWERS = 3
"""Maximum number of narrower ranges that are tried for one undecided condition."""

_FACTORS = (2, 4, 8, 16, 32, 64)
"""Numbers of which a dimension may have to be a multiple. The number depends on how many times a
model halves an image."""

_RANGE = re.compile(r"(\d{1,19})(?:(\.\.)(\d{1,19})?(?::(\d{1,19}))?)?", re.ASCII)


def as_range(name: str, given: SizeRange) -> Dimension:
    """Convert an integer, a text for `parse_range`, a Python range or a dimension to a dimension.

    The result has the name `name`.

    Raises:
        InvalidArgumentError: if `given` is not a range of possible sizes; the message names the
            dimension.
    """
    match given:
        case str():
            return parse_range(name, given)
        case Dimension():
            return _within(Dimension(name, given.low, given.high, given.multiple))
        case range(start=start, step=step):
            if not given:
                raise InvalidArgumentError(f"dimension '{name}': {given} has no sizes")
            if step < 1 or start % step:
                raise InvalidArgumentError(
                    f"dimension '{name}': {given} does not begin with a multiple of its step"
                )
            return _of(name, start, given[-1], step)
    try:
        size = index(given)
    except TypeError as error:
        raise InvalidArgumentError(f"dimension '{name}': {given!r} is not an integer") from error
    if size < 0:
        raise InvalidArgumentError(f"dimension '{name}' is {size}, less than 0")
    return _of(name, size, size)


def parse_range(name: str, text: str) -> Dimension:
    """Parse `7` (one size), `1..512`, `32..640:32` (multiples of 32) or `1..` (unbounded).

    Raises:
        InvalidArgumentError: if the text is malformed; the message names the dimension.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(
            f"dimension '{name}': '{text[:80]}' is not a size; write 7, 1..512, 32..640:32 or 1.., "
            "with hints 1..512@32,128 or @32:0.5,128:0.3"
        )
    first, dots, last, step = match.groups()
    if not dots:
        return _of(name, int(first), int(first))
    return _of(name, int(first), int(last) if last else None, int(step) if step else 1)


def default_range(name: str, held: Iterable[int] = ()) -> Dimension:
    """Return the default range 1..4096 for a dimension, extended to include the sizes in `held`.

    Raises:
        InvalidArgumentError: if the name is not valid, or a size is negative or too large.
    """
    sizes = (1, DEFAULT_LAST, *held)
    return _of(name, min(sizes), max(sizes))


def default_ranges(
    names: Iterable[str], held: Mapping[str, Iterable[int]] | None = None
) -> dict[str, Dimension]:
    """Return a dimension with the default range for each name (`default_range`).

    `held` has sizes that the range of a dimension must include, by name.
    """
    sizes = held or {}
    return {name: default_range(name, sizes.get(name, ())) for name in names}


def attempted(attempt: Callable[[], T]) -> T | DynamicSizeError | InvalidModelError:
    """Call `attempt`; return its result, or the error that it raises.

    Only DynamicSizeError and InvalidModelError are returned, because narrower ranges of sizes may
    avoid them. Other errors propagate.
    """
    try:
        return attempt()
    except (DynamicSizeError, InvalidModelError) as error:
        return error


def within_defaults(
    defaults: Mapping[str, Dimension],
    attempt: Callable[[Mapping[str, Dimension]], T],
    empty: Collection[str] = (),
) -> T:
    """Call `attempt` with the default ranges, narrowed until they decide all conditions of a model.

    For example, a table of 512 positions limits the length of a sequence to 512, and a model that
    halves and doubles its images limits their extents to even numbers. If several narrower ranges
    decide a condition, the range with the most sizes is tried first. The next one is tried if the
    model is invalid in it: reflecting 64 samples requires a length of at least 65.

    Args:
        defaults: the range of each dimension, by name.
        attempt: imports or compiles the model for ranges by name, and raises DynamicSizeError if
            they do not decide a condition.
        empty: names of dimensions that may be 0. Their ranges begin at 0 unless that leaves a
            condition undecided.

    Returns:
        The result of `attempt`.

    Raises:
        DynamicSizeError: if no narrower ranges decide a condition. An equality of sizes, which may
            hold at single sizes, is reported rather than another undecided condition.
        InvalidModelError: if the model is invalid in all ranges that were tried.
    """
    ranges = {name: replace(d, low=0) if name in empty else d for name, d in defaults.items()}
    untried = [ranges]
    unanswered: CompilerError | None = None
    for number in range(MOST_NARROWINGS):
        ranges = untried.pop()
        found = attempted(partial(attempt, ranges))
        if isinstance(found, DynamicSizeError):
            narrower = refinements(ranges, found)
            if not narrower and any(d.low == 0 for d in ranges.values()):
                narrower = [{name: replace(d, low=max(d.low, 1)) for name, d in ranges.items()}]
            if not narrower and (unanswered is None or _has_solutions(found)):
                unanswered = found
            untried += reversed(narrower[:_ANSWERS])
        elif isinstance(found, InvalidModelError):
            if number == 0:
                raise found  # invalid at every size
            unanswered = unanswered or found
        else:
            return found
        if not untried:
            break
    raise unanswered or DynamicSizeError(
        f"{MOST_NARROWINGS} narrower ranges leave something undecided"
    )


def _has_solutions(error: DynamicSizeError) -> bool:
    """Whether an error is about two sizes that must be equal for the model to be valid.

    Single sizes may satisfy such a condition although no range does.
    """
    return is_dynamic(error.unequal) and not error.may_differ


def refinements(
    ranges: Mapping[str, Dimension], error: DynamicSizeError
) -> list[dict[str, Dimension]]:
    """Return narrower ranges that decide the condition of an error, largest ranges first.

    Each result restricts one dimension, or all dimensions of the condition together:

    - To decide which of two sizes is larger, a range is cut at its start or at its end.
    - To decide whether two sizes are equal, only multiples of a power of two remain in a range. If
      sizes that always differ are valid, too (`error.may_differ`), a range may instead be cut at
      its start or end, or to neighbouring sizes with equal floor quotients.
    """
    found: list[dict[str, Dimension] | None] = []
    for question in filter(is_dynamic, (error.undecided, error.unequal)):
        asked = {name: d for name, d in ranges.items() if d in dimensions(question)}
        for chosen in (*({name: d} for name, d in asked.items()), asked):
            if question is error.undecided:
                found.append(_first(chosen, question))
                if not error.never_above:
                    found.append(_last(chosen, question))
                continue
            found.append(_multiples(chosen, question))
            if error.may_differ:
                found.append(_between(chosen, question))
                for side in (question, -question):
                    found += [_first(chosen, side + 1), _last(chosen, side)]
    narrower: list[dict[str, Dimension]] = []
    for each in found:
        if each is not None and {**ranges, **each} not in narrower:
            narrower.append({**ranges, **each})
    return sorted(narrower, key=_choices, reverse=True)


def _choices(ranges: Mapping[str, Dimension]) -> float:
    """Return the sum of log(end / start) over the ranges, by which narrower ranges are ranked.

    By this measure, 1 to 512 is more than 513 to 4096.
    """
    return sum(
        log((d.high + 1 if d.high is not None else LARGEST_SIZE) / max(d.low, 1))
        for d in ranges.values()
    )


def _bounds_within(
    chosen: Mapping[str, Dimension], changed: Mapping[str, Dimension], size: int
) -> tuple[float, float]:
    """Return the bounds of a dynamic size after the ranges of some dimensions were replaced.

    Args:
        chosen: the dimensions with their old ranges, by name.
        changed: the dimensions with their new ranges, by name. Dimensions without an entry keep
            their ranges.
        size: the dynamic size, which has the old ranges.
    """
    own = {chosen[name]: d for name, d in changed.items()}

    def other(dimension: Dimension) -> int:
        d = own.get(dimension, dimension)
        return dynamic_size(d) // dimension.multiple

    return bounds(substituted(size, other))


def _first(chosen: Mapping[str, Dimension], difference: int) -> dict[str, Dimension] | None:
    """Cut the ends off ranges so that the size `difference`, such as `n - 512`, is at most 0.

    `chosen` has the ranges by dimension name. Returns the longest such ranges by name, or None if
    no cut suffices.
    """
    least, most = _span(chosen)

    def first(last: int) -> dict[str, Dimension]:
        return {
            name: replace(d, high=max(d.low, min(d.high or last, last)))
            for name, d in chosen.items()
        }

    last = _turning(least, most, lambda n: _bounds_within(chosen, first(n), difference)[1] <= 0)
    return first(last) if last > least else None


def _last(chosen: Mapping[str, Dimension], difference: int) -> dict[str, Dimension] | None:
    """Cut the starts off ranges so that the size `difference`, such as `n - 512`, is above 0.

    `chosen` has the ranges by dimension name. Returns the longest such ranges by name, or None if
    no cut suffices.
    """
    least, most = _span(chosen)

    def later(start: int) -> dict[str, Dimension]:
        return {
            name: replace(d, low=max(d.low, start if d.high is None else min(start, d.high)))
            for name, d in chosen.items()
        }

    start = -_turning(-most, -least, lambda n: _bounds_within(chosen, later(-n), difference)[0] > 0)
    return later(start) if start < most else None


def _span(chosen: Mapping[str, Dimension]) -> tuple[int, int]:
    return min((d.low for d in chosen.values()), default=0), max(
        (d.high or 0 for d in chosen.values()), default=0
    )


def _turning(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """Return the last number in (low, high) for which a predicate holds, by binary search.

    If the predicate holds for a number, it must hold for all smaller ones. If it holds for none,
    the result is `low`.
    """
    low, high = low + 1, high
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if holds(middle) else (low, middle)
    return low - 1


def _multiples(chosen: Mapping[str, Dimension], difference: int) -> dict[str, Dimension] | None:
    """Restrict dimensions to multiples of a power of two so that the size `difference` is 0.

    For example, `2 * (n // 2) - n` is 0 for multiples of 2. The smallest such power is used. The
    result is None if no power of two suffices.
    """
    for factor in _FACTORS:
        changed = {}
        for name, d in chosen.items():
            high = None if d.high is None else d.high // factor
            low = -(-d.low // factor)
            if high is not None and high < low:
                return None
            changed[name] = Dimension(name, low, high, factor * d.multiple)
        if _bounds_within(chosen, changed, difference) == (0, 0):
            return changed
    return None


def _between(chosen: Mapping[str, Dimension], difference: int) -> dict[str, Dimension] | None:
    """Restrict one dimension to two or more neighbouring sizes at which `difference` is 0.

    `difference` is a dynamic size, a formula over dimensions. For example, a voice detector pads n
    samples by 320 and must get exactly one window of 512. Then `difference` is `(n + 320) // 512 -
    1`, which is 0 for n from 192 to 703. The result is None if no such sizes are found, or if
    `chosen` has several dimensions.
    """
    if len(chosen) != 1:
        return None
    found = (_where_zero(chosen, side) for side in (difference, -difference))
    return next((each for each in found if each is not None), None)


def _where_zero(chosen: Mapping[str, Dimension], difference: int) -> dict[str, Dimension] | None:
    """Return a range of neighbouring sizes at which the size `difference` is 0, for one dimension.

    Its end is the last size up to which `difference` is at most 0 everywhere, and its start the
    first from which it is 0. The range is therefore found if `difference` grows with the dimension.
    The result is None if the range has fewer than two sizes.
    """
    ((name, dimension),) = (_first(chosen, difference) or chosen).items()
    if dimension.high is None:
        return None

    def later(start: int) -> dict[str, Dimension]:
        return {name: replace(dimension, low=start)}

    def holds(negated: int) -> bool:
        return _bounds_within(chosen, later(-negated), difference)[0] >= 0

    start = -_turning(-dimension.high, 1 - dimension.low, holds)
    found = later(start)
    is_zero = _bounds_within(chosen, found, difference) == (0, 0)
    return found if start < dimension.high and is_zero else None


def turning_point(difference: int) -> tuple[Dimension, int] | None:
    """Find the size of a dimension at which a dynamic size such as `n - 512` changes its sign.

    Returns the dimension and its first size after the change, here n and 513; 0 counts as negative.
    The result is None if `difference` does not depend on exactly one dimension, or has the same
    sign at both ends of the range.
    """
    found = dimensions(difference)
    if len(found) != 1 or found[0].multiple != 1:
        return None
    (dimension,) = found
    low, high = dimension.low, LARGEST_SIZE if dimension.high is None else dimension.high

    def above(size: int) -> bool:
        return substituted(difference, lambda _: size) > 0

    first = above(low)
    if above(high) == first:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if above(middle) == first else (low, middle)
    return dimension, high


def _of(name: str, first: int, last: int | None, step: int = 1) -> Dimension:
    if step < 1:
        raise InvalidArgumentError(f"dimension '{name}': a multiple is at least 1, not {step}")
    for end in (first, last):
        if end is not None and end % step:
            raise InvalidArgumentError(f"dimension '{name}': {end} is not a multiple of {step}")
    if last is not None and last < first:
        raise InvalidArgumentError(f"dimension '{name}': {first}..{last} has no sizes")
    try:
        return _within(Dimension(name, first // step, None if last is None else last // step, step))
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


def _within(dimension: Dimension) -> Dimension:
    ends = (dimension.low, dimension.high or 0, 1)
    if max(ends) * dimension.multiple > LARGEST_SIZE:
        raise InvalidArgumentError(
            f"dimension '{dimension.name}': {dimension.range_text} has sizes above {LARGEST_SIZE}"
        )
    return dimension
