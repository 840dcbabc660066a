"""ONNX Runtime's allocator types: accepted and ignored, because this runtime has no allocators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tilewright.compiler.errors import InvalidArgumentError, suggestion

_ARENA_KEYS = (
    *("max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk"),
    *("initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes"),
)


class OrtAllocatorType(IntEnum):
    """The kind of allocator that memory comes from, such as an arena."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(IntEnum):
    """The kind of memory that an allocator provides."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


@dataclass(frozen=True, slots=True)
class OrtMemoryInfo:
    """The description of a device's memory: name, allocator, device number and kind of memory."""

    name: str
    allocator_type: OrtAllocatorType
    device_id: int
    mem_type: OrtMemType


class OrtArenaCfg:
    """The growth settings of an arena; stored and ignored, because this runtime has no arenas.

    The settings are passed either as four numbers, or as a mapping from names to numbers. 0 for
    `max_mem` and -1 for the others select defaults.

    Raises:
        InvalidArgumentError: if a name is unknown.
    """

    __slots__ = _ARENA_KEYS

    def __init__(
        self,
        max_mem: int | Mapping[str, int],
        arena_extend_strategy: int = -1,
        initial_chunk_size_bytes: int = -1,
        max_dead_bytes_per_chunk: int = -1,
    ) -> None:
        given = {
            "max_mem": max_mem,
            "arena_extend_strategy": arena_extend_strategy,
            "initial_chunk_size_bytes": initial_chunk_size_bytes,
            "max_dead_bytes_per_chunk": max_dead_bytes_per_chunk,
        }
        stated = dict(max_mem) if isinstance(max_mem, Mapping) else given
        for key in stated:
            if key not in _ARENA_KEYS:
                raise InvalidArgumentError(
                    f"an arena has no '{key}', only {', '.join(_ARENA_KEYS)}"
                    f"{suggestion(key, _ARENA_KEYS)}"
                )
        for key in _ARENA_KEYS:
            setattr(self, key, stated.get(key, 0 if key == "max_mem" else -1))


def create_and_register_allocator(
    mem_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None
) -> None:
    """Do nothing: this runtime has no allocators. The arguments are not used."""
