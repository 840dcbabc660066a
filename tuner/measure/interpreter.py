"""The Python that a device's child processes run on, and what it must be able to do.

By default it is the Python of this process. Under an emulator `sys.executable` names a program that
the machine's kernel cannot run: the child needs the emulator's command too.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence

from tilewright.compiler.package import IMPORT_ROOT

THIS_PYTHON = (sys.executable,)

CHECK_SECONDS = 120.0
"""Longest that a child may take to import NumPy, under an emulator on a busy machine."""

_CHECK = """\
import tilewright.tuner.measure.sandbox_main
from tilewright.compiler.runtime.native import native
native()
"""


class InterpreterError(Exception):
    """A command cannot run the sandbox; the message is one sentence that names it."""


def parse_python(text: str) -> tuple[str, ...]:
    """The words of a command as a shell would split them; this process's Python for an empty text.

    Raises:
        InterpreterError: if a quotation is not closed.
    """
    try:
        return tuple(shlex.split(text)) or THIS_PYTHON
    except ValueError as error:
        reason = str(error).lower()
        raise InterpreterError(f"the command '{text}' cannot be read: {reason}") from error


def check_python(python: Sequence[str]) -> None:
    """Run a command once and import there what the sandbox needs: it takes some seconds.

    Raises:
        InterpreterError: if it is no Python with NumPy and the C runtime of its architecture.
    """
    command = shlex.join(python)
    try:
        done = subprocess.run(
            [*python, "-c", _CHECK],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=child_environment(),
            check=False,
            timeout=CHECK_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise InterpreterError(
            f"the command '{command}' did not end within {CHECK_SECONDS:g} seconds"
        ) from error
    except OSError as error:
        raise InterpreterError(
            f"the command '{command}' cannot be started: {error.strerror}"
        ) from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"it ended with status {done.returncode}"
        raise InterpreterError(f"the command '{command}' cannot run the sandbox: {reason}")


_KEPT = frozenset({"PATH", "HOME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "VIRTUAL_ENV", "SYSTEMROOT"})
_KEPT_BEGINNINGS = ("LC_", "LD_", "DYLD_", "PYTHON", "QEMU_", "MALLOC_", "GLIBC_", "NUMPY_", "NPY_")


def child_environment() -> dict[str, str]:
    """Environment variables of a child: what a Python needs, and one BLAS thread.

    Nothing else of this process's: it may hold tokens and keys, and candidates can read it.
    """
    keep = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_BEGINNINGS)}
    paths = [str(IMPORT_ROOT), *filter(None, keep.get("PYTHONPATH", "").split(os.pathsep))]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    safe = {"PYTHONSAFEPATH": "1"}  # a folder of the user's is not imported instead of the package
    return {**keep, **threads, **safe, "PYTHONPATH": os.pathsep.join(paths)}
