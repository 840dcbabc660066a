"""The client's behaviour if the service stops in the middle of each of its calls."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.unit.service.api.test_following import finish, tuner
from tests.unit.service.api_calls import onnx_bytes
from tilewright.db.storage import Storage
from tilewright.service.api.app import create_app
from tilewright.service.api.schemas.jobs import JobEventView, JobRequest
from tilewright.service.api.schemas.lookups import LookupRequest
from tilewright.service.client import (
    AsyncClient,
    Client,
    ClientError,
    JobEndedError,
    NotKnownError,
    RefusedError,
    UnreachableError,
    retries,
)
from tilewright.service.client.generate import COROUTINES, write_blocking
from tilewright.service.client.retries import Retries
from tilewright.service.jobs.device.targets import target_key
from tilewright.service.settings import Settings
from tilewright.tuner.protocol import generate as messages
from tilewright.tuner.protocol.version import PROTOCOL

ROOT = Path(__file__).parents[3]

TARGET = "x86-64-v3"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(onnx_bytes())
    return path


class Dying(httpx2.BaseTransport):
    """The network to a service that dies at each new request, after it has processed it.

    The answer is lost, or all but its first bytes; then the address refuses one attempt.
    """

    def __init__(self, restart: Callable[[], None] = lambda: None) -> None:
        self._http = httpx2.HTTPTransport()
        self._restart = restart
        self._seen: dict[tuple[str, str], int] = {}
        self.deaths = 0

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if "content-length" in request.headers or "transfer-encoding" in request.headers:
            request.read()
        what = request.method, str(request.url)
        self._seen[what] = times = self._seen.get(what, 0) + 1
        if times == 2:
            raise httpx2.ConnectError("deserted", request=request)
        answer = self._http.handle_request(request)
        if times > 1:
            return answer
        self.deaths += 1
        if answer.headers.get("content-type", "").startswith(("text/event", "application/x-tar")):
            return httpx2.Response(
                answer.status_code, headers=answer.headers, stream=_Half(answer, self._restart)
            )
        answer.read()
        answer.close()
        self._restart()
        raise httpx2.ReadError("killed", request=request)

    def close(self) -> None:
        self._http.close()


class _Half(httpx2.SyncByteStream):
    """A body that breaks after its first hundred bytes."""

    def __init__(self, answer: httpx2.Response, restart: Callable[[], None]) -> None:
        self._answer = answer
        self._restart = restart

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._answer.iter_raw():
            yield chunk[:100]
            break
        self._answer.close()
        self._restart()
        raise httpx2.ReadError("killed")


def test_each_call_survives_a_service_that_is_killed_in_it(
    storage: Storage, server: Any, owner: str, model: Path, tmp_path: Path
) -> None:
    """Each is answered, and takes effect once."""
    board = storage.workers.register("board", [target_key(TARGET)], {}, protocol=PROTOCOL)
    transport = Dying()
    with Client(server.url, owner, transport=transport) as client:
        assert client.health().status == "ok"
        sent: list[int] = []
        digest = client.upload(model, sent=sent.append).digest
        assert sent == [model.stat().st_size] * 3 and len(client.models()) == 1
        request = JobRequest(model=digest, target=TARGET, dims={"batch": 1})
        job = client.submit(request)
        assert [each.id for each in client.jobs()] == [job.id] == [client.job(job.id).id]
        assert client.pause(job.id).state == "paused"
        assert client.resume(job.id).state == "queued"
        claimed = storage.jobs.claim("t", 60)
        assert claimed is not None
        finish(storage, claimed[0], tmp_path)
        sequences = [event.sequence for event in client.events(job.id)]
        assert sequences == sorted(set(sequences)) and len(sequences) > 4
        assert {task.name for task in client.tasks(job.id)} == {"cheap", "dear"}
        assert client.curve(job.id).points[-1].best_seconds == pytest.approx(2e-3)
        kinds = [event.kind for event in client.log(job.id)]
        assert "state" in kinds and "progress" not in kinds
        assert [len(client.graph(job.id).steps)] == [3]
        assert (client.fetch(job.id, tmp_path / "got") / "manifest.json").read_text() == "{}"
        assert client.wait(job.id, False).state == client.cancel(job.id).state == "succeeded"

        looked = client.lookup(LookupRequest(model=digest, dims={"batch": 1}, target=TARGET))
        assert looked.known == 0 and looked.schedules
        with pytest.raises(NotKnownError):
            client.schedule(looked.schedules[0].workload_key, TARGET, 1, "fast")
        assert client.records(target=TARGET) == client.coverage() == client.cost_models() == []
        assert client.withdraw("its governor was powersave", workers=["board"]).records == []
        assert [each.name for each in client.workers()] == ["board"]
        assert client.drain(board.id).draining

        made = client.create_token("ci", ["read"], None)
        rotated = client.rotate_token(made.id, 60.0, None)
        assert rotated.secret != made.secret and storage.tokens.verify(rotated.secret)
        assert client.revoke_token(made.id).revoked_at is not None
        assert len(client.tokens()) == 2
        actions = [entry.action for entry in client.audit(100, None, made.id)]
        assert actions.count("token.created") == actions.count("token.rotated") == 1
    assert transport.deaths > 20 and len(storage.jobs.list()) == 1


def test_a_job_is_tuned_while_the_service_restarts(
    storage: Storage, server: Any, owner: str, model: Path, tmp_path: Path
) -> None:
    """With a real service, which loses everything outside the database."""
    storage.workers.register("board", [target_key(TARGET)], {}, protocol=PROTOCOL)
    restarts: list[int] = []

    def restart() -> None:
        if len(restarts) < 3:
            restarts.append(1)
            server.stop()
            server.start()

    shown = Recorded()
    with (
        tuner(storage, tmp_path),
        Client(server.url, owner, transport=Dying(restart)) as client,
    ):
        tuned = client.tune(
            model,
            target=TARGET,
            seconds=300,
            dims={"batch": 1},
            output=tmp_path / "a",
            progress=shown,
        )
    assert (tuned.job.state, len(tuned.tasks), tuned.artifact) == ("succeeded", 2, tmp_path / "a")
    assert tuned.gain == pytest.approx(2.0) and tuned.job.options["seconds"] == 300
    assert (tmp_path / "a" / "manifest.json").exists() and len(restarts) == 3
    assert shown.kinds.count("progress") == 3 and shown.over
    assert len(storage.jobs.list()) == 1


class Recorded:
    """A display that is looked at."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.over = False

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        self.over = True

    def event(self, event: JobEventView) -> None:
        self.kinds.append(event.kind)


NO_METHOD = {
    "/v1/metrics": "Prometheus reads it",
    "/v1/models/{}": "models() has all",
    "/v1/models/{}/content": "who uploaded it has it",
    "/v1/jobs/{}/tasks/{}/nest": "code() has it",
    "/v1/tasks": "of all jobs: tasks() of one",
    "/v1/targets": "described by a worker",
    "/v1/workloads": "of all models",
    "/v1/records/{}": "records() has all",
    "/v1/records:export": "lines, for `tilewright record import`",
    "/v1/signing-key": "`tilewright record key` prints it",
    "/v1/blobs/{}": "what workers fetch",
}
"""Reading routes that the client leaves out, and why."""


def test_what_can_be_read_has_a_method() -> None:
    source = (COROUTINES / "client.py").read_text()
    called = {re.sub(r"\{[^}]*\}", "{}", path) for path in re.findall(r'"(/v1/[^"]*)"', source)}
    paths = create_app(Settings()).openapi()["paths"]
    read = {re.sub(r"\{[^}]*\}", "{}", path) for path, kinds in paths.items() if "get" in kinds}
    assert read - called == set(NO_METHOD)


def test_the_coroutines_do_the_same(
    storage: Storage, server: Any, owner: str, model: Path, tmp_path: Path
) -> None:
    storage.workers.register("board", [target_key(TARGET)], {}, protocol=PROTOCOL)

    async def tune() -> Any:
        async with AsyncClient(server.url, owner) as client:
            with pytest.raises(ClientError, match=r"^trials: "):
                await client.tune(model, trials=-1)
            return await client.tune(
                model, target=TARGET, dims={"batch": 1}, output=tmp_path / "a", progress=False
            )

    with tuner(storage, tmp_path):
        tuned = asyncio.run(tune())
    assert (tmp_path / "a" / "manifest.json").exists() and tuned.job.state == "succeeded"
    with tuner(storage, tmp_path, "the board burnt down"), pytest.raises(JobEndedError) as found:
        asyncio.run(tune_again(server.url, owner, model))
    assert found.value.job.state == "failed" and "the board burnt down" in str(found.value)


async def tune_again(url: str, token: str, model: Path) -> Any:
    async with AsyncClient(url, token) as client:
        return await client.tune(model, target=TARGET, dims={"batch": 2}, progress=False)


def test_the_blocking_client_is_generated_from_the_coroutines(tmp_path: Path) -> None:
    write_blocking(tmp_path)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made.keys() == {"__init__.py", "client.py", "connection.py"}
    assert "class Client" in made["client.py"] and "class Connection" in made["connection.py"]
    for text in made.values():
        names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
        assert not names & {"asyncio", "AsyncClient", "AsyncIterator"}
        assert not any(isinstance(node, ast.AsyncFunctionDef) for node in ast.walk(ast.parse(text)))
    (tmp_path / "client.py").write_text("outdated")
    written = (tmp_path / "connection.py").stat()
    write_blocking(tmp_path)
    assert (tmp_path / "client.py").read_text() == made["client.py"]
    assert (tmp_path / "connection.py").stat() == written, "a file that is up to date stays"


def test_setup_generates_files_before_it_lists_the_packages(tmp_path: Path) -> None:
    """In a source distribution `tilewright/` is a folder, and no module can be imported yet."""
    client = tmp_path / "tilewright" / "service" / "client"
    shutil.copytree(ROOT / "service" / "client" / "asynchronous", client / "asynchronous")
    shutil.copy(ROOT / "service" / "client" / "generate.py", client)
    imported = ("tuner/measure/harness/binary.py", "compiler/runtime/native_build.py")
    for source in ("tuner/protocol/generate.py", *messages.SHARED, *imported):
        copied = tmp_path / "tilewright" / source
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / source, copied)
    made = {
        path: tmp_path / "tilewright" / path.relative_to(messages.ROOT)
        for path in (messages.HEADER, messages.MODULE)
    }
    for path in made.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "setup.py", tmp_path)
    commands = tmp_path / "setuptools" / "command"
    commands.mkdir(parents=True)
    (commands / "build_ext.py").write_text("class build_ext: ...\n")
    (commands.parent / "__init__.py").write_text(
        "import os\n\n\ndef Extension(*_, **__): ...\n\n\ndef setup(**_):\n"
        "    print(sorted(os.listdir('tilewright/service/client/blocking')))\n"
    )
    command = [sys.executable, "-I", "-c", "import sys, runpy; sys.path.insert(0, '.');"]
    command[-1] += " runpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__init__.py', 'client.py', 'connection.py']"
    assert all(path.read_text() == new.read_text() for path, new in made.items())


def test_the_client_imports_no_compiler_and_no_database() -> None:
    heavy = ("llvmlite", "onnx", "sqlalchemy", "uvicorn", "rich")
    code = f"import sys, tilewright.service.client; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def answering(*answers: httpx2.Response | httpx2.HTTPError) -> tuple[Client, list[httpx2.Request]]:
    """A client of a service with these answers, one after the other, and its requests."""
    asked: list[httpx2.Request] = []
    left = list(answers)

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        found = left.pop(0)
        if isinstance(found, httpx2.HTTPError):
            raise found
        return found

    return Client("http://service", "t", transport=httpx2.MockTransport(answer)), asked


OK = {"status": "ok", "version": "1"}


def problem(status: int, slug: str, **headers: str) -> httpx2.Response:
    said = {"type": f"urn:tilewright:problem:{slug}", "title": "t", "status": 200, "detail": slug}
    return httpx2.Response(status, json=said, headers=headers)


@pytest.mark.parametrize(
    ("first", "asked"),
    [
        (httpx2.ConnectError("refused"), 1),  # no server was ever there
        (problem(404, "not-found"), 1),
        (problem(429, "quota-exceeded", **{"Retry-After": "0"}), 1),
        (problem(507, "insufficient-storage"), 1),
        (httpx2.Response(301, headers={"Location": "http://elsewhere/"}), 1),
        (problem(409, "conflicting-state"), 1),
        (problem(503, "storage-unavailable", **{"Retry-After": "3600"}), 1),  # beyond all patience
        (problem(503, "storage-unavailable"), 2),
        (problem(409, "idempotency-in-flight"), 2),
        (problem(429, "too-many-requests", **{"Retry-After": "0"}), 2),
        (httpx2.Response(502, text="<html>bad gateway</html>"), 2),
        (httpx2.Response(503, text="[" * 100_000), 2),
        (httpx2.ReadError("reset"), 2),
        (httpx2.RemoteProtocolError("no answer"), 2),
        (httpx2.LocalProtocolError("not HTTP"), 1),
        (httpx2.ReadTimeout("slow"), 2),
    ],
)
def test_what_may_pass_is_asked_again(first: Any, asked: int) -> None:
    client, requests = answering(first, httpx2.Response(200, json=OK))
    try:
        client.health()
    except ClientError:
        assert asked == 1
    assert len(requests) == asked
    keys = {request.headers.get("idempotency-key") for request in requests}
    assert keys == {None}


def test_a_problem_counts_as_its_status_and_not_as_it_says() -> None:
    client, _ = answering(problem(403, "forbidden"))
    with pytest.raises(RefusedError, match="forbidden") as found:
        client.revoke_token("../jobs")
    assert found.value.status == 403


def test_patience_counts_from_the_first_failure() -> None:
    now = [0.0]
    silent = Retries(10.0, lambda: now[0])
    error = UnreachableError("away")
    pauses = [silent.pause(error) for _ in range(14)]
    assert all(0.0005 <= first <= 0.001 for first in pauses[:1]) and max(pauses) > 2
    now[0] = 3600.0  # a stream that was quiet for an hour broke
    silent.over()
    assert silent.pause(error) <= 0.001
    for hour in range(2, 12):  # one that was opened again, and again came nothing
        silent.opened()
        now[0] = 3600.0 * hour
        assert silent.pause(error) <= 0.001
    silent.opened()
    now[0] += 4.0
    assert silent.pause(error) > 0.0
    now[0] += 5.0
    error.retry_seconds = 2.0
    with pytest.raises(UnreachableError):
        silent.pause(error)


BODY = bytes(range(256)) * 4
DIGEST = f"sha-256={hashlib.sha256(BODY).hexdigest()}"


def part(start: int, stop: int, body: bytes = BODY, tag: str = '"1"') -> httpx2.Response:
    """Bytes of a file, which end at `stop` though more were promised."""
    headers = {"ETag": tag, "Digest": DIGEST, "Content-Length": str(len(body) - start)}
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
    return httpx2.Response(
        206 if start else 200, headers=headers, stream=httpx2.ByteStream(body[start:stop])
    )


@pytest.mark.parametrize(
    ("answers", "ranges"),
    [
        ([part(0, 1024)], [None]),
        ([part(0, 300), part(300, 1024)], [None, "bytes=300-"]),
        ([part(0, 300), part(0, 1024)], [None, "bytes=300-"]),  # no ranges here
        # another file, or another place
        (
            [part(0, 300), part(300, 1024, tag='"2"'), part(0, 1024)],
            [None, "bytes=300-", None],
        ),
        ([part(0, 300), part(200, 1024), part(0, 1024)], [None, "bytes=300-", None]),
        # other bytes
        ([part(0, 1024, BODY[::-1]), part(0, 1024)], [None, None]),
        ([part(0, 2048, BODY * 2), part(0, 1024)], [None, None]),
    ],
)
def test_a_download_goes_on_and_is_checked(
    answers: list[httpx2.Response], ranges: list[str | None], tmp_path: Path
) -> None:
    client, asked = answering(*answers)
    client.artifact("j", tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == BODY
    assert [request.headers.get("range") for request in asked] == ranges
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    client, _ = answering(part(0, 300), problem(404, "not-found"))
    with pytest.raises(NotKnownError):
        client.artifact("j", tmp_path / "a.tar")
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileExistsError):
        client.fetch("j", tmp_path)
    with pytest.raises(FileExistsError):
        client.tune("there is no such model.onnx", output=tmp_path)
