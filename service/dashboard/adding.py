"""What adds a device: a link that makes a browser one, with its QR code, or a command."""

from __future__ import annotations

import shlex
from urllib.parse import urlencode, urlsplit

from tilewright.service.dashboard.qr import QrCode, qr_code

LINK_SECONDS = 3600.0
"""How long a link holds: it is opened at once, and may be seen over a shoulder."""

_LOCAL = ("localhost", "127.0.0.1", "::1")


def worker_link(server: str, secret: str, name: str) -> str:
    """Its token is in the fragment, which browsers send to nobody."""
    return f"{server}/worker#{urlencode({'token': secret, 'name': name})}"


def link_code(link: str) -> QrCode | None:
    """The QR code of a link; None for one that is too long."""
    try:
        return qr_code(link)
    except ValueError:
        return None


def browsers_measure_here(server: str) -> bool:
    """Whether browsers let a page of this address measure: over TLS, or on this machine itself."""
    found = urlsplit(server)
    return found.scheme == "https" or found.hostname in _LOCAL


def worker_command(server: str, secret: str, name: str) -> str:
    """What starts the worker on a device; the token goes into a file that nobody else reads."""
    where, called = shlex.quote(server), shlex.quote(name)
    return (
        f"(umask 077; printf %s {shlex.quote(secret)} > tilewright-token)\n"
        f"tilewright-worker --server {where} --token-file tilewright-token --name {called}"
    )
