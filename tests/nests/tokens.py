"""Lines and tokens of the text form of a loop nest."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.sizes import Dimension, parse_size


class NestSyntaxError(CompilerError):
    """The text is not a valid loop nest; the message names the line."""


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>"(?:[^"\\]|\\.)*")
  | (?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
  | (?P<let>%\d+)
  | (?P<name>[A-Za-z_][A-Za-z0-9_.~]*(?:-(?:scheduler|padding|vector)\b)?)
  | (?P<mark>//|\.\.|[][(){},:;=*+\-/%])
    )""",
    re.VERBOSE,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    indent: int
    text: str


class Tokens:
    """The tokens of one line, read from left to right."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.tokens: list[tuple[str, str]] = []
        position = 0
        while position < len(line.text):
            match = _TOKEN.match(line.text, position)
            if match is None:
                raise self.error(f"unexpected '{line.text[position:].strip()[:20]}'")
            self.tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
            position = match.end()
        self.at = 0

    def error(self, message: str) -> NestSyntaxError:
        return NestSyntaxError(f"line {self.line.number}: {message}: '{self.line.text}'")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, kind: str = "") -> str:
        if self.at >= len(self.tokens):
            raise self.error("the line ends too early")
        found, value = self.tokens[self.at]
        if kind and found != kind:
            raise self.error(f"expected a {kind}, found '{value}'")
        self.at += 1
        return value

    def accept(self, value: str) -> bool:
        """Whether the next token is this one (a quoted string never is); if so, skip it."""
        matches = self.peek() == value and self.kind() != "string"
        self.at += matches
        return matches

    def expect(self, value: str) -> None:
        if not self.accept(value):
            raise self.error(f"expected '{value}', found '{self.peek()}'")

    def end(self) -> None:
        if self.at < len(self.tokens):
            raise self.error(f"unexpected '{self.peek()}'")

    def name(self) -> str:
        if self.kind() == "string":
            return str(json.loads(self.take()))
        return self.take("name")

    def integer(self) -> int:
        sign = -1 if self.accept("-") else 1
        text = self.take("number")
        if not text.isdecimal():
            raise self.error(f"'{text}' is not an integer")
        return sign * int(text)

    def size(self, known: Mapping[str, Dimension]) -> int:
        """An integer, or an expression over dynamic dimensions, which ends where no operator
        follows."""
        if not known:
            return self.integer()
        first = self.at
        while True:
            self.accept("-")
            if self.accept("("):
                depth = 1
                while depth:
                    token = self.take()
                    depth += (token == "(") - (token == ")")
            else:
                self.take()
            if self.peek() not in ("+", "-", "*", "//"):
                break
            self.take()
        try:
            return parse_size(" ".join(t for _, t in self.tokens[first : self.at]), known)
        except ValueError as error:
            raise self.error(str(error)) from error

    def number(self) -> float:
        sign = -1 if self.accept("-") else 1
        if self.accept("inf"):
            return sign * math.inf
        if self.accept("nan"):
            return math.nan
        text = self.take("number")
        return sign * (int(text) if text.isdecimal() else float(text))

    def word(self, kind: Callable[[str], _T]) -> _T:
        """A word of an enumeration."""
        text = self.take("name")
        try:
            return kind(text)
        except ValueError as error:
            raise self.error(f"'{text}' is not one of {kind.__name__}") from error

    def bracketed(self, item: Callable[[], _T]) -> _T:
        """An item in parentheses."""
        self.expect("(")
        found = item()
        self.expect(")")
        return found

    def listed(self, item: Callable[[], _T], close: str, separator: str = ",") -> tuple[_T, ...]:
        """Items up to a closing mark, or up to the end of the line for ''."""
        found: list[_T] = []
        while self.peek() != close or (close == "" and self.kind()):
            if found:
                self.expect(separator)
            found.append(item())
        if close:
            self.expect(close)
        return tuple(found)
