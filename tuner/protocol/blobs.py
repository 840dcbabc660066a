"""Blobs: binary files to which requests refer by digest, such as libraries and arrays (.npy)."""

from __future__ import annotations

import hashlib
import io

import numpy as np


def digest_bytes(data: bytes) -> str:
    """Return the SHA-256 of the data in hexadecimal, by which blobs are identified."""
    return hashlib.sha256(data).hexdigest()


def array_to_bytes(array: np.ndarray) -> bytes:
    """Encode an array as the bytes of an .npy file in row-major order.

    Raises:
        ValueError: if the array contains Python objects.
    """
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def array_of_bytes(data: bytes | memoryview) -> np.ndarray:
    """Decode an array from the bytes of an .npy file.

    Raises:
        ValueError: if the bytes are not an .npy file, or the array contains Python objects.
    """
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return array
