"""`StopFlag`, by which a thread ends the runs of other threads."""

from __future__ import annotations

from ctypes import addressof, c_uint8


class StopFlag:
    """A byte that the program interpreter reads before each instruction.

    Any thread may set it. A run with this flag then ends after its current kernel, with a
    StoppedError.

    Attributes:
        address: the address of the byte.
    """

    __slots__ = ("_byte", "address")

    def __init__(self) -> None:
        self._byte = c_uint8()
        self.address = addressof(self._byte)

    @property
    def is_set(self) -> bool:
        """Whether the flag is set."""
        return bool(self._byte.value)

    @is_set.setter
    def is_set(self, value: bool) -> None:
        self._byte.value = bool(value)
