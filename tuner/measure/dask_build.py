"""The function that a Dask worker runs: one build, in its own child process.

A build is a pure function of a few hundred bytes, and the result is bytes with a digest. So Dask
may run it anywhere, twice, or again after a worker was lost.
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
    """The versions that determine the code that a build generates."""
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
    """Build one candidate within `limit_seconds`, if the versions here are the `expected` ones.

    Returns:
        A dict with the result of `Compile` in `made`; or with a text in one of `refused`,
        `expired`, `late`, `bug` and `differs`. Exceptions are never sent, because the tuner would
        have to unpickle them.
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
    """The differences between the versions of two machines, as text for users."""
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} there, {ours.get(name, 'missing')} here"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    )


_idle: SimpleQueue[BuildChild] = SimpleQueue()
"""Children of this Dask worker that wait, as many as it has had threads busy at once."""


@atexit.register
def _close() -> None:
    while True:
        try:
            _idle.get_nowait().close()
        except Empty:
            return
