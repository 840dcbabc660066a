"""The packed constants of programs: each distinct one once, aligned, in one block."""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import replace

from compiler.runtime.kernel import ALIGNMENT, BufferSpec
from compiler.runtime.packing import Array, Bytes, aligned_zeros, make_weight, packed_bytes


class WeightBlock:
    """Packs weights into one block of memory that never moves, and gives each its offset.

    A constant that two kernels, or two programs, pack the same way is packed and stored once. The
    block's pages take memory when they are first written, so that room to spare costs nothing.

    Args:
        capacity: bytes that it can hold.
    """

    def __init__(self, capacity: int) -> None:
        self._block = aligned_zeros(capacity)
        self._offsets: dict[tuple[str, BufferSpec], int] = {}
        self._digests: dict[int, tuple[weakref.ref[Array], str]] = {}
        self._end = 0

    @property
    def bytes(self) -> int:
        """Size of the block so far."""
        return self._end

    @property
    def room(self) -> int:
        """Bytes that are free."""
        return self._block.nbytes - self._end

    def add(self, spec: BufferSpec, source: Array) -> int:
        """Pack a weight; returns its offset in bytes.

        Raises:
            ValueError: if the source does not fit the buffer, or the block is full.
        """
        key = self._digest(source), replace(spec, name="", source=-1)
        offset = self._offsets.get(key)
        if offset is not None:
            return offset
        size = packed_bytes(spec)
        if size != spec.bytes:
            raise ValueError(
                f"weight '{spec.name}' packs into {size} bytes, its buffer has {spec.bytes}"
            )
        if size > self.room:
            raise ValueError(f"weight '{spec.name}' takes {size} bytes, {self.room} are free")
        offset = self._end
        make_weight(spec, source, self._block[offset : offset + size])
        self._offsets[key] = offset
        self._end += aligned_bytes(size)
        return offset

    def built(self) -> Bytes:
        """The block up to its end: a view, which later additions leave as it is."""
        return self._block[: self._end]

    def _digest(self, source: Array) -> str:
        """SHA-256 of a constant with its type and shape; remembered as long as the array lives."""
        known = self._digests.get(id(source))
        if known is None or known[0]() is not source:
            digest = hashlib.sha256(f"{source.dtype}{source.shape}".encode())
            data = source if source.flags.c_contiguous else source.copy()
            digest.update(data.reshape(-1).view("uint8").data)
            known = self._digests[id(source)] = weakref.ref(source), digest.hexdigest()
        return known[1]


def aligned_bytes(size: int) -> int:
    """What a weight of `size` bytes takes of a block."""
    return -(-size // ALIGNMENT) * ALIGNMENT
