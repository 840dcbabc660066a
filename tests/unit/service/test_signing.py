"""The key of a service: generated once, readable by its owner alone, and no other key signs for
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.db.errors import StorageError
from tilewright.service.signing import is_public_key, is_signed, signing_key


def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "data" / "key.pem"
    made = signing_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert signing_key(path).public == made.public and is_public_key(made.public)
    assert [p.name for p in path.parent.iterdir()] == ["key.pem"]


def test_a_signature_holds_for_one_message_and_one_key(tmp_path: Path) -> None:
    ours, theirs = signing_key(tmp_path / "ours"), signing_key(tmp_path / "theirs")
    signature = ours.sign(b"a record")
    assert is_signed(b"a record", signature, ours.public)
    assert not is_signed(b"a recorD", signature, ours.public)
    assert not is_signed(b"a record", signature, theirs.public)
    for nonsense in ("", "===", "é", "A" * 10):
        assert not is_signed(b"a record", nonsense, ours.public)
        assert not is_signed(b"a record", signature, nonsense)
        assert not is_public_key(nonsense)


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PRIVATE KEY-----\n"])
def test_a_file_that_holds_no_key_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"key\.pem' holds no signing key"):
        signing_key(path)
    assert path.read_bytes() == content, "nothing is overwritten"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used"):
        signing_key(tmp_path / "file" / "key.pem")
