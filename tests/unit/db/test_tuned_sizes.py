from __future__ import annotations

from dataclasses import replace

import sqlalchemy as sa

from tilewright.compiler.mode import Mode
from tilewright.db.stores.tuned_sizes import TunedSizesStore


def test_sizes_are_of_a_model_and_a_mode_and_kept_once(engine: sa.Engine) -> None:
    store, mode = TunedSizesStore(engine), Mode()
    for sizes in ({"rows": 8, "batch": 2}, {"rows": 4}, {"batch": 2, "rows": 8}):
        store.add("m", mode, sizes)
    assert store.list("m", mode) == [{"batch": 2, "rows": 8}, {"rows": 4}]
    assert store.list("other", mode) == []
    for other in ({"threads": 2}, {"numerics": "strict"}, {"precision": "bfloat16"}):
        assert store.list("m", replace(mode, **other)) == []  # type: ignore[arg-type]
