"""Probes, metrics of the whole service, and TLS."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fastapi.testclient import TestClient

from tests.unit.service.tuners import running
from tests.waiting import until
from tilewright.db.errors import StorageError, StorageKind
from tilewright.db.job_states import JobState
from tilewright.db.storage import Storage
from tilewright.db.stores.gauges import GaugeStore
from tilewright.db.stores.jobs import Job
from tilewright.db.stores.leases import NewRequest
from tilewright.db.stores.sweeps import CLAIMS
from tilewright.service.api import probes
from tilewright.service.api.app import create_app
from tilewright.service.api.housekeeping import SWEEP
from tilewright.service.api.notifier import Notifier
from tilewright.service.api.server import server_config
from tilewright.service.cli import run as run_cli
from tilewright.service.cli.serving import is_loopback
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.service.settings import Settings


def test_a_process_that_lives_says_so_without_its_database(
    anonymous: TestClient, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = time.monotonic() + 20
    while anonymous.get("/readyz").status_code != 200:
        assert time.monotonic() < ends
    ready = anonymous.get("/readyz").json()
    assert ready["status"] == "ready" and 0.0 <= ready["sweep_age_seconds"] < 30.0

    def away(*_: object) -> float:
        raise StorageError("postgresql://secret is away", StorageKind.UNREACHABLE)

    monkeypatch.setattr(type(storage.sweeps), "age", away)
    answer = anonymous.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "the database does not answer"
    assert anonymous.get("/healthz").json() == {"status": "ok"}


def test_ready_is_who_has_a_tuner_that_takes_jobs(
    anonymous: TestClient,
    storage: Storage,
    tuner: TunerProcess,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tuner whose loop hangs while a job waits, as in a thread that never starts."""
    monkeypatch.setattr(probes, "IDLE_SECONDS", 4.0)
    hangs, starved = threading.Event(), threading.Event()

    def take(_: TunerProcess) -> None:
        hangs.set()
        assert starved.wait(60)

    def status(path: str = "/readyz") -> int:
        return anonymous.get(path).status_code

    monkeypatch.setattr(TunerProcess, "take", take)
    until(lambda: status() == 200)  # that of a service without a tuner
    with running(tuner):
        assert hangs.wait(60) and status() == 200
        until(lambda: status() == 503, seconds=30)
        assert anonymous.get("/readyz").json()["reason"] == "the tuner takes no jobs"
        assert status("/readyz?part=api") == 200, "it answers whoever asks it"
        starved.set()
        until(lambda: status() == 200, seconds=30)
    assert storage.sweeps.age(CLAIMS) is None, "who ends in order is not missed"
    assert storage.jobs.get(job.id).state is JobState.QUEUED


@pytest.mark.parametrize(("age", "status"), [(None, 503), (29.0, 200), (31.0, 503)])
def test_ready_is_who_has_somebody_that_sweeps(
    anonymous: TestClient,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    age: float | None,
    status: int,
) -> None:
    monkeypatch.setattr(type(storage.sweeps), "age", lambda _, name: age if name == SWEEP else None)
    answer = anonymous.get("/readyz")
    assert (answer.status_code, answer.json()["sweep_age_seconds"]) == (status, age)


@pytest.mark.parametrize(("deaf", "status"), [(29.0, 200), (31.0, 503), (float("inf"), 503)])
def test_ready_is_who_hears_what_the_database_announces(
    anonymous: TestClient,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    deaf: float,
    status: int,
) -> None:
    monkeypatch.setattr(type(storage.sweeps), "age", lambda *_: 1.0)
    monkeypatch.setattr(Notifier, "seconds_without_notices", deaf)
    answer = anonymous.get("/readyz")
    assert answer.status_code == status
    assert ("does not receive" in answer.text) is (status == 503)


def test_a_process_that_stops_is_not_ready(anonymous: TestClient) -> None:
    anonymous.app.state.stopping = True  # type: ignore[attr-defined]
    assert anonymous.get("/readyz").json()["reason"] == "the process is stopping"


def test_metrics_tell_of_queue_leases_workers_and_statements(
    client: TestClient, storage: Storage
) -> None:
    board = storage.workers.register("board", ["t"], {})
    storage.leases.claim(board.id, ["t"], limit=1, lease_seconds=60)
    storage.leases.submit([NewRequest(name, "t", {}) for name in ("a", "b")])
    (lease,) = storage.leases.claim(board.id, ["t"], limit=1, lease_seconds=60)
    text = client.get("/v1/metrics").text
    assert 'tilewright_measure_requests{state="queued"} 1.0' in text
    assert 'tilewright_workers{health="healthy"} 1.0' in text
    assert "tilewright_trials_total 0.0" in text
    count = next(
        line for line in text.splitlines() if line.startswith("tilewright_database_seconds_count")
    )
    assert float(count.split()[1]) > 3
    before = storage.clock() + 100.0
    figures = GaugeStore(storage.engine, lambda: before).read()
    assert figures.oldest_lease == pytest.approx(100.0, abs=20.0)
    assert figures.oldest_queued == pytest.approx(100.0, abs=20.0)
    storage.leases.complete(lease.lease_id, board.id, "key", {})
    text = client.get("/v1/metrics").text
    assert 'tilewright_leases_ended{blame="",outcome="completed"} 1.0' in text
    assert "tilewright_lease_age_seconds 0.0" in text


# ---- TLS


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate of its own for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tilewright")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def test_the_service_speaks_tls(
    settings: Settings, storage: Storage, owner: str, certificate: tuple[Path, Path]
) -> None:
    changes: dict[str, Any] = {"tls_certificate": certificate[0], "tls_key": certificate[1]}
    secure = settings.model_copy(update={**changes, "port": 0})
    server = uvicorn.Server(server_config(create_app(secure, storage), secure))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    ends = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive() and time.monotonic() < ends
        time.sleep(0.01)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        context = ssl.create_default_context(cafile=str(certificate[0]))
        with httpx2.Client(verify=context) as client:
            assert client.get(f"https://127.0.0.1:{port}/healthz").status_code == 200
        with pytest.raises(httpx2.HTTPError):
            httpx2.get(f"http://127.0.0.1:{port}/healthz")
    finally:
        server.should_exit = True
        thread.join()


def test_a_certificate_that_cannot_be_used_is_said(
    settings: Settings,
    certificate: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cert, key = map(str, certificate)
    for options, said in (
        (["--tls-cert", str(tmp_path / "none.pem")], "cannot be used for TLS"),
        (["--tls-cert", cert], "cannot be used for TLS"),  # no key in it
        (["--tls-cert", key, "--tls-key", cert], "cannot be used for TLS"),
        (["--tls-key", key], "--tls-key needs --tls-cert"),
    ):
        assert run_cli(["server", "run", "--port", "0", *options]) == 1
        assert said in capsys.readouterr().err


def test_which_addresses_are_this_machines() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com", "")))


def test_tokens_do_not_pass_a_network_in_clear_unless_somebody_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A port that is taken ends the commands that would start."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = str(other.getsockname()[1])

        def said(*options: str) -> str:
            assert (
                run_cli(["server", "run", "--no-tuner", "--no-worker", "--port", port, *options])
                == 1
            )
            return capsys.readouterr().err

        refused = said("--host", "0.0.0.0")
        assert "tokens would be sent unencrypted over 0.0.0.0" in refused
        for way in ("--tls-cert", "TILEWRIGHT_TRUSTED_PROXIES", "--insecure"):
            assert way in refused
        insecure = said("--host", "0.0.0.0", "--insecure")
        assert "warning: tokens pass 0.0.0.0 in clear" in insecure and "cannot listen" in insecure
        assert "clear" not in said("--host", "127.0.0.1"), "loopback is as simple as it was"
        monkeypatch.setenv("TILEWRIGHT_TRUSTED_PROXIES", "10.0.0.0/8")
        behind = said("--host", "0.0.0.0")
        assert "cannot listen" in behind and "clear" not in behind
