"""The check of the container image against a server with prepared answers."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tilewright.service import health


class Answering(HTTPServer):
    status = 200
    asked = ""


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        self.server.asked = self.path
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    monkeypatch.setenv("TILEWRIGHT_PORT", "1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Answering(("127.0.0.1", 0), Handler) as found:
        monkeypatch.setenv("TILEWRIGHT_PORT", str(found.server_address[1]))
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def test_a_service_that_is_well(server: Answering) -> None:
    assert health.main() == 0
    assert server.asked == "/v1/health"


def test_a_service_without_its_database(
    server: Answering, capsys: pytest.CaptureFixture[str]
) -> None:
    server.status = 503
    assert health.main() == 1
    assert "503" in capsys.readouterr().err


def test_no_service(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TILEWRIGHT_PORT", "1")
    assert health.main() == 1
    assert "http://127.0.0.1:1/v1/health" in capsys.readouterr().err


def certificate(folder: Path) -> Path:
    """A PEM file with a key and its own certificate, of another name than this machine's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tilewright.example")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    text = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "own.pem"
    path.write_bytes(text + made.public_bytes(pem))
    return path


def test_over_tls(server: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    monkeypatch.setenv("TILEWRIGHT_TLS_CERTIFICATE", str(path))
    assert health.main() == 0
