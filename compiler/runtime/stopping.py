"""The class `StopFlag`, with which one thread stops runs of other threads."""

from __future__ import annotations

from ctypes import addressof, c_uint8


class StopFlag:
    """A flag that stops the runs to which it was passed; any thread may set it.

    The program interpreter reads it before each instruction. When it is set, a run finishes its
    current kernel and raises StoppedError.

    Attributes:
        address: the address of the flag's byte.
    """

    __slots__ = ("_byte", "address")

    def __init__(self) -> None:
        self._byte = c_uint8()
        self.address = addressof(self._byte)

    @property
    def is_set(self) -> bool:
        """Whether the flag is set; assign true to stop the runs."""
        return bool(self._byte.value)

    @is_set.setter
    def is_set(self, value: bool) -> None:
        self._byte.value = bool(value)
