"""How a value is written as JSON: what annotations and classes say of it, and the error of readers.

`codec` reads and writes values by these descriptions.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Read = Callable[[Any, Any], Any]
"""The value of some data. The second argument is the scope, which `Via` may need."""

Write = Callable[[Any], Any]

MOST_ITEMS = 1_000_000
"""Items of a list, and entries of a mapping, unless `Length` says otherwise."""


class MalformedError(ValueError):
    """Data that is not the JSON form of a value. `path` leads to the field that is wrong."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem, self.path = problem, path


@dataclass(frozen=True, slots=True)
class Between:
    """Limits of a number, both inclusive.

    With `above`, the number has to exceed `least`. Unless it has to be `finite`, NaN and infinities
    are read as well, also from the texts that databases keep in their place (`NaN`, `-Infinity`).
    """

    least: float
    most: float
    above: bool = False
    finite: bool = True


INTEGERS = Between(-(1 << 63), (1 << 64) - 1)
"""The integers of any type of 64 bits: limits unless `Between` gives others."""

WORTH_NAMING = 1 << 62
"""Larger limits only bound what a sender may write; errors do not name them."""

NUMBERS = Between(-math.inf, math.inf, above=True)
"""Every finite number."""

LARGEST_FLOAT = 1 << 1023


@dataclass(frozen=True, slots=True)
class Matching:
    """The regular expression that a whole text matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Length:
    """Limits of the length of a text or a list, and of the number of entries of a mapping."""

    least: int = 0
    most: int = MOST_ITEMS

    def check(self, data: Any, what: str) -> None:
        """Raises MalformedError for data of another length; `what` is what it consists of."""
        if not self.least <= len(data) <= self.most:
            limits = f"at least {self.least}" if len(data) < self.least else f"at most {self.most}"
            raise MalformedError(f"{len(data)} {what}, expected {limits}")


@dataclass(frozen=True, slots=True)
class Via:
    """A value that is written as another type, which has a JSON form.

    Attributes:
        form: that type.
        read: the value from one of `form` and the scope; raises ValueError for other data.
        write: the one of `form` from the value.
        own: a type whose values are read unchanged; None if every value is converted.
    """

    form: Any
    read: Read
    write: Write
    own: Any = None


@dataclass(frozen=True, slots=True)
class JsonForm:
    """How the form of a class differs from an object with every field, in the order of the class.

    A class states it as `json_form`.

    Attributes:
        what: names the class in errors, such as `measure request`.
        error: what `decode` raises, a ValueError or an error with a text alone.
        row: the form is a list of the values, without names.
        constants: entries that precede the fields and have one value. They distinguish the
            classes of a union. Without constants, the first field of each class does.
        leading: fields that precede the others.
        names: names in JSON of fields that have another name in the class.
        sparse: fields that are left out if they equal their default; it is () where they have none.
        optional: fields that a sender may leave out, though they are always written.
        derived, derive: names of entries that follow the fields, and a function that computes them
            from a value. They serve readers that do not compute; here their values are not read.
        check: raises ValueError for a value whose fields do not fit each other.
        opens, scope: fields that are read first, and a function that gives the scope of the others
            from the scope around the value and these fields.
    """

    what: str = ""
    error: type[Exception] = MalformedError
    row: bool = False
    constants: Mapping[str, str] = field(default_factory=dict)
    leading: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    sparse: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()
    derive: Callable[[Any], tuple[Any, ...]] = lambda value: ()
    check: Callable[[Any], None] | None = None
    opens: tuple[str, ...] = ()
    scope: Callable[..., Any] | None = None


def pairs(form: Any) -> Via:
    """Pairs of a name and a value that are written as an object; `form` is a `Mapping`."""
    return Via(form, lambda found, _: tuple(found.items()), dict)


def within(error: ValueError, place: str) -> MalformedError:
    """The error of a part, seen from the whole in which it lies at `place`."""
    if not isinstance(error, MalformedError):
        return MalformedError(str(error), place)
    separator = "." if error.path and not error.path.startswith("[") else ""
    return MalformedError(error.problem, f"{place}{separator}{error.path}")


def expected(what: str, value: object) -> MalformedError:
    return MalformedError(f"expected {what}, got {reprlib.repr(value)}")


def shown(key: object) -> str:
    """The name of an entry that a sender chose, shortened."""
    return reprlib.repr(key).strip("'")
