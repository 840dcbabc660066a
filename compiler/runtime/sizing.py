"""Encoding of dynamic sizes as rules, which the C runtime evaluates in each run.

C evaluates all dynamic sizes of a program in one call, by rules that are encoded once
(`native/sizing.c`). Therefore, a run with new sizes takes only a few microseconds longer than a run
with the previous sizes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.runtime.native import native
from tilewright.compiler.sizes import Atom, Dimension, Size


class SizingStruct(ctypes.Structure):
    """The C struct `tw_sizing`: encoded rules, and memory for the integers that they compute."""

    _fields_ = (
        ("rules", ctypes.c_void_p),
        ("words", ctypes.c_int64),
        ("numbers", ctypes.c_void_p),
        ("given", ctypes.c_int64),
    )


@cache
def sizing_functions() -> tuple[ctypes._NamedFuncPointer, ctypes._NamedFuncPointer]:
    """Return the C functions `tw_size`, which evaluates rules, and `tw_fill`, which stores results.

    Raises:
        ImportError: if the C runtime was built from older sources without these functions.
    """
    try:
        size, fill = native().tw_size, native().tw_fill
    except AttributeError as error:
        raise ImportError("the C runtime does not support dynamic sizes: build it again") from error
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    size.restype, size.argtypes = ctypes.c_int, (pointer,)
    fill.restype, fill.argtypes = None, (pointer, integer, pointer, integer, pointer)
    return size, fill


class Rules:
    """A list of rules, each of which computes one integer from earlier integers.

    Integers have indices. The first integers are the sizes of `dimensions`, each divided by its
    `multiple`; the caller provides them in each run. The next integers are the results of the
    rules, in order.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self.given = len(dimensions)
        self.words: list[int] = []
        self._numbers: dict[Atom | int, int] = {d: i for i, d in enumerate(dimensions)}
        self._count = len(dimensions)

    @property
    def count(self) -> int:
        """The number of integers: one per dimension, and one per rule."""
        return self._count

    def number(self, size: int) -> int:
        """Return the index of the integer that equals a size, after adding rules for it if needed.

        `size` is an integer, or a dynamic size (`compiler.sizes`): a formula over the dimensions.

        Raises:
            KeyError: if the size contains an unknown dimension.
        """
        found = self._numbers.get(size)
        if found is None:
            found = self._numbers[size] = self._sum(size, 1)
        return found

    def largest(self, numbers: Iterable[int]) -> int:
        """Add a rule for the maximum of 0 and some integers, and return the index of its result.

        `numbers` contains the indices of the integers.
        """
        listed = list(numbers)
        return self._rule([0, len(listed), *listed])

    def define(self, dimension: Dimension, number: int) -> None:
        """Declare that a dimension's size is not an input, but the integer with index `number`."""
        self._numbers[dimension] = self._rule([dimension.multiple, 0, 1, 1, 1, number])

    def encoded(self) -> NDArray[np.int64]:
        """Return all rules as 64-bit words, in the format of the C function `tw_size`."""
        return np.array(self.words, np.int64)

    def _sum(self, size: int, divisor: int) -> int:
        if not isinstance(size, Size):
            return self._rule([divisor, size, 0])
        terms = []
        for monomial, coefficient in size.terms:
            factors = [self._atom(atom) for atom in monomial]
            terms += [coefficient, len(factors), *factors]
        return self._rule([divisor, size.constant, len(size.terms), *terms])

    def _atom(self, atom: Atom) -> int:
        if isinstance(atom, Dimension):
            return self._numbers[atom]
        found = self._numbers.get(atom)
        if found is None:
            found = self._numbers[atom] = self._sum(atom.dividend, atom.divisor)
        return found

    def _rule(self, words: list[int]) -> int:
        self.words += words
        self._count += 1
        return self._count - 1
