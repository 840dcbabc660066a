"""Commands that use a service: commands on jobs, and `record find`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import (
    JsonOption,
    ModelPath,
    RangesOption,
    ServerOption,
    TargetOption,
    TokenOption,
    UserError,
    connect,
    existing_file,
    may_be_id,
)
from tilewright.service.cli.given import SamplesOption, given_inputs, upload_samples
from tilewright.service.cli.options import DEFAULTS, JOB_DEFAULTS, QUEUE_DEFAULTS
from tilewright.service.cli.terminal import console, say, say_json
from tilewright.service.cli.verbosity import Verbosity, verbosity
from tilewright.service.option_texts import parse_ranges
from tilewright.service.options import JobOptions, ModeOptions, QueueOptions
from tilewright.service.show.text import with_reason
from tilewright.service.show.units import duration

if TYPE_CHECKING:
    from rich.console import Console

    from tilewright.service.api.schemas.jobs import JobView
    from tilewright.service.api.schemas.models import ModelView
    from tilewright.service.client import Client, Job


KEY_LENGTH = 64
"""Number of characters of a workload key."""


MESSAGE_BYTES = (1 << 31) - 1
"""Largest size of a protobuf message, in bytes."""


def submit(
    model: ModelPath,
    server: ServerOption = None,
    token: TokenOption = None,
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    options: JobOptions = JOB_DEFAULTS,
    samples: SamplesOption = None,
    queue: QueueOptions = QUEUE_DEFAULTS,
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the artifact")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Upload a model, submit a tuning job, and show its progress.

    Example: tilewright job submit model.onnx --target board --trials 500 -o made
    """
    from tilewright.service.api.schemas.jobs import JobRequest

    given = given_inputs(model, samples, options.values, options.sizes)
    _check_free(output)
    out = console(as_json)
    with connect(server, token) as client:
        uploaded = upload_model(client, model)
        options = replace(
            options, samples=tuple(upload_samples(client, given)), values=dict(given.values)
        )
        stated = {**mode.to_json(), **options.to_json(), **queue.to_json()}
        job = client.submit(
            JobRequest.model_validate({**stated, "model": uploaded.digest, "target": target})
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
        from tilewright.service.cli.view import listed_tasks

        tasks = client.tasks(job.id)
        for part in listed_tasks(tasks, verbosity() is Verbosity.VERBOSE):
            out.print(part, soft_wrap=isinstance(part, str))
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
    """Show a job's events until it ends, and return its final state."""
    from tilewright.service.show.progress import OnConsole, Silent

    return client.wait(job.id, Silent() if verbosity() is Verbosity.QUIET else OnConsole(out))


def _summary(job: JobView) -> str:
    from tilewright.service.show.messages import kernels_text

    progress = job.progress
    seconds = (job.finished_at or 0.0) - (job.started_at or 0.0)
    return (
        f"{kernels_text(progress.default_seconds, progress.best_seconds)}"
        f"{progress.trials_done} trials, "
        f"{progress.trials_failed} failed, {duration(seconds)}"
    )


def _tell_reason(job: JobView, out: Console) -> None:
    """Print why a job waits or ended incomplete, with a remedy."""
    if job.reason:
        state = job.state.replace("_", " ")
        out.print(with_reason(state, job.reason), soft_wrap=True, markup=False)


def _tell_result(job: JobView, out: Console) -> None:
    from tilewright.service.show.messages import result_lines

    for line in result_lines(job.result) if job.result else ():
        out.print(line, soft_wrap=True, markup=False)


def _check_free(output: Path | None) -> None:
    """Check that nothing exists at the path of --output. Raises UserError otherwise."""
    if output is not None and (output.exists() or output.is_symlink()):
        raise UserError(f"--output '{output}' exists already")


JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or its start")]


def list_jobs(
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Maximum number of jobs")
    ] = 20,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest first.

    Example: tilewright job list --limit 5
    """
    from tilewright.service.cli.view import job_table

    with connect(server, token) as client:
        listed = client.jobs(limit=limit, results=as_json)
    if as_json:
        say_json(list(listed))
    elif listed:
        console().print(job_table(listed))
    else:
        say("no jobs that this token may see")


def of_job(act: Callable[[Client, str, bool], Job]) -> Callable[..., None]:
    """Return a command that calls `act` for a job and prints the job that `act` returns.

    `act` takes the client, the job's id, and whether the output is JSON. Its docstring is the
    command's help.
    """

    def command(
        job: JobName,
        server: ServerOption = None,
        token: TokenOption = None,
        as_json: JsonOption = False,
    ) -> None:
        with connect(server, token) as client:
            _show(client, act(client, job, as_json), as_json)

    command.__doc__ = act.__doc__
    return command


@of_job
def show_job(client: Client, job: str, _: bool) -> Job:
    """Show a job: its tasks, its result, and how its trials failed.

    Example: tilewright job show 1f0e
    """
    return client.job(job)


@of_job
def watch_job(client: Client, job: str, as_json: bool) -> Job:
    """Show the events of a job until it ends, followed by the job.

    Example: tilewright job watch 1f0e
    """
    return _follow(client, client.job(job), console(as_json))


@of_job
def pause_job(client: Client, job: str, _: bool) -> Job:
    """Pause a job at once. `job resume` continues it.

    Example: tilewright job pause 1f0e
    """
    client.pause(job)
    return client.job(job)


@of_job
def resume_job(client: Client, job: str, _: bool) -> Job:
    """Resume a paused job.

    Example: tilewright job resume 1f0e
    """
    client.resume(job)
    return client.job(job)


@of_job
def cancel_job(client: Client, job: str, _: bool) -> Job:
    """Cancel a job at once.

    Example: tilewright job cancel 1f0e
    """
    client.cancel(job)
    return client.job(job)


def fetch_artifact(
    job: JobName,
    output: Annotated[Path, typer.Option("--output", "-o", help="New folder for the artifact")],
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Download the artifact of a job.

    Example: tilewright job fetch 1f0e -o artifact
    """
    from tilewright.service.cli.tune_view import tell_artifact

    _check_free(output)
    with connect(server, token) as client:
        client.fetch(job, output)
    if as_json:
        say_json({"artifact": str(output)})
    else:
        tell_artifact(console(), output)


def _show(client: Client, job: Job, as_json: bool) -> None:
    from tilewright.service.cli.view import job_table, sizes_note, task_table
    from tilewright.service.show.text import failures_text

    tasks = client.tasks(job.id)
    if as_json:
        say_json({**job.model_dump(mode="json"), "tasks": tasks})
        return
    out = console()
    out.print(job_table([job]))
    out.print(task_table(tasks))
    if note := sizes_note([task.name for task in tasks]):
        out.print(note, soft_wrap=True)
    _tell_result(job, out)
    out.print(f"failed trials: {failures_text(job.failures)}", soft_wrap=True)
    _tell_reason(job, out)
    if job.error:
        out.print(f"error: {job.error}", soft_wrap=True, markup=False)


def upload_model(client: Client, path: Path) -> ModelView:
    """Upload a model as one file, into which external tensors are copied.

    Raises:
        InvalidModelError: if the file is not a model.
        UserError: if the files of external tensors cannot be read, or if the result is too large
            for one protobuf message (2 GiB).
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


def find_records(
    what: Annotated[str, typer.Argument(metavar="MODEL|KEY", help="ONNX file, or workload key")],
    server: ServerOption = None,
    token: TokenOption = None,
    target: TargetOption = "host",
    mode: ModeOptions = DEFAULTS,
    dim: RangesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the best known schedules of a workload, or of a model.

    For a workload that was never tuned, it shows the schedule to use instead.

    Example: tilewright record find model.onnx --target board
    """
    from tilewright.service.api.schemas.lookups import LookupRequest
    from tilewright.service.cli.view import lookup_table, sizes_note
    from tilewright.service.client import NotKnownError
    from tilewright.service.show.text import schedule_text

    path = Path(what)
    is_key = may_be_id(what) and not path.exists()
    with connect(server, token) as client:
        if is_key:
            if len(what) < KEY_LENGTH:
                try:
                    what = client.workload(what).key
                except NotKnownError as error:
                    raise UserError(f"'{what}' is not a file on this machine: {error}") from error
            wanted: dict[str, object] = {"workloads": [what]}
        else:
            uploaded = upload_model(client, existing_file(path))
            wanted = {"model": uploaded.digest, "dims": parse_ranges(dim)}
        found = client.lookup(
            LookupRequest.model_validate({**wanted, "target": target, **mode.to_json()})
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
    out.print(
        f"{found.known} of {len(found.schedules)} known for target "
        f"{_target_name(target, found.target_key)}",
        soft_wrap=True,
        markup=False,
    )
    if answer is not None:
        out.print(f"{schedule_text(answer.schedule)}: {answer.sentence}", soft_wrap=True)


def _target_name(given: str, key: str) -> str:
    """Return the name of a target for users.

    Return `given`, unless it is "host". For "host", return the name of the known target with the
    key `key`. If no known target has this key, return "host (KEY)" with the start of the key.

    Args:
        given: the value of --target.
        key: the key of the target.
    """
    if given.partition(":")[0] != "host":
        return given
    from tilewright.compiler.errors import UnknownTargetError
    from tilewright.compiler.targets.host import resolve_target
    from tilewright.compiler.targets.target import known_targets

    targets = [*known_targets().values()]
    with suppress(UnknownTargetError):  # no family describes this machine
        targets.append(resolve_target(given))
    name = next((target.name for target in targets if target.key == key), None)
    return name or f"{given} ({key[:12]})"
