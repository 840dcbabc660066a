"""Verification of Ed25519 signatures of work sent to devices (RFC 8032, section 5.1.7).

The service signs each lease: a measurement request that it gives to a worker for a limited time.
This module defines the bytes that are signed, and verifies signatures. It uses only Python's
standard library, because a device may have no cryptographic library. The running time depends on
the arguments, but reveals no secret, because public keys, messages and signatures are public. The
service uses a cryptographic library to sign leases (`service.signing`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)

_Point = tuple[int, int, int, int]
"""A curve point (x, y) in extended coordinates X, Y, Z, T: x = X/Z, y = Y/Z, xy = T/Z."""

_ZERO: _Point = (0, 1, 1, 0)


def signed_lease(request_id: str, payload: Mapping[str, Any]) -> bytes:
    """Return the bytes that the service signs when it gives a worker a request (a lease).

    `payload` is the request. It is encoded as canonical JSON, so that its formatting does not
    affect the bytes.
    """
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"))
    return f"tilewright lease 1\n{request_id}\n{text}".encode()


def is_signature(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is a valid Ed25519 signature of `message`.

    `public` is the public key of the signer (32 bytes). A valid signature has 64 bytes.
    """
    if len(public) != 32 or len(signature) != 64:
        return False
    key, scalar = _point(public), int.from_bytes(signature[32:], "little")
    if key is None or scalar >= _L:
        return False
    digest = hashlib.sha512(signature[:32] + public + message).digest()
    challenge = int.from_bytes(digest, "little") % _L
    # R = [S]B - [k]A, compared as bytes
    return _bytes(_two_products(scalar, _BASE, challenge, _negated(key))) == signature[:32]


def _point(data: bytes) -> _Point | None:
    """Decode a point of the curve from 32 bytes; return None if they do not encode a point."""
    number = int.from_bytes(data, "little")
    odd, y = number >> 255, number & ((1 << 255) - 1)
    if y >= _P:
        return None
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if (x * x - square) % _P or (x == 0 and odd):
        return None
    if x & 1 != odd:
        x = _P - x
    return x, y, 1, x * y % _P


def _bytes(point: _Point) -> bytes:
    x, y, z, _ = point
    inverse = pow(z, -1, _P)
    x, y = x * inverse % _P, y * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _negated(point: _Point) -> _Point:
    x, y, z, t = point
    return _P - x, y, z, _P - t


def _sum(one: _Point, other: _Point) -> _Point:
    """Return the sum of two points of the curve, which may be equal.

    The formulas are from RFC 8032, section 5.1.4.
    """
    a = (one[1] - one[0]) * (other[1] - other[0]) % _P
    b = (one[1] + one[0]) * (other[1] + other[0]) % _P
    c = 2 * one[3] * other[3] * _D % _P
    d = 2 * one[2] * other[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _two_products(first: int, one: _Point, second: int, other: _Point) -> _Point:
    """Return the point `first * one + second * other`, a sum of two multiples of curve points."""
    both = _sum(one, other)
    found = _ZERO
    for bit in reversed(range(max(first.bit_length(), second.bit_length()))):
        found = _sum(found, found)
        match first >> bit & 1, second >> bit & 1:
            case 1, 1:
                found = _sum(found, both)
            case 1, 0:
                found = _sum(found, one)
            case 0, 1:
                found = _sum(found, other)
    return found


def _base() -> _Point:
    found = _point((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert found is not None
    return found


_BASE = _base()
