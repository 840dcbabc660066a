"""Statistics of a kernel from its assembly text, above all the number of register spills.

Kernels that spill vectors to the stack are slow, and their times vary from process to process.
Rejecting them by these counts therefore saves measurements.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from tilewright.compiler.runtime.codec import JsonValue
from tilewright.compiler.targets.families import AssemblySyntax
from tilewright.compiler.targets.target import Target


@dataclass(frozen=True, slots=True)
class KernelStatistics(JsonValue):
    """Static counts of instructions in assembly text, without regard to how often they run.

    `spill_*` counts moves of vector registers to or from the stack. `inner_*` counts in innermost
    loops only.
    """

    instructions: int = 0
    fmas: int = 0
    spill_stores: int = 0
    spill_reloads: int = 0
    inner_instructions: int = 0
    inner_fmas: int = 0
    inner_spills: int = 0

    @property
    def spills(self) -> int:
        """Number of instructions that store vector registers to the stack or reload them."""
        return self.spill_stores + self.spill_reloads

    def __add__(self, other: KernelStatistics) -> KernelStatistics:
        names = [field.name for field in fields(self)]
        return KernelStatistics(*(getattr(self, n) + getattr(other, n) for n in names))


def statistics(assembly: str, target: Target) -> KernelStatistics:
    """Count the instructions of an assembly module, summed over all functions.

    The arguments are the same as in `function_statistics`.
    """
    return sum(function_statistics(assembly, target).values(), KernelStatistics())


def function_statistics(assembly: str, target: Target) -> dict[str, KernelStatistics]:
    """Count the instructions of each function in an assembly module; return the counts by name.

    Args:
        assembly: the text from `compiler.codegen.object.emit_assembly`, with LLVM's comments, which
            mark functions and loops on every architecture.
        target: the target of the code.
    """
    result: dict[str, KernelStatistics] = {}
    for match in _FUNCTION.finditer(assembly):
        result[match["name"]] = _count(match["body"], target.family.syntax)
    return result


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """An innermost loop in assembly text.

    Attributes:
        function: name of the function that contains the loop.
        label: label of the loop's header block.
        instructions: the loop's instructions, as text.
        fmas: number of multiply-adds.
        spills: number of instructions that move a vector register to or from the stack.
        registers: number of different vector registers that the instructions use.
    """

    function: str
    label: str
    instructions: tuple[str, ...]
    fmas: int
    spills: int
    registers: int = 0


def inner_loops(assembly: str, target: Target) -> tuple[InnerLoop, ...]:
    """Return the innermost loops of an assembly module, in the order of the code.

    The arguments are the same as in `function_statistics`.
    """
    syntax = target.family.syntax
    found: list[InnerLoop] = []
    for match in _FUNCTION.finditer(assembly):
        loops: dict[str, list[_Line]] = {}
        for line in _lines(match["body"], syntax):
            if line.loop:
                loops.setdefault(line.loop, []).append(line)
        found += [
            InnerLoop(
                match["name"],
                label,
                tuple(line.text for line in lines),
                sum(line.fma for line in lines),
                sum(line.stack is not None for line in lines),
                _registers((line.text for line in lines), syntax),
            )
            for label, lines in loops.items()
        ]
    return tuple(found)


def vector_registers(assembly: str, target: Target) -> int:
    """Return the number of different vector registers that an assembly module names.

    The arguments are the same as in `function_statistics`. On RISC-V, an instruction that uses a
    group of registers names only the first.
    """
    syntax = target.family.syntax
    bodies = (match["body"] for match in _FUNCTION.finditer(assembly))
    return _registers((line.text for body in bodies for line in _lines(body, syntax)), syntax)


SPILL_MARK = "  <- spill"


def listing(assembly: str, target: Target) -> Iterator[str]:
    """Yield an assembly module's lines for display, without directives and LLVM's comments.

    The lines are functions, labels and instructions; innermost loops and spills are marked. The
    arguments are the same as in `function_statistics`.
    """
    syntax = target.family.syntax
    for match in _FUNCTION.finditer(assembly):
        yield f"{match['name']}:"
        headers = _inner_headers(match["body"])
        for line in _parsed(match["body"], syntax):
            if isinstance(line, str):
                yield f".LBB{line}:{'  <- innermost loop' if line in headers else ''}"
            else:
                yield f"    {line.text}{SPILL_MARK if line.stack else ''}"


_FUNCTION = re.compile(r"-- Begin function (?P<name>\S+)\n(?P<body>.*?)-- End function", re.DOTALL)
# A comment starts with '#', ';' or '//'; but '#16' is a number in the code of ARM.
_INSTRUCTION = re.compile(
    r"\t(?P<name>[a-z][\w.]*)(?:[ \t]+(?P<operands>(?:(?!//|;|#(?!-?\d)).)*))?"
)
_INNER = re.compile(r"This Inner Loop Header")
_BLOCK = re.compile(r"^(?:\.?L?BB(?P<label>\d+_\d+):|[#/;]+ %bb\.)", re.MULTILINE)
_IN_LOOP = re.compile(r"in Loop: Header=BB(?P<header>\d+_\d+)")


@dataclass(frozen=True, slots=True)
class _Line:
    """An instruction in assembly text.

    Attributes:
        text: the instruction with its operands.
        loop: the label of its innermost loop; empty outside innermost loops.
        fma: whether it is a multiply-add.
        stack: `spill_stores` or `spill_reloads` if it moves a vector register to or from the stack,
            else None.
    """

    text: str
    loop: str
    fma: bool
    stack: str | None


def _lines(body: str, syntax: AssemblySyntax) -> Iterator[_Line]:
    """Yield the instructions of a function's assembly text."""
    return (line for line in _parsed(body, syntax) if isinstance(line, _Line))


def _parsed(body: str, syntax: AssemblySyntax) -> Iterator[_Line | str]:
    """Yield the instructions and the block labels of a function's assembly text, in order."""
    has_frame = syntax.frame_setup.search(body) is not None
    inner_headers = _inner_headers(body)
    loop = ""
    for line in body.splitlines():
        if (block := _BLOCK.match(line)) is not None:
            loop = block["label"] if block["label"] in inner_headers else ""
            if block["label"]:
                yield block["label"]
        inside = _IN_LOOP.search(line)
        if inside is not None:
            loop = inside["header"] if inside["header"] in inner_headers else ""
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        name, operands = instruction["name"], (instruction["operands"] or "").strip()
        yield _Line(
            f"{name} {operands}".strip(),
            loop,
            syntax.fma.search(name) is not None,
            _stack_traffic(line, name, operands, syntax, has_frame),
        )


def _count(body: str, syntax: AssemblySyntax) -> KernelStatistics:
    numbers = dict.fromkeys((f.name for f in fields(KernelStatistics)), 0)
    for line in _lines(body, syntax):
        inner = line.loop != ""
        numbers["instructions"] += 1
        numbers["fmas"] += line.fma
        numbers["inner_instructions"] += inner
        numbers["inner_fmas"] += inner and line.fma
        if line.stack:
            numbers[line.stack] += 1
            numbers["inner_spills"] += inner
    return KernelStatistics(**numbers)


def _registers(instructions: Iterable[str], syntax: AssemblySyntax) -> int:
    """Return the number of different vector registers that instructions name.

    Names of the same register in different widths count once.
    """
    return len(
        {
            int(found["number"]) // syntax.parts.get(found["kind"], 1)
            for text in instructions
            for found in syntax.register.finditer(text.partition(" ")[2])
        }
    )


def _inner_headers(body: str) -> frozenset[str]:
    """Return the labels of the headers of innermost loops, which LLVM marks in comments."""
    found: set[str] = set()
    label = ""
    for line in body.splitlines():
        match = _BLOCK.match(line)
        if match is not None:
            label = match["label"] or ""
        if _INNER.search(line):
            found.add(label)
    return frozenset(found)


def _stack_traffic(
    line: str, name: str, operands: str, syntax: AssemblySyntax, has_frame: bool
) -> str | None:
    """Classify an instruction that moves a vector register to or from the stack.

    Return `spill_stores` or `spill_reloads`, or None for any other instruction. `has_frame` says
    whether the function addresses the stack by a frame pointer.
    """
    if not syntax.vector.search(operands):
        return None
    if line.endswith(("Spill", "Reload")):
        return "spill_stores" if line.endswith("Spill") else "spill_reloads"
    if not (syntax.stack.search(operands) or (has_frame and syntax.frame.search(operands))):
        return None
    is_store = syntax.store_operands.search(operands) or syntax.store_name.search(name)
    return "spill_stores" if is_store else "spill_reloads"
