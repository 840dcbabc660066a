"""Store of the sizes of a model's dynamic dimensions at which jobs tuned it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from tilewright.compiler.mode import Mode
from tilewright.db.engine import reading, writing
from tilewright.db.models import TunedSizesRow
from tilewright.db.stores.statements import table_of, upsert
from tilewright.db.types import canonical_json

_sizes = table_of(TunedSizesRow)


class TunedSizesStore:
    """Stores the sizes of dynamic dimensions at which jobs tuned models.

    The key is the model's digest and the mode: target, threads, numerics and precision.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, model_digest: str, mode: Mode, sizes: Mapping[str, int]) -> None:
        """Record that a job tuned a model at certain sizes of its dynamic dimensions.

        `mode` is the target, threads, numerics and precision of the generated code. `sizes` has the
        size of each dimension by name.
        """
        row = {**_key(model_digest, mode), "sizes": canonical_json(dict(sizes))}
        with writing(self._engine) as connection:
            insert = upsert(connection, _sizes).values(row)
            connection.execute(insert.on_conflict_do_nothing())

    def list(self, model_digest: str, mode: Mode) -> Sequence[Mapping[str, int]]:
        """Return all combinations of sizes at which jobs tuned a model, each by dimension name.

        `mode` is the target, threads, numerics and precision of the generated code.
        """
        same = [_sizes.c[name] == value for name, value in _key(model_digest, mode).items()]
        query = sa.select(_sizes.c.sizes).where(*same).order_by(_sizes.c.sizes)
        with reading(self._engine) as connection:
            return [json.loads(sizes) for sizes in connection.execute(query).scalars()]


def _key(model_digest: str, mode: Mode) -> dict[str, str | int]:
    target_key, threads, numerics = mode.key
    return {
        "model_digest": model_digest,
        "target_key": target_key,
        "threads": threads,
        "numerics": numerics,
        "precision": mode.precision,
    }
