"""Conversion of names in a model to unique identifiers, valid in C11 and C++17."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count

_KEYWORDS_TEXT = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t
    char32_t class compl const const_cast constexpr continue decltype default delete do double
    dynamic_cast else enum explicit export extern false float for friend goto if inline int long
    mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public
    register reinterpret_cast restrict return short signed sizeof static static_assert
    static_cast struct switch template this thread_local throw true try typedef typeid typename
    typeof union unsigned using virtual void volatile wchar_t while xor xor_eq main
    NULL linux unix
"""
_KEYWORDS = frozenset(_KEYWORDS_TEXT.split())
"""Keywords of C and C++, names reserved by the standards, and macros of compilers and headers."""

_HEADERS_TEXT = """
    assert complex ctype errno fenv iso646 inttypes limits locale math setjmp signal stdalign
    stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string tgmath threads time
    uchar wchar wctype
"""
_HEADERS = frozenset(_HEADERS_TEXT.split())
"""Names of standard C headers, which the header of a library must not have."""

LONGEST = 60
"""Maximum number of characters of an identifier. C11 guarantees that 63 are significant."""


def identifier(name: str) -> str:
    """Convert a name to a C identifier, and truncate it to at most 60 characters.

    Each run of characters that are not letters or digits becomes one underscore. Leading and
    trailing underscores are removed, because C reserves names that begin with one. `x_` is
    prepended to reserved words and to names that begin with a digit.
    """
    made = re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_")[:LONGEST].rstrip("_")
    taken = made in _KEYWORDS or made in _HEADERS or f"{made}_".lower().startswith("tw_")
    if not made or made[0].isdigit() or taken:
        return f"x_{made}".rstrip("_")
    return made


def identifiers(names: Iterable[str], suffixes: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a unique identifier for each name, with a number appended if necessary.

    The identifiers also differ after conversion to upper case, because macros use them in upper
    case. Callers may append one of the `suffixes` to an identifier. The resulting name differs from
    all other identifiers, with or without a suffix.
    """
    made: list[str] = []
    taken: set[str] = set()
    endings = ["", *suffixes]
    for name in names:
        base = identifier(name)
        for each in (base if i == 1 else f"{base}_{i}" for i in count(1)):
            forms = {f"{each}{ending}".upper() for ending in endings}
            if taken.isdisjoint(forms):
                break
        made.append(each)
        taken |= forms
    return tuple(made)


def quoted(text: str) -> str:
    """Quote a string as a C string literal; characters outside ASCII become escaped UTF-8 bytes."""
    parts = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        # an octal escape ends after three digits, and `??` begins a trigraph
        plain = 32 <= byte < 127 and char not in '"\\?'
        parts.append(char if plain else f"\\{byte:03o}")
    return f'"{"".join(parts)}"'


def comment(text: str) -> str:
    """Convert a string to one line of text that cannot end the C comment that contains it."""
    shown = text.encode("ascii", "backslashreplace").decode()
    return re.sub(r"[\x00-\x1f\x7f]+", " ", shown).replace("*/", "* /").replace("/*", "/ *")
