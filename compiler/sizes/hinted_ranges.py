"""Ranges of sizes with size hints, in users' notation: `1..512@32:0.5,128:0.3`, or only `@32,128`.

Hints are the sizes at which a dimension is planned, measured and shown (`compiler.profile`). The
number after the colon is the fraction of all runs that have this size, relative to the numbers of
the other hints; the default is 1. Hints without a range apply to the range of the model, or to the
default range.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.sizes.ranges import SizeRange, as_range, default_range, parse_range

Shares: TypeAlias = "Mapping[str, Mapping[int, float]]"
"""Size hints by the name of their dimension, each with the fraction of all runs that have this
size."""

MOST_STATED = 8
"""Maximum number of size hints of a dimension. Each candidate is measured at each hint."""

LARGEST_SHARE = 1e6

LEAST_SHARE = 1e-6
"""Minimum fraction of all runs for a size hint. A smaller fraction would hardly affect the
result."""

_HINT = re.compile(r"(\d{1,19})(?::(.*))?", re.ASCII)

_SHARE = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class HintedRange:
    """Sizes of a dimension as users write them: a range, size hints, or both.

    Attributes:
        dimension: the range; None if only hints are given.
        hints: pairs of a size and its fraction of all runs, relative to the other hints: a size
            with 2 occurs twice as often as one with 1.
    """

    dimension: Dimension | None
    hints: tuple[tuple[int, float], ...] = ()

    @property
    def text(self) -> str:
        """The range and hints in users' notation: `1..512@8,128:0.5`, or `7` for a single size."""
        found = self.dimension
        if found is not None and found.low == found.high:
            return str(found.low * found.multiple)
        listed = f"@{','.join(map(_hint_text, self.hints))}" if self.hints else ""
        return f"{'' if found is None else found.range_text}{listed}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the hints, without their fractions."""
        return tuple(size for size, _ in self.hints)


def as_hinted(name: str, given: SizeRange) -> HintedRange:
    """Convert a user's range to a HintedRange.

    `name` is the name of the dimension. `given` is a text for `parse_hinted`, or a value of another
    type that `ranges.as_range` accepts.

    Raises:
        InvalidArgumentError: if the text is malformed, a hint is not a size of the range, a
            fraction is not positive, too small or too large, or the range has no possible size. The
            message names the dimension.
    """
    if isinstance(given, str):
        return parse_hinted(name, given)
    return HintedRange(as_range(name, given))


def parse_hinted(name: str, text: str) -> HintedRange:
    """Parse the text of a range (`ranges.parse_range`), of size hints, or of both.

    Examples: `1..512`, `1..512@32:0.5,128`, `@128`.

    Raises:
        InvalidArgumentError: if the text is malformed, a hint is not a size of the range, or a
            fraction is not positive, too small or too large. The message names the dimension.
    """
    ranged, at, listed = text.strip().partition("@")
    dimension = parse_range(name, ranged) if ranged or not at else None
    if not at:
        return HintedRange(dimension)
    if dimension is not None and dimension.low == dimension.high:
        size = dimension.low * dimension.multiple
        raise InvalidArgumentError(
            f"dimension '{name}' has the one size {size}, which takes no hints: write {size}, or a "
            f"range such as 1..512@{size}"
        )
    shares: dict[int, float] = {}
    for part in listed.split(","):
        size, share = _hint(name, part.strip())
        if size in shares:
            raise InvalidArgumentError(f"dimension '{name}': hint {size} is stated twice")
        if dimension is not None and size not in dimension:
            raise InvalidArgumentError(
                f"dimension '{name}': hint {size} is not a size of {dimension.range_text}; give a "
                "hint within the range, or a range that has it"
            )
        shares[size] = share
    if len(shares) > MOST_STATED:
        raise InvalidArgumentError(
            f"dimension '{name}' has {len(shares)} hints, expected at most {MOST_STATED}"
        )
    least, total = min(shares, key=lambda size: shares[size]), sum(shares.values())
    if shares[least] < LEAST_SHARE * total:
        raise InvalidArgumentError(
            f"dimension '{name}': the share of hint {least} is {shares[least]:g} of {total:g}, "
            "expected at least a millionth of all; leave the hint out, or give it more"
        )
    default_range(name, shares)  # rejects sizes that no dimension can have
    return HintedRange(dimension, tuple(shares.items()))


def hinted_shares(dims: Mapping[str, Iterable[SizeRange]]) -> Shares:
    """Return the hinted sizes of each dimension, with their relative fractions of all runs.

    For example, {"n": ["1..512@32:0.5,128"]} becomes {"n": {32: 0.5, 128: 1.0}}: 128 occurs in
    twice as many runs as 32. Dimensions without hints are left out.

    Raises:
        InvalidArgumentError: if a range is malformed.
    """
    found = {
        name: dict(hint for given in listed for hint in as_hinted(name, given).hints)
        for name, listed in dims.items()
    }
    return {name: shares for name, shares in found.items() if shares}


def size_choices(name: str, listed: Iterable[int | str]) -> tuple[int | str, ...]:
    """Check the sizes that a user lists for one dimension; return them without duplicates.

    For example, `[8, "16", "1..64@32"]` becomes `(8, 16, "1..64@32")`. At most one entry may be a
    range with several sizes, or hints; it remains a text.

    Raises:
        InvalidArgumentError: if an entry is malformed or 0, if there are two ranges, or if hints
            without a range are listed together with sizes. The message names the dimension.
    """
    ranges = [as_hinted(name, given) for given in listed]
    if any(each.dimension is not None and each.dimension.high == 0 for each in ranges):
        raise InvalidArgumentError(f"dimension '{name}' is 0, expected a size from 1")
    chosen: dict[int | str, None] = dict.fromkeys(
        d.low * d.multiple if (d := each.dimension) is not None and d.low == d.high else each.text
        for each in ranges
    )
    texts = [size for size in chosen if isinstance(size, str)]
    if len(texts) > 1:
        raise InvalidArgumentError(f"dimension '{name}' has two ranges, give it one")
    if len(chosen) > 1 and texts and texts[0].startswith("@"):
        raise InvalidArgumentError(
            f"dimension '{name}' has hints alone next to sizes: give the hints a range, such as "
            f"1..512{texts[0]}"
        )
    return tuple(chosen)


def _hint(name: str, text: str) -> tuple[int, float]:
    """Parse a hint: return its size, and its fraction relative to the other hints of the dimension.

    `32:0.5` gives (32, 0.5), and `32` gives (32, 1.0).

    Raises:
        InvalidArgumentError: if the text is not a hint, or its fraction is not a positive number up
            to `LARGEST_SHARE`.
    """
    match = _HINT.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(
            f"dimension '{name}': '{text[:80]}' is not a size hint; write {name}=1..512@32,128 or "
            f"{name}=@32:0.5,128:0.3"
        )
    size, share = int(match[1]), match[2]
    if share is None:
        return size, 1.0
    weight = float(share) if _SHARE.fullmatch(share) else 0.0
    if not 0 < weight <= LARGEST_SHARE:
        raise InvalidArgumentError(
            f"dimension '{name}': the share of hint {size} is '{share[:80]}', expected a number "
            f"above 0 and at most {LARGEST_SHARE:.0f}, such as {size}:0.5"
        )
    return size, weight


def _hint_text(hint: tuple[int, float]) -> str:
    size, share = hint
    if share == 1:
        return str(size)
    short = f"{share:g}"
    return f"{size}:{short if float(short) == share else repr(share)}"
