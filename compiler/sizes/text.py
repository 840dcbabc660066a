"""Parser for the text form of dynamic sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.compiler.sizes.atoms import Dimension
from tilewright.compiler.sizes.size import dynamic_size, is_dynamic

LONGEST_TEXT = 4096
"""Maximum number of characters in the text of a size. Texts in models have tens of characters."""

_NESTING = 100
"""Maximum nesting depth of brackets in the text of a size."""

_TOKEN = re.compile(r'\s*(//|\d+|[A-Za-z_]\w*|"[^"]*"|[-+*()])')


def parse_size(text: str, known: Mapping[str, Dimension]) -> int:
    """Parse the text of a size, as `str(size)` returns it.

    `known` has the dimensions that may occur in the text, by name.

    Raises:
        ValueError: if the text is malformed, or names an unknown dimension.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"'{text[:80]}...' is not a size: it has {len(text)} characters")
    tokens = [match[1] for match in _TOKEN.finditer(text)]
    if "".join(tokens) != re.sub(r"\s(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", "", text):
        raise ValueError(f"'{text[:80]}' is not a size")
    tokens.reverse()
    depth = 0

    def total() -> int:
        sign = -1 if tokens and tokens[-1] == "-" else 1
        if sign < 0:
            tokens.pop()
        value = sign * product()
        while tokens and tokens[-1] in "+-":
            sign = 1 if tokens.pop() == "+" else -1
            value += sign * product()
        return value

    def product() -> int:
        value = factor()
        while tokens and tokens[-1] in ("*", "//"):
            is_product, other = tokens.pop() == "*", factor()
            if is_dynamic(other) and not is_product:
                raise ValueError(f"'{other}' is not a number to divide by")
            value = value * other if is_product else value // other
        return value

    def factor() -> int:
        token = tokens.pop()
        if token == "(":
            nonlocal depth
            depth += 1
            if depth > _NESTING:
                raise ValueError("brackets are nested too deeply")
            value = total()
            depth -= 1
            if tokens.pop() != ")":
                raise ValueError("a bracket is missing")
            return value
        if token.isdigit():
            return int(token)
        return dynamic_size(known[token.strip('"')])

    try:
        value = total()
        if tokens:
            raise ValueError(f"unexpected '{tokens[-1]}'")
    except (IndexError, KeyError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"'{text[:80]}' is not a size: {error}") from error
    return value
