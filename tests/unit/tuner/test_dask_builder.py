"""Builds on a Dask cluster of real processes: losses cost time and nothing else."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as BuildTimeoutError
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pebble import ProcessExpired

from benchmarks.dask_cluster import PATIENCE_SECONDS, Cluster, until
from tests.unit.tuner.compilers import patient, pretend
from tests.unit.tuner.test_builder import FakeTask, Text
from tilewright.compiler.errors import CompilerError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.measure import dask_build
from tilewright.tuner.measure.build_child import BuildChild
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.dask_builder import BuilderError, DaskBuilder, dask_address, is_dask
from tilewright.tuner.protocol.measurement import Status

distributed = pytest.importorskip("distributed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def here(compile_candidate: Any = pretend) -> Callable[[], ProcessBuilder]:
    return partial(ProcessBuilder, 1, compile_candidate=compile_candidate)


def task(text: str = "conv") -> Any:
    return FakeTask(Text(text))


def builds(builder: DaskBuilder, *names: str, text: str = "conv") -> Any:
    return builder.submit(task(text), [Schedule(name, ()) for name in names])


def test_builds_are_done_by_the_cluster_and_failures_are_data(cluster: Cluster) -> None:
    cluster.scheduler()
    workers = [cluster.worker(), cluster.worker()]
    builder = DaskBuilder(
        cluster.address, 2.0, pretend, local=lambda: pytest.fail("built on this machine")
    )
    try:
        builder.start()
        until(lambda: builder.workers == 2, "workers")
        found = builds(builder, "good", "refused", "crashes", "bug", "hangs", "fine").results()
        assert [one.status for one in found] == [
            Status.OK,
            Status.BUILD_ERROR,
            Status.BUILD_ERROR,
            Status.BUILD_ERROR,
            Status.BUILD_TIMEOUT,
            Status.OK,
        ]
        assert found[0].object_digest == "good" and found[0].spec == {"name": "conv"}
        assert found[1].error == "tile does not divide"
        assert "exit status 9" in found[2].error and "IndexError: off by one" in found[3].error
        assert all(worker.poll() is None for worker in workers), "a crash ended a Dask worker"
        (again,) = builds(builder, "good").results()
        assert again.object == found[0].object, "it was built again"
    finally:
        builder.close()


def test_a_lost_worker_and_then_a_lost_scheduler_lose_no_build(
    cluster: Cluster, tmp_path: Path
) -> None:
    scheduler = cluster.scheduler()
    workers = [cluster.worker(), cluster.worker()]
    shared = tmp_path / "shared"
    shared.mkdir()
    builder = DaskBuilder(cluster.address, PATIENCE_SECONDS, patient, local=here(patient))
    try:
        builder.start()
        until(lambda: builder.workers == 2, "workers")
        ticket = builds(builder, "a", "b", "c", "d", text=str(shared))
        until(lambda: len(list(shared.glob("by-*"))) == 2, "builds on both workers")
        workers[0].send_signal(signal.SIGKILL)
        until(lambda: builder.workers == 1, "notice of the loss")
        assert not ticket.done()
        scheduler.send_signal(signal.SIGKILL)
        (shared / "go").touch()
        until(ticket.done, "results")
        found = ticket.results()
        assert [one.status for one in found] == [Status.OK] * 4
        assert [one.object_digest for one in found] == ["a", "b", "c", "d"]
        (later,) = builds(builder, "e", text=str(shared)).results()
        assert later.status is Status.OK, "without a scheduler it is built here"
    finally:
        builder.close()


def test_a_scheduler_without_workers_is_not_waited_for(cluster: Cluster) -> None:
    cluster.scheduler()
    now = [0.0]
    builder = DaskBuilder(cluster.address, 20.0, pretend, local=here(), clock=lambda: now[0])
    try:
        builder.start()
        ticket = builds(builder, "good")
        assert not ticket.done()
        now[0] = 3600.0
        until(ticket.done, "a build on this machine")
        assert ticket.results()[0].status is Status.OK
    finally:
        builder.close()


def test_another_version_is_refused_before_the_first_build(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.scheduler()
    cluster.worker()
    monkeypatch.setattr(
        "tilewright.tuner.measure.dask_builder.versions_here", dask_build.versions_here
    )
    builder = DaskBuilder(cluster.address, 20.0, pretend, local=here())
    builder._versions = {**builder._versions, "code generation": "another"}
    try:
        client = distributed.Client(cluster.address, set_as_default=False)
        client.wait_for_workers(1, timeout=PATIENCE_SECONDS)
        client.close()
        with pytest.raises(BuilderError, match=r"code generation .* there, another here"):
            builder.start()
        # a worker that joins later is noticed by its first build, which is done here instead
        (built,) = builds(builder, "good").results()
        assert built.status is Status.OK
    finally:
        builder.close()


def test_a_scheduler_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.tuner.measure.dask_builder.CONNECT_SECONDS", 0.5)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    builder = DaskBuilder(f"tcp://127.0.0.1:{port}", 20.0, pretend, local=here())
    with pytest.raises(BuilderError, match=f"127.0.0.1:{port}' does not answer"):
        builder.start()
    (built,) = builds(builder, "good").results()
    assert built.status is Status.OK
    builder.close()


def test_a_build_that_was_given_up_is_not_waited_for(cluster: Cluster) -> None:
    cluster.scheduler()
    builder = DaskBuilder(cluster.address, 20.0, pretend, local=here())
    try:
        builder.start()
        ticket = builds(builder, "hangs")
        ticket.cancel()
        assert ticket.done() and ticket.results()[0].status is Status.CANCELLED
    finally:
        builder.close()


@pytest.mark.parametrize(
    ("name", "address"),
    [("dask://host:8786", "tcp://host:8786"), ("dask+tls://[::1]:1", "tls://[::1]:1")],
)
def test_addresses(name: str, address: str) -> None:
    assert is_dask(name) and dask_address(name) == address


@pytest.mark.parametrize("name", ["dask://host", "dask://", "http://host:1", "8"])
def test_what_is_no_scheduler_is_named(name: str) -> None:
    with pytest.raises(BuilderError, match=name):
        dask_address(name)


class TestBuildChild:
    @pytest.fixture
    def child(self) -> Iterator[BuildChild]:
        made = BuildChild(pretend)
        yield made
        made.close()

    def build(self, child: BuildChild, name: str, seconds: float = 60.0) -> Any:
        return child.build("conv", {"algorithm": name, "choices": []}, {}, seconds)

    def test_what_kills_it_or_hangs_is_told_and_the_next_is_built(self, child: BuildChild) -> None:
        first = self.build(child, "good")
        with pytest.raises(CompilerError, match="tile does not divide"):
            self.build(child, "refused")
        with pytest.raises(RuntimeError, match="IndexError: off by one"):
            self.build(child, "bug")
        same = self.build(child, "good")
        assert pid_of(first) == pid_of(same), "an error ends no child"
        with pytest.raises(ProcessExpired, match="exit status 9"):
            self.build(child, "crashes")
        with pytest.raises(BuildTimeoutError):
            self.build(child, "hangs", 0.2)
        assert pid_of(self.build(child, "good")) != pid_of(first)


def pid_of(made: Any) -> bytes:
    return bytes(made["object"].split()[-2])
