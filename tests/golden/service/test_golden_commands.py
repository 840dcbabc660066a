"""The requests of the commands that talk to a service, and all their output.

A line with `$` is a command, one with `>` what it sent, one with `!` what it said on standard
error. `pytest tests/golden/service --update-golden` writes the files.
"""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx.parser
import pytest

from tests.golden.service.canned import BOARD, JOB, KEY, LONG, NOW, RESULT, Canned, canned, record
from tilewright.service import cli, client

INCOMPLETE = {"state": "incomplete", "reason": f"no worker\nwas alive: {LONG}", "failures": {}}
FAILED = {"state": "failed", "error": f"the board burnt down: {LONG}", "result": {}}
RUNNING = {"started_at": None, "finished_at": None, "result": RESULT}

GRAPH = "<ir_version: 9, opset_import: ['' : 21]> g (float[2] x) => (float[2] y) {y = Relu(x)}"
MODEL = onnx.parser.parse_model(GRAPH.replace("'", '"')).SerializeToString()

SERVER = "--server http://service --token secret"
SUBMITTED = f"job submit m.onnx {SERVER} --target x86-64-v3"

COMMANDS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "submit": (
        (SUBMITTED, {"result": RESULT}),
        (f"{SUBMITTED} --detach", {"state": "waiting_for_worker", "reason": LONG}),
        (f"{SUBMITTED} --detach", {}),
        (SUBMITTED, INCOMPLETE),
        (SUBMITTED, FAILED),
        (SUBMITTED, {"state": "cancelled"}),
        (f"job submit nothing.onnx {SERVER}", {}),
        (f"{SUBMITTED} -o m.onnx", {}),
        (f"{SUBMITTED} --detach --json", {}),
        (f"{SUBMITTED} --json", {"result": RESULT}),
        (f"{SUBMITTED} --stop-gain 7", {}),
        ("job submit m.onnx --server nowhere", {}),
    ),
    "jobs": (
        (f"job list {SERVER} --limit 7", {"started_at": None}),
        (f"job show {JOB} {SERVER}", {"result": RESULT}),
        (f"job watch {JOB} {SERVER}", RUNNING),
        (f"job list {SERVER} --limit 1 --json", {}),
        (f"job watch {JOB} {SERVER} --json", RUNNING),
        (f"job cancel {JOB} {SERVER}", INCOMPLETE),
        (f"job pause {JOB} {SERVER}", FAILED),
        (f"job resume {JOB} {SERVER}", {}),
        (f"job show 5/../6 {SERVER}", {}),
        (f"job fetch {JOB} {SERVER} -o m.onnx", {}),
        (f"job watch {SERVER}", {}),
    ),
    "devices": (
        (f"device list {SERVER}", {}),
        (f"device list {SERVER} --json", {}),
        (f"device drain board {SERVER} --json", {}),
        (f"device drain board {SERVER}", {}),
        (f"device drain b0b0 {SERVER}", {}),
        (f"device drain gone {SERVER}", {}),
        (f"device drain twin {SERVER}", {}),
        (f"device resume {BOARD[:5]} {SERVER}", {}),
        (f"device link {SERVER} --name 'a phone' --minutes 5", {}),
        (f"device link {SERVER} --minutes 9999", {}),
        (f"device link {SERVER} --json", {}),
    ),
    "watching": (
        (f"server top {SERVER} --once", {"owner": "ci", "model_name": "resnet50.onnx"}),
        (f"server top {SERVER} --interval 9 --json", {}),
        (f"server top {SERVER} --interval 0", {}),
        (f"diff {JOB} {JOB} {SERVER}", {}),
        (f"diff {JOB} 5/../6 {SERVER}", {}),
        (f"diff {JOB} m.onnx {SERVER}", {}),
    ),
    "records": (
        (f"record find m.onnx {SERVER} --target x86-64-v3 --threads 2 --dim batch=4", {}),
        (f"record find {KEY} {SERVER} --target x86-64-v3 --numerics strict", {}),
        (f"record find m.onnx {SERVER} --dim batch=0", {}),
        (f"record find {KEY} {SERVER} --json", {}),
        (f"record find nothing {SERVER}", {}),
    ),
    "access": (
        (f"token list {SERVER}", {}),
        (f"token rotate 888 {SERVER} --grace 5", {}),
        (f"token rotate 888 {SERVER} --days 2", {}),
        (f"token revoke 909 {SERVER}", {}),
        (f"token list {SERVER} --json", {}),
        (f"token rotate 888 {SERVER} --json", {}),
        (f"server audit {SERVER}", {}),
        (f"server audit {SERVER} --limit 3 --action token.revoked --subject s --json", {}),
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.delenv("TILEWRIGHT_SERVER", raising=False)
    monkeypatch.delenv("TILEWRIGHT_TOKEN", raising=False)
    Path("m.onnx").write_bytes(MODEL)
    frozen_time(monkeypatch)
    known_machine(monkeypatch)
    real, lines = client.Client, []
    for command, changes in COMMANDS[name]:
        transport = Canned(canned(**changes), lines.append)
        monkeypatch.setattr(client, "Client", partial(real, transport=transport))
        lines.append(f"$ tilewright {command}")
        status = cli.run(shlex.split(command))
        told = capsys.readouterr()
        lines += [line.rstrip() for line in told.out.splitlines()]
        lines += [f"! {line}" for line in told.err.splitlines()]
        lines += [f"= {status}", ""]
    text = "\n".join(lines)
    path = Path(__file__).parent / f"{name}.txt"
    if pytestconfig.getoption("--update-golden", default=False):
        path.write_text(text)
    assert path.read_text() == text


def test_a_client_asks_for_a_schedule() -> None:
    """No command does; programs that embed the client do."""
    asked: list[str] = []
    transport = Canned({"GET /v1/schedules": record(1.5e-4)}, asked.append)
    with client.Client("http://service", "secret", transport=transport) as service:
        found = service.schedule(KEY, "a target", 2, "fast")
    assert found.model_dump(exclude={"measurement"}) == {
        name: value for name, value in record(1.5e-4).items() if name != "measurement"
    }
    query = f"workload={KEY}&target=a+target&threads=2&numerics=fast"
    assert asked == [f"> GET /v1/schedules?{query}", ">   authorization: Bearer secret"]


def frozen_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are run at `NOW`, in Greenwich."""
    import time

    frozen = SimpleNamespace(time=lambda: NOW, strftime=time.strftime, localtime=time.gmtime)
    for module in (
        "tilewright.service.cli.view",
        "tilewright.service.cli.access",
        "tilewright.service.cli.top",
    ):
        monkeypatch.setattr(f"{module}.time", frozen)


def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are run on a machine of two cores."""
    facts = {"model": "Two Cores", "cores": 2, "physical_cores": 2}
    described = SimpleNamespace(to_json=lambda: facts)
    found = SimpleNamespace(name="x86-64-v3")
    detection, condition = "compiler.targets.detection", "service.worker.condition"
    monkeypatch.setattr(f"tilewright.{detection}.named_device", lambda: described)
    monkeypatch.setattr("tilewright.compiler.targets.host.resolve_target", lambda _: found)
    monkeypatch.setattr(f"tilewright.{condition}.device_condition", lambda: {"load": 0.5})
