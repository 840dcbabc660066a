"""`tilewright db`: from one machine's database to another's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.service.cli import run as run_cli
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage


def test_a_database_moves_to_another_folder(
    settings: Settings,
    storage: Storage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = storage.models.add(b"an ONNX model", "net.onnx")
    secret, _ = storage.tokens.create("ci", [Scope.READ])
    file = tmp_path / "all.tar"
    assert run_cli(["db", "check", "--deep"]) == 0
    assert "no errors" in capsys.readouterr().out
    assert run_cli(["db", "backup", str(file)]) == 0
    assert "1 blobs of 13 bytes" in capsys.readouterr().out
    assert run_cli(["db", "backup", str(file)]) == 1
    assert "exists already" in capsys.readouterr().err
    assert run_cli(["db", "restore", str(file)]) == 1
    assert "only an empty database is restored" in capsys.readouterr().err

    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "elsewhere"))
    assert run_cli(["db", "restore", str(file)]) == 0
    moved = open_storage(Settings())
    assert moved.models.data(model.digest) == b"an ONNX model"
    assert moved.tokens.holds(secret)
    (entry,) = moved.audit.list()
    assert (entry.action, entry.subject) == ("database.restored", "all.tar")
    moved.blobs.place.quarantine([model.digest])
    capsys.readouterr()
    assert run_cli(["db", "check"]) == 1
    told = capsys.readouterr()
    assert f"error: the bytes of blob {model.digest} are missing" in told.out
    assert "1 errors" in told.err
    moved.close()


def test_a_database_is_migrated_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "fresh"))
    assert run_cli(["db", "check"]) == 1
    assert "was never migrated" in capsys.readouterr().out
    assert run_cli(["db", "migrate"]) == 0
    assert "was at None" in capsys.readouterr().out
    assert run_cli(["db", "migrate"]) == 0
    assert "already" in capsys.readouterr().out
    assert run_cli(["db", "check"]) == 0
