"""Listening sockets: on every address of a host, on one port, or one sentence with the reason for a
failure."""

from __future__ import annotations

import socket

import pytest

from tilewright.service.api.listening import ListenError, listen


def test_a_client_reaches_the_port_that_was_chosen() -> None:
    (made,) = listen("127.0.0.1", 0)
    host, port = made.getsockname()
    with made, socket.create_connection((host, port), 5) as client:
        client.sendall(b"hello")
        made.setblocking(True)
        connection, _ = made.accept()
        with connection:
            assert connection.recv(5) == b"hello"


def test_all_addresses_of_a_host_share_a_port() -> None:
    made = listen("localhost", 0)
    assert len({one.getsockname()[1] for one in made}) == 1
    assert {one.type for one in made} == {socket.SOCK_STREAM}
    for one in made:
        one.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken_is_one_sentence(host: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ListenError, match=f"{host}:{port}: Address already in use; --port"):
            listen(host, port)


@pytest.mark.parametrize("host", ["no such host", "a" * 300, "192.0.2.1"])
def test_a_host_that_is_not_here_is_one_sentence(host: str) -> None:
    with pytest.raises(ListenError, match=f"cannot listen on {host}:0: ") as caught:
        listen(host, 0)
    assert "\n" not in str(caught.value)
