from __future__ import annotations

from typing import Any

import pytest

from tilewright.db.errors import NotFoundError
from tilewright.db.stores.models import ModelStore
from tilewright.db.stores.tokens import Scope, TokenStore


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


def test_each_owner_has_a_name_for_the_same_bytes(models: ModelStore, tokens: TokenStore) -> None:
    """All tokens of a name are one owner's."""
    (_, ada), (_, again), (_, bob) = (
        tokens.create(name, [Scope.SUBMIT]) for name in ("ada", "ada", "bob")
    )
    digest = models.add(b"bytes", "ada.onnx", owner=ada.id).digest
    assert models.add(b"bytes", "bob.onnx", owner=bob.id).name == "bob.onnx"
    names = {"ada": "ada.onnx", "bob": "bob.onnx"}
    asked = [(digest, owner) for owner in (*names, "eve")]
    assert models.names(asked) == {
        **{(digest, owner): name for owner, name in names.items()},
        (digest, "eve"): "ada.onnx",
    }
    for owner, name in names.items():
        assert models.get(digest[:9], owner).name == name
        assert [model.name for model in models.list(sees=owner)] == [name]
    assert models.add(b"bytes", "renamed.onnx", owner=again.id).name == "ada.onnx"
    assert models.names([(digest, "ada")]) == {(digest, "ada"): "ada.onnx"}
    assert models.list(sees="eve") == [] and models.names([("none", "ada")]) == {}
    with pytest.raises(NotFoundError):
        models.get(digest, "eve")


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
