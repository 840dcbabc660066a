"""Finds ranges or sizes of a model's dynamic dimensions that a single program can support.

If no program supports all sizes of the requested ranges, some sizes are given up. These steps are
repeated, in this order of preference, until a program supports the remaining sizes:

- a range that the user gave is narrowed;
- a dimension is fixed to the only size that an operator accepts;
- a dimension is fixed to its size hint (its expected size).

If the model rejects a size hint, another size is tried. The user is informed of each step by a
sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from tilewright.compiler.errors import CompilerError, InvalidModelError
from tilewright.compiler.profile import agreeing_size, nearest_size
from tilewright.compiler.sizes import Dimension, DynamicSizeError, dimensions
from tilewright.compiler.sizes.hinted_ranges import Shares
from tilewright.compiler.sizes.invalid_ranges import (
    MOST_SIZES,
    combinations,
    refused_ranges,
    sizes_of,
)
from tilewright.compiler.sizes.ranges import MOST_NARROWINGS, attempted, refinements

FACTORS = 6
"""Number of times that a rejected size hint is doubled, and halved, to find an accepted size."""


Attempt = Callable[[Mapping[str, int | Dimension]], object]
"""A function that imports the model with the given sizes and ranges of its dimensions."""


@dataclass(slots=True)
class FittedRanges:
    """The state of the search for ranges and sizes that a single program supports.

    Attributes:
        given: the present ranges of dimensions for which the user gave a range, by name.
        defaults: the default ranges of the other dimensions, by name.
        hints: the size hint of each dimension (the size to which it is fixed if necessary).
        stated: the sizes that the user states or that samples have, by dimension. Each size has its
            fraction of runs or number of samples.
        sizes: the dimensions that were fixed, with their sizes.
        taken: the ranges that the user gave for dimensions that were fixed, by name.
        notes: a sentence for the user about each step.
    """

    given: dict[str, Dimension]
    defaults: Mapping[str, Dimension]
    hints: Mapping[str, int]
    stated: Shares
    sizes: dict[str, int] = field(default_factory=dict)
    taken: dict[str, Dimension] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def left(self) -> dict[str, Dimension]:
        """The default ranges of the dimensions that are not fixed to a size, by name."""
        return {name: d for name, d in self.defaults.items() if name not in self.sizes}

    @property
    def shares(self) -> Shares:
        """The sizes that the user states or samples have, for each dimension that is not fixed to a
        size.
        """
        return {name: each for name, each in self.stated.items() if name not in self.sizes}

    def relax(self, error: CompilerError) -> None:
        """Narrow a range, or fix a dimension, after import or planning of the model failed.

        Args:
            error: the failure.

        Raises:
            CompilerError: the argument `error`, if no range or dimension can be changed to avoid
                it.
        """
        question = error if isinstance(error, DynamicSizeError) else DynamicSizeError(str(error))
        asked = {d.name for d in dimensions(question.undecided, question.unequal)}
        left = {name: self.hints[name] for name in self.left}
        own = {name: self.hints[name] for name in self.given}
        if not asked & left.keys() and self._narrow(question):
            return
        pool = left if left and not (asked & own.keys() and not asked & left.keys()) else own
        found = agreeing_size(question, pool)
        if found is None:
            raise error
        name, size = found
        ranged = self.given.pop(name, None)
        if ranged is not None:
            self.taken[name] = ranged
        served = "its range" if ranged is None else ranged.range_text
        self.sizes[name] = size
        self.notes.append(f"{name}={size}, since no program serves {served}: {question}")

    def _narrow(self, question: DynamicSizeError) -> bool:
        """Narrow a range that the user gave, so that it excludes the sizes that cause an error.

        Args:
            question: the error of the import. It names a condition on sizes, such as n <= 512, that
                holds for some sizes of the present ranges but not for all.

        Returns:
            whether a range was narrowed.
        """
        found = refinements(self.given, question)
        if not found or len(self.notes) >= MOST_NARROWINGS:
            return False
        keeping = (
            ranges
            for ranges in found
            if all(size in d for n, d in ranges.items() for size in self.stated.get(n, ()))
        )
        narrower = next(keeping, found[0])
        for name, dimension in narrower.items():
            if dimension != self.given[name]:
                text = f"{name} has {dimension.range_text} of {self.given[name].range_text}"
                self.notes.append(f"{text}, since no program serves all of it: {question}")
        self.given = narrower
        return True

    def rows(self) -> list[dict[str, int]]:
        """Return the combinations of sizes to plan if all dimensions are fixed.

        The first combination has the first size that the user states for each dimension, the second
        has the second sizes, and so on. A shorter list of sizes is repeated. A dimension without
        several stated sizes has the same size in all combinations.
        """
        several = {
            name: list(self.stated[name])
            for name, size in self.sizes.items()
            if len(self.stated.get(name, ())) > 1 and size in self.stated[name]
        }
        count = max(map(len, several.values()), default=1)
        cycled = [
            {n: listed[k % len(listed)] for n, listed in several.items()} for k in range(count)
        ]
        return [{**self.sizes, **row} for row in cycled]

    def take_other_sizes(self, error: InvalidModelError, attempt: Attempt) -> None:
        """Change the size of one fixed dimension, because the model rejects the present sizes.

        Args:
            error: the model's error at the present sizes.
            attempt: imports the model at given sizes and ranges of the dynamic dimensions.

        Raises:
            InvalidModelError: if the model rejects all sizes that were tried; the message names a
                dimension for which the user must give a size.
        """
        tried: dict[str, list[int]] = {}
        own = [n for n in self.taken if n not in self.stated]
        for name in [n for n in self.sizes if n in self.defaults or n in own]:
            for size in self._other_sizes(name, attempt):
                tried.setdefault(name, []).append(size)
                if not _is_taken(attempt, {**self.sizes, name: size}):
                    continue
                self.notes.append(
                    f"{name}={size}, since the model refuses {self.sizes[name]}: {error}"
                )
                self.sizes[name] = size
                return
        for name, listed in tried.items():
            if name in self.taken:
                ranges = [self.taken.get(each) or self.defaults[each] for each in self.sizes]
                count = 1 + sum(map(len, tried.values()))
                raise refused_ranges(ranges, error, self.sizes, count) from error
            sizes = ", ".join(map(str, [self.sizes[name], *listed]))
            raise InvalidModelError(
                f"{error}; the model takes none of the sizes {sizes} of dimension '{name}': give "
                f"it one with --dim '{name}=SIZE'"
            ) from error
        raise error

    def _other_sizes(self, name: str, attempt: Attempt) -> Iterator[int]:
        """Yield sizes to try for a dimension whose present size the model rejects.

        The first is the size that an operator requires, if the sizes of all other dimensions are
        kept. Then follow all sizes of a small range. For a large range, the present size is
        repeatedly doubled and halved instead.
        """
        ranged, own = self.taken.get(name) or self.defaults[name], self.sizes[name]
        seen = {own}
        question = _question(attempt, {**self.sizes, name: ranged})
        if question is not None:
            found = agreeing_size(question, {name: own})
            if found is not None and found[1] not in seen:
                seen.add(found[1])
                yield found[1]
        if combinations([ranged]) <= MOST_SIZES:
            yield from (size for size in sizes_of(ranged) if size not in seen)
            return
        for power in range(1, FACTORS + 1):
            for wanted in (own << power, own >> power):
                size = nearest_size(ranged, wanted)
                if size not in seen:
                    seen.add(size)
                    yield size


def _is_taken(attempt: Attempt, sizes: Mapping[str, int | Dimension]) -> bool:
    """Whether the model accepts these sizes and ranges when it is imported.

    They also count as accepted if the import raises DynamicSizeError, which only means that another
    dimension must be fixed.
    """
    try:
        found = attempted(partial(attempt, sizes))
    except CompilerError:
        return False
    return not isinstance(found, InvalidModelError)


def _question(attempt: Attempt, sizes: Mapping[str, int | Dimension]) -> DynamicSizeError | None:
    """Return the DynamicSizeError that an import raises at these sizes and ranges.

    Return None if the import succeeds or raises another error.
    """
    try:
        found = attempted(partial(attempt, sizes))
    except CompilerError:
        return None
    return found if isinstance(found, DynamicSizeError) else None
