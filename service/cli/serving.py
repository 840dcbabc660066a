"""Commands that run until they are stopped: server run, server tuner, server worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.compiler.package import run_module
from tilewright.service.cli.common import UserError, load_settings
from tilewright.service.cli.terminal import complain, note
from tilewright.service.cli.verbosity import verbosity

if TYPE_CHECKING:
    from tilewright.service.settings import Settings

STOP_SECONDS = 10.0

LogJsonOption = Annotated[bool, typer.Option("--json", help="Write the log as lines of JSON")]


def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, max=65535, help="Port to listen on")
    ] = None,
    no_tuner: Annotated[
        bool, typer.Option("--no-tuner", help="Start no tuner process of its own")
    ] = False,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Start no worker of its own on this machine")
    ] = False,
    tls_certificate: Annotated[
        Path | None,
        typer.Option("--tls-cert", metavar="PEM", help="Certificate, which enables TLS"),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="PEM", help="The certificate's key")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Listen on networks without TLS: tokens are unencrypted"),
    ] = False,
    as_json: LogJsonOption = False,
) -> None:
    """Serve the REST interface, with a tuner process and a worker for this machine next to it.

    With --tls-cert, no worker starts: it could not verify the certificate at a loopback address.

    Example: tilewright server run --host 0.0.0.0 --tls-cert service.pem
    """
    import structlog
    import uvicorn

    from tilewright.service.api.app import create_app, stop_waiting
    from tilewright.service.api.listening import ListenError, listen
    from tilewright.service.api.server import server_config
    from tilewright.service.dashboard import app as dashboard
    from tilewright.service.embedded import owner_token, worker_token
    from tilewright.service.storage import open_storage

    settings = _server_settings(
        as_json, host=host, port=port, tls_certificate=tls_certificate, tls_key=tls_key
    )
    _check_tls(settings, insecure)
    try:
        sockets = listen(settings.host, settings.port)
    except ListenError as error:
        raise UserError(str(error)) from error
    port = sockets[0].getsockname()[1]
    storage = open_storage(settings)
    owner_token(settings, storage)
    url = f"{'https' if settings.tls_certificate else 'http'}://{url_host(settings.host)}:{port}"
    say = structlog.get_logger().info if as_json else note
    say(f"serving {url}/v1, the owner's token is in {settings.token_file}")
    say(f"dashboard: {url}{dashboard.PATH}/")
    printing = _printing_options(as_json)
    children = [] if no_tuner else [Supervised("tuner", printing)]
    if settings.tls_certificate is not None and not no_worker:
        say(
            "no worker is started here, as a loopback address does not match the certificate: "
            f"start one with `tilewright server worker --server https://NAME:{port}`"
        )
    elif not no_worker:
        worker_token(settings, storage)
        children.append(Supervised("worker", [*_local_worker(settings, port), *printing]))
    app = create_app(settings, storage)

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            asyncio.get_running_loop().call_soon_threadsafe(stop_waiting, app)
            super().handle_exit(sig, frame)

    server = Server(server_config(app, settings))

    def stop() -> None:
        server.should_exit = True

    # uvicorn raises the signal that stopped it again after its shutdown. Without a handler, that
    # would end this process before it stops its children.
    _on_signals(stop)
    try:
        server.run(sockets)
    finally:
        for child in children:
            child.ask_to_end()
        for child in children:
            child.wait()
        storage.close()
    if not server.started:
        raise UserError(f"the service at {url} did not start; its log says why")


def _server_settings(as_json: bool, **options: object) -> Settings:
    """Return the settings with changes from the command line, and set up the server's log.

    Unlike other commands, a server process uses the log level of the settings. `options` are new
    values by setting; None keeps a setting.
    """
    from tilewright.service import logs
    from tilewright.service.settings import Settings

    log_format = "json" if as_json else None
    settings = load_settings(log_level=Settings().log_level, log_format=log_format, **options)
    logs.log_warnings()
    return settings


def _printing_options(as_json: bool) -> list[str]:
    """Return this command's output options for a child process, such as ["--quiet", "--json"]."""
    return [*filter(None, [verbosity().value]), *["--json"] * as_json]


def _check_tls(settings: Settings, insecure: bool) -> None:
    """Check that the certificate and key work, and that no token crosses a network unencrypted.

    If the settings state the address of a proxy, the proxy is assumed to terminate TLS.

    Raises:
        UserError: if the certificate or key cannot be used, or tokens would be sent unencrypted
            without `insecure`.
    """
    import ssl

    if settings.tls_certificate is None:
        if settings.tls_key is not None:
            raise UserError("--tls-key needs --tls-cert")
        if is_loopback(settings.host):
            return
        if insecure:
            complain(f"warning: tokens pass {settings.host} in clear")
        elif "trusted_proxies" not in settings.model_fields_set:
            raise UserError(
                f"tokens would be sent unencrypted over {settings.host}: give --tls-cert, or put"
                " the service behind a proxy that speaks TLS and set"
                " TILEWRIGHT_TRUSTED_PROXIES to its address; --insecure listens all the same"
            )
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"'{settings.tls_certificate}' cannot be used for TLS: {error}") from error


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable from this machine only."""
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_host(host: str) -> str:
    """Return a host name or an IP address in the syntax of a URL: IPv6 in brackets (RFC 3986)."""
    return f"[{host}]" if ":" in host else host


def _local_worker(settings: Settings, port: int) -> list[str]:
    """Return the arguments of `server worker` for a worker that connects to this service.

    The worker connects to `port` by HTTP without TLS. It stores unreported results in the service's
    data folder, because another worker of this user may use the default folder.
    """
    import ipaddress

    host = settings.host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if address.is_unspecified:
            address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
        host = str(address)
    spool = settings.data_folder.absolute() / "worker"
    return [
        *("--server", f"http://{url_host(host)}:{port}"),
        *("--token-file", str(settings.worker_token_file.absolute())),
        *("--spool", str(spool)),
    ]


class Supervised:
    """Runs `tilewright server COMMAND` in a child process, and restarts it whenever it ends.

    Args:
        command: `tuner` or `worker`.
        arguments: the options of the command.
    """

    def __init__(self, command: str, arguments: list[str]) -> None:
        self._command = command
        self._arguments = arguments
        self._stopping = threading.Event()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch, name=f"{command}-watch", daemon=True)
        self._thread.start()

    def _start(self) -> subprocess.Popen[bytes]:
        # --with-parent: after its service was killed, a child must not run next to a new one
        return subprocess.Popen(
            [*run_module("service.cli"), "server", self._command, "--with-parent", *self._arguments]
        )

    def _watch(self) -> None:
        pause = 1.0
        while not self._stopping.wait(0.2):
            if self._process.poll() is not None:
                if self._stopping.wait(pause):  # Ctrl-C also ends the children: nothing to report
                    return
                complain(f"the {self._command} ended ({self._process.returncode})")
                pause = min(2 * pause, 30.0)
                self._process = self._start()

    def ask_to_end(self) -> None:
        """Send SIGTERM to the child process, and do not restart it.

        Returns before the process has ended.
        """
        self._stopping.set()
        self._thread.join()
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait until the child process has ended. Kill it if this takes over STOP_SECONDS."""
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


WithParentOption = Annotated[
    bool, typer.Option("--with-parent", hidden=True, help="End when the parent process ends")
]


def tuner(
    builders: Annotated[
        str | None,
        typer.Option(
            "--builders", help="Processes that compile, or a Dask scheduler: dask://HOST:PORT"
        ),
    ] = None,
    as_json: LogJsonOption = False,
    with_parent: WithParentOption = False,
) -> None:
    """Take jobs from the database and tune them. Workers measure the candidates.

    Example: tilewright server tuner --builders 8
    """
    from tilewright.service.jobs.process.tuner_process import TunerProcess
    from tilewright.service.settings import Settings
    from tilewright.service.storage import open_storage
    from tilewright.tuner.measure.dask_builder import is_dask

    settings = _server_settings(as_json)
    if builders is not None:
        settings = Settings.model_validate({**settings.model_dump(), "builders": builders})
    storage = open_storage(settings)
    process = TunerProcess(settings, storage)
    if is_dask(settings.builders):
        _ = process.builder  # reports a silent Dask scheduler now, not in a job
    _on_signals(process.stop)
    if with_parent:
        _watch_parent(process.stop)
    try:
        process.run()
    finally:
        storage.close()


def _on_signals(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # in a thread: the handler may interrupt the main thread while it holds the event's lock
        signal.signal(number, lambda *_: threading.Thread(target=stop).start())


def _watch_parent(stop: Callable[[], None]) -> None:
    parent, over = os.getppid(), threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            if os.getppid() != parent:
                stop()
                return

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


SandboxUsersOption = Annotated[
    str | None,
    typer.Option("--sandbox-users", help="Users that candidates run as: FIRST-LAST, or none"),
]
SandboxMibOption = Annotated[
    int | None, typer.Option("--sandbox-mib", help="Memory limit of the sandbox")
]
CoresOption = Annotated[
    str | None, typer.Option("--cores", help="Cores that candidates run on, such as 2,4-7")
]


def as_arguments(**options: object) -> list[str]:
    """Return options as command-line arguments: ["--sandbox-mib", "2048"] for sandbox_mib=2048.

    Options that are None are left out.
    """
    given = {name: str(value) for name, value in options.items() if value is not None}
    return [w for name, value in given.items() for w in (f"--{name.replace('_', '-')}", value)]


def worker(
    server: Annotated[str | None, typer.Option("--server", help="URL of the service")] = None,
    token: Annotated[str | None, typer.Option("--token", help="Bearer token")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the token")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the worker")] = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", help="Target that this device runs; repeatable")
    ] = None,
    spool: Annotated[
        Path | None, typer.Option("--spool", help="Folder of unreported results and the cache")
    ] = None,
    sandbox_users: SandboxUsersOption = None,
    sandbox_mib: SandboxMibOption = None,
    cores: CoresOption = None,
    as_json: LogJsonOption = False,
    with_parent: WithParentOption = False,
) -> None:
    """Measure candidates for a service. (`tilewright-worker` is the same without extras.)

    Example: tilewright server worker --server http://host:8080 --token-file token
    """
    from tilewright.service.worker.process import main

    settings = load_settings()
    arguments = ["--server", settings.server if server is None else server]
    arguments += _printing_options(as_json)
    if token_file is None and token is None:
        from tilewright.service.embedded import client_token

        token = client_token(settings)
    arguments += as_arguments(
        token=token,
        token_file=token_file,
        name=name,
        spool=spool,
        sandbox_users=sandbox_users,
        sandbox_mib=sandbox_mib,
        cores=cores,
    )
    for value in target or ():
        arguments += ["--target", value]
    if with_parent:
        _watch_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))
    if status := main(arguments):
        raise typer.Exit(status)
