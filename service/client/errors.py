"""Exceptions of the client, which state whether a repeated request may succeed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from tilewright.service.api.schemas.bodies import ProblemView
from tilewright.service.show.text import with_reason

if TYPE_CHECKING:
    import httpx2

    from tilewright.service.client.results import Job

ViewT = TypeVar("ViewT", bound=BaseModel)

PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP status codes after which the same request may succeed if it is sent again soon."""

IN_FLIGHT, QUOTA = "urn:tilewright:problem:idempotency-in-flight", "urn:tilewright:problem:quota-"
"""Problem types of error responses. `IN_FLIGHT`: the first request with this idempotency key is
still running. `QUOTA`, a prefix: the token has reached a quota, which only the end of other jobs
frees."""


class ClientError(Exception):
    """The service cannot be reached, or it refuses a request; the message is one sentence."""

    passing = False
    """Whether the same request may succeed if it is sent again soon."""

    retry_seconds: float = 0.0
    """Seconds that the client must wait before it repeats the request, as the response requires."""


class UnreachableError(ClientError):
    """The answer is missing or incomplete. Whether the request had an effect is unknown."""

    passing = True


class RefusedError(ClientError):
    """The service answered with an error.

    The attribute `problem` is the error's JSON object: HTTP status, type, and a sentence.
    """

    def __init__(self, problem: ProblemView, retry_seconds: float = 0.0) -> None:
        self.problem = problem
        self.retry_seconds = retry_seconds
        super().__init__(problem.detail)

    @property
    def status(self) -> int:
        return self.problem.status

    @property
    def passing(self) -> bool:  # type: ignore[override]  # it depends on the answer
        if self.problem.type.startswith(QUOTA):
            return False
        return self.status in PASSING or self.problem.type == IN_FLIGHT


class NotKnownError(RefusedError):
    """The requested resource does not exist."""


class JobEndedError(ClientError):
    """A job failed or was cancelled while a call waited for it. `job` is its final state."""

    def __init__(self, job: Job) -> None:
        self.job = job
        super().__init__(with_reason(f"job {job.id} {job.state}", job.error))


def refusal(answer: httpx2.Response) -> RefusedError:
    """Return the exception for an answer with status 400 or above, whose body has been read.

    It is NotKnownError for status 404, and RefusedError otherwise.
    """
    try:
        problem = ProblemView.model_validate(json.loads(answer.text))
    except (ValueError, RecursionError):  # written by a proxy instead of the service
        status = answer.status_code
        problem = ProblemView(
            type="about:blank",
            title=answer.reason_phrase,
            status=status,
            detail=f"the service answered {status} {answer.reason_phrase}",
        )
    # the header takes precedence over the body
    problem = problem.model_copy(update={"status": answer.status_code})
    wait = answer.headers.get("Retry-After", "")
    seconds = float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 10 else 0.0
    kind = NotKnownError if problem.status == 404 else RefusedError
    return kind(problem, seconds)


def parsed(view: type[ViewT], text: str) -> ViewT:
    """Return an answer's JSON text as an instance of `view`.

    Raises:
        ClientError: if the text is not the JSON of this class.
    """
    try:
        return view.model_validate_json(text)
    except ValidationError as error:
        raise ClientError(f"the answer is not from a Tilewright service: {text[:80]!r}") from error
