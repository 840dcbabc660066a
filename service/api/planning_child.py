"""What the planning process does: it reads models that strangers sent, within a limit of memory.

Everything here runs in a child of the web process (`service.api.planning`). What a user did wrong
comes back as a value: an exception of ours would not survive the way between two processes.
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
from tilewright.compiler.process.bounded import NICENESS, go_last, limit_memory
from tilewright.compiler.targets.target import Target
from tilewright.db.errors import DatabaseError, StorageError, StorageKind
from tilewright.db.types import canonical_json
from tilewright.service.api.cache import held_bytes
from tilewright.service.api.errors import ApiProblem, compiler_problem, database_problem
from tilewright.service.api.model_check import check_job, check_model_bytes
from tilewright.service.jobs.inputs.given_files import GivenFiles, SamplesFile, read_samples_file
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.plan.stage_planning import plan_first_program
from tilewright.service.jobs.report.model_graph import ModelGraph, model_graph
from tilewright.service.jobs.report.predicted import Predicted, predicted
from tilewright.service.jobs.report.shown_code import ShownCode, shown_code
from tilewright.service.jobs.report.workload_facts import workload_name
from tilewright.tuner.measure.measurement import Trial

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """What an `ApiProblem` is made of."""

    status: int
    slug: str
    detail: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PlannedWorkload:
    """A workload of a model, for people and by its key, and how often the model runs it."""

    key: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """Whether a file is an ONNX model at all."""

    path: Path
    name: str

    def run(self) -> None:
        check_model_bytes(self.path, self.name)


@dataclass(frozen=True, slots=True)
class JobCheck:
    """Whether a model can be tuned as a job asks for, with the inputs that it is given.

    `options` are the job's; `path` is where the child finds the model, `samples` where it finds
    the files of samples, which hold at most `samples_bytes`.
    """

    digest: str
    mode: Mode
    options: Mapping[str, Any]
    path: Path = Path()
    samples: tuple[SamplesFile, ...] = ()
    samples_bytes: int = 0

    def spec(self, model: bytes) -> JobSpec:
        """The job with a model's bytes. Raises TuningError for an option that nobody knows."""
        return JobSpec.of_options(ModelRequest(model, self.mode), self.options)

    def run(self) -> None:
        model = _model(self.path, self.digest)
        spec = self.spec(model)
        files = GivenFiles(self.samples, spec.options.values, self.samples_bytes)
        check_job(replace(spec, given=files.read(model, spec.options.sizes)))


@dataclass(frozen=True, slots=True)
class SamplesCheck:
    """Whether a file holds samples at all: arrays by name, of so many bytes at most."""

    file: SamplesFile
    limit_bytes: int

    def run(self) -> None:
        read_samples_file(self.file, self.limit_bytes)


class KeptQuestion(ABC, Generic[T]):
    """A question whose answer is remembered, under what it `asks`."""

    __slots__ = ()

    MOST_BYTES: ClassVar[int]
    """Of memory that remembered answers of the kind take together."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """What is asked about, for a problem."""

    @abstractmethod
    def asks(self) -> tuple[object, ...]:
        """All that the answer depends on, as values that JSON can spell. The code's version is the
        process's own, and so it is not among them."""

    @abstractmethod
    def run(self) -> T:
        """Raises CompilerError, DatabaseError or MemoryError."""

    def key(self) -> str:
        """Names the question by a few bytes, however long its parts are."""
        return hashlib.sha256(canonical_json(self.asks()).encode()).hexdigest()


class ModelQuestion(KeptQuestion[T]):
    """One whose answer is read from a model."""

    __slots__ = ()

    @property
    @abstractmethod
    def model(self) -> str:
        """The digest of its file."""

    @property
    def subject(self) -> str:
        return f"model '{self.model}'"

    @abstractmethod
    def at(self, path: Path) -> Self:
        """The same of the file that lies there."""


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """A question to be answered with the bytes of memory that its answer takes."""

    question: KeptQuestion[T]

    def run(self) -> tuple[T, int]:
        found = self.question.run()
        return found, held_bytes(found)


@dataclass(frozen=True, slots=True)
class WorkloadsQuestion(ModelQuestion[Sequence[PlannedWorkload]]):
    """Which workloads a model is cut into, at sizes or for ranges."""

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
    """How the model of a job is cut, drawn; a model at several sizes is drawn at the first."""

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
    """What a schedule makes of a workload's text, for any target; without one, the untuned one."""

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
    """What the models of cost say of trials of a workload's text. `model` are the bytes of a stored
    cost model, and `digest` names them; both are empty for none."""

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
    """Limit this process, and let requests go first; Ctrl-C in a terminal is for its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(memory_bytes)
    go_last(NICENESS)


def answer(question: Question) -> Any:
    """What the question's `run` says, or a Refusal."""
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
