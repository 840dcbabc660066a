"""Listening sockets of the server.

The server opens its sockets before it opens the database or starts other processes. If the port is
in use, the user therefore sees one line with this error, and no other messages.
"""

from __future__ import annotations

import errno
import os
import socket

BACKLOG = 2048


class ListenError(Exception):
    """The server cannot listen on the requested address. The message is one sentence."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Return one listening socket for each address of the host, all on the same port.

    Port 0 selects a free port.

    Raises:
        ListenError: if the host is unknown or is not this machine, or if the port is in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from error
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = port or (sockets[0].getsockname()[1] if sockets else 0)
            try:
                sockets.append(_bound(family, kind, protocol, (address[0], bound, *address[2:])))
            except OSError as error:
                # a machine may support IPv6 without having an IPv6 address
                absent = error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
                if not (absent and len(found) > 1 and (sockets or address != found[-1][4])):
                    raise
    except OSError as error:
        for one in sockets:
            one.close()
        reason = os.strerror(error.errno) if error.errno else str(error)
        if error.errno == errno.EADDRINUSE:
            reason += "; --port selects another port"
        raise ListenError(f"cannot listen on {host}:{port}: {reason}") from error
    return sockets


def _bound(
    family: socket.AddressFamily,
    kind: socket.SocketKind,
    protocol: int,
    address: tuple[object, ...],
) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
