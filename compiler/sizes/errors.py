"""What cannot be known of a size before a run, and who asked for it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from tilewright.compiler.errors import CompilerError


class OpenSizeError(CompilerError):
    """What is asked of a size depends on the number that it will be at run time."""

    asker = ""
    """Who asked, where that is known: an operator and its node, a pass."""

    undecided = 0
    """Of a comparison: the difference of which it must be known whether it is above 0."""

    never_above = False
    """Whether it must not be above 0: then what is asked for cannot be."""

    unequal = 0
    """Of a question for equality: the difference of which it must be known whether it is 0."""

    may_differ = False
    """Whether that it is never 0 is an answer, too."""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{self.asker}: {text}" if self.asker else text

    def by(self, who: str) -> Self:
        """The error with who asked; the first, innermost name stays."""
        self.asker = self.asker or who
        return self


class SizesDifferError(OpenSizeError):
    """Two sizes must be equal, and whether they are depends on the run."""

    def __init__(self, what: str, first: int, second: int) -> None:
        super().__init__(what)
        self.sizes = first, second
        self.unequal = first - second


@dataclass(frozen=True, slots=True)
class Asking(AbstractContextManager[None]):
    """Add to an `OpenSizeError` that passes through who asks, and whether a difference must not be
    above 0."""

    who: str = ""
    never_above: bool = False

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OpenSizeError):
            error.by(self.who)
            error.never_above |= self.never_above
