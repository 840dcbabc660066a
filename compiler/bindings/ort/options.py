"""Options of sessions and runs, as ONNX Runtime has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.runtime.stopping import StopFlag

if TYPE_CHECKING:
    from tilewright.compiler.bindings.ort.values import OrtValue


class NoEntryError(InvalidArgumentError, RuntimeError):
    """There is no entry of that name."""


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


class ExecutionOrder(IntEnum):
    """Taken and not used: the order is chosen with the memory plan."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True)
class SessionOptions:
    """How a session is made.

    Attributes:
        intra_op_num_threads: threads that a run uses; 0: as many as this process has cores.
        enable_profiling, profile_file_prefix: whether the session writes a trace, and where.
        optimized_model_filepath: refused: what is compiled is no ONNX file.
        sizes, denoted_sizes: of open dimensions that are fixed, by name and by denotation.
        initializers: instead of those that the model has, by name.
        others: taken and not used.
    """

    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 0
    graph_optimization_level: int = GraphOptimizationLevel.ORT_ENABLE_ALL
    execution_mode: int = ExecutionMode.ORT_SEQUENTIAL
    execution_order: int = ExecutionOrder.DEFAULT
    use_per_session_threads: bool = True
    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    use_deterministic_compute: bool = False
    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    enable_profiling: bool = False
    profile_file_prefix: str = "tilewright_profile"
    optimized_model_filepath: str = ""
    denoted_sizes: dict[str, int] = field(default_factory=dict)
    initializers: dict[str, OrtValue] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix an open dimension."""
        self.sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the open dimensions that the model denotes so (`DATA_BATCH`)."""
        self.denoted_sizes[denotation] = size

    def add_initializer(self, name: str, ortvalue: OrtValue) -> None:
        """Use a value instead of the initializer that the model has."""
        self.initializers[name] = ortvalue

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Use values instead of initializers, whose files need not be there.

        Raises:
            InvalidArgumentError: if there are not as many names as values.
        """
        if len(names) != len(values):
            raise InvalidArgumentError(f"{len(names)} names and {len(values)} values")
        self.initializers.update(zip(names, values, strict=True))

    def register_custom_ops_library(self, path: str) -> None:
        """Raises InvalidArgumentError: such code cannot be called."""
        raise InvalidArgumentError(f"'{path}' has operators for ONNX Runtime alone")

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Taken and not used."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """What was added. Raises NoEntryError, a RuntimeError, if nothing was."""
        return _entry(self.entries, "SessionOptions", key)


@dataclass(slots=True)
class RunOptions:
    """How a session runs.

    Attributes:
        stop: the flag behind `terminate`.
        others: taken and not used.
    """

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    entries: dict[str, str] = field(default_factory=dict)
    stop: StopFlag = field(default_factory=StopFlag, repr=False)

    @property
    def terminate(self) -> bool:
        """Whether runs with these options end with a `Fail`: those that begin at once, those that
        have begun after the kernel at hand. Another thread may set it."""
        return self.stop.is_set

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self.stop.is_set = value

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Taken and not used."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """What was added. Raises NoEntryError, a RuntimeError, if nothing was."""
        return _entry(self.entries, "RunOptions", key)


def _entry(entries: Mapping[str, str], what: str, key: str) -> str:
    if key not in entries:
        raise NoEntryError(f"{what} does not have configuration with key: {key}")
    return entries[key]


def set_default_logger_severity(severity: int) -> None:
    """Taken and not used."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Taken and not used."""


def enable_telemetry_events() -> None:
    """Nothing: there are none."""


def disable_telemetry_events() -> None:
    """Nothing: there are none."""
