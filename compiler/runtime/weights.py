"""Storage of packed constants, aligned and contiguous. Equal constants are stored only once."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from tilewright.compiler.runtime.kernel import BufferSpec, aligned_bytes
from tilewright.compiler.runtime.packing import (
    Array,
    Bytes,
    aligned_zeros,
    make_weight,
    packed_bytes,
)

SAMPLED_BYTES = 4096
"""Approximate number of bytes by which a packed weight is compared with others of equal size,
before a full comparison."""


class PackedWeights(ABC):
    """Base class of storages that pack weights one after the other, and assign them offsets.

    If two weights have equal packed bytes, they are stored once and have the same offset. This also
    applies to weights of different programs.
    """

    def __init__(self) -> None:
        self._end = 0
        self._known: dict[tuple[int, BufferSpec], tuple[weakref.ref[Array], int]] = {}
        self._stored: dict[tuple[int, bytes], list[int]] = {}

    @property
    def bytes(self) -> int:
        """The total size in bytes of the weights that are stored so far."""
        return self._end

    @property
    @abstractmethod
    def room(self) -> int:
        """The number of bytes that the storage can still take."""

    @abstractmethod
    def built(self) -> Bytes:
        """Return a view of the weights that are stored so far; later additions do not change it."""

    def add(self, spec: BufferSpec, source: Array) -> int:
        """Pack a constant into a buffer and store it, or find an equal one that is already stored.

        Args:
            spec: the buffer's shape, layout and transform.
            source: the constant.

        Returns:
            The offset of the packed weight in bytes.

        Raises:
            ValueError: if the constant does not match the buffer, or the storage is full.
        """
        key = id(source), replace(spec, name="", source=-1)
        known = self._known.get(key)
        if known is not None and known[0]() is source:
            return known[1]
        size = packed_bytes(spec)
        if size != spec.bytes:
            raise ValueError(
                f"weight '{spec.name}' packs into {size} bytes, its buffer has {spec.bytes}"
            )
        offset = self._store(spec.name, self._pack(spec, source, size))
        self._known[key] = weakref.ref(source), offset
        return offset

    def _store(self, name: str, form: Bytes) -> int:
        """Store a packed weight if its bytes are new, and return its offset.

        `name` is the weight's name for the error message if the storage is full.
        """
        sample = form[:: form.nbytes // SAMPLED_BYTES | 1].tobytes()
        alike = self._stored.setdefault((form.nbytes, sample), [])
        for offset in alike:
            if np.array_equal(self._at(offset, form.nbytes), form):
                self._drop(form)
                return offset
        if form.nbytes > self.room:
            raise ValueError(f"weight '{name}' takes {form.nbytes} bytes, {self.room} are free")
        offset = self._end
        alike.append(offset)
        self._keep(form)
        self._end += aligned_bytes(form.nbytes)
        return offset

    @abstractmethod
    def _pack(self, spec: BufferSpec, source: Array, size: int) -> Bytes:
        """Return the packed bytes of a constant; `size` is their number."""

    @abstractmethod
    def _keep(self, form: Bytes) -> None:
        """Append packed bytes to the storage, and zeros up to the next aligned offset."""

    @abstractmethod
    def _drop(self, form: Bytes) -> None:
        """Discard packed bytes that are not stored, because equal ones exist."""

    @abstractmethod
    def _at(self, offset: int, size: int) -> Bytes:
        """Return `size` stored bytes, starting at an offset."""


class WeightBlock(PackedWeights):
    """Packed weights in one block of memory with a fixed address.

    The operating system provides memory pages when they are first written, so that unused capacity
    does not take memory.

    Args:
        capacity: the size of the block in bytes.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._block = aligned_zeros(capacity)

    @property
    def room(self) -> int:
        return self._block.nbytes - self._end

    def built(self) -> Bytes:
        return self._block[: self._end]

    def _pack(self, spec: BufferSpec, source: Array, size: int) -> Bytes:
        # A weight that exceeds the free memory is packed in separate memory: an equal one may
        # already be in the block.
        form = self._at(self._end, size) if size <= self.room else aligned_zeros(size)
        make_weight(spec, source, form)
        return form

    def _keep(self, form: Bytes) -> None:
        """Do nothing, because `_pack` has already written the bytes to the next free offset."""

    def _drop(self, form: Bytes) -> None:
        form[...] = 0

    def _at(self, offset: int, size: int) -> Bytes:
        return self._block[offset : offset + size]
