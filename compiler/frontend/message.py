"""A reader of ONNX files that separates the data of large initializers from the protobuf message.

protobuf copies every byte of a message, and returns a tensor's data as a further copy. This module
therefore reads the `raw_data` of large initializers from the file into arrays, and passes only the
small remaining message to protobuf. Field numbers are those of `onnx.proto`. protobuf's "Encoding"
guide describes the encoding: a field is a tag, number * 8 + kind, and a value.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import BinaryIO

import numpy as np

from tilewright.compiler.runtime.kernel import aligned_bytes
from tilewright.compiler.runtime.packing import Bytes

GRAPH = 7
"""Field number of `graph` in ModelProto."""

INITIALIZER = 5
"""Field number of `initializer` in GraphProto."""

RAW_DATA = 9
"""Field number of `raw_data` in TensorProto."""

LEAST_BYTES = 1 << 12
"""Maximum size in bytes of an initializer's data that stays in the protobuf message. Larger data is
read into an array."""

VARINT_BITS = 64


class UnusualError(Exception):
    """The bytes of an ONNX file have a layout that this reader does not expect.

    The caller then parses the whole file with protobuf, which accepts or rejects the file.
    """


def split_message(stream: BinaryIO, size: int) -> tuple[bytes, dict[int, Bytes]]:
    """Split a model file into a small message and the data of its large initializers.

    Args:
        stream: a stream at the start of the message.
        size: size of the message in bytes.

    Returns:
        The message without the data, and the data of each large initializer. The key is the
        initializer's index in the graph's list of initializers. The arrays are read-only, aligned
        to 64 bytes, and in one block of memory.

    Raises:
        UnusualError: if the message is truncated, or has a layout that no known tool writes.
        OSError: if the stream cannot be read.
        MemoryError: if memory does not suffice for the data.
    """
    splitter = _Splitter(stream, size)
    rest = splitter.model(size)
    return rest, splitter.found()


_Rule = Callable[[int], bytes | None]
"""Reads a field that ends at the given position, and returns the bytes that replace it; None
removes the field."""


class _Splitter:
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._at = 0
        # Alignment adds at most this number of bytes, and untouched pages take no memory. NumPy
        # would allocate huge pages, and filling them with zeros takes longer than reading the file.
        try:
            memory = mmap.mmap(-1, size + size * aligned_bytes(1) // LEAST_BYTES)
        except OSError as error:
            raise MemoryError(f"{error.strerror} for the {size} bytes of the model file") from error
        self._block: Bytes = np.frombuffer(memory, np.uint8)
        self._used = 0
        self._places: dict[int, tuple[int, int]] = {}
        self._initializers = 0

    def model(self, end: int) -> bytes:
        return self._message(end, {GRAPH: self._graph})

    def found(self) -> dict[int, Bytes]:
        self._block.flags.writeable = False
        return {n: self._block[start:end] for n, (start, end) in self._places.items()}

    def _graph(self, end: int) -> bytes:
        return self._message(end, {INITIALIZER: self._initializer})

    def _initializer(self, end: int) -> bytes:
        number = self._initializers
        self._initializers += 1
        seen = False

        def data(end: int) -> bytes | None:
            nonlocal seen
            if seen:
                raise UnusualError
            seen = True
            size = end - self._at
            if size <= LEAST_BYTES:
                return self._read(size)
            self._places[number] = self._used, self._used + size
            self._fill(self._block[self._used : self._used + size])
            self._used += aligned_bytes(size)
            return None

        return self._message(end, {RAW_DATA: data})

    def _message(self, end: int, rules: Mapping[int, _Rule]) -> bytes:
        """Read the fields of a message that ends at position `end`, and return them encoded again.

        `rules` maps the number of a field to a function that reads the field and returns its new
        content. The field is removed if the function returns None. Fields without a rule are
        copied.
        """
        parts: list[bytes] = []
        while self._at < end:
            tag = self._varint()
            match tag & 7:
                case 2:
                    length = self._varint()
                    if length > end - self._at:
                        raise UnusualError
                    rule = rules.get(tag >> 3)
                    content = self._read(length) if rule is None else rule(self._at + length)
                    if content is not None:
                        parts += [_varint(tag), _varint(len(content)), content]
                case 0:
                    parts += [_varint(tag), _varint(self._varint())]
                case 1:
                    parts += [_varint(tag), self._read(8)]
                case 5:
                    parts += [_varint(tag), self._read(4)]
                case _:
                    raise UnusualError  # a group, which ONNX does not use
        if self._at != end:
            raise UnusualError
        return b"".join(parts)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, VARINT_BITS, 7):
            (byte,) = self._read(1)
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise UnusualError

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) != size:
            raise UnusualError
        self._at += size
        return data

    def _fill(self, place: Bytes) -> None:
        data, done = place.data, 0
        while done < len(data):
            more = self._stream.readinto(data[done:])  # type: ignore[attr-defined]  # typeshed
            if not more:
                raise UnusualError
            done += more
        self._at += done


def _varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint.

    Each byte holds seven bits, the lowest first. All bytes but the last also have the eighth bit
    set.
    """
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
