"""Compares two artifacts or jobs: their properties, and their kernels one by one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.service.jobs.report.profiling import kernel_text, operators_of
from tilewright.service.show.tables.tasks import runs_of
from tilewright.service.show.text import schedule_text
from tilewright.service.show.units import finite, milliseconds

if TYPE_CHECKING:
    from tilewright.compiler.runtime.artifact import Artifact
    from tilewright.service.api.schemas.jobs import JobView, TaskView


@dataclass(frozen=True, slots=True)
class ComparedKernel:
    """One workload of an artifact or a job.

    Attributes:
        key: the key of the workload.
        name: a readable name; "" in artifacts.
        count: the number of the model's kernels with this workload.
        seconds: the time of one run of the workload, or None without a measurement.
        schedule: the JSON form of its schedule.
        macs: the multiply-adds of the workload's operators, whatever the schedule's algorithm.
        runs: how often one run of the model executes the workload. With dynamic sizes this differs
            from `count`.
        description: the operators and a shape of an artifact's workload, which has no name; "" for
            a job.
    """

    key: str
    name: str
    count: int | None
    seconds: float | None
    schedule: Mapping[str, Any] | None
    macs: float | None = None
    runs: float | None = None
    description: str = ""


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One of the two compared artifacts or jobs.

    Attributes:
        name: the name to show, such as "job 1f0e".
        facts: facts about the whole artifact or job, by name, such as the target and the threads.
        kernels: the workloads by key.
        seconds: the time of all kernels in one run of the model; None if unknown.
    """

    name: str
    facts: Mapping[str, Any]
    kernels: Mapping[str, ComparedKernel]
    seconds: float | None  # of all kernels in one run of the model


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of the comparison of A and B: a workload of A and the corresponding workload of B.

    Attributes:
        a: the workload of A; None if A has none that corresponds to `b`.
        b: the workload of B; None if B has none that corresponds to `a`. It has the same key as
            `a`, or another key and the same name: the two compute the same operators in different
            element types or layouts.
    """

    a: ComparedKernel | None
    b: ComparedKernel | None

    @property
    def alike(self) -> bool:
        """Whether the row has a workload of A and a workload of B with different keys.

        They have the same name, and differ in element types or layouts.
        """
        return self.a is not None and self.b is not None and self.a.key != self.b.key

    @property
    def counts(self) -> str:
        """The number of kernels with the workload: `4`, or `4 > 2` for 4 in A and 2 in B."""
        counts = [None if kernel is None else kernel.count for kernel in (self.a, self.b)]
        said = ["-" if count is None else str(count) for count in counts]
        return said[0] if counts[0] == counts[1] else " > ".join(said)

    @property
    def schedules(self) -> str:
        """The difference of the schedules: `gemm unroll=2>4` for a knob that is 2 in A and 4 in B.

        If only one side has the workload, the text is that side's schedule.
        """
        a, b = self.a, self.b
        if a is None or b is None:
            only, kernel = ("only in B", b) if a is None else ("only in A", a)
            return f"{only}: {schedule_text(kernel.schedule if kernel else None)}"
        one, other = a.schedule or {}, b.schedule or {}
        if one == other:
            return "the same"
        if one.get("algorithm") != other.get("algorithm"):
            return f"{schedule_text(one)} > {schedule_text(other)}"
        knobs = [f"{name}={x}>{y}" for name, x, y in knob_changes(one, other)]
        return " ".join([str(other.get("algorithm")), *knobs])

    @property
    def same(self) -> bool:
        """Whether the schedules are equal and the times do not differ.

        The times of two artifacts are ignored, because they were just measured and differ by
        chance.
        """
        timed_here = bool(self.a and self.b and self.a.description and self.b.description)
        return bool(self.same_schedule) and (timed_here or self.ratio in (None, 1))

    @property
    def either(self) -> ComparedKernel:
        found = self.a or self.b
        assert found is not None
        return found

    @property
    def name(self) -> str:
        """A readable name of the workload.

        Without one, its operators and a shape, or else 12 characters of its key.
        """
        sides = [kernel for kernel in (self.a, self.b) if kernel]
        names = (*(k.name for k in sides), *(k.description for k in sides), self.either.key[:12])
        return next(filter(None, names))

    @property
    def ratio(self) -> float | None:
        """The time of B divided by the time of A; None unless both are known."""
        if self.a is None or self.b is None or not self.a.seconds or not self.b.seconds:
            return None
        return self.b.seconds / self.a.seconds

    @property
    def gained(self) -> float | None:
        """Seconds that B saves on this workload per run of the model; negative if B is slower.

        None unless both times are known.
        """
        if self.ratio is None or self.a is None or self.b is None:
            return None
        return _cost(self.a) - _cost(self.b)

    @property
    def same_schedule(self) -> bool | None:
        """Whether the schedules are equal; None if a side lacks the workload or its schedule."""
        if self.a is None or self.b is None or None in (self.a.schedule, self.b.schedule):
            return None
        return self.a.schedule == self.b.schedule


@dataclass(frozen=True, slots=True)
class ModelDifference:
    """The comparison of two artifacts or jobs.

    Attributes:
        a: side A.
        b: side B.
        pairs: one row per workload, with the corresponding workload of the second side; the largest
            difference of time per run of the model first.
    """

    a: ComparedSide
    b: ComparedSide
    pairs: Sequence[Pair] = field(default_factory=tuple)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """The properties that differ between the two compared artifacts or jobs, A and B.

        The result has (value of A, value of B) by property name. Properties are, for example, the
        target and the number of threads.
        """
        names = [*self.a.facts, *(name for name in self.b.facts if name not in self.a.facts)]
        both = {name: (self.a.facts.get(name), self.b.facts.get(name)) for name in names}
        return {name: values for name, values in both.items() if values[0] != values[1]}

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """Rows of a table that compares two artifacts or jobs, A and B, as a whole.

        Each row is (label, text for A, text for B). The first row has the names of A and B. The
        rows of differing properties, such as the target, follow. The last row has the times of a
        run.
        """
        changed = [
            (name.replace("_", " "), _text(a), _text(b)) for name, (a, b) in self.changed.items()
        ]
        times = milliseconds(self.a.seconds), milliseconds(self.b.seconds)
        return [("name", self.a.name, self.b.name), *changed, ("a run", *times)]

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain data for `json.dumps`."""
        return {
            "a": _side(self.a),
            "b": _side(self.b),
            "changed": {name: {"a": a, "b": b} for name, (a, b) in self.changed.items()},
            "ratio": _ratio(self.a.seconds, self.b.seconds),
            "kernels": [
                {
                    "workload_key": pair.either.key,
                    "name": pair.name,
                    "a": _kernel(pair.a),
                    "b": _kernel(pair.b),
                    "ratio": pair.ratio,
                    "alike": pair.alike,
                    "same_schedule": pair.same_schedule,
                }
                for pair in self.pairs
            ],
        }


def difference(a: ComparedSide, b: ComparedSide) -> ModelDifference:
    """Compare two artifacts or jobs.

    Kernels with the same workload form a pair. The other kernels are paired by name, in their
    order, if both sides have equally many kernels of that name.
    """
    keys = dict.fromkeys([*a.kernels, *b.kernels])
    pairs = [Pair(a.kernels.get(key), b.kernels.get(key)) for key in keys]
    pairs = _matched(_matched(pairs, lambda k: (_plain(k), k.macs)), _plain)
    return ModelDifference(a, b, sorted(pairs, key=_weight, reverse=True))


def _matched(pairs: Sequence[Pair], identity: Callable[[ComparedKernel], Hashable]) -> list[Pair]:
    """Join rows of the comparison of two artifacts or jobs, A and B, and return all rows.

    A row has a workload of A, a workload of B, or both. A row with a workload of only A is joined
    with a row of only B if `identity` returns the same value for both workloads.

    If several workloads have the same value, they are joined in order. They are joined only if A
    and B have equally many of them. Workloads without a name are not joined.
    """
    sides: tuple[dict[Hashable, list[ComparedKernel]], ...] = {}, {}
    for pair in pairs:
        if (pair.a is None) != (pair.b is None) and pair.either.name:
            side = sides[pair.a is None]
            side.setdefault(identity(pair.either), []).append(pair.either)
    partner: dict[str, ComparedKernel] = {}
    for name, ours in sides[0].items():
        others = sides[1].get(name, [])
        if len(ours) == len(others):
            partner |= {one.key: other for one, other in zip(ours, others, strict=True)}
    taken = {kernel.key for kernel in partner.values()}
    return [
        Pair(pair.a, partner.get(pair.a.key, pair.b)) if pair.a is not None else pair
        for pair in pairs
        if pair.a is not None or pair.either.key not in taken
    ]


def _plain(kernel: ComparedKernel) -> str:
    """Return a kernel's name without " +cast".

    Kernels for narrower types have more casts. Without them, the names are comparable.
    """
    return kernel.name.replace(" +cast", "")


def knob_changes(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> list[tuple[str, object, object]]:
    """Return (knob, value in `one`, value in `other`) for each knob that differs.

    The value of a missing knob is "-".
    """
    before, after = (
        {name: "-" if value is None else value for name, value in each.get("choices", {}).items()}
        for each in (one, other)
    )
    found = [(name, before.get(name, "-"), after.get(name, "-")) for name in {**before, **after}]
    return [(name, x, y) for name, x, y in found if x != y]


def side_of_job(job: JobView, tasks: Sequence[TaskView]) -> ComparedSide:
    """Return a job's properties and workloads as one side of a comparison.

    Each workload has the best known time and schedule of its task.
    """
    known = {
        task.workload_key: ComparedKernel(
            task.workload_key,
            task.name,
            task.count,
            finite(task.best_seconds) or finite(task.default_seconds),
            _schedule(task.facts.get("schedule")),
            finite(task.facts.get("macs")),
            runs_of(task),
        )
        for task in tasks
    }
    total = sum(map(_cost, known.values()))
    whole = known and all(kernel.seconds for kernel in known.values())
    facts = {
        "model": job.model_name or job.model[:12],
        "target": job.target,
        "threads": job.threads,
        "numerics": job.numerics,
        "precision": job.options.get("precision", "float32"),
        "kernels": sum(kernel.count or 0 for kernel in known.values()),
        "workloads": len(known),
    }
    return ComparedSide(f"job {job.id}", facts, known, total if whole else None)


def side_of_artifact(
    artifact: Artifact, timed: Mapping[str, tuple[int, float]] | None = None
) -> ComparedSide:
    """Return an artifact's properties and workloads as one side of a comparison.

    Args:
        artifact: the artifact.
        timed: (calls in one run, total seconds of these calls) by kernel name. The key "" has the
            count and seconds of all instructions that are not kernels, such as copies. None without
            a measurement.
    """
    program = artifact.programs[0].program
    specs = {spec.name: spec for spec in program.kernels}
    named = operators_of(artifact)
    seconds = None if timed is None else sum(spent for _, spent in timed.values())
    known = {}
    for key, stored in (_mapping(artifact.metadata.get("schedules")) or {}).items():
        said = _mapping(stored) or {}
        symbol = str(said.get("kernel"))
        count, spent = (timed or {}).get(symbol, (0, 0.0))
        operators = named.get(symbol)
        known[key] = ComparedKernel(
            key,
            "",
            count or None,
            spent / count if count else None,
            _schedule(said.get("schedule")),
            description=kernel_text(specs[symbol], operators)
            if operators and symbol in specs
            else "",
        )
    types = sorted({str(spec.dtype) for k in program.kernels for spec in k.buffers})
    facts = {
        "model": program.name,
        "target": artifact.target.get("name"),
        "threads": artifact.metadata.get("threads"),
        "numerics": artifact.metadata.get("numerics"),
        "precision": ", ".join(types),
        "kernels": len(program.kernels),
        "workloads": len(known),
        "programs": len(artifact.programs),
        "weight_bytes": max(entry.program.weight_bytes for entry in artifact.programs),
        "arena_bytes": max(entry.program.arena_bytes for entry in artifact.programs),
        "file_bytes": sum(f.stat().st_size for f in artifact.path.iterdir() if f.is_file()),
    }
    return ComparedSide(f"artifact {artifact.path}", facts, known, seconds)


def _cost(kernel: ComparedKernel) -> float:
    runs = (kernel.count or 1) if kernel.runs is None else kernel.runs
    return (kernel.seconds or 0.0) * runs


def _weight(pair: Pair) -> tuple[float, float]:
    return abs(pair.gained or 0.0), max(_cost(k) for k in (pair.a, pair.b) if k is not None)


def _ratio(a: float | None, b: float | None) -> float | None:
    return b / a if a and b else None


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def _mapping(said: object) -> dict[str, Any] | None:
    return said if isinstance(said, dict) else None


def _schedule(said: object) -> dict[str, Any] | None:
    """Return the argument if it is the JSON form of a schedule, and otherwise None."""
    found = _mapping(said) or {}
    known = "algorithm" in found and isinstance(found.get("choices", {}), dict)
    return found if known else None


def _side(side: ComparedSide) -> dict[str, Any]:
    return {"name": side.name, **side.facts, "seconds": side.seconds}


def _kernel(kernel: ComparedKernel | None) -> dict[str, Any] | None:
    if kernel is None:
        return None
    return {"count": kernel.count, "seconds": kernel.seconds, "schedule": kernel.schedule}
