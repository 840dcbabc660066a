"""Schedules in bulk."""

from __future__ import annotations

from collections.abc import Sequence

from db.storage import Storage
from service.api.schemas import LookupEntry, LookupRequest, LookupView
from service.api.views import record_view
from service.jobs.addressee import resolve_addressee, target_key_of
from service.jobs.graph_choice import known_plan
from service.jobs.planning import ModelRequest, plan_model, workload_name
from tuner.measure.measurement import RecordKey


def lookup_workloads(storage: Storage, body: LookupRequest) -> LookupView:
    """Records of the named workloads. Raises UnknownTargetError."""
    keys = list(dict.fromkeys(body.workloads or ()))
    target = target_key_of(body.target, storage)
    return _lookup(storage, body, target, [(key, "", 1) for key in keys])


def lookup_model(storage: Storage, body: LookupRequest) -> LookupView:
    """Records of every workload that a model is cut into.

    Raises:
        NotFoundError: if the model was never uploaded.
        CompilerError: if it cannot be planned.
    """
    assert body.model is not None
    model = storage.models.data(body.model)
    target = resolve_addressee(body.target, storage).target
    request = ModelRequest(model, target, body.threads, body.numerics, body.dims)
    planned = known_plan(plan_model(request), storage)
    wanted = [(w.key, workload_name(w), count) for w, count in planned.workloads]
    return _lookup(storage, body, planned.target.key, wanted)


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
