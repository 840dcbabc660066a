"""Calls of the Linux kernel that Python has no function for. Every one raises OSError."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterable
from pathlib import Path

CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x0800_0000, 0x1000_0000, 0x4000_0000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_SET_MODE_FILTER, _SECCOMP_MODE_FILTER = 1, 2
_TSYNC, _SPEC_ALLOW = 1, 4
_CAPABILITIES_VERSION = 0x2008_0522

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
"""Calls that are younger than 2019 have one number on every architecture."""

_O_PATH = 0o10000000

_SECCOMP = {"x86_64": 317, "aarch64": 277, "riscv64": 277}
_CAPSET = {"x86_64": 126, "aarch64": 91, "riscv64": 91}


def die_with_parent(signal: int) -> None:
    """Get a signal when the parent ends. A change of the user forgets it."""
    _prctl(_PR_SET_PDEATHSIG, signal)


def hide() -> None:
    """Nobody but root may read this process's memory, environment and files in /proc."""
    _prctl(_PR_SET_DUMPABLE, 0)


def hide_argument(secret: str) -> bool:
    """Blank a secret in this process's command line, which every user may read.

    Returns whether none of it is left there.
    """
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    wanted = secret.encode()
    while start and wanted:
        place = ctypes.string_at(start, end - start).find(wanted)
        if place < 0:
            break
        ctypes.memset(start + place, ord("*"), len(wanted))
    return wanted not in Path("/proc/self/cmdline").read_bytes()


def no_new_privileges() -> None:
    """No program that is started gets more rights; filters need that."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def unshare(flags: int) -> None:
    """Namespaces of its own for this process. A user namespace needs a single thread."""
    _checked(_libc().unshare(flags))


def drop_capabilities() -> None:
    """Give up what root may do, also within a namespace."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    _syscall(_CAPSET[platform.machine()], ctypes.byref(header), ctypes.byref(_six_words()))


def filter_calls(program: bytes) -> None:
    """Put a filter of system calls, a classic BPF program, before every thread.

    Kernels before 5.16 make code under a filter slower against Spectre, unless told not to: then
    what is measured here would be slower than what users run.
    """
    code = ctypes.create_string_buffer(program, len(program))
    described = _Program(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
    number = _SECCOMP[platform.machine()]
    try:
        flags = _TSYNC | _SPEC_ALLOW
        _syscall(number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(described))
    except OSError:
        _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(described))


def landlock_version() -> int:
    """Of the kernel's Landlock, from 1 on."""
    return _syscall(_LANDLOCK_CREATE, None, 0, 1)


def landlock(handled: tuple[int, ...], allowed: int, paths: Iterable[str]) -> None:
    """Deny what `handled` names (files, network, scopes), but `allowed` beneath the paths.

    Paths that are not there are left out.
    """
    attributes = (ctypes.c_uint64 * len(handled))(*handled)
    ruleset = _syscall(_LANDLOCK_CREATE, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    try:
        for path in paths:
            try:
                place = os.open(path, _O_PATH | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                rights = allowed if os.path.isdir(path) else allowed & ~_READ_DIR
                rule = _Beneath(rights, place)
                _syscall(_LANDLOCK_ADD, ruleset, 1, ctypes.byref(rule), 0)
            finally:
                os.close(place)
        _syscall(_LANDLOCK_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


_READ_DIR = 1 << 3


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("place", ctypes.c_int32))


def _six_words() -> ctypes.Array[ctypes.c_uint32]:
    """Effective, permitted and inheritable capabilities, twice 32 of each: none."""
    return (ctypes.c_uint32 * 6)()


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    wide = ctypes.c_ulong
    _checked(_libc().prctl(option, wide(value), wide(pointer), wide(0), wide(0)))


def _syscall(number: int, *arguments: object) -> int:
    call = _libc().syscall
    call.restype = ctypes.c_long
    wide = (ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)
    return _checked(call(ctypes.c_long(number), *wide))


def _checked(answer: int) -> int:
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(answer)
