"""HTTP errors as problem documents: `application/problem+json` (RFC 9457).

Each kind of error has its own `type`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tilewright.compiler.errors import (
    CompilerError,
    InvalidModelError,
    OutOfMemoryError,
    UnknownTargetError,
    UnsupportedOperatorError,
    memory_text,
)
from tilewright.db.errors import (
    DatabaseError,
    KeyInFlightError,
    KeyMismatchError,
    NotFoundError,
    PositionError,
    QuotaError,
    SchemaVersionError,
    StaleLeaseError,
    StateError,
    StorageError,
    StorageKind,
)
from tilewright.service.api.request_ids import HEADER, current_request_id
from tilewright.service.show.text import one_sentence

MEDIA_TYPE = "application/problem+json"
PREFIX = "urn:tilewright:problem:"

MOST_FIELD_ERRORS = 20
"""Limit of the field errors that an error response lists. A large body may have a million of
them."""

RETRY_SECONDS = {"storage-unavailable": "1", "wrong-schema-version": "60"}
"""Value of the `Retry-After` header in seconds, by kind of storage error: the database is busy, or
the service needs an update."""

log = structlog.get_logger("tilewright.web")


class ApiProblem(Exception):
    """An error that the service sends to the client as a problem document.

    Args:
        status: the HTTP status.
        slug: the kind of error, the last part of the document's `type`. It is stable: clients may
            depend on it.
        detail: one sentence about the error.
        extra: additional fields of the document.
        headers: additional headers of the response.
    """

    def __init__(
        self,
        status: int,
        slug: str,
        detail: str,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.slug = slug
        self.detail = detail
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})
        super().__init__(detail)

    def response(self) -> JSONResponse:
        """Return an HTTP response with the problem document.

        The middle of a long `detail` is cut out.
        """
        body = {
            "type": PREFIX + self.slug,
            "title": self.slug.replace("-", " ").capitalize(),
            "status": self.status,
            "detail": one_sentence(self.detail),
            "request_id": current_request_id(),
            **self.extra,
        }
        return _ProblemResponse(
            body, status_code=self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


class _ProblemResponse(JSONResponse):
    def render(self, content: Any) -> bytes:
        # escaped: the request may contain lone surrogates, which UTF-8 cannot encode
        return json.dumps(content, separators=(",", ":")).encode("ascii")


def unauthorized(detail: str) -> ApiProblem:
    return ApiProblem(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


def forbidden(detail: str) -> ApiProblem:
    return ApiProblem(403, "forbidden", detail)


def too_large(what: str, limit_bytes: int) -> ApiProblem:
    return ApiProblem(
        413, "too-large", f"{what} is larger than {limit_bytes} bytes", {"limit_bytes": limit_bytes}
    )


def invalid(detail: str, slug: str = "invalid-request") -> ApiProblem:
    return ApiProblem(422, slug, detail)


def compiler_problem(error: CompilerError) -> ApiProblem:
    """Return the problem for a compiler error: 507 if memory ran out, and 422 for any other."""
    match error:
        case UnsupportedOperatorError():
            extra = {
                "node": error.node,
                "operator": error.operator,
                "domain": error.domain,
                "opset": error.opset,
            }
            return ApiProblem(422, "unsupported-operator", str(error), extra)
        case UnknownTargetError():
            return ApiProblem(422, "unknown-target", str(error))
        case InvalidModelError():
            return ApiProblem(422, "invalid-model", str(error))
        case OutOfMemoryError():
            return ApiProblem(507, "insufficient-memory", str(error))
        case _:
            return ApiProblem(422, "compiler-error", str(error))


def database_problem(error: DatabaseError) -> ApiProblem:
    match error:
        case NotFoundError():
            return ApiProblem(404, "not-found", str(error), {"what": error.what, "key": error.key})
        case KeyMismatchError():
            return ApiProblem(422, "idempotency-mismatch", str(error))
        case KeyInFlightError():
            wait = {"Retry-After": "1"}
            return ApiProblem(409, "idempotency-in-flight", str(error), headers=wait)
        case PositionError():
            return ApiProblem(422, "invalid-page-token", f"page_token: {error}")
        case QuotaError():
            quota = {"quota": error.quota, "limit": error.limit}
            wait = {"Retry-After": "30"}
            return ApiProblem(429, "quota-exceeded", str(error), quota, headers=wait)
        case StaleLeaseError():
            return ApiProblem(409, "stale-lease", str(error))
        case StateError():
            return ApiProblem(409, "conflicting-state", str(error))
        case SchemaVersionError():
            return _storage_problem(
                error, 503, "wrong-schema-version", "the database is of another release"
            )
        case StorageError(kind=StorageKind.FULL):
            sentence = "the service's disk is full; nothing of this request was saved"
            return _storage_problem(error, 507, "insufficient-storage", sentence)
        case StorageError(kind=StorageKind.LOCKED):
            sentence = "the database is busy: try again"
            return _storage_problem(error, 503, "storage-unavailable", sentence)
        case StorageError(kind=StorageKind.UNREACHABLE):
            sentence = "the database cannot be reached just now: try again"
            return _storage_problem(error, 503, "storage-unavailable", sentence)
        case _:
            return _storage_problem(error, 500, "storage-error", "the service's storage failed")


def _storage_problem(error: DatabaseError, status: int, slug: str, sentence: str) -> ApiProblem:
    """Return a problem with a general sentence, which any client may read, and log the exact error.

    The exact error may contain addresses and paths. The log entry has the request's id.
    """
    log.error("storage", kind=slug, error=str(error))
    retry = {"Retry-After": RETRY_SECONDS[slug]} if slug in RETRY_SECONDS else None
    return ApiProblem(status, slug, sentence, headers=retry)


def validation_problem(error: RequestValidationError) -> ApiProblem:
    """Return a 422 problem that lists the invalid fields of a request.

    Its `detail` describes the first invalid field. Its field `errors` lists at most
    `MOST_FIELD_ERRORS`.
    """
    listed = map(_field_error, error.errors()[:MOST_FIELD_ERRORS])
    # without duplicates: a body that a dependency also reads is validated twice
    errors = list({(each["field"], each["message"]): each for each in listed}.values())
    first = errors[0] if errors else {"field": "body", "message": "malformed"}
    return ApiProblem(
        422, "invalid-request", f"{first['field']}: {first['message']}", {"errors": errors}
    )


def _field_error(item: Mapping[str, Any]) -> dict[str, str]:
    if item["type"] == "json_invalid":
        place = item["loc"][-1]
        return {"field": "body", "message": f"no JSON: {item['ctx']['error']} at character {place}"}
    field = ".".join(str(part) for part in item["loc"])
    return {"field": one_sentence(field), "message": one_sentence(str(item["msg"]))}


_SLUGS = {404: "not-found", 405: "method-not-allowed", 413: "too-large", 400: "bad-request"}


def document(_: Request, problem: ApiProblem) -> Response:
    """Return the JSON response for a problem. This is the default `answer` of `install`."""
    return problem.response()


def install(app: FastAPI, answer: Callable[[Request, ApiProblem], Response] = document) -> None:
    """Register exception handlers that turn each error of the application into a problem.

    Args:
        app: the application.
        answer: returns the response for a request and its problem: a problem document or an HTML
            page.
    """

    def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiProblem)
        return answer(request, error)

    def on_compiler(request: Request, error: Exception) -> Response:
        assert isinstance(error, CompilerError)
        return answer(request, compiler_problem(error))

    def on_database(request: Request, error: Exception) -> Response:
        assert isinstance(error, DatabaseError)
        return answer(request, database_problem(error))

    def on_validation(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return answer(request, validation_problem(error))

    def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, detail = error.status_code, str(error.detail)
        if detail == HTTPStatus(status).phrase:  # the router's error, which names nothing
            detail = f"{detail.lower()}: {request.method} {request.url.path}"
        slug = _SLUGS.get(status, HTTPStatus(status).phrase.lower().replace(" ", "-"))
        problem = ApiProblem(status, slug, detail, headers=error.headers or {})
        return answer(request, problem)

    def on_memory(request: Request, error: Exception) -> Response:
        log.error("out of memory", path=request.url.path, error=repr(error))
        assert isinstance(error, MemoryError)
        sentence = memory_text(error, "for this request")
        return answer(request, ApiProblem(507, "insufficient-memory", sentence))

    def on_bug(request: Request, error: Exception) -> Response:
        log.error("unhandled", path=request.url.path, error=repr(error), exc_info=error)
        headers = {HEADER: current_request_id()}  # no middleware sees this answer
        sentence = "the service failed; its log says why"
        return answer(request, ApiProblem(500, "internal-error", sentence, headers=headers))

    app.add_exception_handler(ApiProblem, on_problem)
    app.add_exception_handler(CompilerError, on_compiler)
    app.add_exception_handler(DatabaseError, on_database)
    app.add_exception_handler(RequestValidationError, on_validation)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(MemoryError, on_memory)
    app.add_exception_handler(Exception, on_bug)
