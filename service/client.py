"""A client of the service: typed calls over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, TypeAdapter, ValidationError

from service.api.schemas.bodies import ProblemView
from service.api.schemas.health import HealthView
from service.api.schemas.jobs import JobEventView, JobRequest, JobView, TaskView
from service.api.schemas.lookups import LookupRequest, LookupView, RecordView
from service.api.schemas.models import ModelView
from service.api.schemas.records import AnswerView
from service.api.schemas.resources import DeviceView
from service.api.schemas.tokens import (
    AuditView,
    NewTokenView,
    ScopeName,
    TokenRequest,
    TokenView,
)
from service.api.schemas.workers import WorkerView

ViewT = TypeVar("ViewT", bound=BaseModel)

CHUNK_BYTES = 1 << 20
PAGE = 1000
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.2, 5.0


class ClientError(Exception):
    """The service cannot be reached or refuses; the message is one sentence."""


class RefusedError(ClientError):
    """The service answered with a problem."""

    def __init__(self, problem: ProblemView) -> None:
        self.problem = problem
        super().__init__(problem.detail)

    @property
    def status(self) -> int:
        return self.problem.status


class NotKnownError(RefusedError):
    """What was asked about is not there."""


class Client:
    """One service with one token. A context that closes its connections.

    Every method raises ClientError.
    """

    def __init__(
        self,
        server: str,
        token: str,
        *,
        timeout_seconds: float = 60.0,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self.server = server.rstrip("/")
        try:
            self._http = httpx2.Client(
                base_url=self.server,
                headers={"Authorization": f"Bearer {token}"} if token else {},
                timeout=timeout_seconds,
                transport=transport,
            )
        except (httpx2.InvalidURL, UnicodeEncodeError) as error:
            raise ClientError(f"'{server}' is not a URL: {error}") from error

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def health(self) -> HealthView:
        """Whether the service and its database work."""
        return self._view(HealthView, "GET", "/v1/health")

    # models

    def upload(
        self, path: Path, name: str | None = None, sent: Callable[[int], None] = lambda n: None
    ) -> ModelView:
        """Upload a model file; `sent` is called with the size of each part that left."""
        size = path.stat().st_size

        def chunks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
                    sent(len(chunk))

        return self._view(
            ModelView,
            "POST",
            "/v1/models",
            params={"name": name or path.name},
            content=chunks(),
            headers={"Content-Type": "application/octet-stream", "Content-Length": str(size)},
            timeout=600.0,
        )

    def models(self) -> list[ModelView]:
        return self._views(ModelView, "/v1/models", most=None)

    # jobs

    def submit(self, request: JobRequest, idempotency_key: str | None = None) -> JobView:
        headers = {"Idempotency-Key": idempotency_key} if idempotency_key else {}
        return self._view(
            JobView,
            "POST",
            "/v1/jobs",
            json=request.model_dump(mode="json"),
            headers=headers,
            timeout=600.0,
        )

    def job(self, job_id: str) -> JobView:
        return self._view(JobView, "GET", f"/v1/jobs/{_quoted(job_id)}")

    def jobs(self, state: str | None = None, limit: int = 100) -> list[JobView]:
        params = {} if state is None else {"state": state}
        return self._views(JobView, "/v1/jobs", params, most=limit)

    def tasks(self, job_id: str) -> list[TaskView]:
        return self._views(TaskView, f"/v1/jobs/{_quoted(job_id)}/tasks", most=None)

    def cancel(self, job_id: str) -> JobView:
        """End a job at once; what it measured stays."""
        return self._view(JobView, "POST", f"/v1/jobs/{_quoted(job_id)}:cancel")

    def pause(self, job_id: str) -> JobView:
        """Stop a job at once until it is resumed."""
        return self._view(JobView, "POST", f"/v1/jobs/{_quoted(job_id)}:pause")

    def resume(self, job_id: str) -> JobView:
        """Let a paused job go on."""
        return self._view(JobView, "POST", f"/v1/jobs/{_quoted(job_id)}:resume")

    def events(
        self, job_id: str, after: int = 0, patience_seconds: float = 60.0
    ) -> Iterator[JobEventView]:
        """Every event of a job until it ends, each once.

        A stream that breaks is resumed after the last event that came. It is an error only if the
        service stays away for `patience_seconds`.
        """
        pause, silent_since = FIRST_PAUSE_SECONDS, time.monotonic()
        while True:
            try:
                for event in self._stream(job_id, after):
                    after = event.sequence
                    pause, silent_since = FIRST_PAUSE_SECONDS, time.monotonic()
                    yield event
                if self.job(job_id).final:
                    return
            except RefusedError as error:
                if error.status < 500:
                    raise
                if time.monotonic() - silent_since > patience_seconds:
                    raise
            except ClientError:
                if time.monotonic() - silent_since > patience_seconds:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)

    def _stream(self, job_id: str, after: int) -> Iterator[JobEventView]:
        headers = {"Last-Event-ID": str(after), "Accept": "text/event-stream"}
        try:
            with self._http.stream(
                "GET", f"/v1/jobs/{_quoted(job_id)}/events", headers=headers
            ) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refusal(answer)
                for event in httpx2.EventSource(answer):
                    if event.data:  # a pause to be kept between attempts has none
                        yield _parse(JobEventView, event.data)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error

    def artifact(self, job_id: str, target: Path) -> None:
        """Save the artifact's tar file; it appears complete or not at all."""
        temporary = target.with_name(f".{target.name}.part")
        try:
            with self._http.stream("GET", f"/v1/jobs/{_quoted(job_id)}/artifact") as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _refusal(answer)
                with temporary.open("wb") as file:
                    for chunk in answer.iter_bytes():
                        file.write(chunk)
            temporary.replace(target)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        finally:
            temporary.unlink(missing_ok=True)

    # schedules, workers

    def schedule(self, workload: str, target: str, threads: int, numerics: str) -> RecordView:
        params = {
            "workload": workload,
            "target": target,
            "threads": threads,
            "numerics": numerics,
        }
        return self._view(RecordView, "GET", "/v1/schedules", params=params)

    def answer(
        self, workload: str, target: str, threads: int = 1, numerics: str = "fast"
    ) -> AnswerView:
        """The schedule to use for a workload, tuned or not, and how sure it is."""
        params = {
            "workload": workload,
            "target": target,
            "threads": str(threads),
            "numerics": numerics,
        }
        return self._view(AnswerView, "GET", "/v1/schedules:explain", params=params)

    def lookup(self, request: LookupRequest) -> LookupView:
        return self._view(
            LookupView,
            "POST",
            "/v1/schedules/lookup",
            json=request.model_dump(mode="json"),
            timeout=600.0,
        )

    def workers(self) -> list[WorkerView]:
        return self._views(WorkerView, "/v1/workers", most=None)

    def devices(self) -> list[DeviceView]:
        """The devices of workers that have not left."""
        return self._views(DeviceView, "/v1/devices", most=None)

    def drain(self, worker_id: str, *, draining: bool = True) -> WorkerView:
        """Give a worker no new leases, or new ones again."""
        path = f"/v1/workers/{_quoted(worker_id)}/drain"
        return self._view(WorkerView, "POST", path, json={"draining": draining})

    # tokens, the audit log

    def tokens(self) -> list[TokenView]:
        return self._views(TokenView, "/v1/tokens", most=None)

    def create_token(
        self, name: str, scopes: Sequence[ScopeName], lifetime_seconds: float | None
    ) -> NewTokenView:
        body = TokenRequest(name=name, scopes=list(scopes), lifetime_seconds=lifetime_seconds)
        return self._view(NewTokenView, "POST", "/v1/tokens", json=body.model_dump())

    def rotate_token(
        self, token_id: str, grace_seconds: float, lifetime_seconds: float | None
    ) -> NewTokenView:
        path = f"/v1/tokens/{_quoted(token_id)}/rotate"
        body = {"grace_seconds": grace_seconds, "lifetime_seconds": lifetime_seconds}
        return self._view(NewTokenView, "POST", path, json=body)

    def revoke_token(self, token_id: str) -> TokenView:
        return self._view(TokenView, "DELETE", f"/v1/tokens/{_quoted(token_id)}")

    def audit(self, limit: int, action: str | None, subject: str | None) -> list[AuditView]:
        """The newest entries of the audit log."""
        wanted = {"action": action, "subject": subject}
        params = {name: value for name, value in wanted.items() if value is not None}
        return self._views(AuditView, "/v1/audit", params, most=limit)

    # transport

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.status_code >= 400:
            raise _refusal(answer)
        return answer

    def _view(self, view: type[ViewT], method: str, path: str, **options: Any) -> ViewT:
        return _parse(view, self._send(method, path, **options).text)

    def _views(
        self,
        view: type[ViewT],
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        most: int | None,
    ) -> list[ViewT]:
        """The items of a list, page after page, until there are `most` or no more."""
        kind = TypeAdapter(list[view])  # type: ignore[valid-type]
        found: list[ViewT] = []
        token: str | None = None
        while True:
            left = PAGE if most is None else min(PAGE, most - len(found))
            page = {} if token is None else {"page_token": token}
            answer = self._send("GET", path, params={**(params or {}), "limit": left, **page})
            try:
                found += kind.validate_json(answer.text)
            except ValidationError as error:
                raise ClientError(
                    f"{self.server} does not answer as a Tilewright service"
                ) from error
            token = answer.headers.get("X-Next-Page-Token")
            if token is None or (most is not None and len(found) >= most):
                return found

    def _unreachable(self, error: httpx2.HTTPError) -> ClientError:
        return ClientError(f"the service at {self.server} does not answer: {error}")


def _quoted(part: str) -> str:
    """A part of a path, with every special character escaped."""
    return quote(part, safe="")


def _parse(view: type[ViewT], text: str) -> ViewT:
    try:
        return view.model_validate_json(text)
    except ValidationError as error:
        raise ClientError(f"the answer is not of a Tilewright service: {text[:80]!r}") from error


def _refusal(answer: httpx2.Response) -> RefusedError:
    try:
        problem = ProblemView.model_validate(json.loads(answer.text))
    except (ValueError, ValidationError):
        status = answer.status_code
        problem = ProblemView(
            type="about:blank",
            title=answer.reason_phrase,
            status=status,
            detail=f"the service answered {status} {answer.reason_phrase}",
        )
    return NotKnownError(problem) if problem.status == 404 else RefusedError(problem)
