"""Atoms, the variables of the polynomial `Size`: dynamic dimensions, and floor quotients of sizes.

The class of a dimension states who defines it. Users name the dimensions of a model (`Dimension`),
workloads number their own (`WorkloadDimension`), and the compiler adds others (`SlackDimension`,
`SlotDimension`, `ValueDimension`). Dimensions of different classes are never equal, even if their
names are.
"""

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
    """A dynamic dimension, whose size is `multiple` times an integer in [low, high].

    It is unbounded if `high` is None. An instance of this class, not of a subclass, is a dimension
    of a model; `name` is the name that users see.
    """

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

    def __reduce__(self) -> tuple[object, ...]:  # hashes of strings differ per process
        return type(self), (self.name, self.low, self.high, self.multiple)

    def __str__(self) -> str:
        return self.name if re.fullmatch(r"[A-Za-z_]\w*", self.name) else f'"{self.name}"'

    def __contains__(self, size: int) -> bool:
        """Whether the dimension may have this size."""
        units, rest = divmod(size, self.multiple)
        return not rest and self.low <= units and (self.high is None or units <= self.high)

    @property
    def range_text(self) -> str:
        """The range in users' notation, such as `1..512`, `32..640:32` or `1..`."""
        last = "" if self.high is None else str(self.high * self.multiple)
        steps = f":{self.multiple}" if self.multiple > 1 else ""
        return f"{self.low * self.multiple}..{last}{steps}"


@dataclass(frozen=True, slots=True, eq=False)
class WorkloadDimension(Dimension):
    """A dimension of a workload, and of its loop nests and kernels, named s0, s1, ..."""

    @staticmethod
    def numbered(number: int, sizes: Dimension) -> WorkloadDimension:
        """Return the workload dimension `s{number}`, with the range of `sizes`."""
        return WorkloadDimension(f"s{number}", sizes.low, sizes.high, sizes.multiple)

    @staticmethod
    def of(dimension: Dimension) -> WorkloadDimension:
        """Return a workload dimension with the name and the range of another dimension."""
        if isinstance(dimension, WorkloadDimension):
            return dimension
        d = dimension
        return WorkloadDimension(d.name, d.low, d.high, d.multiple)


@dataclass(frozen=True, slots=True, eq=False)
class SlackDimension(Dimension):
    """The unused capacity of a growing cache: the number of free rows at the end of its buffer.

    An example is the key cache of a language model. The capacity is reserved by a session, a series
    of runs that share the cache; without such a reservation, the size is 0. No input of the model
    determines it.
    """


@dataclass(frozen=True, slots=True, eq=False)
class SlotDimension(Dimension):
    """The start, in bytes, of a slot: a block of the arena in a program with dynamic sizes.

    See `runtime.program.Slot`.
    """

    @staticmethod
    def numbered(number: int, alignment: int) -> SlotDimension:
        """Return the dimension for the start of the slot with this index in the program.

        Its name is `@{number}`, and its sizes are multiples of `alignment` bytes.
        """
        return SlotDimension(f"@{number}", 0, None, alignment)

    @property
    def number(self) -> int:
        """The index of the slot in the program."""
        return int(self.name[1:])


@dataclass(frozen=True, slots=True, eq=False)
class ValueDimension(Dimension):
    """A dimension whose size is an SSA value in the generated code.

    The value and the dimension have the same name.
    """


@dataclass(frozen=True, slots=True)
class Quotient:
    """The floor quotient `dividend // divisor`, which arithmetic could not simplify further."""

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
    """Return the text of an atom as a factor of a monomial.

    A dimension whose `Dimension.multiple` exceeds 1 is written as a quotient: `(n//32)` for
    multiples of 32.
    """
    match atom:
        case Dimension(multiple=1):
            return str(atom)
        case Dimension():
            return f"({atom}//{atom.multiple})"
        case Quotient():
            return f"(({atom.dividend})//{atom.divisor})"


def _origin(atom: Atom) -> str:
    """Return the class names of an atom's dimensions, separated by commas.

    Dimensions of different classes may have the same text; the class names distinguish them.
    """
    if isinstance(atom, Dimension):
        return type(atom).__name__
    return ",".join(_origin(a) for monomial, _ in atom.dividend.terms for a in monomial)


def factor_order(atom: Atom) -> tuple[str, str]:
    """Return the sort key of a factor: its text, then the class names of its dimensions."""
    return factor_text(atom), _origin(atom)


@memo(8192)
def order(monomial: Monomial) -> tuple[int, str, str]:
    """Return the sort key of a monomial: higher degrees first, then by the texts of the factors."""
    texts = "*".join(map(factor_text, monomial))
    return -len(monomial), texts, "*".join(map(_origin, monomial))
