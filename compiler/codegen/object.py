"""Compilation of LLVM IR text to object code, and loading of object code into this process.

No optimisation passes run, because the lowering emits code that does not need them, and they would
double the compile time of a candidate.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from typing import Any

import llvmlite.binding as llvm

from tilewright.compiler.codegen.elf import is_elf, undefined_symbols
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.targets.target import Target
from tilewright.compiler.timings import Timings, timed

LIBRARY_SYMBOLS = ("memcpy", "memmove", "memset")
"""Library functions to which the object code of any target may refer. Every C library and every
linker provides them."""


def emit_object(ir_text: str, target: Target, timings: Timings | None = None) -> bytes:
    """Compile a module to a relocatable object file (ELF; WebAssembly for wasm32).

    Args:
        ir_text: an LLVM module without triple and data layout, which are set to the target's.
        timings: records the time of the stages `LLVM parse` and `LLVM codegen`.

    Raises:
        CompilerError: if the text is not valid IR, this LLVM does not support the target, or the
            code calls library functions. For example, `llvm.fma` becomes such a call on a target
            without the instruction.
    """
    with _machine(target) as machine, ExitStack() as stack:
        with timed(timings, "LLVM parse"):
            module = stack.enter_context(_parsed(ir_text, target, machine))
        with timed(timings, "LLVM codegen"):
            return _checked(bytes(machine.emit_object(module)), target)


def _checked(data: bytes, target: Target) -> bytes:
    """Return an object unchanged, after a check that it calls no library functions.

    WebAssembly objects are not checked here, because their linker does it.

    Raises:
        CompilerError: if an ELF object calls a library function.
    """
    known = target.family.helpers.union(LIBRARY_SYMBOLS)
    foreign = undefined_symbols(data) - known if is_elf(data) else frozenset()
    if foreign:
        raise CompilerError(
            f"a kernel for target '{target.name}' would call {', '.join(sorted(foreign))}"
        )
    return data


def emit_assembly(ir_text: str, target: Target) -> str:
    """Compile an LLVM module to assembly text, with LLVM's comments.

    The arguments are the same as in `emit_object`.

    Raises:
        CompilerError: if the text is not valid IR, or this LLVM does not support the target.
    """
    with _machine(target) as machine, _parsed(ir_text, target, machine) as module:
        return str(machine.emit_assembly(module))


class JitLibrary:
    """Object code that is loaded into this process.

    Its functions may run only as long as this object exists.
    """

    def __init__(self, name: str, tracker: Any) -> None:
        self._name = name
        self._trackers = [tracker]
        self._addresses: dict[str, int] = {}

    def address(self, symbol: str) -> int:
        """Return the address of a function.

        Raises:
            CompilerError: if the objects do not define it, or the library is closed.
        """
        if not self._trackers:
            raise CompilerError(f"'{symbol}': its library is closed")
        if symbol not in self._addresses:
            with _lock:
                try:
                    tracker = _engine().lookup(self._name, symbol)
                except RuntimeError as error:
                    raise CompilerError(f"cannot load '{symbol}': {error}") from error
            self._trackers.append(tracker)
            self._addresses[symbol] = int(tracker[symbol])
        return self._addresses[symbol]

    def close(self) -> None:
        """Free the code. No function of this library may be called afterwards."""
        with _lock:
            while self._trackers:
                self._trackers.pop().close()
        self._addresses.clear()


def load_objects(objects: Sequence[bytes]) -> JitLibrary:
    """Load object files into this process as one library, without a linker.

    The objects may call memcpy, memmove, memset and each other's functions, but nothing else.

    Raises:
        CompilerError: if an object is not for this machine, or two objects define the same symbol.
    """
    builder = llvm.JITLibraryBuilder()
    for data in objects:
        builder.add_object_img(data)
    for symbol in LIBRARY_SYMBOLS:
        function = getattr(ctypes.CDLL(None), symbol)
        builder.import_symbol(symbol, ctypes.cast(function, ctypes.c_void_p).value)
    with _lock:
        name = f"library{next(_library_numbers)}"
        try:
            return JitLibrary(name, builder.link(_engine(), name))
        except RuntimeError as error:
            raise CompilerError(f"cannot load object code: {error}") from error


_lock = threading.RLock()
"""Guards the cached target machines of LLVM, and the engine that loads code."""

_library_numbers = count()


@contextmanager
def _machine(target: Target) -> Iterator[Any]:
    """Context manager: lock LLVM, and yield LLVM's target machine for `target`.

    Target machines are cached.

    Raises:
        CompilerError: if LLVM reports an error inside the context.
    """
    with _lock:
        _initialize()
        try:
            yield _create_machine(target)
        except RuntimeError as error:
            raise CompilerError(f"LLVM, for target '{target.name}': {error}") from error


@cache
def _create_machine(target: Target) -> Any:
    machine = llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu,
        features=target.feature_text,
        opt=target.family.code_level,
        reloc=target.family.relocation,
        codemodel="default",
        abiname=target.abi,
    )
    machine.set_asm_verbosity(True)
    return machine


@contextmanager
def _parsed(ir_text: str, target: Target, machine: Any) -> Iterator[Any]:
    """Context manager: parse LLVM IR, yield the module for one compilation, and free it.

    Each compilation needs a new module, because compiling changes it. The module has its own LLVM
    context. LLVM keeps types, constants and metadata of modules until their context is freed, and
    never frees the global context.
    """
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(ir_text, context)
        try:
            module.triple = target.triple
            module.data_layout = str(machine.target_data)
            yield module
        finally:
            module.close()
    finally:
        context.close()


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # The lowering carries the multiples of counters itself (`Emitter.multiple`).
    llvm.set_option("tilewright", "-disable-lsr")
    # The scheduler before register allocation hoists loads until registers spill.
    llvm.set_option("tilewright", "-enable-misched=false")


@cache
def _engine() -> Any:
    """Return the JIT engine of this process, created on the first call."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    return llvm.create_lljit_compiler(machine)
