"""What sizes are made of: open dimensions, and floor quotients of other sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.memo import memo

if TYPE_CHECKING:
    from tilewright.compiler.sizes.size import Size


@dataclass(frozen=True, slots=True)
class Dimension:
    """An open dimension: `multiple` times a number of [low, high]. No `high` is no bound."""

    name: str
    low: int = 1
    high: int | None = None
    multiple: int = 1
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.name, self.low, self.high, self.multiple)))
        if self.low < 0 or self.multiple < 1 or (self.high is not None and self.high < self.low):
            raise ValueError(f"dimension '{self.name}': no size lies in its range")
        if not self.name or not self.name.isprintable() or set(self.name) & set('"<>\\'):
            raise InvalidArgumentError(f"'{self.name}' cannot name a dimension of many sizes")

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:  # the hash of a text is another in each process
        return Dimension, (self.name, self.low, self.high, self.multiple)

    def __str__(self) -> str:
        return self.name if re.fullmatch(r"[A-Za-z_]\w*", self.name) else f'"{self.name}"'

    def __contains__(self, size: int) -> bool:
        """Whether it may have this size."""
        units, rest = divmod(size, self.multiple)
        return not rest and self.low <= units and (self.high is None or units <= self.high)

    @property
    def range_text(self) -> str:
        """The sizes that it may have: `1..512`, `32..640:32`, `1..`."""
        last = "" if self.high is None else str(self.high * self.multiple)
        steps = f":{self.multiple}" if self.multiple > 1 else ""
        return f"{self.low * self.multiple}..{last}{steps}"


@dataclass(frozen=True, slots=True)
class Quotient:
    """`dividend // divisor`, rounded down; the divisor divides no part of the dividend."""

    dividend: Size
    divisor: int
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.dividend, self.divisor)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        return Quotient, (self.dividend, self.divisor)


Atom = Dimension | Quotient


Monomial = tuple[Atom, ...]


def factor_text(atom: Atom) -> str:
    """An atom as it is written: that of a dimension is what its multiple is multiplied by."""
    match atom:
        case Dimension(multiple=1):
            return str(atom)
        case Dimension():
            return f"({atom}//{atom.multiple})"
        case Quotient():
            return f"(({atom.dividend})//{atom.divisor})"


@memo(8192)
def order(monomial: Monomial) -> tuple[int, str]:
    """Terms of higher degree first."""
    return -len(monomial), "*".join(map(factor_text, monomial))
