"""Options of sessions and runs, with ONNX Runtime's interface."""

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
    """The error for reading a configuration entry that was not added.

    It is a RuntimeError because ONNX Runtime raises a RuntimeError.
    """


class GraphOptimizationLevel(IntEnum):
    """The level of graph optimisation; ignored, because every model is fully optimised."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """How operators are executed; ignored: they run one after the other, each on all threads."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(IntEnum):
    """The order of operators; ignored, because the memory plan determines it."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


@dataclass(slots=True)
class SessionOptions:
    """Options of a session. Attributes that are not listed are accepted and ignored.

    Attributes:
        intra_op_num_threads: threads per run; 0 for as many as the process has cores.
        enable_profiling: whether the session writes a trace.
        profile_file_prefix: the start of the trace file's path; date, time and `.json` are
            appended.
        optimized_model_filepath: must be empty, because a compiled model is not an ONNX file.
        sizes, denoted_sizes: fixed sizes of dynamic dimensions, by name and by ONNX denotation
            (such as `DATA_BATCH`).
        initializers: values that replace the model's initializers, by name.
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
        """Fix the size of the dynamic dimension with this name."""
        self.sizes[name] = size

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Fix the size of the dynamic dimensions with a denotation, such as `DATA_BATCH`."""
        self.denoted_sizes[denotation] = size

    def add_initializer(self, name: str, ortvalue: OrtValue) -> None:
        """Replace the model's initializer `name` by another value."""
        self.initializers[name] = ortvalue

    def add_external_initializers(self, names: Sequence[str], values: Sequence[OrtValue]) -> None:
        """Replace initializers by values; the initializers' external files need not exist.

        Raises:
            InvalidArgumentError: if the numbers of names and values differ.
        """
        if len(names) != len(values):
            raise InvalidArgumentError(
                f"there are {len(names)} names and {len(values)} values, expected as many of each"
            )
        self.initializers.update(zip(names, values, strict=True))

    def register_custom_ops_library(self, path: str) -> None:
        """Raise InvalidArgumentError: models cannot call ONNX Runtime's custom operators."""
        raise InvalidArgumentError(
            f"'{path}' holds custom operators of ONNX Runtime, which cannot be called here: write "
            "them as ONNX functions of the model"
        )

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store an entry, which `get_session_config_entry` returns; it has no other effect."""
        self.entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return the value of a configuration entry.

        Raises:
            RuntimeError: if the entry does not exist, as in ONNX Runtime. The error is also an
                InvalidArgumentError.
        """
        return _entry(self.entries, "SessionOptions", key)


@dataclass(slots=True)
class RunOptions:
    """Options of a run. Attributes that are not listed are accepted and ignored.

    Attributes:
        stop: the flag that `terminate` sets.
    """

    log_severity_level: int = 2
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    entries: dict[str, str] = field(default_factory=dict)
    stop: StopFlag = field(default_factory=StopFlag, repr=False)

    @property
    def terminate(self) -> bool:
        """Whether runs with these options are stopped with the exception `Fail`.

        Another thread may set this property. A run in progress then stops after its current kernel,
        and a new run stops before its first kernel.
        """
        return self.stop.is_set

    @terminate.setter
    def terminate(self, value: bool) -> None:
        self.stop.is_set = value

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store an entry, which `get_run_config_entry` returns; it has no other effect."""
        self.entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return the value of a configuration entry.

        Raises:
            RuntimeError: if the entry does not exist, as in ONNX Runtime. The error is also an
                InvalidArgumentError.
        """
        return _entry(self.entries, "RunOptions", key)


def _entry(entries: Mapping[str, str], what: str, key: str) -> str:
    if key not in entries:
        raise NoEntryError(f"{what} does not have configuration with key: {key}")
    return entries[key]


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: the setting is accepted for compatibility with ONNX Runtime."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: the setting is accepted for compatibility with ONNX Runtime."""


def enable_telemetry_events() -> None:
    """Do nothing: this package sends no telemetry."""


def disable_telemetry_events() -> None:
    """Do nothing: this package sends no telemetry."""
