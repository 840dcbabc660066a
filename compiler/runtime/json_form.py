"""Declarations of JSON forms, for annotations and classes, and the error of readers.

`codec` generates readers and writers from these declarations.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Read = Callable[[Any, Any], Any]
"""Returns the value for some data. The second argument is the scope, which `Via` may need."""

Write = Callable[[Any], Any]

MOST_ITEMS = 1_000_000
"""Default maximum for items of a list and entries of a mapping; `Length` overrides it."""


class MalformedError(ValueError):
    """JSON data does not match the form that is read; `path` names the wrong field."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem, self.path = problem, path


@dataclass(frozen=True, slots=True)
class Between:
    """The limits of a number in JSON, both inclusive.

    With `above`, the number must exceed `least`. Unless `finite`, NaN and infinities are accepted,
    also as the texts that databases store for them (`NaN`, `-Infinity`).
    """

    least: float
    most: float
    above: bool = False
    finite: bool = True


INTEGERS = Between(-(1 << 63), (1 << 64) - 1)
"""The integers of any 64-bit type: default limits unless `Between` states others."""

WORTH_NAMING = 1 << 62
"""Larger limits only protect the reader; error messages do not name them."""

NUMBERS = Between(-math.inf, math.inf, above=True)
"""Every finite number."""

LARGEST_FLOAT = 1 << 1023


@dataclass(frozen=True, slots=True)
class Matching:
    """A regular expression that the whole text must match."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Length:
    """Limits of the length of a text or a list, and of the number of entries of a mapping."""

    least: int = 0
    most: int = MOST_ITEMS

    def check(self, data: Any, what: str) -> None:
        """Raise MalformedError for data of another length; `what` names its items."""
        if not self.least <= len(data) <= self.most:
            limits = f"at least {self.least}" if len(data) < self.least else f"at most {self.most}"
            raise MalformedError(f"{len(data)} {what}, expected {limits}")


@dataclass(frozen=True, slots=True)
class Via:
    """An annotation of a value that is written as a value of another type with a JSON form.

    Attributes:
        form: the other type.
        read: converts a value of `form`, with the scope; raises ValueError for invalid data.
        write: converts the value to `form`.
        own: a type whose values are read unchanged; None if every value is converted.
    """

    form: Any
    read: Read
    write: Write
    own: Any = None


@dataclass(frozen=True, slots=True)
class JsonForm:
    """The JSON form of a class, where it differs from an object with all fields in order.

    A class declares it as `json_form`.

    Attributes:
        what: the class's name in errors, such as `measure request`.
        error: the exception that `decode` raises, a ValueError or an error with one text argument.
        row: whether the form is a list of the values, without names.
        constants: entries before the fields with a fixed value. They distinguish the classes of a
            union. Without constants, the first field of each class does.
        leading: fields that are written before the others.
        names: JSON names of fields, if they differ from the class's names.
        sparse: fields that are omitted if they equal their default, or `()` without a default.
        optional: fields that a sender may omit, although they are always written.
        derived, derive: names of entries after the fields, and a function that computes them from a
            value. Other programs may read them; this reader ignores their values.
        check: raises ValueError for a value whose fields are inconsistent.
        opens, scope: fields that are read first, and a function that computes the scope of the
            others from the enclosing scope and these fields.
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
    """Return the annotation of a tuple of (name, value) pairs that JSON represents as an object.

    `form` is the `Mapping` type of that object.
    """
    return Via(form, lambda found, _: tuple(found.items()), dict)


def within(error: ValueError, place: str) -> MalformedError:
    """Return the error of a part as an error of the whole: prepend `place` to its path."""
    if not isinstance(error, MalformedError):
        return MalformedError(str(error), place)
    separator = "." if error.path and not error.path.startswith("[") else ""
    return MalformedError(error.problem, f"{place}{separator}{error.path}")


def expected(what: str, value: object) -> MalformedError:
    return MalformedError(f"expected {what}, got {reprlib.repr(value)}")


def shown(key: object) -> str:
    """Shorten a name from untrusted data for an error message."""
    return reprlib.repr(key).strip("'")
