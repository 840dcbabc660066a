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
    """The difference that is compared with 0, if the comparison is undecided; otherwise 0."""

    never_above = False
    """Whether a positive difference is an error, so that only sizes with a difference of at most 0
    are valid."""

    unequal = 0
    """The difference that may or may not equal 0, if an equality is undecided; otherwise 0."""

    may_differ = False
    """Whether two sizes that are unequal in all runs are valid as well."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.asker}: {text}" if self.asker else text

    def by(self, who: str) -> Self:
        """Record where the condition arose, such as a node or a pass; return the error.

        If the error already has an origin, it keeps that one, which is closer to the condition.
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
    """A context manager that adds details to a `DynamicSizeError` raised within it.

    Attributes:
        who: the origin of the condition, such as a node or a pass.
        never_above: whether to set `DynamicSizeError.never_above`.
    """

    who: str = ""
    never_above: bool = False

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, DynamicSizeError):
            error.by(self.who)
            error.never_above |= self.never_above
