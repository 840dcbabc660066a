"""Blobs, the binary data of requests: sent separately, named by digest; arrays are .npy files."""

from __future__ import annotations

import hashlib
import io

import numpy as np


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal, the name of a blob."""
    return hashlib.sha256(data).hexdigest()


def array_to_bytes(array: np.ndarray) -> bytes:
    """Encode an array as an .npy file, without pickles."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def array_of_bytes(data: bytes | memoryview) -> np.ndarray:
    """Decode an array from the bytes of an .npy file, without pickles.

    Raises:
        ValueError: if the bytes are not an .npy file, or the array contains Python objects.
    """
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return array
