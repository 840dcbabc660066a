"""Commands that talk to a service: submit, jobs, lookup, workers."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import (
    STOP_GAIN,
    JsonOption,
    ModelPath,
    PadOption,
    RangesOption,
    SecondsOption,
    SeedOption,
    ServerOption,
    SizesOption,
    StopGainOption,
    StrategyOption,
    TargetMsOption,
    TargetOption,
    TokenOption,
    TrialsOption,
    UnconstrainedOption,
    UserError,
    VerboseOption,
    WeightLimitOption,
    connect,
    existing_file,
    no_options_before,
    parse_ranges,
    parse_share,
    parse_sizes,
)
from tilewright.service.cli.given import SamplesOption, ValuesOption, given_inputs, upload_samples
from tilewright.service.cli.mode_options import DEFAULTS, ModeOptions, with_mode
from tilewright.service.cli.terminal import console, say_json
from tilewright.service.sentences import with_reason
from tilewright.service.units import duration

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.service.api.schemas.jobs import JobView
    from tilewright.service.api.schemas.models import ModelView
    from tilewright.service.client import Client, Job


KEY_LENGTH = 64
"""Characters of a workload key."""


MESSAGE_BYTES = (1 << 31) - 1
"""What one protobuf message may have."""


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(with_mode(submit))
    app.command()(jobs)
    app.command()(with_mode(lookup))
    group = typer.Typer()
    group.callback(invoke_without_command=True)(workers)
    group.command()(drain)
    group.command()(resume)
    app.add_typer(group, name="workers")


def submit(
    model: ModelPath,
    server: ServerOption = None,
    token: TokenOption = None,
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    trials: TrialsOption = 1000,
    seconds: SecondsOption = None,
    dim: SizesOption = None,
    samples: SamplesOption = None,
    value: ValuesOption = None,
    pad: PadOption = False,
    weight_limit: WeightLimitOption = None,
    seed: SeedOption = 0,
    stop_gain: StopGainOption = STOP_GAIN,
    target_ms: TargetMsOption = None,
    strategy: StrategyOption = None,
    unconstrained: UnconstrainedOption = False,
    priority: Annotated[
        int, typer.Option("--priority", min=-100, max=100, help="Among your jobs: highest first")
    ] = 0,
    wait: Annotated[
        float | None,
        typer.Option("--wait", min=0, help="Most seconds to wait for a worker"),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the artifact")
    ] = None,
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Upload a model, make a tuning job of it, and show how it goes.

    Example: tilewright submit model.onnx --target board --seconds 600 -o artifact
    """
    from tilewright.service.api.schemas.jobs import JobRequest

    dims = parse_sizes(dim)
    given = given_inputs(existing_file(model), samples, value, dims)
    _check_free(output)
    out = console(as_json)
    with connect(server, token) as client:
        uploaded = upload_model(client, model)
        job = client.submit(
            JobRequest(
                model=uploaded.digest,
                target=target,
                **mode.values(),
                trials=trials,
                seconds=seconds,
                dims={name: list(listed) for name, listed in dims.items()},
                samples=upload_samples(client, given),
                values=dict(given.values),
                pad=pad,
                weight_limit=weight_limit,
                seed=seed,
                stop_gain=parse_share("--stop-gain", stop_gain),
                target_ms=target_ms,
                strategy=strategy,
                unconstrained=unconstrained,
                priority=priority,
                wait_seconds=wait,
            )
        )
        out.print(f"job {job.id}", soft_wrap=True)
        if detach:
            _tell_reason(job, out)
            if as_json:
                say_json(job)
            return
        job = _follow(client, job, out)
        if job.state not in ("succeeded", "incomplete"):
            if as_json:
                say_json({**job.model_dump(mode="json"), "tasks": client.tasks(job.id)})
            raise UserError(with_reason(f"job {job.id} {job.state}", job.error))
        from tilewright.service.cli.tune_view import tell_artifact
        from tilewright.service.cli.view import told_tasks

        tasks = client.tasks(job.id)
        for told in told_tasks(tasks, verbose):
            out.print(told, soft_wrap=isinstance(told, str))
        out.print(_summary(job), soft_wrap=True)
        _tell_result(job, out)
        if output is not None:
            client.fetch(job.id, output)
            tell_artifact(out, output)
        if as_json:
            say_json({**job.model_dump(mode="json"), "tasks": tasks})
    if job.state != "succeeded":
        raise UserError(with_reason(f"job {job.id} is incomplete", job.reason))


def _follow(client: Client, job: Job, out: Console) -> Job:
    """Show a job's events until it ends; returns the job as it is then."""
    from tilewright.service.progress import OnConsole

    return client.wait(job.id, OnConsole(out))


def _summary(job: JobView) -> str:
    from tilewright.service.wording import kernels_text

    progress = job.progress
    seconds = (job.finished_at or 0.0) - (job.started_at or 0.0)
    return (
        f"{kernels_text(progress.default_seconds, progress.best_seconds)}"
        f"{progress.trials_done} trials, "
        f"{progress.trials_failed} failed, {duration(seconds)}"
    )


def _tell_reason(job: JobView, out: Console) -> None:
    """Say why a job waits, or is incomplete, and what would help."""
    if job.reason:
        state = job.state.replace("_", " ")
        out.print(with_reason(state, job.reason), soft_wrap=True, markup=False)


def _tell_result(job: JobView, out: Console) -> None:
    from tilewright.service.wording import result_lines

    for line in result_lines(job.result) if job.result else ():
        out.print(line, soft_wrap=True, markup=False)


def _check_free(output: Path | None) -> None:
    """Raises UserError where there is something."""
    if output is not None and (output.exists() or output.is_symlink()):
        raise UserError(f"--output '{output}' is there already")


def jobs(
    job_id: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="One job: its id, or how that begins")
    ] = None,
    server: ServerOption = None,
    token: TokenOption = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="End the job at once")] = False,
    pause: Annotated[bool, typer.Option("--pause", help="Stop it at once, to go on later")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Let a paused job go on")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show the job until it ends")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the job's artifact")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Most jobs listed")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List jobs, or show, pause, resume, cancel or follow one.

    Example: tilewright jobs 1f0e --follow -o artifact
    """
    from tilewright.service.cli.view import job_table, sizes_note, task_table
    from tilewright.service.wording import failures_text

    if job_id is None and (cancel or pause or resume or follow or output):
        raise UserError("--cancel, --pause, --resume, --follow and --output need a JOB")
    if cancel + pause + resume > 1:
        raise UserError("--cancel, --pause and --resume exclude each other")
    _check_free(output)
    out = console(as_json)
    with connect(server, token) as client:
        if job_id is None:
            listed = client.jobs(limit=limit, results=as_json)
            if as_json:
                say_json(list(listed))
            else:
                out.print(job_table(listed))
            return
        if cancel:
            client.cancel(job_id)
        if pause:
            client.pause(job_id)
        if resume:
            client.resume(job_id)
        job = client.job(job_id)
        if follow:
            job = _follow(client, job, out)
        tasks = client.tasks(job.id)
        if as_json:
            say_json({**job.model_dump(mode="json"), "tasks": tasks})
        else:
            out.print(job_table([job]))
            out.print(task_table(tasks))
            if note := sizes_note([task.name for task in tasks]):
                out.print(note, soft_wrap=True)
            _tell_result(job, out)
            out.print(f"failed trials: {failures_text(job.failures)}", soft_wrap=True)
            _tell_reason(job, out)
            if job.error:
                out.print(f"error: {job.error}", soft_wrap=True, markup=False)
        if output is not None:
            client.fetch(job_id, output)
            out.print(f"artifact: {output}", soft_wrap=True)


def workers(
    context: typer.Context,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """The workers, whether they live, and how fast their devices are just now.

    Example: tilewright workers --json
    """
    if context.invoked_subcommand is not None:
        no_options_before(context, server, token, as_json)
        return
    from tilewright.service.cli.view import worker_table

    with connect(server, token) as client:
        found = client.workers()
    if as_json:
        say_json(list(found))
    else:
        console().print(worker_table(found))


WorkerName = Annotated[str, typer.Argument(metavar="WORKER", help="Its name, or how its id starts")]


def drain(
    worker: WorkerName,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a worker no new measurements; it finishes those that it has.

    Example: tilewright workers drain board
    """
    with connect(server, token) as client:
        found = client.drain(_worker_id(client, worker))
    if as_json:
        say_json(found)
        return
    left = f"{found.in_hand} requests in hand" if found.in_hand else "it has nothing in hand"
    console().print(f"worker {found.name} is drained: {left}", soft_wrap=True, markup=False)


def resume(
    worker: WorkerName,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a worker that was drained new measurements again.

    Example: tilewright workers resume board
    """
    with connect(server, token) as client:
        found = client.drain(_worker_id(client, worker), draining=False)
    if as_json:
        say_json(found)
        return
    console().print(f"worker {found.name} gets work again", soft_wrap=True, markup=False)


def _worker_id(client: Client, wanted: str) -> str:
    """The worker of this name, or whose id starts so. Raises UserError unless there is one."""
    everybody = client.workers()
    known = [w for w in everybody if w.health != "gone"] or everybody
    found = [w for w in known if w.name == wanted] or [w for w in known if w.id.startswith(wanted)]
    if not found:
        raise UserError(f"there is no worker '{wanted}'")
    if len(found) > 1:
        ids = ", ".join(worker.id[:12] for worker in found)
        raise UserError(f"'{wanted}' may be any of {len(found)} workers: say the id ({ids})")
    return found[0].id


def upload_model(client: Client, path: Path) -> ModelView:
    """Upload a model as one file: tensors that lie in files beside it are written into it.

    Raises:
        InvalidModelError: if the file is not a model.
        UserError: if these files cannot be read, or the whole is larger than a message may be.
    """
    if find_spec("onnx") is None:
        return client.upload(path)
    import onnx

    from tilewright.compiler.frontend.model_file import read_model
    from tilewright.compiler.frontend.tensors import external_files

    apart = external_files(read_model(path).proto)
    if not apart:
        return client.upload(path)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / path.name
        try:
            size = sum((path.parent / each).stat().st_size for each in apart)
            if size + path.stat().st_size > MESSAGE_BYTES:
                raise ValueError(f"{size} bytes are more than a message may have")
            whole.write_bytes(onnx.load(path).SerializeToString())
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise UserError(
                f"'{path}' and the files of its tensors cannot be put into one file: {error}"
            ) from error
        return client.upload(whole)


def lookup(
    what: Annotated[str, typer.Argument(metavar="MODEL|KEY", help="ONNX file, or workload key")],
    server: ServerOption = None,
    token: TokenOption = None,
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    dim: RangesOption = None,
    as_json: JsonOption = False,
) -> None:
    """The best schedules known, of one workload or of a whole model.

    Of a workload that was never tuned, it says what to use instead.

    Example: tilewright lookup model.onnx --target board
    """
    from tilewright.service.api.schemas.lookups import LookupRequest
    from tilewright.service.cli.view import lookup_table, sizes_note
    from tilewright.service.client import NotKnownError
    from tilewright.service.wording import schedule_text

    path = Path(what)
    is_key = set(what) <= set("0123456789abcdef") and not path.exists()
    with connect(server, token) as client:
        if is_key:
            if len(what) < KEY_LENGTH:
                try:
                    what = client.workload(what).key
                except NotKnownError as error:
                    raise UserError(f"'{what}' is no file here: {error}") from error
            wanted: dict[str, object] = {"workloads": [what]}
        else:
            uploaded = upload_model(client, existing_file(path))
            wanted = {"model": uploaded.digest, "dims": parse_ranges(dim)}
        found = client.lookup(
            LookupRequest.model_validate({**wanted, "target": target, **mode.values()})
        )
        answer = None
        if is_key:
            with suppress(NotKnownError):
                answer = client.answer(what, target, mode.threads, mode.numerics)
    if as_json:
        say_json({**found.model_dump(mode="json"), "answer": answer})
        return
    out = console()
    out.print(lookup_table(found))
    if note := sizes_note([entry.name for entry in found.schedules]):
        out.print(note, soft_wrap=True)
    out.print(f"{found.known} of {len(found.schedules)} known for target {found.target_key}")
    if answer is not None:
        out.print(f"{schedule_text(answer.schedule)}: {answer.sentence}", soft_wrap=True)
