"""Trained cost models: one row per version, with the file of the model as a blob.

The versions of a target are numbered from 1. At most one version is promoted: tuning runs of the
target start from it. `promote` changes the promoted version, and `roll_back` promotes the previous
one again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import reading, writing
from tilewright.db.errors import NotFoundError, StateError
from tilewright.db.models import CostModelRow
from tilewright.db.stores.blob_references import BlobKind, cost_model_holder, refer
from tilewright.db.stores.blobs import BlobStore
from tilewright.db.stores.pages import Page, PageOrder, Position
from tilewright.db.stores.statements import table_of

_models = table_of(CostModelRow)
_newest_first = PageOrder((_models.c.created_at, _models.c.target_key, _models.c.version))


class CostModelState(StrEnum):
    """The state of a cost model's version. Tuning runs use only the promoted version."""

    CANDIDATE = "candidate"
    """Trained, but not promoted yet. No tuning run uses this version."""
    PROMOTED = "promoted"
    RETIRED = "retired"
    """Formerly promoted. No tuning run uses this version any more."""


@dataclass(frozen=True, slots=True)
class StoredCostModel:
    """One version of a target's cost model.

    Attributes:
        digest: the blob with the model's file.
        feature_version: the version of the features that the model reads.
        rows, tasks: number of training examples, and of the tasks that they come from.
        trials: number of trials that the target had when the model was trained.
        scores: the model's scores on tasks held out from training.
        chance: the scores of a random ranking on these tasks.
    """

    target_key: str
    version: int
    digest: str
    feature_version: int
    objective: str
    rows: int
    tasks: int
    trials: int
    scores: Mapping[str, Any]
    chance: Mapping[str, Any]
    state: CostModelState
    created_at: float
    promoted_at: float | None


class CostModelStore:
    """Stores the versions of cost models: rows in the database, files in the blob store."""

    def __init__(self, engine: sa.Engine, blobs: BlobStore, clock: Clock = system_clock) -> None:
        self._engine = engine
        self._blobs = blobs
        self._clock = clock

    def add(
        self,
        target_key: str,
        data: bytes,
        *,
        feature_version: int,
        objective: str,
        rows: int,
        tasks: int,
        trials: int,
        scores: Mapping[str, Any],
        chance: Mapping[str, Any],
    ) -> StoredCostModel:
        """Save a trained model as the next version of its target. Return the new version.

        Tuning runs do not use it before it is promoted. The parameters are the fields of
        `StoredCostModel`; `data` is the file.
        """
        digest = self._blobs.put(data)
        values: dict[str, Any] = {
            "target_key": target_key,
            "digest": digest,
            "feature_version": feature_version,
            "objective": objective,
            "rows": rows,
            "tasks": tasks,
            "trials": trials,
            "scores": dict(scores),
            "chance": dict(chance),
            "state": CostModelState.CANDIDATE.value,
            "created_at": self._clock(),
            "promoted_at": None,
        }
        with writing(self._engine) as connection:
            _lock(connection, target_key)
            newest = sa.select(sa.func.max(_models.c.version)).where(
                _models.c.target_key == target_key
            )
            values["version"] = (connection.execute(newest).scalar() or 0) + 1
            connection.execute(sa.insert(_models).values(values))
            holder = cost_model_holder(target_key, values["version"])
            refer(connection, BlobKind.COST_MODEL, holder, [digest])
        return _stored(values)

    def get(self, target_key: str, version: int) -> StoredCostModel:
        """Return version `version` of a target's cost model.

        Raises:
            NotFoundError: if the target has no such version.
        """
        with reading(self._engine) as connection:
            return _get(connection, target_key, version)

    def data(self, model: StoredCostModel) -> bytes:
        """Return the bytes of a cost model's file.

        Raises:
            NotFoundError: if the blob store does not have the file.
            StorageError: of the kind CORRUPT if the bytes do not match the digest.
        """
        return self._blobs.get(model.digest)

    def list(
        self,
        target_key: str | None = None,
        *,
        limit: int | None = None,
        after: Position | None = None,
    ) -> Page[StoredCostModel]:
        """Return a page of cost-model versions, newest first.

        Args:
            target_key: only versions of this target; None for all targets.
            limit: the largest number of versions; None for no limit.
            after: the position `Page.next` of the previous page.

        Raises:
            PositionError: if no version can have the position `after`.
        """
        query = sa.select(_models)
        if target_key is not None:
            query = query.where(_models.c.target_key == target_key)
        with reading(self._engine) as connection:
            return _newest_first.page(
                connection, query, lambda row: _stored(dict(row._mapping)), limit, after
            )

    def promoted(self, target_key: str) -> StoredCostModel | None:
        """Return the promoted version, from which tuning runs of the target start, or None."""
        with reading(self._engine) as connection:
            return _promoted(connection, target_key)

    def promote(self, target_key: str, version: int) -> StoredCostModel:
        """Make tuning runs of the target start from this version. Return it.

        The version promoted before is retired. Nothing changes if this version is already promoted.

        Raises:
            NotFoundError: if the target has no such version.
        """
        with writing(self._engine) as connection:
            _lock(connection, target_key)
            chosen = _get(connection, target_key, version)
            if chosen.state is CostModelState.PROMOTED:
                return chosen
            _retire(connection, target_key)
            # Later than any other, even if the clock shows the same time.
            latest = sa.select(sa.func.max(_models.c.promoted_at)).where(
                _models.c.target_key == target_key
            )
            before = connection.execute(latest).scalar()
            now = self._clock()
            if before is not None and now <= before:
                now = before + 1e-3
            _set(connection, chosen, state=CostModelState.PROMOTED.value, promoted_at=now)
            return _get(connection, target_key, version)

    def roll_back(self, target_key: str) -> StoredCostModel:
        """Retire the promoted version of a target, and promote its predecessor again.

        Return the predecessor.

        Raises:
            StateError: if no version is promoted, or none was promoted before it.
        """
        with writing(self._engine) as connection:
            _lock(connection, target_key)
            current = _promoted(connection, target_key)
            if current is None:
                raise StateError(f"target '{target_key}' has no promoted cost model")
            earlier = (
                sa.select(_models.c.version)
                .where(
                    _models.c.target_key == target_key,
                    _models.c.promoted_at < current.promoted_at,
                )
                .order_by(_models.c.promoted_at.desc())
                .limit(1)
            )
            version = connection.execute(earlier).scalar()
            if version is None:
                raise StateError(
                    f"no cost model was promoted before version {current.version} "
                    f"of target '{target_key}'"
                )
            _retire(connection, target_key)
            chosen = _get(connection, target_key, version)
            _set(connection, chosen, state=CostModelState.PROMOTED.value)
            return _get(connection, target_key, version)


def _lock(connection: sa.Connection, target_key: str) -> None:
    """Lock the cost-model versions of a target until the transaction ends.

    The call waits while another transaction holds the lock. On SQLite nothing is done, because only
    one transaction writes at a time.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(target_key))))


def _get(connection: sa.Connection, target_key: str, version: int) -> StoredCostModel:
    query = sa.select(_models).where(
        _models.c.target_key == target_key, _models.c.version == version
    )
    row = connection.execute(query).first()
    if row is None:
        raise NotFoundError("cost model", f"{version} of {target_key}")
    return _stored(dict(row._mapping))


def _promoted(connection: sa.Connection, target_key: str) -> StoredCostModel | None:
    query = sa.select(_models).where(
        _models.c.target_key == target_key,
        _models.c.state == CostModelState.PROMOTED.value,
    )
    row = connection.execute(query).first()
    return None if row is None else _stored(dict(row._mapping))


def _retire(connection: sa.Connection, target_key: str) -> None:
    connection.execute(
        sa.update(_models)
        .where(
            _models.c.target_key == target_key,
            _models.c.state == CostModelState.PROMOTED.value,
        )
        .values(state=CostModelState.RETIRED.value)
    )


def _set(connection: sa.Connection, model: StoredCostModel, **values: Any) -> None:
    connection.execute(
        sa.update(_models)
        .where(
            _models.c.target_key == model.target_key,
            _models.c.version == model.version,
        )
        .values(values)
    )


def _stored(values: Mapping[str, Any]) -> StoredCostModel:
    return StoredCostModel(**{**values, "state": CostModelState(values["state"])})
