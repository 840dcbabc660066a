"""The packed constants of a program: each distinct one once, aligned, in one block."""

from __future__ import annotations

import hashlib

from compiler.runtime.kernel import ALIGNMENT, BufferSpec
from compiler.runtime.packing import Array, Bytes, aligned_zeros, make_weight


class WeightBlock:
    """Collects packed weights and gives each its offset.

    Two weights with equal bytes share one place, so that kernels which pack the same constant the
    same way do not store it twice.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Bytes]] = []
        self._offsets: dict[bytes, int] = {}
        self._end = 0

    @property
    def bytes(self) -> int:
        """Size of the block so far."""
        return self._end

    def add(self, spec: BufferSpec, source: Array) -> int:
        """Pack a weight; returns its offset in bytes.

        Raises:
            ValueError: if the source does not fit the buffer.
        """
        packed: Bytes = make_weight(spec, source).view("uint8")
        if packed.nbytes != spec.bytes:
            raise ValueError(
                f"weight '{spec.name}' packs into {packed.nbytes} bytes, its buffer has "
                f"{spec.bytes}"
            )
        digest = hashlib.sha256(packed.data).digest()
        offset = self._offsets.get(digest)
        if offset is None:
            offset = self._offsets[digest] = self._end
            self._parts.append((offset, packed))
            self._end += -(-packed.nbytes // ALIGNMENT) * ALIGNMENT
        return offset

    def build(self) -> Bytes:
        """The block: `bytes` bytes, aligned."""
        block = aligned_zeros(self._end)
        for offset, packed in self._parts:
            block[offset : offset + packed.nbytes] = packed
        return block
