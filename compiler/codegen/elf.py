"""Reads the symbol table of a relocatable ELF object, 64 bits, little-endian."""

from __future__ import annotations

import struct

_MAGIC = b"\x7fELF\x02\x01"
_SYMBOL_TABLE = 2
_HEADER = struct.Struct("<40xQ10xHH")
"""Offset of the section headers, size of one, their number."""
_SECTION = struct.Struct("<4xI16xQQI")
"""Kind, offset, size, linked section."""
_SYMBOL = struct.Struct("<IBBH16x")
"""Offset of the name, binding and type, visibility, section (0: undefined)."""


def is_elf(data: bytes) -> bool:
    """Whether this is an object of the kind that the other functions read."""
    return data.startswith(_MAGIC)


def undefined_symbols(data: bytes) -> frozenset[str]:
    """Names that the object leaves to its linker."""
    return frozenset(name for name, section in _symbols(data) if section == 0)


def defined_symbols(data: bytes) -> frozenset[str]:
    """Names of the object's own functions and data, sections not included."""
    return frozenset(name for name, section in _symbols(data) if section != 0)


def _symbols(data: bytes) -> list[tuple[str, int]]:
    """Name and section of every named symbol."""
    headers, header_size, count = _HEADER.unpack_from(data)
    sections = [_SECTION.unpack_from(data, headers + i * header_size) for i in range(count)]
    found: list[tuple[str, int]] = []
    for kind, start, size, linked in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[linked][1]
        for name_offset, _, _, section in _SYMBOL.iter_unpack(data[start : start + size]):
            begin = names + name_offset
            name = data[begin : data.index(b"\0", begin)].decode()
            if name:
                found.append((name, section))
    return found
