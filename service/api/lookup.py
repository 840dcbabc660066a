"""Schedules in bulk."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.concurrency import run_in_threadpool

from db.storage import Storage
from service.api.planning import Planning
from service.api.planning_child import WorkloadsQuestion
from service.api.schemas import LookupEntry, LookupRequest, LookupView
from service.api.views import record_view
from service.jobs.addressee import resolve_addressee, target_key_of
from service.jobs.graph_choice import chosen_plan
from tuner.measure.measurement import RecordKey


def lookup_workloads(storage: Storage, body: LookupRequest) -> LookupView:
    """Records of the named workloads. Raises UnknownTargetError."""
    keys = list(dict.fromkeys(body.workloads or ()))
    target = target_key_of(body.target, storage)
    return _lookup(storage, body, target, [(key, "", 1) for key in keys])


async def lookup_model(storage: Storage, body: LookupRequest, planning: Planning) -> LookupView:
    """Records of every workload that a model is cut into. It is planned at most once.

    Raises:
        NotFoundError: if the model was never uploaded.
        ApiProblem: if it cannot be planned.
    """
    assert body.model is not None
    digest = body.model

    def known() -> WorkloadsQuestion:
        storage.models.get(digest)
        target = resolve_addressee(body.target, storage).target
        how = (target, body.threads, body.numerics, body.dims)
        return WorkloadsQuestion(digest, *how, chosen_plan(digest, *how, storage))

    question = await run_in_threadpool(known)
    workloads = await planning.workloads(question)
    wanted = [(each.key, each.name, each.count) for each in workloads]
    return await run_in_threadpool(_lookup, storage, body, question.target.key, wanted)


def _lookup(
    storage: Storage, body: LookupRequest, key: str, wanted: Sequence[tuple[str, str, int]]
) -> LookupView:
    keys = {name: RecordKey(name, key, body.threads, body.numerics) for name, _, _ in wanted}
    found = storage.records.best_records(list(keys.values()))
    entries = []
    for workload, name, count in wanted:
        record = found.get(keys[workload])
        entries.append(
            LookupEntry(
                workload_key=workload,
                name=name,
                count=count,
                record=None if record is None else record_view(record),
            )
        )
    return LookupView(
        target_key=key,
        threads=body.threads,
        numerics=body.numerics,
        known=sum(entry.record is not None for entry in entries),
        schedules=entries,
    )
