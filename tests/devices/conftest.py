"""A service and workers on machines that are not the one that it tunes on."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.devices.emulators import SOURCE, Emulated, emulate, zig_environment
from tests.devices.machines import Machine
from tests.devices.packages import UnavailableError
from tilewright.db.storage import Storage
from tilewright.service.client import Client, ClientError
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

ALL_MACHINES = "--all-machines"

START_SECONDS = 300.0
"""Start-up limit of a process: an emulated one imports NumPy twice, on a machine with other
load."""

END_SECONDS = 60.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """This option is known if pytest is given this folder, as `make test-devices` does."""
    parser.addoption(ALL_MACHINES, action="store_true", help="emulate the rarer machines too")


class Service:
    """`tilewright server run` with its tuner, and workers; each has a log in the folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._folder = folder
        self._settings = Settings(data_folder=folder / "data")
        self._environment = {
            **environment,
            "TILEWRIGHT_DATA_FOLDER": str(folder / "data"),
            "TILEWRIGHT_SERVER": self.url,
            "TILEWRIGHT_BUILDERS": "1",
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._start(
            "serve",
            [
                sys.executable,
                "-m",
                "tilewright.service.cli",
                "server",
                "run",
                "--no-worker",
                "--port",
                str(port),
            ],
        )
        self._until(self._answers, "serve")

    @property
    def token(self) -> str:
        return (self._folder / "data/token").read_text().strip()

    def client(self) -> Client:
        return Client(self.url, self.token)

    def storage(self) -> Storage:
        """The storage of the service, opened by this process as well."""
        return open_storage(self._settings)

    def database_files(self) -> list[Path]:
        """The files of the database, including the log that is not yet merged into the main one."""
        return sorted((self._folder / "data").glob("*.db*"))

    def start_via(
        self, emulated: Emulated, put_harness: Callable[[str, Path], str], name: str
    ) -> None:
        """A worker here whose harness runs on the machine, once it is registered.

        Args:
            put_harness: puts an architecture's harness into a folder; returns its name for `--via`.
        """
        spool = self._folder / f"spool-{name}"
        target = put_harness(emulated.machine.architecture, spool / "tilewright" / "harness")
        via = shlex.join([*emulated.python[:-1], f"{{{target}}}"])
        command = [sys.executable, "-m", "tilewright.service.worker", "--via", via]
        command += ["--name", name, "--server", self.url, "--spool", str(spool)]
        command += ["--token-file", str(self._folder / "data/token")]
        self._start(name, command, {**os.environ, "XDG_CACHE_HOME": str(spool)})
        self._until(lambda: name in self._names(), name)

    def run(self, *arguments: str, seconds: float = 240.0) -> str:
        """Run a command of the command line and return its output. All other processes must live
        meanwhile.

        A job takes about a tenth of the default `seconds` on two free cores.
        """
        command = [sys.executable, "-m", "tilewright.service.cli", *arguments]
        self._start("command", command)
        process = self._running.pop("command")
        ends = time.monotonic() + seconds
        try:
            while process.poll() is None:
                dead = [name for name, other in self._running.items() if other.poll() is not None]
                assert not dead, f"{dead} ended\n{self.logs()}"
                assert time.monotonic() < ends, self.logs()
                time.sleep(0.05)
        finally:
            process.kill()
            process.wait()
        printed = self._log("command").read_text()
        assert process.returncode == 0, f"{printed}\n{self.logs()}"
        return printed

    def stop(self) -> None:
        """End all, the workers first; none may fail."""
        codes = {}
        for name, process in reversed(self._running.items()):
            process.terminate()
            try:
                codes[name] = process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        assert set(codes.values()) == {0}, f"{codes}\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(f"{name}:\n{self._log(name).read_text()}" for name in self._running)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _start(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment or self._environment,
                cwd=folder,
                start_new_session=True,
            )

    def _until(self, condition: Callable[[], bool], name: str) -> None:
        ends = time.monotonic() + START_SECONDS
        while not condition():
            assert self._running[name].poll() is None, self.logs()
            assert time.monotonic() < ends, self.logs()
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            with Client(self.url, "") as client:
                client.health()
        except ClientError:
            return False
        return True

    def _names(self) -> set[str]:
        with self.client() as client:
            return {worker.name for worker in client.workers()}


@pytest.fixture
def emulated(machine: Machine, tmp_path: Path) -> Emulated:
    """The test's machine, ready to run programs."""
    (tmp_path / "machine").mkdir()
    try:
        return emulate(machine, tmp_path / "machine")
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def plain_service(tmp_path: Path) -> Iterator[Service]:
    """A service for workers of any kind."""
    (tmp_path / "service").mkdir()
    started = Service(tmp_path / "service", dict(os.environ))
    yield started
    started.stop()


@pytest.fixture
def service(emulated: Emulated, tmp_path: Path) -> Iterator[Service]:
    """A service whose tuner can link for the test's machine."""
    environment = dict(os.environ)
    if emulated.packages != SOURCE:
        environment = zig_environment()
    (tmp_path / "service").mkdir()
    started = Service(tmp_path / "service", environment)
    yield started
    started.stop()
