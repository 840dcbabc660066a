"""What this process can run: the one place where a target is compared with the host.

Everything else that needs to run code asks a device (`service.jobs.device`), whose target may be
another machine's.
"""

from __future__ import annotations

from tilewright.compiler.errors import CompilerError, UnknownTargetError
from tilewright.compiler.targets.target import Target, host_target


def runs_here(target: Target) -> bool:
    """Whether code for the target runs in this process; False where no family describes the host
    or LLVM is not installed."""
    try:
        return target.runs_on(host_target())
    except (UnknownTargetError, ImportError):
        return False


def check_runs_here(target: Target) -> Target:
    """Return the target, if its code runs in this process.

    Raises:
        CompilerError: if its code does not run in this process.
    """
    if not runs_here(target):
        raise CompilerError(f"target '{target.name}' does not run on this machine")
    return target
