"""A job for a browser, and for Node: tuned, certified and checked there, over HTTP.

Both run the worker in JavaScript. Chromium is Debian's, without its own sandbox, as it is run by
root here; it opens a link of the command line.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.devices.conftest import Service
from tests.devices.test_jobs import TOLERANCE, save_model
from tilewright.compiler.targets.target import known_targets
from tilewright.service.api.worker_page import FOLDER

TRIALS = 4
GONE_SECONDS = 60.0
TARGETS = {known_targets()[name].key for name in ("wasm32", "wasm32-relaxed")}

RUN = """\
import {load} from "./artifact/model.mjs";
const {y} = (await load()).run({x: new Float32Array(8 * 10 * 10)});
console.log(JSON.stringify(y.filter(Number.isFinite).length));
"""

pytestmark = [
    pytest.mark.devices,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("ziglang") is None, reason="modules are linked by zig"
    ),
]


def node(service: Service, folder: Path) -> list[str]:
    (folder / "token").write_text(service.token)
    script = [str(FOLDER / "node.mjs"), "--server", service.url, "--name", "device"]
    return ["node", *script, "--token-file", str(folder / "token"), "--spool", str(folder)]


def chromium(service: Service, folder: Path) -> list[str]:
    (link,) = re.findall(r"^http\S+$", service.run("device", "link", "--name", "device"), re.M)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/chromium"]
    return ["chromium", *options, "--remote-debugging-port=0", link]


@pytest.fixture(params=[node, chromium], ids=["node", "chromium"])
def device(
    request: pytest.FixtureRequest, plain_service: Service, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is a worker called `device`."""
    command: Callable[[Service, Path], list[str]] = request.param
    name = command.__name__
    if shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command(plain_service, tmp_path), stdout=log, stderr=log)
        try:
            until(lambda: health(plain_service) == {"healthy"}, tmp_path)
            yield process
        finally:
            process.kill()
            process.wait()


def health(service: Service) -> set[str]:
    with service.client() as client:
        return {worker.health for worker in client.workers()}


def until(condition: Callable[[], bool], folder: Path) -> None:
    ends = time.monotonic() + GONE_SECONDS
    while not condition():
        assert time.monotonic() < ends, (folder / "log").read_text()
        time.sleep(0.05)


def test_a_job_is_done_there(
    plain_service: Service, device: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    model = tmp_path / "small.onnx"
    save_model(model)
    submit = ["job", "submit", str(model), "--target", "device", "--trials", str(TRIALS)]
    printed = plain_service.run(*submit, "-o", str(tmp_path / "artifact"))
    (job,) = re.findall(r"^job (\w+)$", printed, re.MULTILINE)
    with plain_service.client() as client:
        done = client.job(job)
        (worker,) = client.workers()
    assert set(worker.target_keys) <= TARGETS and done.target_key == worker.target_keys[0]
    assert done.result is not None and done.result["verified"]
    assert done.result["largest_error"] <= TOLERANCE
    facts = done.result["device"]["facts"]
    assert facts["architecture"] == "wasm32" and facts["model"] == worker.device["model"]

    storage = plain_service.storage()
    measured = [trial.measurement for trial in storage.records.trials_of_job(job)]
    storage.close()
    measured = [each for each in measured if each.measure_seconds]
    assert measured and all(each.worker == worker.id for each in measured)
    assert any(each.certified for each in measured)

    if worker.device["system"] == "Node":  # the engine of this machine that runs its target
        tmp_path.joinpath("run.mjs").write_text(RUN)
        said = subprocess.run(["node", tmp_path / "run.mjs"], check=True, capture_output=True)
        assert json.loads(said.stdout) == 10

    device.terminate()  # a browser that is ended sends its pages no event; Node gets a signal
    if worker.device["system"] == "Node":
        until(lambda: health(plain_service) == {"gone"}, tmp_path)
