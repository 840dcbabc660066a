"""ONNX files, with the data of large initializers apart from the message.

protobuf copies every byte of a message, and gives a tensor's data as a further copy. So large
initializers' `raw_data` is read from the file into arrays, and what is left, a small message, goes
to protobuf. Field numbers are those of `onnx.proto`; the encoding is described in protobuf's
"Encoding" guide: a field is a tag, number * 8 + kind, and a value.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from typing import BinaryIO

import numpy as np

from tilewright.compiler.runtime.kernel import aligned_bytes
from tilewright.compiler.runtime.packing import Bytes

GRAPH = 7
"""Of a ModelProto."""

INITIALIZER = 5
"""Of a GraphProto."""

RAW_DATA = 9
"""Of a TensorProto."""

LEAST_BYTES = 1 << 12
"""Data that is no larger stays in the message."""

VARINT_BITS = 64


class UnusualError(Exception):
    """These bytes are not laid out as models usually are: protobuf says whether they are one."""


def split_message(stream: BinaryIO, size: int) -> tuple[bytes, dict[int, Bytes]]:
    """A model's message without the data of large initializers, and that data by their numbers.

    The data is aligned and read-only, and lies in one block.

    Args:
        stream: at the start of the message.
        size: bytes of the message.

    Raises:
        UnusualError: if it is cut off, or no message of a model that any tool writes.
        OSError: if it cannot be read.
        MemoryError: if there is no room for the data.
    """
    splitter = _Splitter(stream, size)
    rest = splitter.model(size)
    return rest, splitter.found()


_Rule = Callable[[int], bytes | None]
"""From where a field ends to what is left of it; None: nothing."""


class _Splitter:
    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self._at = 0
        # Alignment adds at most so many bytes, and pages that nothing touches take no memory. NumPy
        # would allocate huge pages: to fill them with zeros takes longer than to read the file.
        try:
            memory = mmap.mmap(-1, size + size * aligned_bytes(1) // LEAST_BYTES)
        except OSError as error:
            raise MemoryError(f"{error.strerror} for {size} bytes") from error
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
        """The fields up to there, those with a rule as it leaves them."""
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
    """Seven bits a byte, the lowest first; all but the last have the eighth bit set."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
