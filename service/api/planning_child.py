"""Computations on untrusted models, which run in child processes with a memory limit.

The web process (`service.api.planning`) starts the child processes. A request for a computation is
called a question, and its result is called the answer. If the user caused an error, the child
returns a `Refusal` instead of raising an exception. The reason is that the project's exceptions
cannot be pickled and sent to the parent process.
"""

from __future__ import annotations

import hashlib
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.mode import Mode
from tilewright.compiler.process.bounded import NICENESS, limit_memory, lower_priority
from tilewright.compiler.targets.target import Target
from tilewright.db.errors import DatabaseError, StorageError, StorageKind
from tilewright.db.types import canonical_json
from tilewright.service.api.cache import held_bytes
from tilewright.service.api.errors import ApiProblem, compiler_problem, database_problem
from tilewright.service.api.model_check import check_job, check_model_bytes
from tilewright.service.jobs.inputs.given_files import GivenFiles, SamplesFile, read_samples_file
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.plan.segment_planning import plan_first_program
from tilewright.service.jobs.report.model_graph import ModelGraph, model_graph
from tilewright.service.jobs.report.predicted import Predicted, predicted
from tilewright.service.jobs.report.shown_code import ShownCode, shown_code
from tilewright.service.jobs.report.workload_facts import workload_name
from tilewright.tuner.protocol.measurement import Trial

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The fields of an `ApiProblem`, in a form that can be sent between processes."""

    status: int
    slug: str
    detail: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """A workload (a fused subgraph to tune) of a model.

    Attributes:
        key: the workload's key.
        name: a readable name; "" if unknown.
        count: how often one run of the model executes the workload.
    """

    key: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Checks that a file is an ONNX model."""

    path: Path
    name: str

    def run(self) -> None:
        check_model_bytes(self.path, self.name)


@dataclass(frozen=True, slots=True)
class JobCheck:
    """Checks that a model can be tuned with a job's options and sample inputs.

    Attributes:
        digest: the SHA-256 of the model's file.
        mode: the target, threads, numerics and precision for which the job tunes.
        options: the options of the job.
        path: the model's file; `Planning.check_job` sets it.
        samples: the files of sample inputs; `Planning.check_job` sets them.
        samples_bytes: the limit of the samples' size.
    """

    digest: str
    mode: Mode
    options: Mapping[str, Any]
    path: Path = Path()
    samples: tuple[SamplesFile, ...] = ()
    samples_bytes: int = 0

    def spec(self, model: bytes) -> JobSpec:
        """Return the specification of the job, with the bytes of its model.

        Raises:
            TuningError: if an option is unknown.
        """
        return JobSpec.of_options(ModelRequest(model, self.mode), self.options)

    def run(self) -> None:
        model = _model(self.path, self.digest)
        spec = self.spec(model)
        files = GivenFiles(self.samples, spec.options.values, self.samples_bytes)
        check_job(replace(spec, given=files.read(model, spec.options.sizes)))


@dataclass(frozen=True, slots=True)
class SamplesCheck:
    """Checks that a file contains samples: named arrays of together at most `limit_bytes`."""

    file: SamplesFile
    limit_bytes: int

    def run(self) -> None:
        read_samples_file(self.file, self.limit_bytes)


class KeptQuestion(ABC, Generic[T]):
    """A computation that runs in a child process, and whose result is cached.

    The computation is called a question, and its result the answer. A subclass is one kind of
    question; an instance has the parameters. Instances of one class whose `asks` returns equal
    parameters share one cached answer.
    """

    __slots__ = ()

    MOST_BYTES: ClassVar[int]
    """Memory limit in bytes of the cache of answers to this kind of question."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """Return the name of the object that is computed on, such as "model '5c2e...'".

        Error messages contain the name.
        """

    @abstractmethod
    def asks(self) -> tuple[object, ...]:
        """Return the parameters that determine the result of the computation, as JSON values.

        The parameters form the cache key. They need no version of the code, because the cache is in
        memory and ends with the process.
        """

    @abstractmethod
    def run(self) -> T:
        """Run the computation in this process, which is a child process, and return the result.

        Raises:
            CompilerError: if the model is invalid or not supported.
            DatabaseError: if the database fails, or lacks a row.
            MemoryError: if memory does not suffice.
        """

    def key(self) -> str:
        """Return the cache key: a SHA-256, in hexadecimal, of the computation's parameters."""
        return hashlib.sha256(canonical_json(self.asks()).encode()).hexdigest()


class ModelQuestion(KeptQuestion[T]):
    """A computation whose input is a model's file. It runs in a child process."""

    __slots__ = ()

    @property
    @abstractmethod
    def model(self) -> str:
        """Return the SHA-256 of the model's file, which identifies the model."""

    @property
    def subject(self) -> str:
        return f"model '{self.model}'"

    @abstractmethod
    def at(self, path: Path) -> Self:
        """Return a copy of this computation that reads the model from the file at `path`."""


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """A computation whose method `run` also returns the size of the result.

    `run` returns a pair: the result, and its size in memory in bytes.
    """

    question: KeptQuestion[T]

    def run(self) -> tuple[T, int]:
        found = self.question.run()
        return found, held_bytes(found)


@dataclass(frozen=True, slots=True)
class WorkloadsQuestion(ModelQuestion[Sequence[PlannedWorkload]]):
    """Computes the list of a model's workloads (fused subgraphs to tune).

    Attributes:
        digest: the SHA-256 of the model's file.
        mode: the target, threads, numerics and precision of the generated code.
        dims: the size, or the range such as "1..512", of each dynamic dimension by name.
        path: the model's file.
    """

    digest: str
    mode: Mode
    dims: Mapping[str, int | str]
    path: Path = Path()

    MOST_BYTES = 32 << 20

    @property
    def model(self) -> str:
        return self.digest

    def at(self, path: Path) -> Self:
        return replace(self, path=path)

    def asks(self) -> tuple[object, ...]:
        return (self.digest, self.mode.to_json(), self.dims)

    def run(self) -> Sequence[PlannedWorkload]:
        model = _model(self.path, self.digest)
        request = ModelRequest(model, self.mode, digest=self.digest)
        planned = plan_first_program(request, {name: (size,) for name, size in self.dims.items()})
        return [
            PlannedWorkload(workload.key, workload_name(workload), count)
            for workload, count in planned.workloads
        ]


@dataclass(frozen=True, slots=True)
class GraphQuestion(ModelQuestion[ModelGraph]):
    """Computes the graph of a job's model, partitioned into workloads (fused subgraphs to tune).

    If the job tunes the model at several combinations of sizes, the graph is for the first
    combination.
    """

    check: JobCheck

    MOST_BYTES = 128 << 20

    @property
    def model(self) -> str:
        return self.check.digest

    def at(self, path: Path) -> Self:
        return replace(self, check=replace(self.check, path=path))

    def asks(self) -> tuple[object, ...]:
        check = self.check
        return (check.digest, check.mode.to_json(), check.options)

    def run(self) -> ModelGraph:
        spec = self.check.spec(_model(self.check.path, self.check.digest))
        return model_graph(plan_first_program(spec.request, spec.options.sizes))


@dataclass(frozen=True, slots=True)
class CodeQuestion(KeptQuestion[ShownCode]):
    """Generates the code for a workload (a fused subgraph to tune) with a schedule.

    Attributes:
        text: the workload as text.
        schedule: the schedule as JSON, or None for the untuned schedule.
        mode: the target, threads, numerics and precision of the generated code.
    """

    text: str
    schedule: Mapping[str, Any] | None
    mode: Mode

    MOST_BYTES = 32 << 20

    @property
    def subject(self) -> str:
        return "the code of the schedule"

    def asks(self) -> tuple[object, ...]:
        return (self.text, self.mode.to_json(), self.schedule)

    def run(self) -> ShownCode:
        return shown_code(self.text, self.schedule, self.mode)


@dataclass(frozen=True, slots=True)
class PredictionsQuestion(KeptQuestion[Predicted]):
    """Computes the times that cost models predict for trials of a workload.

    Attributes:
        text: the workload as text.
        target: the target of the trials.
        trials: the measured candidates.
        model: the bytes of the learned cost model from the database; b"" without such a model.
        digest: the digest of the bytes of `model`; "" without a learned cost model.
    """

    text: str
    target: Target
    trials: tuple[Trial, ...]
    model: bytes = b""
    digest: str = ""

    MOST_BYTES = 16 << 20

    @property
    def subject(self) -> str:
        return "what the cost model predicts"

    def asks(self) -> tuple[object, ...]:
        trials = [trial.id for trial in self.trials]
        return (self.text, self.target.key, trials, self.digest)

    def run(self) -> Predicted:
        return predicted(self.text, self.target, self.trials, self.model)


def _model(path: Path, digest: str) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise StorageError(f"model '{digest}' is damaged", StorageKind.CORRUPT)
    return data


Question = ModelCheck | JobCheck | SamplesCheck | Measured[Any]


def begin(memory_bytes: int) -> None:
    """Initialise a child process: limit its memory, and lower its priority below the parent's.

    SIGINT is ignored, because the parent process handles Ctrl-C.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(memory_bytes)
    lower_priority(NICENESS)


def answer(question: Question) -> Any:
    """Run a computation (`question`) in this child process, and return its result.

    Return a `Refusal` if the computation raises CompilerError, DatabaseError or MemoryError.
    """
    run: Callable[[], Any] = question.run
    try:
        return run()
    except CompilerError as error:
        return _refusal(compiler_problem(error))
    except DatabaseError as error:
        return _refusal(database_problem(error))
    except MemoryError:
        return Refusal(
            507,
            "insufficient-memory",
            "reading the model takes more memory than it may (TILEWRIGHT_PLANNING_MEMORY_BYTES)",
            {},
        )


def _refusal(problem: ApiProblem) -> Refusal:
    return Refusal(problem.status, problem.slug, problem.detail, problem.extra)
