"""Errors of operations that need the value of a dynamic size before it is known."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from tilewright.compiler.errors import CompilerError


class DynamicSizeError(CompilerError):
    """The ranges of dynamic dimensions do not decide a condition, or a size has no value yet.

    For example, `n <= 512` raises this error if n is 1 to 1024, and `range(n)` always does.
    """

    asker = ""
    """The origin of the condition, such as an operator and its node, or a pass; empty if
    unknown."""

    undecided = 0
    """For an undecided comparison, the dynamic size that is compared with 0, such as `n - 512` for
    `n <= 512`; otherwise 0."""

    never_above = False
    """Whether the model is invalid at all sizes at which `undecided` is positive."""

    unequal = 0
    """For an undecided equality, the first size minus the second, a dynamic size; otherwise 0."""

    may_differ = False
    """For an undecided equality: whether sizes that differ in every run are valid, too."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.asker}: {text}" if self.asker else text

    def by(self, who: str) -> Self:
        """Record the origin `who` of the condition, such as a node or a pass; return the error.

        An error that already has an origin keeps it, because it was recorded closer to the
        condition.
        """
        self.asker = self.asker or who
        return self


class SizesDifferError(DynamicSizeError):
    """Two sizes must be equal, but the ranges of dimensions do not decide whether they are."""

    def __init__(self, what: str, first: int, second: int) -> None:
        super().__init__(what)
        self.sizes = first, second
        self.unequal = first - second


@dataclass(frozen=True, slots=True)
class SizeErrorContext(AbstractContextManager[None]):
    """A context manager that adds details to a `DynamicSizeError` raised inside its `with` block.

    The error states that ranges of sizes do not decide a condition, such as `n <= 512`.

    Attributes:
        who: the origin of the condition, such as a node or a pass.
        never_above: whether the model is invalid for all sizes that violate the condition. For `n
            <= 512`, these are the sizes at which `n - 512` is positive. If true, it sets
            `DynamicSizeError.never_above`.
    """

    who: str = ""
    never_above: bool = False

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, DynamicSizeError):
            error.by(self.who)
            error.never_above |= self.never_above
