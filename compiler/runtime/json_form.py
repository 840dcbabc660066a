"""Declarations that control the conversion of dataclasses to JSON, and the error of readers.

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
    """JSON data is malformed: `path` is the path of the wrong field, `problem` its fault."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem, self.path = problem, path


@dataclass(frozen=True, slots=True)
class Between:
    """The limits of a number in JSON, both inclusive.

    With `above`, the number must exceed `least`. If `finite` is false, NaN and infinities are
    accepted, also as the strings `NaN`, `Infinity` and `-Infinity`, which databases store.
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
    """A regular expression that a whole string in JSON must match."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Length:
    """Limits, both inclusive, of the length of a string, a list or a mapping in JSON."""

    least: int = 0
    most: int = MOST_ITEMS

    def check(self, data: Any, what: str) -> None:
        """Raise MalformedError for data of another length; `what` names the items in the error."""
        if not self.least <= len(data) <= self.most:
            limits = f"at least {self.least}" if len(data) < self.least else f"at most {self.most}"
            raise MalformedError(f"{len(data)} {what}, expected {limits}")


@dataclass(frozen=True, slots=True)
class Via:
    """An annotation of a field that is converted to another type before it is written as JSON.

    Attributes:
        form: the other type.
        read: returns the field's value, given the value of type `form` and the `scope` of
            `codec.decode`; raises ValueError for invalid data.
        write: converts the field's value to `form`.
        own: a type whose instances in the data are accepted unchanged; None if every value is
            converted.
    """

    form: Any
    read: Read
    write: Write
    own: Any = None


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Options of a class's JSON form, which by default is an object with all fields in order.

    A class declares it as `json_form`.

    Attributes:
        what: the class's name in errors, such as `measure request`.
        error: the class of the exception that `codec.decode` raises for malformed data; its
            constructor takes a message.
        row: whether the form is a list of the fields' values, without names.
        constants: entries with a fixed value, before the fields. They distinguish the classes of a
            union; without constants, the first field of each class does.
        leading: fields that are written before the others.
        names: JSON names of fields, if they differ from the class's names.
        sparse: fields that are omitted if they equal their default, or `()` without a default.
        optional: fields that a sender may omit, although they are always written.
        derived: names of additional entries after the fields, for other programs. The reader
            ignores these entries.
        derive: a function that computes the additional entries from a value.
        check: raises ValueError for a value whose fields are inconsistent.
        opens: fields that are read first.
        scope: a function that returns the scope for reading the other fields, given the enclosing
            scope and the fields in `opens`.
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
    """Return an annotation for a tuple of (name, value) pairs that is an object in JSON.

    `form` is the `Mapping` type of that object.
    """
    return Via(form, lambda found, _: tuple(found.items()), dict)


def within(error: ValueError, place: str) -> MalformedError:
    """Return a MalformedError for `error`, with `place` prepended to its path."""
    if not isinstance(error, MalformedError):
        return MalformedError(str(error), place)
    separator = "." if error.path and not error.path.startswith("[") else ""
    return MalformedError(error.problem, f"{place}{separator}{error.path}")


def expected(what: str, value: object) -> MalformedError:
    return MalformedError(f"expected {what}, got {reprlib.repr(value)}")


def shown(key: object) -> str:
    """Shorten and escape a name from untrusted data for an error message."""
    return reprlib.repr(key).strip("'")
