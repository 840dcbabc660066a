"""The `Backend` protocol: the compiler's interface to code generation for a kind of processor.

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
    """The function that runs one stage of a kernel, a part between two thread barriers.

    Attributes:
        symbol: name of the function.
        extent: number of tiles that the threads divide among themselves; 1 for a stage without a
            parallel loop. It is an int, or a formula over dynamic dimensions (`Size`).
    """

    symbol: str
    extent: int


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The code to which a loop nest is lowered, before compilation.

    Attributes:
        name: name of the kernel, which is the prefix of its symbols. It is derived from the code,
            so equal code has equal names.
        text: the code in the back end's language, such as LLVM IR.
        digest: SHA-256 (hex) of the target's properties and of `text`, in which a placeholder
            stands for the kernel's name.
        stages: the functions of the kernel, in the order in which they run. Threads wait for each
            other after each function.
        scratch_bytes: size of each thread's scratch block.
        sizes: the dynamic dimensions. Each function gets their run-time sizes in its argument
            `sizes`, in this order.
    """

    name: str
    text: str
    digest: str
    stages: tuple[StageCode, ...]
    scratch_bytes: int
    sizes: tuple[Dimension, ...] = ()


class Library(Protocol):
    """Machine code that is loaded into this process.

    Its functions may run only as long as this object exists.
    """

    def address(self, symbol: str) -> int:
        """Return the address of a function.

        Raises:
            CompilerError: if the code does not define it.
        """

    def close(self) -> None:
        """Free the code. None of its functions may be called afterwards."""


class Backend(Protocol):
    """A code generator for one kind of processor: lowers loop nests and compiles the result.

    It has no state.
    """

    def lower(self, nest: LoopNest, target: Target) -> KernelCode:
        """Lower a loop nest to code as text, which `compile` accepts.

        Raises:
            ScheduleError: if the schedule's tiles do not align with the layouts, or accesses cannot
                be proved to be in bounds.
            CompilerError: if the target cannot compute in an element type of the nest.
        """

    def compile(self, text: str, target: Target, timings: Timings | None = None) -> bytes:
        """Compile the text of a `KernelCode` and return its object code.

        `timings` records the time of each phase. If the code generator crashes, this process
        continues and an error is raised.

        Raises:
            CompilerError: if the text does not compile, or the code generator crashes.
        """

    def assembly(self, text: str, target: Target) -> str:
        """Compile the text of a `KernelCode` to assembly text, with comments that mark its
        loops."""

    def link(self, objects: Sequence[bytes], output: str | Path) -> None:
        """Link object code into one library file at `output`, for an artifact.

        Raises:
            CompilerError: if linking fails.
        """

    def load(self, objects: Sequence[bytes]) -> Library:
        """Load object code into this process, and return it as a library.

        Raises:
            CompilerError: if the objects are not for this machine.
        """


def backend_of(target: Target) -> Backend:
    """Return the back end that generates a target's code.

    The back end's module is imported on the first call, because LLVM is an optional dependency.

    Raises:
        CompilerError: if a package that the back end needs is not installed.
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
