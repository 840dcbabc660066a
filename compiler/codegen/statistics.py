"""Statistics of a kernel from its assembly text, before it runs: above all, register spills.

Kernels with vectors on the stack are slow, and their times differ between processes, so that a
static count is a worthwhile filter before measurements.
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
    """Static counts of instructions, not weighted by executions.

    `spill_*` is stack traffic of vector registers. `inner_*` counts in innermost loops only.
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
    """Count instructions over all functions of a module.

    Args:
        assembly: printed by `compiler.codegen.object.emit_assembly`.
        target: the target of the assembly.
    """
    return sum(function_statistics(assembly, target).values(), KernelStatistics())


def function_statistics(assembly: str, target: Target) -> dict[str, KernelStatistics]:
    """Count the instructions of each function; returns the counts by the function's name.

    Args:
        assembly: printed by `compiler.codegen.object.emit_assembly`, with LLVM's comments: they
            mark functions and loops on every architecture.
        target: the target of the assembly.
    """
    result: dict[str, KernelStatistics] = {}
    for match in _FUNCTION.finditer(assembly):
        result[match["name"]] = _count(match["body"], target.family.syntax)
    return result


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """One innermost loop.

    Attributes:
        function: name of the function that contains it.
        label: label of its header.
        instructions: its instructions, as text.
        fmas: number of multiply-adds.
        spills: number of instructions that move a vector register to or from the stack.
        registers: number of vector registers that the instructions use.
    """

    function: str
    label: str
    instructions: tuple[str, ...]
    fmas: int
    spills: int
    registers: int = 0


def inner_loops(assembly: str, target: Target) -> tuple[InnerLoop, ...]:
    """Return the innermost loops of a module, in the order of the code.

    Arguments are those of `function_statistics`.
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
    """Return the number of different vector registers that a module names.

    Arguments are those of `function_statistics`. An instruction of RISC-V that takes several
    registers names only the first.
    """
    syntax = target.family.syntax
    bodies = (match["body"] for match in _FUNCTION.finditer(assembly))
    return _registers((line.text for body in bodies for line in _lines(body, syntax)), syntax)


SPILL_MARK = "  <- spill"


def listing(assembly: str, target: Target) -> Iterator[str]:
    """Yield the lines of a module for readers, without directives and LLVM's comments.

    The lines are functions, labels and instructions. Innermost loops and spills are marked.
    Arguments are those of `function_statistics`.
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
    """An instruction with its kind, and the header of its innermost loop ("" outside loops)."""

    text: str
    loop: str
    fma: bool
    stack: str | None


def _lines(body: str, syntax: AssemblySyntax) -> Iterator[_Line]:
    """The instructions of a function."""
    return (line for line in _parsed(body, syntax) if isinstance(line, _Line))


def _parsed(body: str, syntax: AssemblySyntax) -> Iterator[_Line | str]:
    """The instructions of a function, and the labels of its blocks between them."""
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
    """Return the number of distinct vector registers that instructions name, whatever their
    aliases."""
    return len(
        {
            int(found["number"]) // syntax.parts.get(found["kind"], 1)
            for text in instructions
            for found in syntax.register.finditer(text.partition(" ")[2])
        }
    )


def _inner_headers(body: str) -> frozenset[str]:
    """Labels of the headers of innermost loops, from LLVM's comments after each label."""
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
    """`spill_stores` or `spill_reloads` for a vector register moved to or from the stack."""
    if not syntax.vector.search(operands):
        return None
    if line.endswith(("Spill", "Reload")):
        return "spill_stores" if line.endswith("Spill") else "spill_reloads"
    if not (syntax.stack.search(operands) or (has_frame and syntax.frame.search(operands))):
        return None
    is_store = syntax.store_operands.search(operands) or syntax.store_name.search(name)
    return "spill_stores" if is_store else "spill_reloads"
