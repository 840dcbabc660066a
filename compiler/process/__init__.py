"""This process, and child processes for work that may have to be killed."""

from tilewright.compiler.process.own_process import (
    BLAS_THREADS,
    YOUNG_OBJECTS,
    give_back_memory,
    leave_garbage,
    settle_process,
)

__all__ = [
    "BLAS_THREADS",
    "YOUNG_OBJECTS",
    "give_back_memory",
    "leave_garbage",
    "settle_process",
]
