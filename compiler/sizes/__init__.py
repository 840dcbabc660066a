"""Sizes that are known at run time: integers in arithmetic, with a range each.

A `Size` stands where an extent, a stride or an offset stands, and is an `int` to the type checker:
whatever adds, multiplies and divides extents works on either. It is a polynomial with
integer coefficients over open dimensions and floor quotients of other sizes, in a normal form, so
that equal sizes are equal values and what cancels is gone: `n + 1 - n` is the `int` 1.

A comparison holds for every size of the ranges or for none of them; where the ranges do not decide
it, it raises `OpenSizeError`. So does whatever needs the number itself (`range(n)`, an array's
shape): no decision is ever taken at one size for all of them. `==` is equality of normal forms.
Passes, plans and code generation ask `always_less` and its like, which prove or return False or
None. Importers let `OpenSizeError` pass, and who chose the ranges answers its question with others.
"""

from tilewright.compiler.sizes.atoms import (
    Atom,
    Dimension,
    Monomial,
    Quotient,
    RoomDimension,
    SlotDimension,
    ValueDimension,
    WorkloadDimension,
)
from tilewright.compiler.sizes.bounds import bounds
from tilewright.compiler.sizes.errors import Asking, OpenSizeError, SizesDifferError
from tilewright.compiler.sizes.questions import (
    always_at_most,
    always_larger,
    always_less,
    always_smaller,
    disjoint,
    equal,
    exact_quotient,
    larger,
    same_extents,
    smaller,
    solved,
)
from tilewright.compiler.sizes.size import Size, dimensions, is_open, known_divisor, open_size
from tilewright.compiler.sizes.text import parse_size
from tilewright.compiler.sizes.values import (
    at,
    check_values,
    open_sizes,
    replaced,
    roomy_sizes,
    substituted,
    typical,
    typical_sizes,
    with_dimensions,
)

__all__ = [
    "Asking",
    "Atom",
    "Dimension",
    "Monomial",
    "OpenSizeError",
    "Quotient",
    "RoomDimension",
    "Size",
    "SizesDifferError",
    "SlotDimension",
    "ValueDimension",
    "WorkloadDimension",
    "always_at_most",
    "always_larger",
    "always_less",
    "always_smaller",
    "at",
    "bounds",
    "check_values",
    "dimensions",
    "disjoint",
    "equal",
    "exact_quotient",
    "is_open",
    "known_divisor",
    "larger",
    "open_size",
    "open_sizes",
    "parse_size",
    "replaced",
    "roomy_sizes",
    "same_extents",
    "smaller",
    "solved",
    "substituted",
    "typical",
    "typical_sizes",
    "with_dimensions",
]
