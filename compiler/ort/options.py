"""Options of sessions and runs, as ONNX Runtime has them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class GraphOptimizationLevel(IntEnum):
    """Taken and not used: every model is optimised."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """Taken and not used: operators run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


@dataclass(slots=True)
class SessionOptions:
    """How a session is made.

    Attributes:
        intra_op_num_threads: threads that a run uses; 0: as many as this process has cores.
        sizes: of open dimensions that are fixed, by name.
        others: taken and not used.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix an open dimension."""
        self.sizes[name] = size

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Taken and not used."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """What was added. Raises KeyError if nothing was."""
        return self.entries[key]


@dataclass(slots=True)
class RunOptions:
    """Taken and not used."""

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    terminate: bool = False
    only_execute_path_to_fetches: bool = False
