"""The asynchronous client, with a typed method per operation of the REST interface."""

from __future__ import annotations

import asyncio
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tilewright.service.api.schemas.cost_models import CostModelView
from tilewright.service.api.schemas.graphs import GraphView
from tilewright.service.api.schemas.health import HealthView
from tilewright.service.api.schemas.jobs import JobEventView, JobRequest
from tilewright.service.api.schemas.lookups import LookupRequest, LookupView, RecordView
from tilewright.service.api.schemas.models import ModelView, SamplesView
from tilewright.service.api.schemas.records import (
    AnswerView,
    CoverageView,
    StoredRecordView,
    WithdrawRequest,
    WithdrawView,
)
from tilewright.service.api.schemas.resources import TrialView, WorkloadView
from tilewright.service.api.schemas.tokens import (
    AuditView,
    NewTokenView,
    ScopeName,
    TokenRequest,
    TokenView,
)
from tilewright.service.api.schemas.workers import WorkerView
from tilewright.service.archive import ArchiveError, free, unpack
from tilewright.service.client.asynchronous.connection import (
    CHUNK_BYTES,
    LONG_SECONDS,
    AsyncConnection,
    ViewT,
    quoted,
)
from tilewright.service.client.errors import ClientError, JobEndedError
from tilewright.service.client.results import Curve, Job, Jobs, Task, Tasks, Tuned
from tilewright.service.client.task_results import Code, Predictions, Records, Trials
from tilewright.service.show.progress import Display, Silent, display_for_here

ENDED_EARLY_SECONDS = 0.2


class AsyncClient(AsyncConnection):
    """A client of a service, and a context manager that closes the client's connections at its end.

    Every method raises ClientError if the service is unreachable or refuses the request. A request
    is repeated for `patience_seconds` if the service has answered before and is now unreachable, or
    if it answers with a temporary error. No request is executed twice.

    Args:
        server: the URL of the service.
        token: a token that has the scopes (permissions) which the calls need.
        timeout_seconds: time limit of one answer.
        patience_seconds: time for which requests to an unreachable service are repeated.
        transport: replaces the network in tests.
    """

    async def health(self) -> HealthView:
        """Return the health of the service and its database."""
        return await self._view(HealthView, "GET", "/v1/health")

    # models

    async def upload(
        self,
        path: str | Path,
        name: str | None = None,
        sent: Callable[[int], None] = lambda total: None,
    ) -> ModelView:
        """Upload a model file.

        Args:
            path: the ONNX file.
            name: the name of the model in the service; by default the name of the file.
            sent: is called after each part, with the number of bytes sent so far.
        """
        file = Path(path)
        return await self._uploaded(ModelView, "/v1/models", file, name or file.name, sent)

    async def upload_samples(self, path: str | Path) -> SamplesView:
        """Upload an .npz file of sample inputs of a model.

        To use the samples in a job, set `JobRequest.samples` to the `digest` of the result.
        """
        file = Path(path)
        return await self._uploaded(SamplesView, "/v1/samples", file, file.name)

    async def _uploaded(
        self,
        view: type[ViewT],
        where: str,
        file: Path,
        name: str,
        sent: Callable[[int], None] = lambda total: None,
    ) -> ViewT:
        size = file.stat().st_size

        async def chunks() -> AsyncIterator[bytes]:
            total = 0
            with file.open("rb") as opened:
                while chunk := opened.read(CHUNK_BYTES):
                    yield chunk
                    total += len(chunk)
                    sent(total)

        return await self._view(
            view,
            "POST",
            where,
            params={"name": name},
            content=chunks,
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
            timeout=LONG_SECONDS,
        )

    async def models(self) -> list[ModelView]:
        return await self._views(ModelView, "/v1/models", most=None)

    # jobs

    async def tune(
        self,
        model: str | Path,
        *,
        target: str = "host",
        seconds: float | None = None,
        output: str | Path | None = None,
        progress: bool | Display = True,
        **options: Any,
    ) -> Tuned:
        """Upload a model, submit a job and wait until it ends.

        An interrupted call does not change the job: `wait` waits for it again, `cancel` ends it.

        Args:
            model: an ONNX file.
            target: a target's name, `host` for the service's machine, or a worker's name or id.
            seconds: limit of the tuning time.
            output: a new folder for the artifact.
            progress: show the progress, if this is a notebook or a terminal.
            options: other fields of `JobRequest`: `trials`, `threads`, `dims`, `precision`, ...

        Raises:
            JobEndedError: if the job failed or was cancelled. A job that ended incomplete, because
                nothing could be tuned, raises no error; see `job.state` and `job.reason`.
        """
        folder = None if output is None else free(Path(output))
        digest = (await self.upload(model)).digest
        wanted = {"model": digest, "target": target, "seconds": seconds, **options}
        try:
            request = JobRequest.model_validate(wanted)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise ClientError(f"{where}: {first['msg']}") from error
        job = await self.wait((await self.submit(request)).id, progress)
        if job.state not in ("succeeded", "incomplete"):
            raise JobEndedError(job)
        if folder is not None and job.artifact is not None:
            await self.fetch(job.id, folder)
        made = folder if job.artifact is not None else None
        return Tuned(job, await self.tasks(job.id), await self.curve(job.id), made)

    async def submit(self, request: JobRequest, idempotency_key: str | None = None) -> Job:
        """Submit a job, and return it without waiting for its end.

        A repeated request with the same `idempotency_key` creates no second job.
        """
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return await self._view(
            Job,
            "POST",
            "/v1/jobs",
            json=request.model_dump(mode="json"),
            headers=headers,
            once=True,
            timeout=LONG_SECONDS,
        )

    async def wait(self, job_id: str, progress: bool | Display = True) -> Job:
        """Wait until a job ends, and return it, even if it failed.

        `progress` is whether to show the progress, if this is a notebook or a terminal.
        """
        shown = progress
        if isinstance(shown, bool):
            shown = display_for_here() if shown else Silent()
        with shown:
            async for event in self.events(job_id):
                shown.event(event)
        return await self.job(job_id)

    async def job(self, job_id: str) -> Job:
        return await self._view(Job, "GET", f"/v1/jobs/{quoted(job_id)}")

    async def jobs(
        self, state: str | None = None, limit: int = 100, *, results: bool = True
    ) -> Jobs:
        """Return up to `limit` jobs, the newest first.

        If `results` is false, the attribute `result` of each job is None. Results may be long.
        """
        params = {"results": str(results).lower(), **_given(state=state)}
        return Jobs(await self._views(Job, "/v1/jobs", params, most=limit))

    async def tasks(self, job_id: str) -> Tasks:
        return Tasks(await self._views(Task, f"/v1/jobs/{quoted(job_id)}/tasks", most=None))

    async def curve(self, job_id: str) -> Curve:
        """Return the progress of a job over time, in a few hundred points."""
        return await self._view(Curve, "GET", f"/v1/jobs/{quoted(job_id)}/curve")

    async def log(self, job_id: str, limit: int = 100) -> list[JobEventView]:
        """Return up to `limit` events of a job, the newest first."""
        path = f"/v1/jobs/{quoted(job_id)}/log"
        return await self._views(JobEventView, path, most=limit)

    async def code(self, job_id: str, workload: str, *, untuned: bool = False) -> Code:
        """Return the loop nest and the assembly of a task's best schedule.

        With `untuned`, return the code of the untuned schedule instead. `workload` is the task's
        workload key.
        """
        params = {"untuned": "true"} if untuned else {}
        path = f"/v1/jobs/{quoted(job_id)}/tasks/{quoted(workload)}/code"
        return await self._view(Code, "GET", path, params=params, timeout=LONG_SECONDS)

    async def predictions(self, job_id: str, workload: str) -> Predictions:
        """Return the predicted and measured times of a task's newest trials.

        `workload` is the task's workload key.
        """
        path = f"/v1/jobs/{quoted(job_id)}/tasks/{quoted(workload)}/predictions"
        return await self._view(Predictions, "GET", path, timeout=LONG_SECONDS)

    async def graph(self, job_id: str) -> GraphView:
        """Return the graph of a job's model after fusion.

        Each step of the graph, such as a kernel, lists the ONNX nodes that it computes.
        """
        path = f"/v1/jobs/{quoted(job_id)}/graph"
        return await self._view(GraphView, "GET", path, timeout=LONG_SECONDS)

    async def trials(
        self, job_id: str | None = None, workload: str | None = None, limit: int = 100
    ) -> Trials:
        """Return up to `limit` trials of a job, of a workload or of both, the newest first."""
        params = _given(job=job_id, workload=workload)
        return Trials(await self._views(TrialView, "/v1/trials", params, most=limit))

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job at once and keep its measurements."""
        return await self._view(Job, "POST", f"/v1/jobs/{quoted(job_id)}:cancel", once=True)

    async def pause(self, job_id: str) -> Job:
        """Pause a job at once until it is resumed."""
        return await self._view(Job, "POST", f"/v1/jobs/{quoted(job_id)}:pause", once=True)

    async def resume(self, job_id: str) -> Job:
        """Resume a paused job."""
        return await self._view(Job, "POST", f"/v1/jobs/{quoted(job_id)}:resume", once=True)

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[JobEventView]:
        """Yield the events of a job with numbers above `after`, each once, until the job ends.

        A broken stream is resumed after the last received event.
        """
        retries = self._retries()
        while True:
            try:
                path = f"/v1/jobs/{quoted(job_id)}/events"
                async for event in self._stream(path, after, retries):
                    retries.over()
                    if event.sequence > after:
                        after = event.sequence
                        yield event
                if (await self.job(job_id)).final:
                    return
            except ClientError as error:
                await asyncio.sleep(retries.pause(error))
            else:  # a service that stops ends its streams, and some proxies do after a while
                await asyncio.sleep(ENDED_EARLY_SECONDS)

    async def artifact(self, job_id: str, target: Path) -> None:
        """Download the artifact of a job as the tar file `target`.

        The file appears at `target` only when it is complete.
        """
        await self._download(f"/v1/jobs/{quoted(job_id)}/artifact", target)

    async def fetch(self, job_id: str, output: str | Path) -> Path:
        """Download the artifact of a job, unpack it as the folder `output`, and return its path.

        The folder must not exist. It appears only when it is complete.
        """
        folder = free(Path(output))
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work:
                archive, unpacked = Path(work, "artifact.tar"), Path(work, "artifact")
                await self.artifact(job_id, archive)
                unpack(archive, unpacked)
                unpacked.rename(folder)
        except (ArchiveError, tarfile.TarError) as error:
            said = f"the artifact of job {job_id} cannot be unpacked: {error}"
            raise ClientError(said) from error
        except OSError as error:
            raise ClientError(f"'{folder}': {error.strerror or error}") from error
        return folder

    # schedules, records, workers

    async def schedule(self, workload: str, target: str, threads: int, numerics: str) -> RecordView:
        params = {
            "workload": workload,
            "target": target,
            "threads": threads,
            "numerics": numerics,
        }
        return await self._view(RecordView, "GET", "/v1/schedules", params=params)

    async def workload(self, key: str) -> WorkloadView:
        """Return a workload by its key, or by the start of its key."""
        return await self._view(WorkloadView, "GET", f"/v1/workloads/{quoted(key)}")

    async def answer(
        self, workload: str, target: str, threads: int = 1, numerics: str = "fast"
    ) -> AnswerView:
        """Return the schedule to use for a workload, and its expected slowdown.

        The schedule was tuned for this or a similar workload, or it is the default. The slowdown is
        relative to a schedule tuned for this workload.

        Args:
            workload: the workload's key.
            target: a target's key or name, or a worker's name or id.
            threads: the number of threads of a run.
            numerics: the numerics mode, such as "fast" or "strict".
        """
        params = {
            "workload": workload,
            "target": target,
            "threads": str(threads),
            "numerics": numerics,
        }
        return await self._view(AnswerView, "GET", "/v1/schedules:explain", params=params)

    async def lookup(self, request: LookupRequest) -> LookupView:
        return await self._view(
            LookupView,
            "POST",
            "/v1/schedules/lookup",
            json=request.model_dump(mode="json"),
            timeout=LONG_SECONDS,
        )

    async def records(
        self, workload: str | None = None, target: str | None = None, limit: int = 100
    ) -> Records:
        """Return up to `limit` tuning records with their review states, the newest first.

        Args:
            workload: a workload's key; None for all.
            target: a target's key or name, or a worker's name or id; None for all.
            limit: the largest number of records.
        """
        params = _given(workload=workload, target=target)
        return Records(await self._views(StoredRecordView, "/v1/records", params, most=limit))

    async def coverage(self) -> list[CoverageView]:
        """Return the number of tuned workloads per operator, target and number of threads.

        A workload counts if lookups return a record for it.
        """
        return await self._views(CoverageView, "/v1/records:coverage", most=None)

    async def withdraw(
        self, reason: str, records: Sequence[str] = (), workers: Sequence[str] = ()
    ) -> WithdrawView:
        """Withdraw records by their ids, or all records of workers."""
        body = WithdrawRequest(reason=reason, records=list(records), workers=list(workers))
        path = "/v1/records:withdraw"
        return await self._view(WithdrawView, "POST", path, json=body.model_dump(), once=True)

    async def cost_models(self, target: str | None = None) -> list[CostModelView]:
        """Return the versions of cost models with their scores, the newest first."""
        return await self._views(CostModelView, "/v1/cost-models", _given(target=target), most=None)

    async def workers(self) -> list[WorkerView]:
        return await self._views(WorkerView, "/v1/workers", most=None)

    async def drain(self, worker_id: str, *, draining: bool = True) -> WorkerView:
        """Drain a worker: it gets no new leases. With `draining=False`, resume it."""
        path = f"/v1/workers/{quoted(worker_id)}/drain"
        return await self._view(WorkerView, "POST", path, json={"draining": draining})

    # tokens, the audit log

    async def tokens(self) -> list[TokenView]:
        return await self._views(TokenView, "/v1/tokens", most=None)

    async def create_token(
        self, name: str, scopes: Sequence[ScopeName], lifetime_seconds: float | None
    ) -> NewTokenView:
        body = TokenRequest(name=name, scopes=list(scopes), lifetime_seconds=lifetime_seconds)
        return await self._view(
            NewTokenView, "POST", "/v1/tokens", json=body.model_dump(), once=True
        )

    async def rotate_token(
        self, token_id: str, grace_seconds: float, lifetime_seconds: float | None
    ) -> NewTokenView:
        path = f"/v1/tokens/{quoted(token_id)}/rotate"
        body = {"grace_seconds": grace_seconds, "lifetime_seconds": lifetime_seconds}
        return await self._view(NewTokenView, "POST", path, json=body, once=True)

    async def revoke_token(self, token_id: str) -> TokenView:
        return await self._view(TokenView, "DELETE", f"/v1/tokens/{quoted(token_id)}")

    async def audit(self, limit: int, action: str | None, subject: str | None) -> list[AuditView]:
        """Return up to `limit` entries of the audit log, the newest first.

        Args:
            limit: the largest number of entries.
            action: selects one action, such as "token.revoked"; None for all.
            subject: selects the entries about one object, by the id of a token, job, worker or
                other object; None for all.
        """
        params = _given(action=action, subject=subject)
        return await self._views(AuditView, "/v1/audit", params, most=limit)


def _given(**params: str | None) -> dict[str, str]:
    """Return the query parameters whose value is not None."""
    return {name: value for name, value in params.items() if value is not None}
