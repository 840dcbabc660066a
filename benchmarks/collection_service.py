"""`make collection-service`: tune real models through a service with one tuner and one worker.

Each part starts an API, a tuner and a worker with an empty database. `models` tunes many models and
observes the tuner's memory. `cancel` cancels one job in each phase. `kill` kills the tuner in each
phase and starts another. `beside` tunes a small model at the same time as two large ones. The
report of a part that is run again replaces the part's earlier report.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.collection import (
    FOLDER,
    MEMORY_BYTES,
    RESULTS,
    WALL_SHARE,
    WALL_SPARE,
    facts,
)
from benchmarks.collection_fleet import ObservedService, observed_service
from benchmarks.collection_models import Collected, collected, groups
from benchmarks.collection_scenarios import (
    Beside,
    Cancelled,
    Killed,
    Moment,
    alone,
    beside,
    cancel,
    kill,
)
from benchmarks.real_fetch import FetchError
from benchmarks.report import Origin, markdown_table, read_data, write_data
from tilewright.service.client import ClientError

MEMORY_SPARE = 64 << 20
"""Bytes by which a tuner's memory may grow from the first job to the last, because allocators
retain some memory."""

LONGEST = 160


@dataclass(frozen=True, slots=True)
class ModelRow:
    """Result of one model's job.

    Attributes:
        problem: why the model could not be fetched; empty if it could.
        wall_seconds: time from submission to end.
        message: what is wrong with the downloaded artifact; otherwise the error or reason that the
            job reports.
        before_bytes, peak_bytes, after_bytes: memory of the tuner before, during and after the job.
        tree_bytes: largest memory of the tuner and its child processes together.
    """

    identity: str
    problem: str = ""
    state: str = ""
    wall_seconds: float = 0.0
    trials: int | None = None
    certificate: str = ""
    verified: bool = False
    message: str = ""
    before_bytes: int = 0
    peak_bytes: int = 0
    tree_bytes: int = 0
    after_bytes: int = 0

    def faults(self, seconds: float) -> list[str]:
        """Short texts that name the requirements which the job violated, such as `not verified`.

        `seconds` is the job's tuning budget, which determines the allowed wall time.
        """
        if self.problem:
            return [f"not tried: {self.problem}"]
        checks = {
            self.state: self.state != "succeeded",
            "not verified": not self.verified,
            f"{self.tree_bytes / 2**30:.1f} GiB": self.tree_bytes > MEMORY_BYTES,
            f"{self.wall_seconds:.0f} s": self.wall_seconds > limit_of(seconds),
        }
        return [fault for fault, wrong in checks.items() if wrong]

    def cells(self, seconds: float) -> list[str]:
        """The cells of the model's row in the table.

        `seconds` is the tuning budget. One cell says whether the job took too long for this budget.
        """
        return [
            self.identity,
            "; ".join(self.faults(seconds)) or "ok",
            self.certificate,
            self.message,
            f"{self.wall_seconds:.0f}",
            "-" if self.trials is None else str(self.trials),
            *(_mib(each) for each in (self.before_bytes, self.peak_bytes, self.after_bytes)),
            _mib(self.tree_bytes),
        ]


HEADER = (
    *("model", "verdict", "certificate", "message", "wall s", "trials"),
    *("before MiB", "peak MiB", "after MiB", "with children MiB"),
)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of the tuner in bytes when it was new, after its first job, and after all jobs.

    `children` is the number of processes that computed for jobs and were still alive after all
    jobs.
    """

    new_bytes: int
    first_bytes: int
    last_bytes: int
    children: int

    def faults(self) -> list[str]:
        faults = [f"{self.children} children live"] if self.children else []
        grown = self.last_bytes - self.first_bytes
        return faults + ([f"grown by {_mib(grown)} MiB"] if grown > MEMORY_SPARE else [])


def limit_of(seconds: float) -> float:
    """Wall time in seconds that a job with a tuning budget of `seconds` may take."""
    return WALL_SHARE * seconds + WALL_SPARE


def tuned(service: ObservedService, model: Collected, options: argparse.Namespace) -> ModelRow:
    """Submit a model, wait for its job, download the artifact, and return the row of the table."""
    try:
        file = model.file(options.folder)
    except FetchError as error:
        return ModelRow(model.identity, str(error))
    before = service.tuner_bytes()
    service.memory.peaks()
    try:
        job_id = service.submit(file, options.seconds)
    except ClientError as error:
        return ModelRow(model.identity, state="refused", message=str(error), before_bytes=before)
    service.ended(job_id, options.limit_seconds)
    job = service.job(job_id)
    wall = (job.finished_at or service.storage.clock()) - job.created_at
    if not job.state.final:
        service.client.cancel(job_id)
    peak, together = service.memory.peaks()
    found = facts(json.dumps(job.result)) if job.result else {}
    message = job.error or job.reason or ""
    if job.artifact_digest is not None:
        message = _fetched(service, job_id) or message
    return ModelRow(
        model.identity,
        state=job.state.value,
        wall_seconds=round(wall, 1),
        trials=found.get("trials"),
        certificate=found.get("certificate", ""),
        verified=bool(found.get("verified")) and job.artifact_digest is not None,
        message=message,
        before_bytes=before,
        peak_bytes=peak,
        tree_bytes=together,
        after_bytes=service.tuner_bytes(),
    )


def _fetched(service: ObservedService, job_id: str) -> str:
    """Download the artifact of a job and check it.

    Returns an error message, or an empty text if the artifact is complete.
    """
    with tempfile.TemporaryDirectory(prefix="tilewright-collection-") as work:
        try:
            folder = service.client.fetch(job_id, Path(work, "artifact"))
        except ClientError as error:
            return str(error)
        return "" if (folder / "manifest.json").exists() else "the artifact has no manifest"


Keep = Callable[[str, Any], None]
"""Callback that stores the results of a part so far: their name and their value."""


def run_models(
    service: ObservedService, chosen: Sequence[Collected], options: argparse.Namespace, keep: Keep
) -> None:
    """Tune the models one after the other.

    The rows and the tuner's memory are passed to the callback `keep`.
    """
    new = first = service.tuner_bytes()
    rows: list[ModelRow] = []
    for model in chosen:
        row = tuned(service, model, options)
        first = row.after_bytes if not rows else first
        rows.append(row)
        keep("models", [asdict(each) for each in rows])
        print(f"{row.identity}: {'; '.join(row.faults(options.seconds)) or 'ok'}", flush=True)
    memory = Memory(new, first, service.tuner_bytes(), len(service.children()))
    keep("memory", asdict(memory))


def run_moments(
    service: ObservedService,
    part: str,
    chosen: Sequence[Collected],
    options: argparse.Namespace,
    keep: Keep,
) -> None:
    """Cancel a job (`part` "cancel") or kill its tuner (`part` "kill") in each phase.

    Each phase uses a different model if `chosen` contains enough. The results are passed to the
    callback `keep`.
    """
    rows: list[Cancelled | Killed] = []
    play: Callable[..., Cancelled | Killed] = cancel if part == "cancel" else kill
    for number, moment in enumerate(Moment):
        model = chosen[number % len(chosen)]
        file = model.file(options.folder)
        row = play(service, model.identity, file, moment, options.seconds, options.limit_seconds)
        rows.append(row)
        keep(part, [asdict(each) for each in rows])
        print(f"{part} {row.moment}: {'; '.join(row.faults()) or 'ok'}", flush=True)


def run_beside(
    service: ObservedService, chosen: Sequence[Collected], options: argparse.Namespace, keep: Keep
) -> None:
    """Tune the first, small model at the same time as the other models.

    The small model is tuned alone beforehand. That job has a service of its own, because a second
    job of the same model would reuse its records. The result is passed to the callback `keep`.
    """
    files = [(model.identity, model.file(options.folder)) for model in chosen]
    limits = options.seconds, options.limit_seconds
    with (
        tempfile.TemporaryDirectory(prefix="tilewright-service-") as work,
        observed_service(Path(work)) as other,
    ):
        seconds = alone(other, files[0][1], *limits)
    row = beside(service, seconds, files[0], files[1:], *limits)
    keep("beside", [asdict(row)])
    print(f"beside: {'; '.join(row.faults(limit_of(options.seconds))) or 'ok'}", flush=True)


def report(data: Mapping[str, Any]) -> str:
    """The benchmark's report in Markdown, with a section for each part in `data`."""
    seconds = data["seconds"]
    lines = ["# The models that people have, through a service with a worker", ""]
    if "models" in data:
        rows = [ModelRow(**row) for row in data["models"]]
        tried = [row for row in rows if not row.problem]
        good = sum(not row.faults(seconds) for row in tried)
        verified = sum(row.verified and row.state == "succeeded" for row in tried)
        lines += [
            *("## Models", "", data["origins"]["models"], ""),
            f"{len(rows)} models, one job after the other, {seconds:g} s each: {verified} ended "
            f"with a verified artifact, {good} also within {limit_of(seconds):g} s and "
            f"{MEMORY_BYTES >> 30} GiB.",
            "",
        ]
        if "memory" in data:
            lines += [memory_sentence(Memory(**data["memory"])), ""]
        lines += [_table(HEADER, [row.cells(seconds) for row in rows], 4), ""]
    if "cancel" in data:
        lines += _part(data, "cancel", "A job cancelled in each phase", CANCEL_HEADER)
    if "kill" in data:
        lines += _part(data, "kill", "The tuner killed in each phase", KILL_HEADER)
    if "beside" in data:
        lines += _part(data, "beside", "A small model beside large ones", BESIDE_HEADER)
    return "\n".join(lines).rstrip() + "\n"


def memory_sentence(memory: Memory) -> str:
    """A sentence about the growth of the tuner's memory."""
    return (
        f"The tuner held {_mib(memory.new_bytes)} MiB when it was new, "
        f"{_mib(memory.first_bytes)} after its first job and {_mib(memory.last_bytes)} after all; "
        f"{memory.children} processes of jobs were left"
        + "".join(f" ({fault})" for fault in memory.faults())
        + "."
    )


CANCEL_HEADER = (
    *("phase", "model", "verdict", "its progress said"),
    *("processes", "gone s", "let go s"),
)
KILL_HEADER = (
    *("phase", "model", "verdict", "its progress said"),
    *("orphans", "gone s", "trials before", "ended s"),
)
BESIDE_HEADER = ("small model", "beside", "verdict", "where they were then", "alone s", "wall s")


def _part(data: Mapping[str, Any], part: str, title: str, header: Sequence[str]) -> list[str]:
    limit = limit_of(data["seconds"])
    cells = [_cells(part, row, limit) for row in data[part]]
    return [f"## {title}", "", data["origins"][part], "", _table(header, cells, 4), ""]


def _cells(part: str, row: Mapping[str, Any], limit: float) -> list[str]:
    match part:
        case "cancel":
            one = Cancelled(**row)
            verdict = "; ".join(one.faults()) or "ok"
            numbers = [str(one.processes), _seconds(one.gone_seconds), _seconds(one.left_seconds)]
            return [one.moment, one.model, verdict, one.phase, *numbers]
        case "kill":
            killed = Killed(**row)
            verdict = "; ".join(killed.faults()) or "ok"
            numbers = [str(killed.orphans), _seconds(killed.gone_seconds), str(killed.trials)]
            ended = _seconds(killed.ended_seconds)
            return [killed.moment, killed.model, verdict, killed.phase, *numbers, ended]
        case _:
            small = Beside(**row)
            verdict = "; ".join(small.faults(limit)) or "ok"
            where = ", ".join(small.phases)
            walls = [_seconds(small.alone_seconds), _seconds(small.wall_seconds)]
            return [small.model, ", ".join(small.others), verdict, where, *walls]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """A Markdown table whose cells have one line of at most 160 characters, with `|` escaped.

    The first `text` columns are left-aligned.
    """
    plain = [[" ".join(c.split()).replace("|", "\\|")[:LONGEST] for c in row] for row in rows]
    return markdown_table(list(header), plain, text)


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f}"


OF_MOMENTS = tuple(
    f"shipped/{name}"
    for name in (
        *("ppocr-v4-rec", "wakeword-embedding", "deepcut", "dnsmos-p808"),
        *("mtcnn-onet", "oskut-tl-deepcut-ws"),
    )
)
"""A model for each phase, large enough that the phase can be observed."""

OF_BESIDE = ("shipped/mnist-cntk", "shipped/ddddocr-common", "shipped/ppocr-v6-rec")

PARTS = ("models", "cancel", "kill", "beside")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--groups", nargs="+", choices=groups(), default=["quantised", "shipped"])
    parser.add_argument("--only", nargs="+", default=[], help="these models of the groups")
    parser.add_argument("--limit", type=int, default=40, help="so many models")
    parser.add_argument("--seconds", type=float, default=10.0, help="the budget of each job")
    parser.add_argument("--limit-seconds", type=float, default=300.0, help="the most for a job")
    parser.add_argument("--fetch-seconds", type=float, default=1800.0)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where models are kept")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the report goes")
    parser.add_argument("--name", default="collection-service", help="of the results")
    parser.add_argument("--logs", type=Path, help="a folder to which the processes' logs go")
    return parser.parse_args(arguments)


def small_first(models: Sequence[Collected], options: argparse.Namespace) -> list[Collected]:
    """The models that the options `--only` and `--limit` select, by increasing file size.

    Models without a file come last.
    """

    def size(model: Collected) -> int:
        try:
            file = model.file(options.folder)
        except FetchError:
            return 1 << 62
        return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))

    wanted = [each for each in models if not options.only or each.name in options.only]
    return sorted(wanted, key=size)[: options.limit]


def named(names: Sequence[str], options: argparse.Namespace) -> list[Collected]:
    """The models with the identities `names` (such as `shipped/deepcut`), in this order."""
    of_groups = sorted({name.partition("/")[0] for name in names})
    known = {m.identity: m for m in collected(of_groups, options.fetch_seconds)}
    return [known[name] for name in names]


def play(part: str, service: ObservedService, options: argparse.Namespace, keep: Keep) -> None:
    """Run one part (such as `cancel`) on a running service, and pass its results to `keep`."""
    match part:
        case "models":
            models = collected(options.groups, options.fetch_seconds)
            run_models(service, small_first(models, options), options, keep)
        case "beside":
            run_beside(service, named(OF_BESIDE, options), options, keep)
        case _:
            run_moments(service, part, named(OF_MOMENTS, options), options, keep)


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    options.results.mkdir(parents=True, exist_ok=True)
    stem = options.results / options.name
    file = stem.with_suffix(".json.gz")
    data: dict[str, Any] = read_data(file) if file.exists() else {"origins": {}}
    data["seconds"] = options.seconds
    origin = Origin.of(options).sentence()

    for part in options.parts:

        def keep(what: str, found: Any, part: str = part) -> None:
            data["origins"][part] = origin
            data[what] = found
            write_data(file, json.dumps(data, indent=1) + "\n")
            stem.with_suffix(".md").write_text(report(data))

        with tempfile.TemporaryDirectory(prefix="tilewright-service-") as work:
            try:
                with observed_service(Path(work)) as service:
                    play(part, service, options, keep)
            finally:
                if options.logs is not None:
                    options.logs.mkdir(parents=True, exist_ok=True)
                    for log in Path(work).glob("*.log"):
                        shutil.copy(log, options.logs / f"{part}-{log.name}")


if __name__ == "__main__":
    main()
