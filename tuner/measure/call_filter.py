"""Which system calls a candidate may make: a filter for seccomp, as a classic BPF program.

Candidates compute. What none of them needs is refused: who opens a connection, starts a program or
looks into another process is killed with SIGSYS; who changes files gets an error, as an import that
would leave a compiled copy behind may try just that. Everything else is let through, because the
interpreter and its libraries differ from device to device.
"""

from __future__ import annotations

import errno
import os
import struct

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
"""What the kernel calls an architecture in audits."""

_KILL, _ERRNO, _ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000

_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in what a filter is given; an argument has 8 bytes, its low half first."""

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

_X32 = 0x4000_0000
"""From here on lie the numbers of a second set of calls that x86-64 kernels may have."""

# name: number on x86-64, number elsewhere; None where there is none
_FATAL: dict[str, tuple[int | None, int | None]] = {
    # the network
    "socket": (41, 198),
    "socketpair": (53, 199),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    "sendto": (44, 206),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # programs and processes
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    # namespaces and mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    # rights
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "setgroups": (116, 159),
    "setfsuid": (122, 151),
    "setfsgid": (123, 152),
    "capset": (126, 91),
    "personality": (135, 92),
    # ways around the filter and into the kernel
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "open_by_handle_at": (304, 265),
    "syslog": (103, 116),
    # the machine
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "iopl": (172, None),
    "ioperm": (173, None),
}

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # names and contents of files
    "creat": (85, None),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rmdir": (84, None),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    # limits, and memory that outlives the process or counts nowhere
    "setrlimit": (160, 164),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}

_UNKNOWN: dict[str, tuple[int | None, int | None]] = {
    # their arguments lie in memory, where no filter sees them; libraries fall back to older calls
    "clone3": (435, 435),
    "openat2": (437, 437),
}

_CLONE_THREAD = 0x10000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_PR_SET_PDEATHSIG = 1


def filter_program(machine: str, process: int) -> bytes:
    """The filter for one architecture, by its name in `platform.machine()`.

    Args:
        machine: a key of ARCHITECTURES.
        process: the number of the process that is filtered; it may send signals to itself alone.
    """
    column = 0 if machine == "x86_64" else 1
    rules = [
        *_load(_ARCHITECTURE),
        *_unless_equal(ARCHITECTURES[machine], _KILL),
        *_load(_NUMBER),
    ]
    if machine == "x86_64":
        rules += _if_at_least(_X32, _KILL)
    for table, action in (
        (_FATAL, _KILL),
        (_REFUSED, _ERRNO | errno.EACCES),
        (_UNKNOWN, _ERRNO | errno.ENOSYS),
    ):
        for numbers in table.values():
            number = numbers[column]
            if number is not None:
                rules += _if_equal(number, action)
    for call, position in (((2, None), 1), ((257, 56), 2)):  # open, openat: their flags
        changes = _if_any_bit(_WRITING, _ERRNO | errno.EACCES)
        rules += _when(call[column], position, changes)
    rules += _when((56, 220)[column], 0, _unless_any_bit(_CLONE_THREAD, _KILL))  # clone
    for call in ((62, 129), (234, 131)):  # kill, tgkill
        rules += _when(call[column], 0, _unless_equal(process, _KILL))
    rules += _when((157, 167)[column], 0, _if_equal(_PR_SET_PDEATHSIG, _ERRNO | errno.EPERM))
    for half in (0, 1):  # prlimit64: limits are read by all, and set by nobody
        null = _unless_equal(0, _ERRNO | errno.EPERM)
        rules += _when((302, 261)[column], 2, null, half)
    rules += [_statement(_RETURN, _ALLOW)]
    return b"".join(rules)


def _statement(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _load(offset: int) -> list[bytes]:
    return [_statement(_LOAD, offset)]


def _if_equal(value: int, action: int) -> list[bytes]:
    return [_statement(_JUMP_EQUAL, value, 0, 1), _statement(_RETURN, action)]


def _unless_equal(value: int, action: int) -> list[bytes]:
    return [_statement(_JUMP_EQUAL, value, 1, 0), _statement(_RETURN, action)]


def _if_at_least(value: int, action: int) -> list[bytes]:
    return [_statement(_JUMP_AT_LEAST, value, 0, 1), _statement(_RETURN, action)]


def _if_any_bit(bits: int, action: int) -> list[bytes]:
    return [_statement(_JUMP_ANY_BIT, bits, 0, 1), _statement(_RETURN, action)]


def _unless_any_bit(bits: int, action: int) -> list[bytes]:
    return [_statement(_JUMP_ANY_BIT, bits, 1, 0), _statement(_RETURN, action)]


def _when(number: int | None, argument: int, rule: list[bytes], half: int = 0) -> list[bytes]:
    """A rule on half of an argument of one call, the low one or the high one.

    The number is loaded again behind it.
    """
    if number is None:
        return []
    inside = [*_load(_ARGUMENTS + 8 * argument + 4 * half), *rule, *_load(_NUMBER)]
    return [_statement(_JUMP_EQUAL, number, 0, len(inside)), *inside]
