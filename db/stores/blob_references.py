"""References from rows to blobs, written in the same transaction as the row.

The row that refers to a blob, such as a job, is its holder. `BlobStore.sweep` deletes a blob when
none of its holders exists any more. So code that deletes a holder's row need not delete blobs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum

import sqlalchemy as sa

from tilewright.db.job_states import FINAL_STATES
from tilewright.db.models import (
    BlobReferenceRow,
    BlobRow,
    CostModelRow,
    JobRow,
    ModelRow,
    RequestRow,
)
from tilewright.db.stores.requests import RequestState
from tilewright.db.stores.statements import chunks, insert_new, table_of

_blobs = table_of(BlobRow)
_references = table_of(BlobReferenceRow)
_models = table_of(ModelRow)
_jobs = table_of(JobRow)
_cost_models = table_of(CostModelRow)
_requests = table_of(RequestRow)


_LOCK = (
    sa.select(_blobs.c.digest)
    .where(_blobs.c.digest.in_(sa.bindparam("digests", expanding=True)))
    .with_for_update(read=True, key_share=True)
)


class BlobKind(StrEnum):
    """The purpose of a blob.

    The purpose determines the table of the blob's holder, the row that needs the blob.
    """

    MODEL = "model"  # an ONNX file; held by its row
    ARTIFACT = "artifact"  # held by the job that made it
    COST_MODEL = "cost-model"  # held by the version of a target
    SAMPLES = "samples"  # sample inputs of a job; held by the job while it is open
    REQUEST = "request"  # candidates, programs, weights, expected outputs: held by an open request


def cost_model_holder(target_key: str, version: int) -> str:
    """Return the name of a cost-model version in references to its blob: `TARGET_KEY/VERSION`."""
    return f"{target_key}/{version}"


def refer(connection: sa.Connection, kind: BlobKind, holder: str, digests: Sequence[str]) -> None:
    """Protect blobs from deletion while the row that needs them (`holder`) exists.

    `holder` is the id of this row, and `kind` is the purpose of the blobs. See `refer_all`.
    """
    refer_all(connection, kind, {holder: digests})


def refer_all(
    connection: sa.Connection, kind: BlobKind, named: Mapping[str, Collection[str]]
) -> None:
    """Protect blobs from deletion (`BlobStore.sweep`) while the rows that need them exist.

    The blobs' rows stay locked until the transaction ends, so that no sweep deletes them before the
    commit. A reference to a digest that no blob has is stored too, and `db check` reports it.

    Args:
        connection: the transaction that also writes the rows that need the blobs (holders).
        kind: the purpose of the blobs.
        named: the digests of each holder, by the holder's id.
    """
    wanted = sorted({(digest, holder) for holder, digests in named.items() for digest in digests})
    for some in chunks(sorted({digest for digest, _ in wanted})):
        connection.execute(_LOCK, {"digests": list(some)}).all()
    rows = [{"digest": digest, "kind": kind.value, "holder": holder} for digest, holder in wanted]
    insert_new(connection, _references, rows)


def held(digest: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """Return the SQL condition that at least one reference to the blob `digest` exists."""
    return sa.exists().where(_references.c.digest == digest)


def stale() -> sa.ColumnElement[bool]:
    """Return the SQL condition that selects references that are no longer needed.

    The row that needed the blob (the holder) does not exist any more, or does not need the blob any
    more. For example, a job needs its sample inputs only until it ends.
    """
    return sa.or_(
        *(sa.and_(_references.c.kind == kind.value, sa.not_(_holds(kind))) for kind in BlobKind)
    )


def _holds(kind: BlobKind) -> sa.ColumnElement[bool]:
    holder, digest = _references.c.holder, _references.c.digest
    match kind:
        case BlobKind.MODEL:
            return sa.exists().where(_models.c.digest == digest)
        case BlobKind.ARTIFACT:
            return sa.exists().where(_jobs.c.id == holder, _jobs.c.artifact_digest == digest)
        case BlobKind.COST_MODEL:
            name = _cost_models.c.target_key + "/" + sa.cast(_cost_models.c.version, sa.Text)
            return sa.exists().where(_cost_models.c.digest == digest, name == holder)
        case BlobKind.SAMPLES:
            ended = sorted(state.value for state in FINAL_STATES)
            return sa.exists().where(_jobs.c.id == holder, _jobs.c.state.not_in(ended))
        case BlobKind.REQUEST:
            waiting = [state.value for state in RequestState if not state.final]
            return sa.exists().where(_requests.c.id == holder, _requests.c.state.in_(waiting))


def named_by_rows(connection: sa.Connection) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, holder, digest) for every reference that should be stored.

    A reference means that a row (the holder) needs a blob. The references are computed from the
    rows. `db.check` reports references that are missing in the table of references.
    """
    for digest in connection.execute(sa.select(_models.c.digest)).scalars():
        yield BlobKind.MODEL.value, digest, digest
    artifacts = sa.select(_jobs.c.id, _jobs.c.artifact_digest)
    artifacts = artifacts.where(_jobs.c.artifact_digest.is_not(None))
    for job_id, digest in connection.execute(artifacts):
        yield BlobKind.ARTIFACT.value, job_id, digest
    versions = sa.select(_cost_models.c.target_key, _cost_models.c.version, _cost_models.c.digest)
    for target_key, version, digest in connection.execute(versions):
        yield BlobKind.COST_MODEL.value, cost_model_holder(target_key, version), digest
    ended = sorted(state.value for state in FINAL_STATES)
    given = sa.select(_jobs.c.id, _jobs.c.options).where(_jobs.c.state.not_in(ended))
    for job_id, options in connection.execute(given):
        for digest in options.get("samples", ()):
            yield BlobKind.SAMPLES.value, job_id, digest
    waiting = [state.value for state in RequestState if not state.final]
    requests = sa.select(_requests.c.id, _requests.c.blob_digests)
    for request_id, digests in connection.execute(requests.where(_requests.c.state.in_(waiting))):
        for digest in digests:
            yield BlobKind.REQUEST.value, request_id, digest
