"""The TypeScript client's types are generated from the service's description and compile."""

from __future__ import annotations

import subprocess

import pytest

from deploy import clients
from deploy.clients import NpmError, typescript


def test_types_are_generated_and_the_client_compiles_with_them() -> None:
    try:
        types = typescript()
    except NpmError as error:
        pytest.skip(str(error))
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error.cmd}: {error.stdout}")
    assert "JobView: {" in types
    assert '"/v1/jobs/{job_id}": {' in types


def test_without_npm_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients.shutil, "which", lambda _: None)
    with pytest.raises(NpmError, match="npm is needed"):
        typescript()
