"""The same mistakes through all three doors: Python, the command line in a process, and HTTP.

Each gets one sentence that names the offender, and earlier saved files are still there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper

from tests.databases import lay_database
from tests.unit.service.api_calls import onnx_bytes
from tests.unit.service.jobs.test_bounded_verification import endless
from tilewright import CompilerError, compile_model
from tilewright.db.errors import StorageError
from tilewright.service.api.app import create_app
from tilewright.service.embedded import owner_token, read_token
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage

FLOAT = TensorProto.FLOAT
LIMIT_SECONDS = 60
"""Ten on a machine that does nothing else."""


def value(name: str, *shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    x: onnx.ValueInfoProto | None = None,
    constants: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
) -> onnx.ModelProto:
    result = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(nodes, "m", [x or value("x", 2)], [result], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def relu(x: onnx.ValueInfoProto | None = None, opset: int = 17) -> onnx.ModelProto:
    return model([helper.make_node("Relu", ["x"], ["y"], "act")], x, opset=opset)


def external(location: str) -> onnx.ModelProto:
    weights = numpy_helper.from_array(np.zeros((2, 2), np.float32), "w")
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    weights.external_data.add(key="location", value=location)
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "fc")
    return model([node], value("x", 2, 2), [weights])


def cyclic() -> onnx.ModelProto:
    return model(
        [
            helper.make_node("Add", ["x", "b"], ["a"], "first"),
            helper.make_node("Exp", ["a"], ["b"], "second"),
            helper.make_node("Relu", ["b"], ["y"], "third"),
        ]
    )


def of_another_domain() -> onnx.ModelProto:
    made = relu()
    made.graph.node[0].domain = "com.example"
    made.opset_import.append(helper.make_opsetid("com.example", 3))
    return made


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto | bytes], str]] = {
    "empty": (lambda: b"", "is empty"),
    "random": (lambda: np.random.default_rng(1).bytes(4096), "ONNX"),
    "truncated": (lambda: relu().SerializeToString()[:40], "ONNX"),
    "cycle": (cyclic, "cycle through Add 'first', Exp 'second'"),
    "missing input": (
        lambda: model([helper.make_node("Add", ["x", "q"], ["y"], "n")]),
        "Add 'n': input 'q' is not defined",
    ),
    "shapes": (
        lambda: model([helper.make_node("MatMul", ["x", "x"], ["y"], "fc")], value("x", 2, 3)),
        "MatMul 'fc': K differs, 3 against 2",
    ),
    "operator": (
        lambda: model([helper.make_node("Frobnicate", ["x"], ["y"], "n")]),
        "node 'n': operator Frobnicate (ai.onnx, opset 17)",
    ),
    "domain": (of_another_domain, "operator Relu (com.example, opset 3)"),
    "opset": (lambda: relu(opset=999), "opset 999"),
    "parent folder": (lambda: external("../outside"), "'../outside'"),
    "absolute path": (lambda: external("/etc/passwd"), "'/etc/passwd'"),
    "huge": (lambda: relu(value("x", 10**12)), "input 'x'"),
    "escape codes": (
        lambda: model([helper.make_node("Bad\x1b[2J", ["x"], ["y"], "a\nb" * 10**5)]),
        r"Bad\x1b[2J",
    ),
}


def data_of(name: str) -> bytes:
    made = MODELS[name][0]()
    return made if isinstance(made, bytes) else made.SerializeToString()


@dataclass
class Finished:
    status: int
    output: str
    error: str

    def sentence(self) -> str:
        """The one line on standard error."""
        assert self.status in (1, 2), (self.status, self.error)
        assert self.error.startswith("error: "), self.error
        assert self.error.count("\n") == 1, self.error
        assert self.error.rstrip("\n").isprintable(), self.error
        assert len(self.error) < 2000
        return self.error


@dataclass
class CommandLine:
    """`tilewright` in a process of its own, over a data folder of its own."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def start(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tilewright.service.cli", *map(str, arguments)],
            env={**os.environ, "TILEWRIGHT_DATA_FOLDER": str(self.data), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *arguments: object, **environment: str) -> Finished:
        process = self.start(*arguments, **environment)
        try:
            output, error = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.kill()
        return Finished(process.returncode, output, error)


@pytest.fixture
def tilewright(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(data_folder=tmp_path / "data", database_url="", token="")
    lay_database(settings.data_folder)
    storage = open_storage(settings)
    header = {"Authorization": f"Bearer {owner_token(settings, storage)}"}
    with TestClient(
        create_app(settings, storage), headers=header, raise_server_exceptions=False
    ) as made:
        yield made
    storage.close()


def detail(answer: Any, status: int = 422) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    sentence: str = answer.json()["detail"]
    assert sentence.isprintable()
    assert len(sentence) <= 1000
    return sentence


@pytest.mark.parametrize("name", MODELS)
def test_python_refuses_a_bad_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data_of(name))
    for given in (path, str(path), path.read_bytes()):
        with pytest.raises(CompilerError) as caught:
            compile_model(given)
    words = MODELS[name][1]
    assert words in str(caught.value) or "\x1b" in str(caught.value)


@pytest.mark.parametrize("name", ["cycle", "escape codes"])
def test_the_command_line_refuses_a_bad_model(name: str, tilewright: CommandLine) -> None:
    """The other models take the same path, which is tested without a process for each."""
    path = tilewright.folder / "m.onnx"
    path.write_bytes(data_of(name))
    for command in (
        ["show", "graph", path],
        ["compile", path, "-o", tilewright.folder / "artifact"],
    ):
        assert MODELS[name][1] in tilewright(*command).sentence()
    assert not (tilewright.folder / "artifact").exists()


@pytest.mark.parametrize("name", MODELS)
def test_the_service_refuses_a_bad_model(name: str, client: TestClient) -> None:
    uploaded = client.post("/v1/models", params={"name": "m.onnx"}, content=data_of(name))
    if uploaded.status_code >= 400:
        assert "model 'm.onnx'" in detail(uploaded)
        assert client.get("/v1/models").json() == []
        return
    digest = uploaded.json()["digest"]
    for path, body in (("jobs", {}), ("schedules/lookup", {"target": "x86-64-v3"})):
        answer = client.post(f"/v1/{path}", json={"model": digest, **body})
        assert MODELS[name][1] in detail(answer)
    assert client.get("/v1/jobs").json() == []


def test_a_dimension_without_a_size_is_tuned_and_looked_up_for_a_range(
    client: TestClient,
) -> None:
    model = relu(value("x", "batch")).SerializeToString()
    digest = client.post("/v1/models", content=model).json()["digest"]
    lookup = {"model": digest, "target": "x86-64-v3"}
    assert client.post("/v1/schedules/lookup", json=lookup).is_success
    assert client.post("/v1/schedules/lookup", json={**lookup, "dims": {"batch": 4}}).is_success
    assert client.post("/v1/jobs", json={"model": digest}).status_code == 201


def test_an_uploaded_model_reads_no_file_of_the_service(client: TestClient) -> None:
    """Its weights could be named after the digest of another user's model."""
    other = client.post("/v1/models", content=relu().SerializeToString()).json()["digest"]
    mine = client.post("/v1/models", content=external(other).SerializeToString()).json()["digest"]
    answer = client.post("/v1/jobs", json={"model": mine})
    assert "the model was not read from a file" in detail(answer)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"dims": {"bach": 1}}, "no dynamic dimension 'bach'"),
        ({"dims": {"batch": -1}}, "body.dims.batch"),
        ({"dims": {"batch\ud800": 1}}, "surrogate"),
        ({"target": "x\0"}, "null character"),
        ({"target": "z80"}, "'z80'"),
        ({"threads": 10**9}, "body.threads"),
        ({"seconds": -1}, "body.seconds"),
        ({"trials": -1}, "body.trials"),
    ],
)
def test_the_service_refuses_a_bad_job(
    body: dict[str, Any], words: str, client: TestClient
) -> None:
    named = relu(value("x", "batch")).SerializeToString()
    digest = client.post("/v1/models", content=named).json()["digest"]
    request = {"model": digest, "dims": {"batch": 1}, **body}
    answer = client.post(
        "/v1/jobs",
        content=as_json(request),
        headers={"Content-Type": "application/json"},
    )
    assert words in detail(answer)


def as_json(body: Any) -> bytes:
    """JSON with escapes, which can represent texts that UTF-8 cannot."""
    return json.dumps(body).encode()


def test_the_service_names_what_it_does_not_have(client: TestClient) -> None:
    assert detail(client.get("/v1/nothing"), 404) == "not found: GET /v1/nothing"
    assert detail(client.delete("/v1/jobs"), 405) == "method not allowed: DELETE /v1/jobs"
    assert "null character" in detail(client.get("/v1/jobs/a%00b"))
    assert "null character" in detail(client.get("/v1/jobs?state=%00"))
    header = {"Content-Type": "application/json"}
    broken = detail(client.post("/v1/jobs", content=b'{"model": ', headers=header))
    assert broken.startswith("body: no JSON: ")
    many = as_json({str(n): 1 for n in range(5 * 10**4)})
    answer = client.post("/v1/jobs", content=many, headers=header)
    assert detail(answer)
    assert len(answer.content) < 10_000


def test_a_token_file_without_a_token_is_named(tilewright: CommandLine) -> None:
    tilewright.data.mkdir()
    file = tilewright.data / "token"
    settings = Settings(data_folder=tilewright.data)
    for content in (b"\n", b"\xff\xfe\x00", b"two words"):
        file.write_bytes(content)
        with pytest.raises(StorageError, match="holds no token"):
            read_token(settings)
    file.write_bytes(b"")
    assert f"token file '{file}' holds no token" in tilewright("job", "list").sentence()
    file.unlink()
    file.mkdir()
    served = tilewright("server", "run", "--port", "0", "--no-tuner", "--no-worker").sentence()
    assert f"token file '{file}' cannot be read: Is a directory" in served


@pytest.mark.parametrize(
    ("missing", "program", "words"),
    [
        (
            "typer",
            "from tilewright.service.command import main; main()",
            "error: the command line needs",
        ),
        ("llvmlite", "import tilewright; tilewright.compile_model(MODEL)", "tilewright[compiler]"),
        ("onnx", "import tilewright; tilewright.compile_model(MODEL)", "tilewright[compiler]"),
    ],
)
def test_what_is_not_installed_is_named(
    missing: str, program: str, words: str, tmp_path: Path
) -> None:
    """The base install has neither the command line nor the compiler."""
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_bytes())
    program = program.replace("MODEL", f"{str(path)!r}, dims={{'batch': 2}}")
    hidden = f"import sys; sys.modules['{missing}'] = None; {program}"
    finished = subprocess.run(
        [sys.executable, "-c", hidden], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 1
    last = finished.stderr.splitlines()[-1]
    assert words in last
    assert f"'{missing}" in last
    assert "pip install" in last


def test_no_file_of_the_user_is_in_the_way_of_an_artifact(tilewright: CommandLine) -> None:
    taken = tilewright.folder / "mine"
    taken.mkdir()
    sentence = tilewright("job", "fetch", "0" * 32, "-o", taken, TILEWRIGHT_TOKEN="t").sentence()
    assert f"--output '{taken}' exists already" in sentence


def test_a_reader_does_not_wait_for_a_writer(tilewright: CommandLine) -> None:
    """Opening a database that is up to date takes no lock."""
    settings = Settings(data_folder=tilewright.data, database_url="", token="")
    open_storage(settings).close()
    with sqlite3.connect(tilewright.data / "tilewright.db", isolation_level=None) as writer:
        writer.execute("begin immediate")
        started = time.monotonic()
        open_storage(settings).close()
        assert time.monotonic() - started < 10
        writer.execute("rollback")


def test_a_port_in_use_is_named(tilewright: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = tilewright("server", "run", "--port", port).sentence()
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in sentence
    nowhere = tilewright("server", "run", "--host", "nowhere.invalid", "--insecure")
    assert nowhere.status == 1
    assert "error: cannot listen on nowhere.invalid:8080" in nowhere.error


def test_a_worker_says_in_one_sentence_what_is_wrong(tilewright: CommandLine) -> None:
    none = tilewright.folder / "none"
    worker = ("server", "worker", "--server", "http://127.0.0.1:9")
    assert f"'{none}' cannot be read" in tilewright(*worker, "--token-file", none).sentence()
    assert (
        "'nonsense'"
        in tilewright("server", "worker", "--server", "nonsense", "--token", "t").sentence()
    )


def test_an_artifact_has_a_place_before_the_tuning_starts(tilewright: CommandLine) -> None:
    path = tilewright.folder / "m.onnx"
    path.write_bytes(relu().SerializeToString())
    finished = tilewright("tune", path, "--trials", 1000, "-o", tilewright.folder)
    assert "is not an artifact, it is not replaced" in finished.sentence()
    assert not tilewright.data.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_outputs_that_cannot_be_written_are_named(tilewright: CommandLine) -> None:
    path, given = tilewright.folder / "m.onnx", tilewright.folder / "in.npz"
    path.write_bytes(relu().SerializeToString())
    np.savez(given, x=np.ones(2, np.float32))
    for place, words in (("/dev/full", "'/dev/full'"), ("/no/where", "'/no/where'")):
        finished = tilewright("run", path, "--inputs", given, "--outputs", place)
        assert words in finished.sentence()
    # before anything else is looked at: an hour of computing would be lost
    for place, words in (
        ("/no/where", "the folder '/no' does not exist"),
        ("/tmp", "'/tmp' is a folder"),
    ):
        finished = tilewright("run", path, "--inputs", "missing.npz", "--outputs", place)
        assert words in finished.sentence()


def trials_in(data: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(data / "tilewright.db") as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        return connection.execute("select job_id, id from trials where phase = 'screen'").fetchall()


def matmul(path: Path) -> Path:
    weights = numpy_helper.from_array(np.ones((64, 96), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "fc")
    path.write_bytes(model([node], value("x", 48, 64), [weights]).SerializeToString())
    return path


def test_two_runs_at_once_keep_all_their_trials(tilewright: CommandLine) -> None:
    path = matmul(tilewright.folder / "m.onnx")
    environment = {"TILEWRIGHT_BUILDERS": "1"}
    running = [tilewright.start("tune", path, "--trials", 8, **environment) for _ in range(2)]
    outputs = [process.communicate(timeout=2 * LIMIT_SECONDS) for process in running]
    assert [process.returncode for process in running] == [0, 0], outputs
    found = trials_in(tilewright.data)
    told = [int(output.split(" trials, ")[0].split()[-1]) for output, _ in outputs]
    assert len(found) == sum(told)
    assert len({job for job, _ in found}) == sum(number > 0 for number in told)


def test_an_interrupted_run_keeps_what_it_measured(tilewright: CommandLine) -> None:
    path = matmul(tilewright.folder / "m.onnx")
    process = tilewright.start("tune", path, "--trials", 100_000, TILEWRIGHT_BUILDERS="1")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "best -" not in line and "best " in line:
                break  # something was measured
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        started = time.monotonic()
        output, error = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130, (output, error)
    assert error == "error: interrupted\n"
    assert time.monotonic() - started < LIMIT_SECONDS / 2
    assert trials_in(tilewright.data)


def test_an_interrupted_run_tells_that_it_delivered(tilewright: CommandLine) -> None:
    path, made = matmul(tilewright.folder / "m.onnx"), tilewright.folder / "made"
    options = ("--trials", 100_000, "-o", made)
    process = tilewright.start("tune", path, *options, TILEWRIGHT_BUILDERS="1")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("tuning"):
                break
        os.killpg(process.pid, signal.SIGINT)
        output, error = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130, (output, error)
    assert error == f"interrupted: the artifact '{made}' holds the schedules found so far\n"
    assert (made / "manifest.json").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="limits are Linux's")
def test_a_reference_without_an_end_ends(tilewright: CommandLine) -> None:
    path, made = tilewright.folder / "m.onnx", tilewright.folder / "made"
    path.write_bytes(endless())  # kernels run its steps in no time, NumPy in minutes
    limit = {"TILEWRIGHT_VERIFICATION_SECONDS": "1", "TILEWRIGHT_BUILDERS": "1"}
    process = tilewright.start("tune", path, "--trials", 1, "-o", made, **limit)
    output, error = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, (output, error)
    assert "not verified: the reference of the model takes longer than 1 s" in output
    assert (made / "manifest.json").exists()

    process = tilewright.start("tune", path, "--trials", 1, "-o", made)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("verifying"):
            os.killpg(process.pid, signal.SIGINT)
    assert process.wait(LIMIT_SECONDS) == 130
