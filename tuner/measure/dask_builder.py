"""Compilation of candidates on a Dask cluster, for example on a few extra machines.

The loss of a Dask worker or scheduler only delays builds: Dask repeats a build on another worker,
and if no worker is left, this machine builds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as BuildTimeoutError
from typing import TYPE_CHECKING, Any

from pebble import ProcessExpired

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.timings import Timings
from tilewright.tuner.measure.builder import (
    Builder,
    BuildFuture,
    CachingBuilder,
    Compile,
    ProcessBuilder,
    compile_with_compiler,
)
from tilewright.tuner.measure.dask_build import build_on_worker, versions_differ, versions_here

if TYPE_CHECKING:
    from distributed import Client

CONNECT_SECONDS = 10.0
"""Time limit in seconds for the Dask scheduler to answer."""

AGAIN_SECONDS = 30.0
"""Pause in seconds before the next attempt to connect to a Dask scheduler that did not answer."""

ABSENT_SECONDS = 10.0
"""Seconds without Dask workers after which this machine builds the candidates."""

LOOK_SECONDS = 1.0
"""Interval in seconds between two checks whether the Dask scheduler has workers."""


class BuilderError(CompilerError):
    """Raised if the Dask cluster cannot be used; the message is one sentence with the reason."""


class DaskBuilder(CachingBuilder):
    """Builds candidates on the workers of a Dask scheduler.

    While the scheduler has no workers, this machine builds.
    """

    def __init__(
        self,
        address: str,
        limit_seconds: float = 20.0,
        compile_candidate: Compile = compile_with_compiler,
        timings: Timings | None = None,
        local: Callable[[], ProcessBuilder] = ProcessBuilder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the builder without connecting to the scheduler.

        Args:
            address: the scheduler's address, `tcp://HOST:PORT` or `tls://HOST:PORT`. Keys and
                certificates come from Dask's own configuration.
            limit_seconds: the time limit of one build.
            compile_candidate: the compile function; picklable.
            timings: records the seconds of each build step.
            local: creates the builder that builds on this machine.
            clock: returns the time in seconds.
        """
        super().__init__(timings)
        self.address = address
        self._limit_seconds = limit_seconds
        self._compile = compile_candidate
        self._make_local = local
        self._clock = clock
        self._client: Client | None = None
        self._started = False
        self._local: ProcessBuilder | None = None
        self._versions = versions_here()
        self._cluster_lock = threading.RLock()
        self._ask_again = float("-inf")
        self._looked = float("-inf")
        self._seen = float("-inf")

    def start(self) -> None:
        """Connect to the scheduler, and check the software versions of its workers.

        Calls after the first successful one have no effect.

        Raises:
            BuilderError: if the scheduler does not answer, or if a worker's versions differ from
                those of this machine.
        """
        with self._cluster_lock:
            if not self._started:  # a scheduler lost since then is tried again later
                self._start()

    def _start(self) -> None:
        self._client = self._connect()
        self._seen = self._clock()
        for worker, theirs in self._client.run(versions_here).items():
            if theirs != self._versions:
                different = versions_differ(theirs, self._versions)
                raise BuilderError(f"Dask worker '{worker}' is of another version: {different}")
        self._started = True

    def begin(self, text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]) -> BuildFuture:
        arguments = text, schedule, mode
        with self._cluster_lock:
            client = self._connected()
        if client is None:
            return self.begin_here(*arguments)
        remote = client.submit(
            build_on_worker,
            self._compile,
            arguments,
            self._limit_seconds,
            self._versions,
            # the key is derived from the arguments: two tuners share an equal build
            pure=True,
        )
        return _Remote(self, remote, arguments)

    def begin_here(
        self, text: str, schedule: Mapping[str, Any], mode: Mapping[str, Any]
    ) -> BuildFuture:
        """Start to build a candidate on this machine instead of the cluster."""
        with self._cluster_lock:
            if self._local is None:
                self._local = self._make_local()
        return self._local.begin(text, schedule, mode)

    def close(self) -> None:
        """Disconnect from the scheduler, and stop the builder on this machine."""
        if self._client is not None:
            self._client.close(timeout=CONNECT_SECONDS)  # type: ignore[no-untyped-call]
        if self._local is not None:
            self._local.close()

    @property
    def workers(self) -> int:
        """Number of Dask workers connected to the scheduler; 0 if there is no connection to it."""
        client = self._client
        if client is None or client.status != "running":
            return 0
        return len(client.scheduler_info(n_workers=-1)["workers"])

    def abandoned(self) -> bool:
        """Whether the cluster cannot build.

        It cannot if there is no connection to the scheduler, or if the scheduler has had no workers
        for ABSENT_SECONDS.
        """
        client, now = self._client, self._clock()
        if client is None or client.status != "running":
            return True
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            if self.workers:
                self._seen = now
        return now - self._seen >= ABSENT_SECONDS

    def _connected(self) -> Client | None:
        """Return the Dask client, or None if the cluster cannot build now.

        If the connection to the scheduler is lost, try to connect again, at most every
        AGAIN_SECONDS.
        """
        if self._client is not None and self._client.status == "closed":
            self._client = None
        now = self._clock()
        if self._client is None and now >= self._ask_again:
            self._ask_again = now + AGAIN_SECONDS
            try:
                self._client = self._connect()
                self._seen = now
            except BuilderError:
                return None
        return None if self.abandoned() else self._client

    def _connect(self) -> Client:
        from distributed import Client

        try:
            return Client(  # type: ignore[no-untyped-call]
                self.address, timeout=CONNECT_SECONDS, set_as_default=False
            )
        except (OSError, TimeoutError) as error:
            raise BuilderError(
                f"the Dask scheduler at '{self.address}' does not answer: {error}"
            ) from error
        except ValueError as error:
            raise BuilderError(f"'{self.address}' is not an address of a Dask scheduler") from error


class _Remote:
    """The future of a build on the cluster. If the cluster loses the build, this machine builds."""

    def __init__(
        self,
        builder: DaskBuilder,
        remote: Any,
        arguments: tuple[str, Mapping[str, Any], Mapping[str, Any]],
    ) -> None:
        self._builder = builder
        self._remote = remote
        self._arguments = arguments
        self._here: BuildFuture | None = None
        self._given_up = False

    def done(self) -> bool:
        if self._given_up:
            return True
        if self._here is None and self._is_lost():
            self._here = self._builder.begin_here(*self._arguments)
        return self._here.done() if self._here is not None else bool(self._remote.done())

    def cancelled(self) -> bool:
        return self._given_up

    def cancel(self) -> bool:
        self._given_up = True
        if self._here is not None:
            return self._here.cancel()
        if self._remote.client.status == "running":
            self._remote.cancel()
        return True

    def result(self) -> Mapping[str, Any]:
        while not self.done():
            time.sleep(0.01)
        if self._here is not None:
            return self._here.result()
        answer: Mapping[str, Any] = self._remote.result()
        match next(iter(answer.items())):
            case "made", made:
                return dict(made)
            case "late", _:
                raise BuildTimeoutError
            case "expired", text:
                raise ProcessExpired(text, 1)
            case "refused", text:
                raise CompilerError(text)
            case _, text:
                raise RuntimeError(text)

    def _is_lost(self) -> bool:
        """Whether the build must be repeated on this machine.

        It must if Dask reports a failure, if a Dask worker has the wrong versions, or if the
        cluster cannot build any more.
        """
        if self._remote.done():
            if self._remote.status != "finished":
                return True
            return "differs" in self._remote.result()
        return self._builder.abandoned()


def is_dask(name: str) -> bool:
    """Whether a setting names a Dask scheduler: `dask://` or `dask+tls://` and an address."""
    return name.startswith(("dask://", "dask+tls://"))


def dask_address(name: str) -> str:
    """Convert the setting `dask://HOST:PORT` or `dask+tls://HOST:PORT` to an address for Dask.

    The result is `tcp://HOST:PORT` or `tls://HOST:PORT`.

    Raises:
        BuilderError: if the setting has neither form.
    """
    scheme, _, rest = name.partition("://")
    kinds = {"dask": "tcp", "dask+tls": "tls"}
    if scheme not in kinds or not rest.rpartition(":")[2].isdecimal():
        raise BuilderError(f"'{name}' is not a Dask scheduler: give dask://HOST:PORT")
    return f"{kinds[scheme]}://{rest}"


def _is_a_builder(made: DaskBuilder) -> Builder:
    return made
