"""Storage of packed constants: aligned and contiguous, each distinct constant once."""

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
"""Bytes of a packed weight that are compared with others of equal size before a full comparison."""


class PackedWeights(ABC):
    """Base class of storages that pack weights one after the other, and assign them offsets.

    Equal packed bytes of two kernels, or of two programs, are stored once.
    """

    def __init__(self) -> None:
        self._end = 0
        self._known: dict[tuple[int, BufferSpec], tuple[weakref.ref[Array], int]] = {}
        self._stored: dict[tuple[int, bytes], list[int]] = {}

    @property
    def bytes(self) -> int:
        """Size of all weights so far."""
        return self._end

    @property
    @abstractmethod
    def room(self) -> int:
        """Number of bytes that can still be added."""

    @abstractmethod
    def built(self) -> Bytes:
        """Return a view of all weights so far, which later additions do not change."""

    def add(self, spec: BufferSpec, source: Array) -> int:
        """Pack the constant `source` as the buffer `spec` states, and return its offset in bytes.

        An equal packed weight that is already stored is used instead.

        Raises:
            ValueError: if the source does not fit the buffer, or the storage is full.
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
        """The offset of a packed weight, stored now or before."""
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
        """The packed form of a weight, of `size` bytes."""

    @abstractmethod
    def _keep(self, form: Bytes) -> None:
        """Append a form, and zeros up to the next aligned offset."""

    @abstractmethod
    def _drop(self, form: Bytes) -> None:
        """Discard a form."""

    @abstractmethod
    def _at(self, offset: int, size: int) -> Bytes:
        """The stored bytes at an offset."""


class WeightBlock(PackedWeights):
    """Packed weights in one block of memory with a fixed address.

    Memory pages of the block are only used once they are written, so that unused capacity takes no
    memory.

    Args:
        capacity: size of the block in bytes.
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
        """The form was packed in its final place."""

    def _drop(self, form: Bytes) -> None:
        form[...] = 0

    def _at(self, offset: int, size: int) -> Bytes:
        return self._block[offset : offset + size]
