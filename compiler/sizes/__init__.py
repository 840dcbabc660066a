"""Dynamic sizes: integers that are known at run time, with ranges.

A `Size` replaces an integer extent, stride or offset. Type checkers see it as an `int`, so that the
same code adds, multiplies and divides fixed and dynamic extents. A `Size` is a polynomial with
integer coefficients; its variables are dynamic dimensions and floor quotients of other sizes. A
normal form makes equal sizes equal values, and cancels terms: `n + 1 - n` is the `int` 1.

`<` and `<=` return True if the relation holds for every size of the ranges, and False if it holds
for none. Otherwise they raise `DynamicSizeError`. Operations that need an integer (`range(n)`, an
array's shape) raise it too. `==` compares normal forms, and never raises. Passes, plans and code
generation use functions such as `always_less`, which return False or None if the ranges do not
prove the relation. Importers let `DynamicSizeError` propagate; the caller that chose the ranges
then tries other ranges.
"""

from tilewright.compiler.sizes.atoms import (
    Atom,
    Dimension,
    Monomial,
    Quotient,
    SlackDimension,
    SlotDimension,
    ValueDimension,
    WorkloadDimension,
)
from tilewright.compiler.sizes.bounds import bounds
from tilewright.compiler.sizes.comparisons import (
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
from tilewright.compiler.sizes.errors import DynamicSizeError, SizeErrorContext, SizesDifferError
from tilewright.compiler.sizes.size import Size, dimensions, dynamic_size, is_dynamic, known_divisor
from tilewright.compiler.sizes.text import parse_size
from tilewright.compiler.sizes.values import (
    at,
    check_values,
    dynamic_sizes,
    replaced,
    substituted,
    typical,
    typical_sizes,
    upper_hints,
    with_dimensions,
)

__all__ = [
    "Atom",
    "Dimension",
    "DynamicSizeError",
    "Monomial",
    "Quotient",
    "Size",
    "SizeErrorContext",
    "SizesDifferError",
    "SlackDimension",
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
    "dynamic_size",
    "dynamic_sizes",
    "equal",
    "exact_quotient",
    "is_dynamic",
    "known_divisor",
    "larger",
    "parse_size",
    "replaced",
    "same_extents",
    "smaller",
    "solved",
    "substituted",
    "typical",
    "typical_sizes",
    "upper_hints",
    "with_dimensions",
]
