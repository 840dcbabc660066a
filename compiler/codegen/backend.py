"""The protocol of a back end: the compiler's interface to code generation for a kind of processor.

A back end is a subfolder with a module `backend` that defines `BACKEND`. The target selects the
folder (`Target.backend`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.loops.nest import LoopNest
from tilewright.compiler.sizes import Dimension
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings


@dataclass(frozen=True, slots=True)
class StageCode:
    """The function that runs one stage of a kernel.

    Attributes:
        symbol: name of the function.
        extent: number of tiles of the stage's parallel loop; 1 without such a loop. It is a dynamic
            size if the loop's extent is.
    """

    symbol: str
    extent: int


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The code to which a loop nest is lowered, before compilation; equal code has equal names.

    Attributes:
        name: name of the kernel, which is the prefix of its symbols.
        text: the code in the back end's language, such as LLVM IR.
        digest: SHA-256 (hex) of the target and of the text before the kernel gets this name.
        stages: the stages, in the order in which they run.
        scratch_bytes: size of each thread's scratch block.
        sizes: the dynamic dimensions, in the order in which the argument `sizes` of each stage
            holds their sizes.
    """

    name: str
    text: str
    digest: str
    stages: tuple[StageCode, ...]
    scratch_bytes: int
    sizes: tuple[Dimension, ...] = ()


class Library(Protocol):
    """Code loaded into this process; keep the object as long as the code may run."""

    def address(self, symbol: str) -> int:
        """The address of a function; raises CompilerError if the code does not define it."""

    def close(self) -> None:
        """Free the code. None of its functions may be called afterwards."""


class Backend(Protocol):
    """A generator of code from loop nests, for one kind of processor. It has no state."""

    def lower(self, nest: LoopNest, target: Target) -> KernelCode:
        """Return the code of a loop nest as text, before it is compiled.

        Raises:
            ScheduleError: if tiles do not align with layouts, or bounds cannot be proved.
            CompilerError: if the target cannot compute in a type of the nest.
        """

    def compile(self, text: str, target: Target, timings: Timings | None = None) -> bytes:
        """Compile the text of a `KernelCode` and return its object code.

        `timings` counts the time of each phase. A crash of the code generator raises an error, and
        does not end this process.

        Raises:
            CompilerError: if the text does not compile.
        """

    def assembly(self, text: str, target: Target) -> str:
        """The compiled code as assembly text, with comments that mark its loops."""

    def link(self, objects: Sequence[bytes], output: str | Path) -> None:
        """Link objects into one library at `output`, for an artifact.

        Raises:
            CompilerError: if they do not link.
        """

    def load(self, objects: Sequence[bytes]) -> Library:
        """Load objects into this process.

        Raises:
            CompilerError: if the objects are not for this machine.
        """


def backend_of(target: Target) -> Backend:
    """Return the back end that generates a target's code.

    It is imported on the first call, because LLVM is an optional dependency.

    Raises:
        CompilerError: if a package that it needs is not installed.
    """
    name = f"tilewright.compiler.codegen.{target.backend}.backend"
    try:
        found: Backend = importlib.import_module(name).BACKEND
    except ModuleNotFoundError as error:
        raise CompilerError(
            f"code for target '{target.name}' needs the package '{error.name}': "
            "pip install 'tilewright[compiler]' has it"
        ) from error
    return found
