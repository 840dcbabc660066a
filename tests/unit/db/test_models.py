from __future__ import annotations

from typing import Any

import pytest

from tilewright.db.errors import NotFoundError
from tilewright.db.stores.models import ModelStore


def test_a_model_is_kept_by_its_digest(models: ModelStore, clock: Any) -> None:
    model = models.add(b"bytes", "net.onnx", owner="t1")
    assert (model.name, model.bytes, model.owner) == ("net.onnx", 5, "t1")
    assert model.created_at == clock()
    assert models.get(model.digest) == model
    assert models.data(model.digest) == b"bytes"


def test_the_same_bytes_give_the_first_row(models: ModelStore, clock: Any) -> None:
    first = models.add(b"bytes", "first")
    clock.advance(1)
    assert models.add(b"bytes", "second") == first
    assert models.list() == [first]


def test_unknown(models: ModelStore) -> None:
    with pytest.raises(NotFoundError, match="model 'nope' does not exist"):
        models.get("nope")
    with pytest.raises(NotFoundError, match="blob"):
        models.register("0" * 64, 1, "name")
    with pytest.raises(NotFoundError):
        models.data("nope")


def test_pages_newest_first(models: ModelStore, clock: Any) -> None:
    made = []
    for number in range(5):
        made.append(models.add(bytes([number]), str(number)))
        clock.advance(number % 2)  # some at the same moment
    expected = sorted(made, key=lambda m: (m.created_at, m.digest), reverse=True)
    pages = [models.list(limit=2)]
    while pages[-1].next:
        pages.append(models.list(limit=2, after=pages[-1].next))
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [model for page in pages for model in page] == expected
