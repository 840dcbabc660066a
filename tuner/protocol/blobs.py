"""The large data of requests, sent separately as blobs named by digest; arrays as .npy files."""

from __future__ import annotations

import hashlib
import io

import numpy as np


def digest_bytes(data: bytes) -> str:
    """SHA-256 in hexadecimal: the name of a blob."""
    return hashlib.sha256(data).hexdigest()


def array_to_bytes(array: np.ndarray) -> bytes:
    """An array as the bytes of an .npy file, without pickles."""
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(array, order="C"), allow_pickle=False)
    return buffer.getvalue()


def array_of_bytes(data: bytes | memoryview) -> np.ndarray:
    """An array from the bytes of an .npy file, without pickles. Raises ValueError."""
    array: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    return array
