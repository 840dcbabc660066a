"""Ways to add a device: a link with a QR code for a browser, or a command for a terminal."""

from __future__ import annotations

import shlex
from urllib.parse import urlencode, urlsplit

from tilewright.service.dashboard.qr import QrCode, qr_code

LINK_SECONDS = 3600.0
"""Lifetime of a link's token. It is short, because bystanders may see the link."""

_LOCAL = ("localhost", "127.0.0.1", "::1")


def worker_link(server: str, secret: str, name: str) -> str:
    """Return the link of a worker page. Its fragment has the token; browsers do not send that."""
    return f"{server}/worker#{urlencode({'token': secret, 'name': name})}"


def link_code(link: str) -> QrCode | None:
    """Return the QR code of a link, or None if the link is too long."""
    try:
        return qr_code(link)
    except ValueError:
        return None


def browsers_measure_here(server: str) -> bool:
    """Whether browsers let a page of this server measure: over TLS, or on this machine."""
    found = urlsplit(server)
    return found.scheme == "https" or found.hostname in _LOCAL


def worker_command(server: str, secret: str, name: str) -> str:
    """Return the commands that start a worker, with its token in a file with mode 0600."""
    where, called = shlex.quote(server), shlex.quote(name)
    return (
        f"(umask 077; printf %s {shlex.quote(secret)} > tilewright-token)\n"
        f"tilewright-worker --server {where} --token-file tilewright-token --name {called}"
    )
