"""Declarations of a dataclass's JSON form, and the error for malformed JSON data.

The module `codec` generates readers and writers from the declarations.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Read = Callable[[Any, Any], Any]
"""Converts JSON data to a value. The second argument is the scope, which some types (`Via`) use for
conversion."""

Write = Callable[[Any], Any]

MOST_ITEMS = 1_000_000
"""Default limit for the number of items in a list or entries in a mapping. `Length` overrides
it."""


class MalformedError(ValueError):
    """JSON data are malformed.

    Attributes:
        problem: a description of the fault, such as `expected a text, got 3`.
        path: the path of the malformed field, such as `buffers[3].shape[0]`; empty for the root.
    """

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.problem, self.path = problem, path


@dataclass(frozen=True, slots=True)
class Between:
    """The allowed range of a number in JSON, from `least` to `most`, both inclusive.

    If `above` is true, the number must be greater than `least`. If `finite` is false, NaN and
    infinities are allowed, also as the strings `NaN`, `Infinity` and `-Infinity`, because databases
    store them in this form.
    """

    least: float
    most: float
    above: bool = False
    finite: bool = True


INTEGERS = Between(-(1 << 63), (1 << 64) - 1)
"""Default range of an integer: every value of a signed or unsigned 64-bit type."""

WORTH_NAMING = 1 << 62
"""Limits of at least this size only protect the JSON reader from overflow. Error messages do not
state them."""

NUMBERS = Between(-math.inf, math.inf, above=True)
"""Default range of a float: every finite number."""

LARGEST_FLOAT = 1 << 1023


@dataclass(frozen=True, slots=True)
class Matching:
    """A regular expression that must match a complete string in JSON."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Length:
    """Limits, both inclusive, of the length of a string, a list or a mapping in JSON."""

    least: int = 0
    most: int = MOST_ITEMS

    def check(self, data: Any, what: str) -> None:
        """Raise MalformedError if the length of `data` is not within the limits.

        `what` names the counted elements in the message, such as `characters`.
        """
        if not self.least <= len(data) <= self.most:
            limits = f"at least {self.least}" if len(data) < self.least else f"at most {self.most}"
            raise MalformedError(f"{len(data)} {what}, expected {limits}")


@dataclass(frozen=True, slots=True)
class Via:
    """Annotation for a field whose JSON form is that of another type.

    Attributes:
        form: the other type.
        read: returns the field's value, given the value of type `form` and the `scope` of
            `codec.decode`; raises ValueError for invalid data.
        write: converts the field's value to `form`.
        own: the annotation of a type whose JSON data are used as the field's value directly,
            without `read`; None if there is no such type.
    """

    form: Any
    read: Read
    write: Write
    own: Any = None


@dataclass(frozen=True, slots=True)
class JsonForm:
    """Options of a dataclass's JSON form, which is an object with all fields by default.

    A dataclass declares its options in the class attribute `json_form`.

    Attributes:
        what: the class's name in errors, such as `measure request`.
        error: the class of the exception that `codec.decode` raises for malformed data; its
            constructor takes a message.
        row: whether the form is a list of the fields' values, without names.
        constants: entries with fixed values, which are written before the fields. A reader of a
            union recognises the class by the first of them, or by the class's first field if
            `constants` is empty.
        leading: fields that are written first, in this order.
        names: JSON names of fields, if they differ from the class's names.
        sparse: fields that are omitted in JSON if they equal their default. A field without a
            default is omitted if it equals `()`.
        optional: fields that a sender may omit, although they are always written.
        derived: names of additional entries that are written after the fields, for use by other
            programs. The reader ignores their values.
        derive: a function that computes the values of the `derived` entries, given the instance.
        check: a function that raises ValueError if the fields of an instance are inconsistent.
        opens: fields that are read before all others, because the other fields refer to them. For
            example, shapes refer to dimensions.
        scope: a function that returns the context in which the other fields are read, such as the
            known dimensions (the argument `scope` of `codec.decode`). Its arguments are the context
            of the enclosing object and the values of the fields in `opens`.
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
    """Return an annotation for a tuple of (name, value) pairs whose JSON form is an object.

    `form` is the `Mapping` type that describes this object.
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
    """Shorten and escape a key from untrusted data for use in an error message."""
    return reprlib.repr(key).strip("'")
