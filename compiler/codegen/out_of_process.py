"""LLVM in a separate process, for code on which it may abort or never finish.

LLVM aborts its process if it finds no instruction for an operation ("Cannot select"), and for a few
operations it never finishes. One child process therefore runs LLVM for this process. If the child
ends, the compilation raises an error, and the next compilation starts a new child.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import threading
from multiprocessing.connection import Connection

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.process.child import ChildProcess
from tilewright.compiler.targets.target import Target

LIMIT_SECONDS = 30
"""Limit of CPU time in seconds for the compilation of one LLVM IR text. Kernels take less than one
second."""


def emit_object(ir_text: str, target: Target) -> bytes:
    """Compile LLVM IR in another process to an object file, and return its bytes.

    Raises:
        CompilerError: if LLVM rejects the code, aborts, or needs more than 30 seconds of CPU time.
    """
    made = _ask(ir_text, target, as_text=False)
    assert isinstance(made, bytes)
    return made


def emit_assembly(ir_text: str, target: Target) -> str:
    """Compile LLVM IR in another process to assembly text.

    Raises:
        CompilerError: if LLVM rejects the code, aborts, or needs more than 30 seconds of CPU time.
    """
    made = _ask(ir_text, target, as_text=True)
    assert isinstance(made, str)
    return made


def serve(pipe: Connection) -> None:
    """Main function of the child process: compile each request from the pipe until it is closed.

    The answer is the object code, the assembly text, or a CompilerError.
    """
    from tilewright.compiler.codegen import object

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with pipe:
        while True:
            try:
                as_text, text, target, seconds = pipe.recv()
            except EOFError:
                return
            _limit_time(seconds)
            try:
                if as_text:
                    pipe.send(object.emit_assembly(text, target))
                else:
                    pipe.send(object.emit_object(text, target))
            except CompilerError as error:
                pipe.send(error)


def _limit_time(seconds: int) -> None:
    """Limit the further CPU time of this process; at the limit, the system ends it.

    The limit holds even if the parent process no longer exists.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, hard))


def _reason(child: ChildProcess) -> str:
    """Return, for an error message, why the child process ended before it answered."""
    if child.wait() == -signal.SIGXCPU:
        return f"it does not end in {LIMIT_SECONDS} s"
    lines = child.error_lines()
    said = [line for line in lines if "LLVM ERROR" in line] or lines[-1:]
    return said[0].removeprefix("LLVM ERROR: ") if said else "its process ended"


_lock = threading.Lock()
_process: ChildProcess | None = None


def _ask(ir_text: str, target: Target, *, as_text: bool) -> bytes | str:
    global _process
    with _lock:
        # After a fork, the pipe still belongs to the parent.
        if _process is None or _process.owner != os.getpid():
            _process = ChildProcess("tilewright.compiler.codegen.out_of_process", "serve")
        try:
            _process.pipe.send((as_text, ir_text, target, LIMIT_SECONDS))
            answer: bytes | str | CompilerError = _process.pipe.recv()
        except (EOFError, OSError):
            failed, _process = _process, None
            reason = _reason(failed)
            failed.close()
            raise CompilerError(
                f"LLVM cannot compile the code for target '{target.name}': {reason}"
            ) from None
        except BaseException:
            # Interrupted: the pending answer must not be taken for the next question's.
            interrupted, _process = _process, None
            interrupted.kill()
            raise
    if isinstance(answer, CompilerError):
        raise answer
    return answer


@atexit.register
def close() -> None:
    """End the child process; the next compilation starts a new one."""
    global _process
    with _lock:
        process, _process = _process, None
    if process is not None and process.owner == os.getpid():
        process.close()
