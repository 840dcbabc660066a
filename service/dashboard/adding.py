"""Ways to add a device: a link with a QR code for a browser, or a command for a terminal."""

from __future__ import annotations

import shlex
from urllib.parse import urlencode, urlsplit

from tilewright.service.dashboard.qr import QrCode, qr_code

LINK_SECONDS = 3600.0
"""Lifetime in seconds of the token in a device link. It is short, because bystanders may see the
link."""

_LOCAL = ("localhost", "127.0.0.1", "::1")


def worker_link(server: str, secret: str, name: str) -> str:
    """Return the address of the page that turns a browser into a measurement worker.

    The token `secret` is in the fragment of the address, which browsers do not send to the server.
    """
    return f"{server}/worker#{urlencode({'token': secret, 'name': name})}"


def link_code(link: str) -> QrCode | None:
    """Return the QR code of a link, or None if the link is too long."""
    try:
        return qr_code(link)
    except ValueError:
        return None


def browsers_measure_here(server: str) -> bool:
    """Return whether browsers permit measurements on pages of this server.

    Browsers permit them only if the page was loaded over TLS, or from the same machine.
    """
    found = urlsplit(server)
    return found.scheme == "https" or found.hostname in _LOCAL


def worker_command(server: str, secret: str, name: str) -> str:
    """Return shell commands that store the token and start a worker with it.

    The token's file has mode 0600.
    """
    where, called = shlex.quote(server), shlex.quote(name)
    return (
        f"(umask 077; printf %s {shlex.quote(secret)} > tilewright-token)\n"
        f"tilewright-worker --server {where} --token-file tilewright-token --name {called}"
    )
