"""Reads the symbol table of a relocatable ELF object, 64 bits, little-endian."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_MAGIC = b"\x7fELF\x02\x01"
_SYMBOL_TABLE = 2
_HEADER = struct.Struct("<40xQ10xHH")
"""Offset of the section headers, size of one, their number."""
_SECTION = struct.Struct("<4xIQ8xQQI")
"""Kind, flags, offset, size, linked section."""
_LOADED = 2
"""The flag of sections that lie in memory when a program runs."""
_SYMBOL = struct.Struct("<IBBH16x")
"""Offset of the name, binding and type, visibility, section (0: undefined)."""


def is_elf(data: bytes) -> bool:
    """Whether this is an object of the kind that the other functions read."""
    return data.startswith(_MAGIC)


def undefined_symbols(data: bytes) -> frozenset[str]:
    """Names that the object leaves to its linker."""
    return frozenset(_undefined(data))


def loaded_bytes(data: bytes) -> int:
    """Bytes of code and constants that the object adds to a program."""
    return sum(size for _, flags, _, size, _ in _sections(data) if flags & _LOADED)


def _sections(data: bytes) -> list[tuple[int, int, int, int, int]]:
    headers, header_size, count = _HEADER.unpack_from(data)
    return [_SECTION.unpack_from(data, headers + i * header_size) for i in range(count)]


def _undefined(data: bytes) -> Iterator[str]:
    sections = _sections(data)
    for kind, _, start, size, linked in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[linked][2]
        for name_offset, _, _, section in _SYMBOL.iter_unpack(data[start : start + size]):
            begin = names + name_offset
            if section == 0 and data[begin]:  # the first symbol of a table has no name
                yield data[begin : data.index(b"\0", begin)].decode()
