"""The worker in JavaScript, in Node, behind the real application. The page has the same modules."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.kernel_code import module_of
from tests.small_program import compile_program
from tests.unit.service.leased import loadable
from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.storage import Storage
from tilewright.db.stores.tokens import Scope
from tilewright.db.stores.workers import Health
from tilewright.service.api.worker_page import FOLDER
from tilewright.service.jobs.device.device import DeviceError
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.tuner.cancel import CancelToken

SEED = 5
NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None or importlib.util.find_spec("ziglang") is None,
    reason="modules are linked by zig and run in Node",
)


@pytest.fixture(scope="module")
def target() -> Target:
    return resolve_target("wasm32")


@pytest.fixture
def device(storage: Storage, target: Target) -> Iterator[LeasedDevice]:
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "wasm32", "host-key").id
    with LeasedDevice(storage, job, target, CancelToken(), CancelToken()) as found:
        yield found


@pytest.fixture
def worker(server: Any, storage: Storage, tmp_path: Path) -> Iterator[None]:
    """Node as a user starts it, with a token that has only the measure scope."""
    secret, _ = storage.tokens.create("page", [Scope.MEASURE], lifetime_seconds=600)
    (tmp_path / "token").write_text(secret)
    assert NODE is not None
    command = [NODE, str(FOLDER / "node.mjs"), "--server", server.url, "--name", "node"]
    command += ["--token-file", str(tmp_path / "token"), "--spool", str(tmp_path / "spool")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            sys.stderr.write((tmp_path / "log").read_text())  # shown where a test fails
    (gone,) = storage.workers.list()
    assert gone.health is Health.GONE and not storage.leases.in_hand()


@needs_node
@pytest.mark.usefixtures("worker")
def test_a_run_that_a_module_cannot_do_is_refused(
    device: LeasedDevice, target: Target, tmp_path: Path
) -> None:
    model = loadable(compile_program(target))
    with pytest.raises(DeviceError, match="is for 2 threads, this worker has one"):
        device.check(model, 2, SEED, {})
    other = module_of(target, "void other(void);\nvoid other(void) {}", tmp_path)
    with pytest.raises(DeviceError, match="the module has no function"):
        device.check(replace(model, link=lambda: other), 1, SEED, {})


@contextmanager
def registered(
    server: Any, token: str, spool: Path, platform: str = ""
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The id of a worker in Node that lives meanwhile, on another system if that is named."""
    assert NODE is not None
    command = [NODE, str(FOLDER / "node.mjs"), "--server", server.url, "--spool", str(spool)]
    if platform:
        there = f'Object.defineProperty(process, "platform", {{value: "{platform}"}})'
        command[1:1] = ["--import", f"data:text/javascript,{there}"]
    environment = {"TILEWRIGHT_TOKEN": token, "TMPDIR": str(spool.parent)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert " registered as " in line, line + process.stderr.read()
            yield line.split()[-1], process
        finally:
            process.kill()


@pytest.mark.skipif(NODE is None, reason="runs in Node")
@pytest.mark.parametrize("platform", ["", "another"])
def test_it_is_the_same_worker_when_it_starts_again(
    server: Any, storage: Storage, platform: str
) -> None:
    # a socket's path is short
    with tempfile.TemporaryDirectory() as folder:
        spool = Path(folder, "spool")
        secret, _ = storage.tokens.create("one", [Scope.MEASURE])
        with registered(server, secret, spool, platform) as (first, process):
            process.kill()  # without signing off
        with registered(server, secret, spool, platform) as (again, process):
            assert again == first
            with registered(server, secret, spool, platform) as (beside, _):
                assert beside != first
            process.terminate()
            assert process.wait(30) == 0
        other, _ = storage.tokens.create("another", [Scope.MEASURE])
        with registered(server, other, spool, platform) as (theirs, _):
            assert theirs not in (first, beside), "another token's id is not taken"
        with registered(server, other, spool, platform) as (again, _):
            assert again == theirs
        for path in spool.rglob("id"):
            path.write_text("../../admin")
        with registered(server, other, spool, platform) as (new, _):
            assert new not in (first, beside, theirs)
        assert len(storage.workers.list()) == 4


@pytest.mark.skipif(NODE is None, reason="runs in Node")
@pytest.mark.parametrize(
    ("spool", "first", "why"),
    [
        ("file", "", "ENOTDIR"),
        ("", 'os.homedir = () => { throw new Error("no home"); }', "no home"),
        # another system's address lies in a folder of temporary files
        ("spool", 'Object.defineProperty(process, "platform", {value: "other"})', "listen E"),
    ],
)
def test_a_worker_that_cannot_keep_its_id_works_and_says_so(
    server: Any, storage: Storage, tmp_path: Path, spool: str, first: str, why: str
) -> None:
    secret, _ = storage.tokens.create("one", [Scope.MEASURE])
    (tmp_path / "file").write_text("no folder")
    assert NODE is not None
    start = (
        f'import os from "node:os"; import {{syncBuiltinESMExports}} from "node:module"; {first}'
    )
    command = [NODE, "--import", f"data:text/javascript,{start}; syncBuiltinESMExports()"]
    command += [str(FOLDER / "node.mjs"), "--server", server.url]
    command += ["--spool", str(tmp_path / spool) if spool else ""]
    environment = {"TILEWRIGHT_TOKEN": secret, "TMPDIR": str(tmp_path / "none")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert f"the worker's id cannot be kept: {why}" in process.stderr.readline()
        assert " registered as " in process.stderr.readline()
        process.terminate()
        assert process.wait(30) == 0


IDENTITY = """
import {identity} from "FOLDER/identity.mjs";

const taken = new Set();
const locks = {
  async request(name, {ifAvailable}, use) {
    if (taken.has(name)) return use(null);
    taken.add(name);
    await use({name});
    taken.delete(name);
  },
};
const items = new Map();
const storage = () => ({
  getItem: (key) => items.get(key) ?? null,
  setItem: (key, value) => items.set(key, value),
});
const forbidden = () => { throw new Error("the user forbids it"); };
const first = await identity(locks, storage);
first.keep("an id");
const beside = await identity(locks, storage);
taken.clear(); // the pages are gone
const next = await identity(locks, storage);
taken.clear();
const none = await identity(locks, forbidden);
const broken = await identity({request: async () => forbidden()}, storage);
console.log(JSON.stringify([first.kept, beside, next.kept, none, broken]));
"""


@pytest.mark.skipif(NODE is None, reason="runs in Node")
def test_a_page_is_the_worker_that_the_last_one_was(tmp_path: Path) -> None:
    script = tmp_path / "identity.mjs"
    script.write_text(IDENTITY.replace("FOLDER", FOLDER.as_uri()))
    assert NODE is not None
    said = subprocess.run([NODE, str(script)], capture_output=True, timeout=120, check=True)
    assert json.loads(said.stdout) == ["", {}, "an id", {}, {}]


LOST = """
import {Unreachable} from "FOLDER/api.mjs";
import {MeasurementWorker} from "FOLDER/worker.mjs";

const payload = {
  kind: "measure", plain: ["0"], key: {threads: 1}, candidates: [], cases: [], library_digest: "1",
};
let claims = 0;
const api = {
  async call(method, path) {
    if (path === "/v1/workers") return {heartbeat_seconds: 0, long_poll_seconds: 0};
    if (path.endsWith("/heartbeat")) return {renewed: {}, heartbeat_seconds: 0};
    if (path === "/v1/leases/claim" && ++claims === 1) return {leases: [{lease_id: "l", payload}]};
    if (claims === 2) worker.stop();
    return {};
  },
  blob: (digest, signal) => new Promise((_, reject) => {
    const broken = () => reject(new Unreachable("aborted"));
    if (signal.aborted) broken();
    signal.addEventListener("abort", broken);
  }),
};
const worker = new MeasurementWorker({api, name: "w", device: {}, targets: [], tell() {}});
await worker.run();
console.log(claims);
"""


@pytest.mark.skipif(NODE is None, reason="runs in Node")
def test_a_lease_that_is_lost_while_its_blobs_arrive_is_over(tmp_path: Path) -> None:
    script = tmp_path / "lost.mjs"
    script.write_text(LOST.replace("FOLDER", FOLDER.as_uri()))
    assert NODE is not None
    said = subprocess.run([NODE, str(script)], capture_output=True, timeout=120, check=True)
    assert said.stdout == b"2\n"


DAMAGED = """
import {Damaged, Unreachable} from "FOLDER/api.mjs";
import {MeasurementWorker} from "FOLDER/worker.mjs";

const payload = {
  kind: "measure", plain: ["0"], key: {threads: 1}, candidates: [], cases: [], library_digest: "1",
};
let claims = 0, fetched = 0;
const api = {
  async call(method, path, body) {
    if (path === "/v1/workers") return {heartbeat_seconds: 9, long_poll_seconds: 0};
    if (path.endsWith("/failure")) console.log(body.cause, body.error, fetched);
    if (path === "/v1/leases/claim" && ++claims === 1) return {leases: [{lease_id: "l", payload}]};
    if (claims === 2) worker.stop();
    return {};
  },
  blob: async () => {
    if (++fetched % 2) throw new Unreachable("a network that breaks off");
    throw new Damaged("blob 1 arrived damaged");
  },
};
Math.random = () => -0.99; // short pauses
const worker = new MeasurementWorker({api, name: "w", device: {}, targets: [], tell() {}});
await worker.run();
"""


@pytest.mark.skipif(NODE is None, reason="runs in Node")
def test_a_blob_that_always_arrives_damaged_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "damaged.mjs"
    script.write_text(DAMAGED.replace("FOLDER", FOLDER.as_uri()))
    assert NODE is not None
    said = subprocess.run([NODE, str(script)], capture_output=True, timeout=120, check=True)
    assert said.stdout == b"service blob 1 arrived damaged 4 times 8\n"


@pytest.mark.skipif(NODE is None, reason="runs in Node")
def test_a_request_of_another_kind_is_given_up(tmp_path: Path) -> None:
    script = tmp_path / "other.mjs"
    text = DAMAGED.replace('kind: "measure"', 'kind: "shell"')
    script.write_text(text.replace("FOLDER", FOLDER.as_uri()))
    assert NODE is not None
    said = subprocess.run([NODE, str(script)], capture_output=True, timeout=120, check=True)
    assert said.stdout == b"worker there is no request of kind 'shell' 0\n"


def test_the_page_loads_nothing_but_its_own_files(anonymous: TestClient) -> None:
    page = anonymous.get("/worker")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self' 'wasm-unsafe-eval';")
    assert "unsafe-inline" not in policy and "http" not in policy
    names = {path.name for path in FOLDER.iterdir() if path.suffix in (".css", ".mjs")}
    loaded = set(re.findall(r'(?:src|href)="worker/([^"]+)"', page.text))
    for name in sorted(names):
        part = anonymous.get(f"/worker/{name}")
        assert part.status_code == 200
        for header in ("content-security-policy", "cross-origin-embedder-policy"):
            assert part.headers[header] == page.headers[header]
        loaded |= set(re.findall(r'(?:from |import\(|URL\()"\./([^"]+)"', part.text))
    assert loaded == names - {"node.mjs"}
    assert page.headers["cross-origin-opener-policy"] == "same-origin"


@pytest.mark.parametrize("name", ["index.html", "__init__.py", "..%2Fclient.py", "absent.mjs"])
def test_the_page_shows_no_other_file(anonymous: TestClient, name: str) -> None:
    refused = anonymous.get(f"/worker/{name}")
    assert refused.status_code == 404
    assert refused.headers["content-type"] == "application/problem+json"
