"""Lookups of tuned schedules: for given workloads, or for all workloads of a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from tilewright.db.storage import Storage
from tilewright.service.api.limiter import Limiter, counted_answer
from tilewright.service.api.planning import Planning
from tilewright.service.api.planning_child import PlannedWorkload, WorkloadsQuestion
from tilewright.service.api.record_cache import RecordCache
from tilewright.service.api.schemas.lookups import LookupRequest
from tilewright.service.jobs.device.job_target import (
    is_described,
    resolve_job_target,
    target_key_of,
)
from tilewright.service.jobs.device.targets import is_target_key


async def target_key(name: str, storage: Storage) -> str:
    """Return the key of a target, given its name or its key.

    A name may have to be looked up in the database, so a thread resolves it (`target_key_of`).

    Raises:
        UnknownTargetError: if no target has this name.
    """
    if is_target_key(name):
        return name
    return await run_in_threadpool(target_key_of, name, storage)


def stands(name: str) -> bool:
    """Whether a name always refers to the same target, so that its target can be cached.

    This holds for target keys, "host" and the targets that the compiler describes, such as
    "x86-64-v3". It does not hold for the name of a worker, whose target may change.
    """
    return is_target_key(name) or is_described(name)


@dataclass(frozen=True, slots=True)
class LookupBytes:
    """A serialised response to a lookup.

    Attributes:
        content: a `LookupView` as JSON.
        keys: the keys of the workloads, and the digest of the model if one was given. The response
            is outdated when the records of such a workload, or the model, change.
    """

    content: bytes
    keys: Sequence[str]


async def lookup_workloads(
    storage: Storage, body: LookupRequest, served: RecordCache
) -> LookupBytes:
    """Return the best record of each workload in `body.workloads`, as a serialised response.

    The best record is the one that the service selects for all users (the served record).

    Raises:
        UnknownTargetError: if the target is unknown.
    """
    keys = list(dict.fromkeys(body.workloads or ()))
    target = await target_key(body.target, storage)
    wanted = [PlannedWorkload(key, "", 1) for key in keys]
    return LookupBytes(await _lookup(served, body, target, wanted), keys)


async def lookup_model(
    storage: Storage,
    body: LookupRequest,
    planning: Planning,
    served: RecordCache,
    limiter: Limiter,
    sees: str | None,
) -> LookupBytes:
    """Return the best record of each workload of a model, as a serialised response.

    A child process partitions the model `body.model` into workloads (it plans the model). The list
    of workloads is cached. The lookup counts against the token's rate limit only if the list is not
    cached. `sees` is the name of the owner whose models the token may see, or None for all models.

    Raises:
        NotFoundError: if the service does not have the model, or the token may not see it.
        ApiProblem: if the model cannot be planned, or the token has reached its limit.
    """
    assert body.model is not None
    digest = body.model

    def known() -> WorkloadsQuestion:
        storage.models.get(digest, sees)
        target = resolve_job_target(body.target, storage).target
        return WorkloadsQuestion(digest, body.mode(target), body.dims)

    question = await run_in_threadpool(known)
    workloads = await counted_answer(question, planning, limiter)
    content = await _lookup(served, body, question.mode.target.key, workloads)
    return LookupBytes(content, [digest, *(workload.key for workload in workloads)])


async def _lookup(
    served: RecordCache, body: LookupRequest, target: str, wanted: Sequence[PlannedWorkload]
) -> bytes:
    """Return the serialised response to a lookup of the `wanted` workloads.

    `served` caches the best record of each workload as JSON. The response is assembled from these
    texts.
    """
    threads, numerics = body.mode_options.threads, body.mode_options.numerics
    found = await served.find((target, threads, numerics), {each.key for each in wanted})
    records = [found[each.key] or b"null" for each in wanted]
    entries = [
        b'{"workload_key":"%s","name":%s,"count":%d,"record":%s}'
        % (each.key.encode(), _text(each.name), each.count, record)
        for each, record in zip(wanted, records, strict=True)
    ]
    known = sum(record != b"null" for record in records)
    return b'{"target_key":%s,"threads":%d,"numerics":%s,"known":%d,"schedules":[%s]}' % (
        _text(target),
        threads,
        _text(numerics),
        known,
        b",".join(entries),
    )


def _text(value: str) -> bytes:
    return json.dumps(value).encode() if value else b'""'
