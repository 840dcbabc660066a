"""Loading of the C runtime with ctypes.

The library is built with the package (`setup.py`), in the folder of this file. Every call of its
functions releases Python's global interpreter lock.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.limits import MAX_THREADS
from tilewright.compiler.runtime.native_build import build_native
from tilewright.compiler.targets.families import family_of

LIBRARY_ABI = 2
"""Version of the C runtime (TW_ABI_VERSION) that this package requires. It is independent of the
kernels' `ABI_VERSION`: programs are encoded for the runtime each time they are loaded, so that
artifacts remain valid when this version changes."""


class _Arguments(ctypes.Structure):
    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_stride", ctypes.c_int64),
        ("sizes", ctypes.c_void_p),
        ("sharing", ctypes.c_void_p),
    )


class BoundKernelStruct(ctypes.Structure):
    """The C struct `tw_bound_kernel`: a kernel with its buffers, for the benchmark harness."""

    _fields_ = (
        ("stages", ctypes.c_void_p),
        ("extents", ctypes.c_void_p),
        ("stage_count", ctypes.c_int64),
        ("arguments", _Arguments),
        ("inner", ctypes.c_int64),
    )


class ProgramStruct(ctypes.Structure):
    """The C runtime's struct `tw_program`: an encoded program with its memory."""

    _fields_ = (
        ("code", ctypes.c_void_p),
        ("words", ctypes.c_int64),
        ("functions", ctypes.c_void_p),
        ("arguments", _Arguments),
        ("threads", ctypes.c_int64),
        ("stop", ctypes.c_void_p),
    )


def find_library(folder: Path) -> Path:
    """Return the path of the C runtime in a folder, and compile the library if it is missing.

    Raises:
        ImportError: if the compilation fails.
    """
    paths = [folder / f"_native{suffix}" for suffix in EXTENSION_SUFFIXES]
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        found = paths[-1]
        build_native(found)
    return found


@cache
def native() -> ctypes.CDLL:
    """Load the C runtime, and declare the types of its functions to ctypes.

    If the package contains no library, it is compiled first with this machine's C compiler.

    Raises:
        ImportError: if the library cannot be built or loaded, or its ABI version differs from that
            of this package.
    """
    library_path = find_library(Path(__file__).parent)
    try:
        library = ctypes.CDLL(str(library_path))
    except OSError as error:
        raise ImportError(f"the C runtime cannot be loaded: {error}") from error
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    signatures = {
        "tw_abi_version": (ctypes.c_int, ()),
        "tw_vector_bits": (integer, ()),
        "tw_pool_bind": (ctypes.c_int, (pointer, ctypes.c_int)),
        "tw_pool_workers": (ctypes.c_int, ()),
        "tw_pool_sleeping": (ctypes.c_int, ()),
        "tw_run_program": (ctypes.c_int, (pointer,)),
        "tw_profile_program": (ctypes.c_int, (pointer, pointer)),
        "tw_call": (None, (pointer, ctypes.c_int)),
        "tw_evict": (None, (pointer, integer)),
        "tw_bench": (None, (pointer, ctypes.c_int, integer, pointer)),
        "tw_pin_random_keys": (ctypes.c_int, (ctypes.c_int,)),
        "tw_reference": (None, (ctypes.c_int, pointer, integer, pointer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    version = library.tw_abi_version()
    if version != LIBRARY_ABI:
        raise ImportError(
            f"the C runtime at {library_path} has ABI {version}, this package {LIBRARY_ABI}: "
            "build it again"
        )
    family = family_of(platform.machine())
    if family is not None and family.ask is not None:
        family.ask()  # before a sandbox restricts system calls, and once for all kernels
    return library


@contextmanager
def pinned_random_keys() -> Iterator[None]:
    """A context in which random operators without a seed produce the same numbers in each run.

    The numbers equal those of the NumPy references (`compiler.ops.random_bits`). The effect applies
    to all threads of the process. It lasts until all such contexts have ended.
    """
    native().tw_pin_random_keys(1)
    try:
        yield
    finally:
        native().tw_pin_random_keys(-1)


def vector_bits() -> int:
    """Return the length of scalable vector registers in bits (SVE, RISC-V's V).

    The result is 0 if the processor has none.

    Raises:
        ImportError: if the C runtime cannot be built or loaded, or its ABI version differs from
            that of this package.
    """
    return int(native().tw_vector_bits())


def native_address(symbol: str) -> int:
    """Return the address of a function of the C runtime.

    Raises:
        ImportError: if the library has no function `symbol`, because it was built from other
            sources.
    """
    try:
        address = ctypes.cast(getattr(native(), symbol), ctypes.c_void_p).value
    except AttributeError as error:
        raise ImportError(f"the C runtime has no function '{symbol}': build it again") from error
    return int(address or 0)


def check_threads(threads: int) -> int:
    """Check that a number of threads is valid, and return it.

    Raises:
        InvalidArgumentError: if `threads` is not an integer from 1 to `MAX_THREADS`.
    """
    if not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise InvalidArgumentError(f"expected 1 to {MAX_THREADS} threads, got {threads}")
    return threads
