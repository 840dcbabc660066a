"""Signs exported records with the private key of the service, and verifies signatures (Ed25519).

The algorithm is specified in RFC 8032.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from tilewright.db.errors import StorageError, StorageKind

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private key with which a service signs records.

    Its property `public` is the public key as base64 of 32 bytes, which identifies the service.
    """

    private: Ed25519PrivateKey

    @property
    def public(self) -> str:
        return base64.b64encode(self.private.public_key().public_bytes_raw()).decode()

    def sign(self, message: bytes) -> str:
        """Return the signature of a message, in base64."""
        return base64.b64encode(self.private.sign(message)).decode()


def signing_key(path: Path) -> SigningKey:
    """Read the private key in a file.

    If the file is missing, create it with a new key and mode 0600.

    Raises:
        StorageError: if the file cannot be read or written, or does not contain an Ed25519 key.
    """
    try:
        _make(path)
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise StorageError(
            f"the signing key '{path}' cannot be used: {error.strerror}", StorageKind.DENIED
        ) from error
    except (ValueError, TypeError) as error:
        raise StorageError(f"'{path}' holds no signing key", StorageKind.CORRUPT) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise StorageError(f"'{path}' holds no Ed25519 key", StorageKind.CORRUPT)
    return SigningKey(key)


def is_public_key(text: str) -> bool:
    """Return whether a text is an Ed25519 public key in base64."""
    try:
        return len(base64.b64decode(text, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        return False


def is_signed(message: bytes, signature: str, public: str) -> bool:
    """Return whether `signature` is the signature of `message` by the key `public`.

    Returns False if the signature or the key is malformed.
    """
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
        key.verify(base64.b64decode(signature, validate=True), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _make(path: Path) -> None:
    """Create the file with a new private key, unless the file exists.

    If several processes do this at the same time, all of them use the key of the first.
    """
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    made = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    try:
        os.link(made, path)
    except FileExistsError:
        pass  # another process was first: use its key
    finally:
        made.unlink()
