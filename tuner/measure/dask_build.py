"""The function that a Dask worker runs to build a candidate in a child process.

A build has no side effects, and its result depends only on its arguments, a few hundred bytes. So
Dask may run the build on any worker, and repeat it if a worker is lost.
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
    """Return the versions, by name, of this machine's software that affects the generated code."""
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
    """Build one candidate, provided that this machine has the `expected` software versions.

    Args:
        compile_candidate: the compile function.
        arguments: its arguments: workload text, schedule JSON, mode JSON.
        limit_seconds: the time limit.
        expected: the versions of the tuner's machine, as `versions_here` returns them.

    Returns:
        A dict with a single key. After a successful build, this is `made`, with the result of
            `compile_candidate`. Otherwise its value is an error message, and the key is `refused`
            (by the compiler), `expired` (the process died), `late` (time limit), `bug` (another
            exception) or `differs` (wrong versions). Exceptions are not sent, because the tuner
            would have to unpickle them.
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
    """Describe in a text for users which versions differ on a remote machine and on this machine.

    Example: `llvmlite 0.44.0 there, 0.45.1 here`.
    """
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} there, {ours.get(name, 'missing')} here"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    )


_idle: SimpleQueue[BuildChild] = SimpleQueue()
"""Idle child processes of this Dask worker. There are at most as many as threads that were busy at
the same time."""


@atexit.register
def _close() -> None:
    while True:
        try:
            _idle.get_nowait().close()
        except Empty:
            return
