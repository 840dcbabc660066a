"""Signatures that a device can check without a library, against the library that makes them."""

from __future__ import annotations

import random

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tilewright.tuner.protocol.signing import is_signature, signed_lease

ORDER = 2**252 + 27742317777372353535851937790883648493

VECTORS = [  # RFC 8032, section 7.1: secret key, message, signature
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.mark.parametrize(("secret", "message", "signature"), VECTORS)
def test_the_vectors_of_the_standard(secret: str, message: str, signature: str) -> None:
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret))
    public = private.public_key().public_bytes_raw()
    assert is_signature(public, bytes.fromhex(message), bytes.fromhex(signature))
    assert not is_signature(public, bytes.fromhex(message) + b"x", bytes.fromhex(signature))


def by_the_library(public: bytes, message: bytes, signature: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def test_what_the_library_takes_is_taken_and_nothing_else() -> None:
    """Right ones, and those with one bit changed anywhere."""
    draws = random.Random(0)
    for number in range(60):
        private = Ed25519PrivateKey.from_private_bytes(draws.randbytes(32))
        message = draws.randbytes(number)
        given = [private.public_key().public_bytes_raw(), message, private.sign(message)]
        assert is_signature(*given)
        part = draws.choice([0, 2, 2, *([1] if message else [])])
        bit = draws.randrange(8 * len(given[part]))
        changed = bytearray(given[part])
        changed[bit // 8] ^= 1 << bit % 8
        given[part] = bytes(changed)
        assert is_signature(*given) is by_the_library(*given) is False


def test_a_second_form_of_a_signature_is_none() -> None:
    """S plus the order of the group fits the equation, and is not a signature (section 5.1.7)."""
    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    public, right = private.public_key().public_bytes_raw(), private.sign(b"m")
    scalar = int.from_bytes(right[32:], "little") + ORDER
    other = right[:32] + scalar.to_bytes(32, "little")
    assert is_signature(public, b"m", right) and not is_signature(public, b"m", other)


@pytest.mark.parametrize("public", [b"", bytes(31), b"\xff" * 32, bytes([2]) + bytes(31)])
def test_what_is_no_key_has_signed_nothing(public: bytes) -> None:
    assert not is_signature(public, b"m", bytes(64))
    right = Ed25519PrivateKey.from_private_bytes(bytes(32))
    assert not is_signature(right.public_key().public_bytes_raw(), b"m", b"")


def test_what_is_signed_is_the_request_and_its_values_not_their_json() -> None:
    one = signed_lease("r", {"a": 1, "b": [0.1, "x"]})
    assert one == signed_lease("r", {"b": [1e-1, "x"], "a": 1})
    others = [("s", {"a": 1, "b": [0.1, "x"]}), ("r", {"a": 2, "b": [0.1, "x"]}), ("r", {})]
    assert len({one, *(signed_lease(*other) for other in others)}) == 4
