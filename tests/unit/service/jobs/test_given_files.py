"""Real inputs as data of a job: files that are uploaded, and numbers that fill inputs."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from tests.unit.service.api_calls import onnx_bytes, problem, submit, upload
from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.process.bounded import Limits
from tilewright.db.storage import Storage
from tilewright.service.api.app import create_app
from tilewright.service.arrays import save_arrays
from tilewright.service.cli import run as run_cli
from tilewright.service.jobs.inputs.given_files import (
    GivenFiles,
    InvalidSamplesError,
    SamplesFile,
    checked_values,
)
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.bounded_planning import given_bounded
from tilewright.service.quantize.errors import QuantizeError
from tilewright.service.quantize.samples import Input
from tilewright.service.settings import Settings
from tilewright.tuner.cancel import CancelToken

LIMIT = 1 << 20


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]  # its stub has a flag among the arrays
    return file.getvalue()


def rows(count: int, value: float = 1.0) -> np.ndarray:
    return np.full((count, 4), value, np.float32)


def given(path: Path, limit: int = LIMIT) -> GivenFiles:
    return GivenFiles((SamplesFile("samples 12", path),), None, limit)


def test_a_file_holds_samples_of_all_sizes(tmp_path: Path) -> None:
    """The child that reads them sends them back as they are."""
    file = tmp_path / "s.npz"
    save_arrays(file, [("0/x", rows(3)), ("1/x", rows(1, 2.0)), ("2/x", rows(3, 3.0))])
    spec = JobSpec(onnx_bytes())
    found = given_bounded(spec, given(file), Limits(1 << 30, 60.0), CancelToken())
    assert [each["x"].shape[0] for each in found.samples] == [3, 1, 3]
    assert [float(each["x"][0, 0]) for each in found.samples] == [1, 2, 3]
    assert found.sizes_within({"x": ("batch", 4)}) == {"batch": {1: 1, 3: 2}}
    assert given_bounded(spec, GivenFiles(), None, CancelToken()).samples == ()


def test_samples_that_are_wrong_are_named_as_they_were_uploaded(tmp_path: Path) -> None:
    """Never by a path of the service."""
    file = tmp_path / "s.npz"
    file.write_bytes(b"no zip at all")
    with pytest.raises(InvalidSamplesError, match=r"^'samples 12' is not an .npz file"):
        given(file).read(onnx_bytes(), {})
    file.write_bytes(npz(y=rows(2)))
    with pytest.raises(QuantizeError, match=r"^'samples 12': the model has no input 'y'"):
        given(file).read(onnx_bytes(), {})
    file.write_bytes(npz(x=rows(2)))
    with pytest.raises(QuantizeError, match=r"^'samples 12': 'x' has shape \(2, 4\)"):
        given(file).read(onnx_bytes(), {"batch": [3]})


def test_a_small_file_cannot_hold_more_than_all_may(tmp_path: Path) -> None:
    file = tmp_path / "s.npz"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        array = io.BytesIO()
        np.save(array, np.zeros((1 << 16, 4), np.float32))
        packed.writestr("x.npy", array.getvalue())
    assert file.stat().st_size < 10_000
    held = r"'samples 12' holds 104\d{4} bytes of arrays, at most 1048576 fit"
    with pytest.raises(InvalidSamplesError, match=held):
        given(file).read(onnx_bytes(), {})
    half = tmp_path / "half.npz"
    half.write_bytes(npz(x=rows(1 << 15)))
    two = GivenFiles((SamplesFile("first", half), SamplesFile("second", half)), None, LIMIT)
    with pytest.raises(InvalidSamplesError, match="'second' holds"):
        two.read(onnx_bytes(), {})


@pytest.mark.parametrize("value", [0.5, 1 << 31, -(1 << 40)])
def test_a_value_is_one_that_its_input_holds(value: float) -> None:
    inputs = [Input("sr", np.dtype(np.int32), ()), Input("gain", np.dtype(np.float32), ())]
    assert checked_values({"sr": 8000.0, "gain": 1}, inputs) == {"sr": 8000, "gain": 1.0}
    with pytest.raises(InvalidArgumentError, match=r"input 'sr' cannot hold .*: it takes int32"):
        checked_values({"sr": value}, inputs)
    with pytest.raises(InvalidArgumentError, match=r"input 'text' cannot hold .*: it takes text"):
        checked_values({"text": value}, [Input("text", np.dtype(object), ())])
    with pytest.raises(InvalidArgumentError, match="has no input 'rate', its inputs are 'sr'"):
        checked_values({"rate": 1}, inputs)


def uploaded(client: TestClient, data: bytes) -> str:
    answer = client.post("/v1/samples", params={"name": "s.npz"}, content=data)
    assert answer.status_code == 201, answer.text
    assert answer.json()["bytes"] == len(data)
    digest: str = answer.json()["digest"]
    return digest


def test_samples_are_kept_while_a_job_is_open(client: TestClient, storage: Storage) -> None:
    digest = uploaded(client, npz(x=rows(2)))
    job = submit(client, samples=[digest], values={"x": 3}, dims={})
    options = storage.jobs.get(job["id"]).options
    assert (options["samples"], options["values"]) == ([digest], {"x": 3})
    storage.blobs.sweep(-1.0)
    assert digest in storage.blobs
    client.post(f"/v1/jobs/{job['id']}:cancel")
    storage.blobs.sweep(-1.0)
    assert digest not in storage.blobs


def test_what_cannot_be_given_is_refused_when_the_job_is_made(client: TestClient) -> None:
    def refused(**options: Any) -> tuple[int, str, str]:
        return problem(client.post("/v1/jobs", json={"model": upload(client), **options}))

    other = uploaded(client, npz(y=rows(2)))
    status, slug, said = refused(samples=[other])
    assert (status, slug) == (422, "compiler-error")
    assert f"'samples {other[:12]}': the model has no input 'y'" in said
    assert refused(samples=["0" * 64])[:2] == (404, "not-found")
    assert "its inputs are 'x'" in refused(values={"z": 1})[2]
    assert refused(values={"x": "loud"})[0] == 422
    assert refused(samples=[other] * 65)[0] == 422


def test_samples_beyond_the_default_range_widen_it_for_a_job(
    client: TestClient, storage: Storage
) -> None:
    digest = uploaded(client, npz(x=rows(5000)))
    job = submit(client, samples=[digest], dims={})
    assert storage.jobs.get(job["id"]).options["samples"] == [digest]
    submit(client, samples=[digest], dims={"batch": "@3:2,7"})
    body = {"model": upload(client), "samples": [digest], "dims": {"batch": "1..4096@3"}}
    status, slug, said = problem(client.post("/v1/jobs", json=body))
    assert (status, slug) == (422, "compiler-error")
    assert "sample 1 has size 5000 in dimension 'batch', which the range" in said
    assert "'batch=1..4096' does not hold" in said


def test_uploads_of_samples_are_checked(
    client: TestClient, settings: Settings, storage: Storage, owner: str
) -> None:
    answer = client.post("/v1/samples", params={"name": "s.npz"}, content=b"no zip")
    status, slug, said = problem(answer)
    assert (status, slug) == (422, "compiler-error") and "'s.npz' is not an .npz file" in said
    small = settings.model_copy(update={"max_samples_bytes": 1000})
    with TestClient(create_app(small, storage)) as other:
        other.headers["Authorization"] = f"Bearer {owner}"
        assert problem(other.post("/v1/samples", content=npz(x=rows(100))))[0] == 413
    assert list(storage.blobs.digests()) == []


def test_submit_uploads_the_samples_of_a_folder(
    server: Any, owner: str, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    (tmp_path / "m.onnx").write_bytes(onnx_bytes())
    folder = tmp_path / "samples"
    folder.mkdir()
    for count in (1, 3):
        (folder / f"{count}.npz").write_bytes(npz(x=rows(count)))
    command = ["job", "submit", str(tmp_path / "m.onnx"), "--detach", "--target", "x86-64-v3"]
    assert run_cli([*command, "--samples", str(folder), "--value", "x=2"]) == 0
    (job,) = storage.jobs.list()
    (digest,) = job.options["samples"]
    assert job.options["values"] == {"x": 2.0}
    file = tmp_path / "stored.npz"
    file.write_bytes(storage.blobs.get(digest))
    assert [len(each["x"]) for each in given(file).read(onnx_bytes(), {}).samples] == [1, 3]
    assert run_cli([*command, "--value", "rate=1"]) == 1
    assert len(storage.jobs.list()) == 1
