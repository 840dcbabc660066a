"""Puts the guards around this process: what the sandbox's child does before its first candidate.

The order matters. Limits and namespaces come while there is the right to make them, then the user
changes, then capabilities go, and the filter of system calls closes the door behind all of them.
"""

from __future__ import annotations

import os
import platform
import resource
import signal
import sys
from collections.abc import Callable

from tilewright.compiler.package import IMPORT_ROOT
from tilewright.tuner.measure import linux
from tilewright.tuner.measure.call_filter import ARCHITECTURES, filter_program
from tilewright.tuner.measure.confinement import ON, Confinement, SandboxGuard

MOST_PROCESSES = 512
"""Processes and threads of a candidate's user: a pool has at most 256 threads."""

MOST_OPEN_FILES = 256

LEAST_MEMORY_BYTES = 1 << 30

_NOT_FILES = "the files of jobs lie anywhere"

# Landlock: version 1 knows the first 13 rights to files, later ones each a few more.
_READ_RIGHTS = 1 << 0 | 1 << 2 | 1 << 3  # execute (map as code), read files, read folders
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_NETWORK_SINCE, _NETWORK_RIGHTS = 4, 0b11
_SCOPES_SINCE, _SCOPES = 6, 0b11

_SYSTEM_PATHS = (
    *("/usr", "/lib", "/lib64", "/lib32", "/etc/ld.so.cache", "/etc/localtime"),
    *("/dev/null", "/dev/zero", "/dev/urandom"),
    *("/proc/meminfo", "/proc/cpuinfo", "/proc/self", "/sys/fs/cgroup", "/sys/devices/system"),
)


class _Off(Exception):
    """A guard cannot be had; the message says why."""


def put_on(confinement: Confinement) -> dict[str, str]:
    """Confine this process for good; what is on (ON), and why the rest is not.

    Everything that will be imported should have been: another user may not find it.
    """
    if confinement.cores:
        _on_cores(confinement.cores)
    if confinement.folder:
        os.chdir(confinement.folder)
    steps: tuple[tuple[SandboxGuard, Callable[[Confinement], None]], ...] = (
        (SandboxGuard.LIMITS, _limits),
        (SandboxGuard.NETWORK, _network),
        (SandboxGuard.USER, _user),
        (SandboxGuard.PROCESSES, _processes),
        (SandboxGuard.PRIVILEGES, _privileges),
        (SandboxGuard.FILES, _files),
        (SandboxGuard.CALLS, _calls),
    )
    found: dict[str, str] = {}
    for guard, step in steps:
        try:
            step(confinement)
            found[guard.value] = ON
        except _Off as error:
            found[guard.value] = str(error)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            found[guard.value] = f"the system refuses: {error}"
    return found


def _on_cores(cores: tuple[int, ...]) -> None:
    """Run on these cores only, as far as there are any of them."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))


def _limits(confinement: Confinement) -> None:
    memory = confinement.memory_bytes or max(_machine_bytes(), LEAST_MEMORY_BYTES)
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, MOST_OPEN_FILES),
        (resource.RLIMIT_AS, memory),
    ):
        _, hard = resource.getrlimit(limit)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))


def _machine_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _network(_: Confinement) -> None:
    _need_linux()
    own = linux.CLONE_NEWNET | linux.CLONE_NEWIPC
    linux.unshare(own if os.geteuid() == 0 else own | linux.CLONE_NEWUSER)


def _user(confinement: Confinement) -> None:
    if confinement.user is None:
        raise _Off("the worker is not root" if os.geteuid() else "no user is named for it")
    os.setgroups([])
    os.setresgid(*[confinement.user] * 3)
    os.setresuid(*[confinement.user] * 3)


def _processes(confinement: Confinement) -> None:
    if confinement.user is None:
        raise _Off("it would count what else this user runs")
    resource.setrlimit(resource.RLIMIT_NPROC, (MOST_PROCESSES, MOST_PROCESSES))


def _privileges(_: Confinement) -> None:
    _need_linux()
    # a change of the user has cleared it
    linux.die_with_parent(signal.SIGKILL)
    linux.drop_capabilities()
    linux.no_new_privileges()


def _files(confinement: Confinement) -> None:
    _need_linux()
    if not confinement.folder:
        raise _Off(_NOT_FILES)
    try:
        version = linux.landlock_version()
    except OSError as error:
        raise _Off(f"the kernel has no Landlock: {error.strerror}") from error
    handled: tuple[int, ...] = ((1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1,)
    if version >= _NETWORK_SINCE:
        handled += (_NETWORK_RIGHTS,)
    if version >= _SCOPES_SINCE:
        handled += (_SCOPES,)
    places = {*sys.path, sys.prefix, sys.base_prefix, str(IMPORT_ROOT.resolve())}
    linux.landlock(handled, _READ_RIGHTS, [*_SYSTEM_PATHS, *sorted(filter(None, places)), "."])


def _calls(_: Confinement) -> None:
    _need_linux()
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise _Off(f"there is no filter for {machine}")
    try:
        linux.filter_calls(filter_program(machine, os.getpid()))
    except OSError as error:
        raise _Off(f"the kernel has no filter for it: {error.strerror}") from error


def _need_linux() -> None:
    if sys.platform != "linux":
        raise _Off("this is no Linux")
