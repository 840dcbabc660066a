"""A file of packed constants. Each constant is written and hashed while the next one is packed."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compiler.loops.layout import ROW_MAJOR
from tilewright.compiler.runtime.kernel import BufferSpec, aligned_bytes
from tilewright.compiler.runtime.packing import (
    Array,
    Bytes,
    aligned_empty,
    aligned_zeros,
    make_weight,
)
from tilewright.compiler.runtime.weights import PackedWeights

AHEAD_BYTES = 32 << 20
"""Maximum total size in bytes of the packed weights that wait to be written and hashed. A single
larger weight may wait, too."""

LEAST_BUFFER_BYTES = 1 << 20
"""Minimum size in bytes of a buffer for packing, so that the buffer can be reused for weights of
several sizes."""


SPARE_SHARE = 8
"""The weight file is mapped with spare capacity of its size divided by this number. Without spare
capacity, each program of a model with many segments would map the whole file again."""


class WeightFile(PackedWeights):
    """Packed weights in a file, which one thread writes and another thread hashes.

    Memory never contains all weights at once: each weight is packed into one of a few reusable
    buffers. Written weights are read through a memory mapping of the file. If the packed bytes of a
    weight equal those of the model's array, that array is written directly.

    Args:
        path: the file to create.

    Raises:
        OSError: from the constructor and every method, if the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._file = path.open("wb")
        self._digest = hashlib.sha256()
        # Each pool has one thread, so that it processes the weights in order.
        self._writer = ThreadPoolExecutor(1, "tilewright-writer")
        self._hasher = ThreadPoolExecutor(1, "tilewright-digest")
        self._waiting: deque[tuple[list[Future[None]], int, Bytes | None]] = deque()
        self._idle: list[Bytes] = []
        self._used: Bytes | None = None
        """The buffer into which the last weight was packed; None if the weight is the model's own
        array."""
        self._synced: Future[None] | None = None
        self._mapped: Bytes = aligned_empty(0)

    @property
    def room(self) -> int:
        return sys.maxsize

    def built(self) -> Bytes:
        return self._at(0, self._end)

    def finish(self) -> dict[str, Any]:
        """Wait until all weights are written, and return {"bytes": size, "sha256": checksum}.

        The file is flushed to disk in the background; `close` waits for the flush.
        """
        self._settle()
        os.ftruncate(self._file.fileno(), self._end)
        self._synced = self._writer.submit(os.fsync, self._file.fileno())
        return {"bytes": self._end, "sha256": self._digest.hexdigest()}

    def close(self) -> None:
        """Wait for the flush that `finish` started, end the threads, and close the file."""
        try:
            if self._synced is not None:
                self._synced.result()
        finally:
            self._writer.shutdown(cancel_futures=True)
            self._hasher.shutdown(cancel_futures=True)
            self._file.close()

    def _pack(self, spec: BufferSpec, source: Array, size: int) -> Bytes:
        self._land(max(0, AHEAD_BYTES - size))
        if _is_packed(spec, source):
            self._used = None
            return source.reshape(-1).view(np.uint8)
        self._used = self._buffer(size)
        form = self._used[:size]
        make_weight(spec, source, form)
        return form

    def _keep(self, form: Bytes) -> None:
        padding = bytes(aligned_bytes(form.nbytes) - form.nbytes)
        done = [
            self._writer.submit(self._write, form, padding),
            self._hasher.submit(self._hash, form, padding),
        ]
        self._waiting.append((done, form.nbytes, self._used))

    def _drop(self, form: Bytes) -> None:
        if self._used is not None:
            self._idle.append(self._used)

    def _at(self, offset: int, size: int) -> Bytes:
        self._settle()
        if not size:
            return aligned_empty(0)
        if self._mapped.nbytes < self._end:
            room = self._end + max(self._end // SPARE_SHARE, LEAST_BUFFER_BYTES)
            os.ftruncate(self._file.fileno(), room)  # a hole, which the next weights fill
            self._mapped = np.memmap(self._path, np.uint8, "r", 0, (room,))
        return self._mapped[offset : offset + size]

    def _write(self, form: Bytes, padding: bytes) -> None:
        self._file.write(form.data)
        self._file.write(padding)

    def _hash(self, form: Bytes, padding: bytes) -> None:
        self._digest.update(form.data)
        self._digest.update(padding)

    def _settle(self) -> None:
        """Wait until all added weights are in the file and can be read from it."""
        self._land(0)
        self._file.flush()

    def _land(self, limit: int) -> None:
        """Wait until all but at most `limit` bytes of the packed weights are written and hashed."""
        while sum(size for _, size, _ in self._waiting) > limit:
            done, _, buffer = self._waiting.popleft()
            for each in done:
                each.result()
            if buffer is not None:
                self._idle.append(buffer)

    def _buffer(self, size: int) -> Bytes:
        """Return a reused or new buffer whose first `size` bytes are zeros; it may be larger."""
        for number, buffer in enumerate(self._idle):
            if buffer.nbytes >= size:
                del self._idle[number]
                buffer[:size] = 0
                return buffer
        self._idle.clear()  # all of them are too small
        return aligned_zeros(max(size, LEAST_BUFFER_BYTES))


def _is_packed(spec: BufferSpec, source: Array) -> bool:
    """Whether packing the constant `source` would not change its bytes."""
    return (
        not (spec.einsum or spec.parts or spec.halo)
        and spec.parsed_layout() == ROW_MAJOR
        and source.dtype == spec.dtype.numpy
        and source.nbytes == spec.bytes
        and source.flags.c_contiguous
    )
