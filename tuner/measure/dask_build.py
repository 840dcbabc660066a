"""The function that a Dask worker runs: one build, in a child process.

A build is a pure function of a few hundred bytes, and its result is bytes with a digest. So Dask
may run it on any worker, twice, or again after losing a worker.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from concurrent.futures import TimeoutError as BuildTimeoutError
from importlib.metadata import version
from queue import Empty, SimpleQueue
from typing import Any

from pebble import ProcessExpired

from tilewright.compiler.errors import CompilerError
from tilewright.tuner.measure.build_child import BuildChild
from tilewright.tuner.measure.builder import Compile

Versions = Mapping[str, str]


def versions_here() -> dict[str, str]:
    """Return the versions of the software on this machine that determines the generated code.

    The keys are the names of the software.
    """
    from tilewright.compiler.program.build import CODEGEN_VERSION

    return {
        "tilewright": version("tilewright"),
        "code generation": CODEGEN_VERSION,
        "llvmlite": version("llvmlite"),
    }


def build_on_worker(
    compile_candidate: Compile,
    arguments: tuple[str, Mapping[str, Any], Mapping[str, Any]],
    limit_seconds: float,
    expected: Versions,
) -> dict[str, Any]:
    """Build one candidate, if this machine has the `expected` versions.

    Args:
        compile_candidate: the compile function.
        arguments: its arguments: workload text, schedule JSON, mode JSON.
        limit_seconds: the time limit.
        expected: the versions of the tuner's machine, as `versions_here` returns them.

    Returns:
        A dict with a single key. The key `made` has the result of `compile_candidate`. The keys
            `refused`, `expired`, `late`, `bug` and `differs` have an error message. Exceptions are
            never sent, because the tuner would have to unpickle them.
    """
    mine = versions_here()
    if mine != expected:
        return {"differs": versions_differ(mine, expected)}
    try:
        child = _idle.get_nowait()
    except Empty:
        child = BuildChild(compile_candidate)
    try:
        return {"made": dict(child.build(*arguments, limit_seconds))}
    except BuildTimeoutError:
        return {"late": "the build took too long"}
    except ProcessExpired as error:
        return {"expired": str(error)}
    except CompilerError as error:
        return {"refused": str(error)}
    except RuntimeError as error:
        return {"bug": str(error)}
    finally:
        _idle.put(child)


def versions_differ(theirs: Versions, ours: Versions) -> str:
    """Describe the differences between the versions of two machines, as text for users."""
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} there, {ours.get(name, 'missing')} here"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    )


_idle: SimpleQueue[BuildChild] = SimpleQueue()
"""Idle child processes of this Dask worker; at most one per thread that was busy at the
same time."""


@atexit.register
def _close() -> None:
    while True:
        try:
            _idle.get_nowait().close()
        except Empty:
            return
