"""Parses the options of a worker from its command line and its environment variables."""

from __future__ import annotations

import argparse
import base64
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tilewright.compiler.package import package_version
from tilewright.compiler.targets.core_kinds import ranges_text
from tilewright.compiler.targets.detection import core_kinds, core_label, core_name
from tilewright.compiler.targets.device import available_cores
from tilewright.service.bearer import TOKEN_FORM, is_token
from tilewright.tuner.measure.harness.driver import SANDBOX_USERS


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker.

    Attributes:
        server: the URL of the service.
        token: the worker's token.
        name: the worker's name.
        spool: the folder of the worker's state.
        targets: the targets to measure for; empty to let the service determine them.
        cache_bytes: the size limit of the cache of blobs.
        sandbox_users: the first and last user id under which candidates run if the harness runs as
            root; None to run them as root.
        sandbox_bytes: the memory limit of the sandbox; 0 for the memory of the machine.
        cores: the cores on which candidates run; empty for all.
        service_key: the public key of the service; None to trust the key of the first contact.
        check: whether to check the device and exit.
        as_json: whether the findings of the check, or the log, are JSON.
        via: a command that starts a shell on the device, such as `ssh pi@board`; "" for this
            machine.
        log_level: the lowest level of messages that are logged.
    """

    server: str
    token: str
    name: str
    spool: Path
    targets: tuple[str, ...] = ()
    cache_bytes: int = 1 << 30
    sandbox_users: tuple[int, int] | None = SANDBOX_USERS  # if the harness runs as root
    sandbox_bytes: int = 0  # 0: as much as the machine has
    cores: tuple[int, ...] = ()
    service_key: str | None = None  # of the service; None: the key of the first contact
    check: bool = False  # check the device and exit
    as_json: bool = False  # the findings of the check, or the log
    via: str = ""  # a command that reaches the device; "": this machine
    log_level: int = logging.INFO


LEAST_SANDBOX_MIB = 64
"""Smallest accepted memory limit of the sandbox, in MiB. It suffices for the harness, a thread pool
and the buffers of a small batch."""

KEY_BYTES = 32
"""Length of a public key in bytes."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one sentence about the wrong usage, and exit with status 2."""
        self.exit(2, f"error: {message}\n")


def default_spool(environment: Mapping[str, str]) -> Path:
    """Return the default folder of the worker's state.

    It is `$TILEWRIGHT_SPOOL` if set, else `$XDG_STATE_HOME/tilewright`, else
    `~/.local/state/tilewright`.
    """
    given = environment.get("TILEWRIGHT_SPOOL", "")
    base = environment.get("XDG_STATE_HOME", "")
    if given:
        return Path(given)
    return (Path(base) if base else Path.home() / ".local" / "state") / "tilewright"


def parse_arguments(
    arguments: Sequence[str], environment: Mapping[str, str], root: Path = Path("/")
) -> WorkerOptions:
    """Parse the command line of a worker; the environment provides defaults.

    For wrong usage, a sentence is printed and the process exits with status 2.

    Args:
        arguments: the words of the command line.
        environment: the environment variables.
        root: the folder that contains `proc` and `sys`.
    """
    parser = _Parser("tilewright-worker", description="Measure candidates.", allow_abbrev=False)
    parser.add_argument(
        "--server",
        default=environment.get("TILEWRIGHT_SERVER", ""),
        help="URL of the service (or TILEWRIGHT_SERVER)",
    )
    parser.add_argument(
        "--token",
        default=environment.get("TILEWRIGHT_TOKEN", ""),
        help="bearer token with the scope 'measure' (or TILEWRIGHT_TOKEN)",
    )
    parser.add_argument("--token-file", type=Path, help="file that holds the token")
    parser.add_argument(
        "--via",
        default=environment.get("TILEWRIGHT_VIA", ""),
        metavar="COMMAND",
        help="command that starts a shell on the device, such as 'ssh pi@board' or 'adb shell': "
        "nothing needs to be installed there (or TILEWRIGHT_VIA; default: the device is this "
        "machine)",
    )
    parser.add_argument(
        "--name", help="name for people (default: that of this machine, or the command of --via)"
    )
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        help="name or key of a target that this device runs; may be repeated "
        "(default: found from the device)",
    )
    parser.add_argument(
        "--spool",
        type=Path,
        default=default_spool(environment),
        help="folder of unreported results and of the cache (or TILEWRIGHT_SPOOL)",
    )
    parser.add_argument(
        "--cache-mib", type=int, default=1024, help="size of the cache of expected outputs"
    )
    parser.add_argument(
        "--sandbox-users",
        default=environment.get("TILEWRIGHT_SANDBOX_USERS", "{}-{}".format(*SANDBOX_USERS)),
        metavar="FIRST-LAST",
        help="numbers of users that candidates run as, one for each harness, where that is root; "
        "'none': as root (or TILEWRIGHT_SANDBOX_USERS; default: {}-{})".format(*SANDBOX_USERS),
    )
    parser.add_argument(
        "--sandbox-mib",
        type=int,
        default=0,
        help="most memory of the sandbox (default: as much as the machine has)",
    )
    parser.add_argument(
        "--cores",
        default=environment.get("TILEWRIGHT_CORES", ""),
        help="logical cores that candidates run on, such as 2,4-7, or the name of a kind (or "
        "TILEWRIGHT_CORES; default: those of the fastest kind)",
    )
    parser.add_argument(
        "--service-key",
        default=environment.get("TILEWRIGHT_SERVICE_KEY", ""),
        help="public key of the service, as 'tilewright record key' says it (or "
        "TILEWRIGHT_SERVICE_KEY; default: the one that it had when it was first met)",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="say what is wrong with this device and what to type, and end; needs no server",
    )
    parser.add_argument(
        "--json", action="store_true", help="write the log, or the findings of --check, as JSON"
    )
    level = parser.add_mutually_exclusive_group()
    for names, least, text in (
        (("-q", "--quiet"), logging.WARNING, "log warnings and errors only"),
        (("-v", "--verbose"), logging.DEBUG, "log more detail"),
    ):
        level.add_argument(*names, action="store_const", dest="log_level", const=least, help=text)
    parser.set_defaults(log_level=logging.INFO)
    parser.add_argument(
        "--version", action="version", version=f"tilewright-worker {package_version()}"
    )
    given = parser.parse_args(arguments)
    token, source = given.token, "--token (or TILEWRIGHT_TOKEN)"
    if given.token_file is not None:
        source = f"the token file '{given.token_file}'"
        try:
            token = given.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it holds no text"
            parser.error(f"{source} cannot be read: {reason}")
    if (token or given.token_file is not None) and not is_token(token):
        # the content, which may be a secret, is not printed
        parser.error(
            f"{source} does not contain a token, which is {TOKEN_FORM}; "
            "`tilewright token create NAME --scope measure` on the service makes one"
        )
    if not given.check and not given.server:
        parser.error("the service's address is empty: give --server URL, or set TILEWRIGHT_SERVER")
    if not given.check and not given.server.startswith(("http://", "https://")):
        parser.error(f"--server: '{given.server}' is not an http or https URL")
    if not given.check and not token:
        parser.error("--token or --token-file is needed")
    if given.cache_mib < 1:
        parser.error("--cache-mib: must be at least 1")
    if given.sandbox_mib < 0 or 0 < given.sandbox_mib < LEAST_SANDBOX_MIB:
        parser.error(f"--sandbox-mib: must be at least {LEAST_SANDBOX_MIB}")
    if given.via and given.cores:
        parser.error("--cores is for a device that is this machine, and does not go with --via")
    if given.service_key and len(of_base64(given.service_key)) != KEY_BYTES:
        parser.error(f"--service-key: '{given.service_key}' is not a public key")
    try:
        users, cores = _users(given.sandbox_users), _cores(given.cores, root)
    except ValueError as error:
        parser.error(str(error))
    return WorkerOptions(
        given.server,
        token,
        given.name or given.via or socket.gethostname(),
        given.spool,
        tuple(given.target),
        given.cache_mib << 20,
        users,
        given.sandbox_mib << 20,
        cores,
        given.service_key or None,
        given.check,
        given.json,
        given.via,
        given.log_level,
    )


def of_base64(text: str) -> bytes:
    """Decode a key or a signature in base64; return empty bytes if the text is invalid."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def _users(text: str) -> tuple[int, int] | None:
    """Parse a range of user ids, such as `100000-100063`; return the first and the last id.

    Return None for the text `none`.

    Raises:
        ValueError: if the text is not a range of users other than root.
    """
    if text == "none":
        return None
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 1 << 31):
        raise ValueError(
            f"--sandbox-users: '{text}' is not a range FIRST-LAST of users without root"
        )
    return int(first), int(last)


def _cores(text: str, root: Path) -> tuple[int, ...]:
    """Parse a list of cores, such as "2,4-5", or a kind of core, such as "cortex-a76".

    Args:
        text: the list or the kind; "" for the fastest kind of core.
        root: the folder that contains `proc` and `sys`.

    Returns:
        the cores, ascending; empty for "" if all cores are of one kind.

    Raises:
        ValueError: if the text is neither a list of cores nor a kind of core, or this process may
            not run on a listed core.
    """
    usable = available_cores()
    # a container may see cores that it may not use
    kinds = [kind for kind in core_kinds(root) if usable.issuperset(kind.cores)]
    if not text:
        return kinds[0].cores if len(kinds) > 1 else ()
    named = [kind for kind in kinds if text in (core_name(kind.processor), core_label(kind))]
    if named:
        return tuple(sorted(core for kind in named for core in kind.cores))
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        last = last or first
        if not (_is_core(first) and _is_core(last) and int(first) <= int(last)):
            names = ", ".join(filter(None, map(core_label, kinds)))
            of_here = f" and none of this machine's kinds of cores ({names})" if names else ""
            raise ValueError(f"--cores: '{text}' is not a list such as 2,4-7{of_here}")
        found.update(range(int(first), int(last) + 1))
    if found - usable:
        lacking = ", ".join(map(str, sorted(found - usable)[:10]))
        raise ValueError(
            f"--cores: this process may not run on {lacking}; it may on {ranges_text(usable)}"
        )
    return tuple(sorted(found))


def _is_core(text: str) -> bool:
    return text.isdecimal() and len(text) <= 5 and int(text) < 1 << 16
