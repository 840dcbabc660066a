"""Rate limits per token on expensive routes, shared by all replicas."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from tilewright.db.storage import Storage
from tilewright.db.stores.rate_limits import Rate
from tilewright.db.stores.tokens import Token
from tilewright.service.api.deps import SettingsDep, StorageDep, request_token
from tilewright.service.api.errors import ApiProblem
from tilewright.service.api.planning import Planning
from tilewright.service.api.planning_child import KeptQuestion
from tilewright.service.api.refusals import refuses
from tilewright.service.settings import Settings

T = TypeVar("T")


class Limited(StrEnum):
    """The kinds of requests that have a rate limit. The values appear in error messages."""

    UPLOADS = "uploads"
    JOBS = "jobs"
    MODEL_LOOKUPS = "lookups by model"
    EXPLANATIONS = "explanations of schedules"
    SPELLINGS = "expansions of requests"


def _per_minute(what: Limited, settings: Settings) -> int:
    match what:
        case Limited.UPLOADS:
            return settings.uploads_per_minute
        case Limited.JOBS:
            return settings.jobs_per_minute
        case Limited.MODEL_LOOKUPS:
            return settings.model_lookups_per_minute
        case Limited.EXPLANATIONS:
            return settings.explanations_per_minute
        case Limited.SPELLINGS:
            return settings.spellings_per_minute


class Limiter:
    """Applies the rate limits to the token of one request."""

    def __init__(self, token: Token, storage: Storage, settings: Settings) -> None:
        self._token = token
        self._storage = storage
        self._settings = settings

    @property
    def asker(self) -> str:
        """Return the id of the request's token.

        `Planning`, which computes results in child processes, serves the tokens in turn by this id.
        """
        return self._token.id

    def take(self, what: Limited) -> None:
        """Count one request against the token's limit per minute for requests of this kind.

        The token may use up the limit of a minute at once.

        Raises:
            ApiProblem: 429 with `Retry-After`, if the token has reached its limit.
            StorageError: if the database does not answer.
        """
        limit = _per_minute(what, self._settings)
        if not limit:
            return
        bucket = f"{self._token.id} {what}"
        wait = self._storage.rate_limits.take(bucket, Rate(limit, limit / 60.0))
        if wait > 0.0:
            seconds = max(1, math.ceil(wait))
            raise ApiProblem(
                429,
                "too-many-requests",
                f"token '{self._token.name}' has used up its {what}, {limit} a minute:"
                f" the next one in {seconds} s",
                headers={"Retry-After": str(seconds)},
            )


async def counted_answer(question: KeptQuestion[T], planning: Planning, limiter: Limiter) -> T:
    """Return the result of a computation on a model, such as the list of its workloads.

    Several requests share a cached result. The request counts against the token's limit of model
    lookups only if the result must be computed.

    Args:
        question: the computation and its parameters.
        planning: runs the computation in a child process, and caches the result.
        limiter: the rate limits of the token.

    Raises:
        ApiProblem: if the computation fails, or the token has reached its limit.
    """
    if not planning.knows(question, limiter.asker):
        await run_in_threadpool(limiter.take, Limited.MODEL_LOOKUPS)
    return await planning.find(question, limiter.asker)


@refuses(429)
async def get_limiter(request: Request, storage: StorageDep, settings: SettingsDep) -> Limiter:
    return Limiter(request_token(request), storage, settings)


LimiterDep = Annotated[Limiter, Depends(get_limiter)]
