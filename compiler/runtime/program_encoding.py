"""Encoding of programs as 64-bit words for the C interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from tilewright.compiler.runtime.native_functions import native_signature, native_symbol
from tilewright.compiler.runtime.program import (
    Branch,
    BufferRef,
    Copy,
    Instruction,
    KernelCall,
    Loop,
    NativeCall,
    Program,
    Refuse,
    SizeBranch,
)
from tilewright.compiler.sizes import is_dynamic


class Opcode(IntEnum):
    """The first word of an encoded instruction; the values equal those in native/tilewright.h.

    Values must not change. A new kind of instruction gets the next value.
    """

    KERNEL = 0
    COPY = 1
    NATIVE = 2
    LOOP = 3
    BRANCH = 4
    REFUSAL = 5
    SIZE_BRANCH = 6


@dataclass(frozen=True, slots=True)
class EncodedProgram:
    """A program encoded for the C interpreter.

    Attributes:
        code: the 64-bit words of the instructions; words in `open` are 0.
        starts: the index in `code` of each instruction's first word, in the order of
            `Program.walk`.
        refs: the buffers of all instructions. The buffers of one instruction are consecutive.
        symbols: the symbols of the kernel functions; `code` refers to them by index.
        natives: the symbols of the native functions, whose indices follow those of `symbols`.
        open: maps the index of a word to the dynamic size that each run writes there.
    """

    code: NDArray[np.int64]
    starts: tuple[int, ...]
    refs: tuple[BufferRef, ...]
    symbols: tuple[str, ...]
    natives: tuple[str, ...]
    open: Mapping[int, int]


def encode(program: Program) -> EncodedProgram:
    """Encode a program for the C interpreter; `native/tilewright.h` specifies the format."""
    encoder = _Encoder(program)
    encoder.add(program.instructions)
    dynamic_words = {i: word for i, word in enumerate(encoder.words) if is_dynamic(word)}
    return EncodedProgram(
        np.array([0 if i in dynamic_words else w for i, w in enumerate(encoder.words)], np.int64),
        tuple(encoder.starts),
        tuple(encoder.refs),
        tuple(encoder.symbols),
        tuple(encoder.natives),
        dynamic_words,
    )


class _Encoder:
    """The encoder of one program, which collects words, buffers and functions."""

    def __init__(self, program: Program) -> None:
        self.words: list[int] = []
        self.starts: list[int] = []
        self.refs: list[BufferRef] = []
        self.symbols: list[str] = []
        self.natives: dict[str, int] = {}
        self._program = program
        self._refusals = 0
        self._first_function: list[int] = []
        for kernel in program.kernels:
            self._first_function.append(len(self.symbols))
            self.symbols += [stage.symbol for stage in kernel.stages]

    def add(self, instructions: Sequence[Instruction]) -> int:
        """Append instructions to `words`, and return the number of words added."""
        words, refs, before = self.words, self.refs, len(self.words)
        for instruction in instructions:
            start = len(words)
            self.starts.append(start)
            match instruction:
                case KernelCall(index, buffers, sizes):
                    spec = self._program.kernels[index]
                    words += [Opcode.KERNEL, 0, len(refs), len(spec.stages)]
                    for number, stage in enumerate(spec.stages):
                        extent = spec.given(stage.extent, sizes)
                        words += [self._first_function[index] + number, extent]
                    words += [
                        size // dimension.multiple
                        for dimension, size in zip(spec.sizes, sizes, strict=True)
                    ]
                    refs += buffers
                case Copy(destination, source, size):
                    words += [Opcode.COPY, 0, len(refs), len(refs) + 1, size]
                    refs += [destination, source]
                case NativeCall(name, parameters, buffers):
                    known = self.natives.setdefault(native_symbol(name), len(self.natives))
                    extent = native_signature(name, parameters).extent
                    words += [Opcode.NATIVE, 0, len(refs), len(self.symbols) + known, extent]
                    words += parameters
                    refs += buffers
                case Loop(counter, trips, going, most, body):
                    words += [Opcode.LOOP, 0, len(refs), most]
                    refs += [counter, trips, going]
                    self.add(body)
                case Branch(condition, then, otherwise):
                    words += [Opcode.BRANCH, 0, len(refs), 0]
                    refs.append(condition)
                    words[start + 3] = self.add(then)
                    self.add(otherwise)
                case SizeBranch(_, last, below, above):
                    words += [Opcode.SIZE_BRANCH, 0, instruction.size, last, 0]
                    words[start + 4] = self.add(below)
                    self.add(above)
                case Refuse():
                    words += [Opcode.REFUSAL, 0, self._refusals]
                    self._refusals += 1
                case _:
                    assert_never(instruction)
            words[start + 1] = len(words) - start
        return len(words) - before
