"""Reader of relocatable ELF objects, little-endian, of 32 or 64 bits: their symbols and sizes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_MAGIC = b"\x7fELF"
_SYMBOL_TABLE = 2
_LOADED = 2
"""The section flag SHF_ALLOC: the section is loaded into memory."""


class _Form(NamedTuple):
    """The formats of the headers in ELF objects of one class (32 or 64 bits).

    Attributes:
        header: reads from the file header the offset of the section headers, the size of one, and
            their number.
        section: reads from a section header its kind, flags, offset, size, and linked section.
        symbol: reads from a symbol the offset of its name, and its section (0 if undefined).
    """

    header: struct.Struct
    section: struct.Struct
    symbol: struct.Struct


_FORMS = {
    b"\1\1": _Form(
        struct.Struct("<32xI10xHH"), struct.Struct("<4xII4xIII"), struct.Struct("<I10xH")
    ),
    b"\2\1": _Form(
        struct.Struct("<40xQ10xHH"), struct.Struct("<4xIQ8xQQI"), struct.Struct("<I2xH16x")
    ),
}
"""Header layouts by the two bytes after the magic number: the class (32 or 64 bits) and the byte
order."""


def is_elf(data: bytes) -> bool:
    """Return whether `data` is an object that this module reads: little-endian ELF of 32 or 64
    bits."""
    return data.startswith(_MAGIC) and data[4:6] in _FORMS


def undefined_symbols(data: bytes) -> frozenset[str]:
    """Return the names of the symbols that an object uses and does not define."""
    return frozenset(_undefined(data))


def loaded_bytes(data: bytes) -> int:
    """Return the number of bytes of code and constants that the object adds to a program."""
    return sum(size for _, flags, _, size, _ in _sections(data) if flags & _LOADED)


def _sections(data: bytes) -> list[tuple[int, int, int, int, int]]:
    form = _FORMS[data[4:6]]
    headers, header_size, count = form.header.unpack_from(data)
    return [form.section.unpack_from(data, headers + i * header_size) for i in range(count)]


def _undefined(data: bytes) -> Iterator[str]:
    sections, form = _sections(data), _FORMS[data[4:6]]
    for kind, _, start, size, linked in sections:
        if kind != _SYMBOL_TABLE:
            continue
        names = sections[linked][2]
        for name_offset, section in form.symbol.iter_unpack(data[start : start + size]):
            begin = names + name_offset
            if section == 0 and data[begin]:  # the first symbol of a table has no name
                yield data[begin : data.index(b"\0", begin)].decode()
