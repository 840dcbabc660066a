"""A device's current condition: read, reported, bounded and shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.unit.service.workers import Running
from tests.waiting import until
from tilewright.db.storage import Storage
from tilewright.service.api.schemas.workers import HeartbeatRequest, WorkerCondition
from tilewright.service.cli import run
from tilewright.service.show.tables.workers import condition_text
from tilewright.service.worker.condition import device_condition
from tilewright.tuner.protocol.version import PROTOCOL


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_the_hottest_sensor_and_the_fastest_core_count(tmp_path: Path) -> None:
    cpus = "sys/devices/system/cpu"
    write(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/temp": "41000\n",
            "sys/class/thermal/thermal_zone1/temp": "61500\n",
            "sys/class/hwmon/hwmon0/temp1_input": "55000\n",
            "proc/loadavg": "3.25 1.00 0.50 1/100 4711\n",
            **{f"{cpus}/cpu{n}/cpufreq/cpuinfo_max_freq": "2000000\n" for n in (0, 1)},
            f"{cpus}/cpu0/cpufreq/scaling_cur_freq": "600000\n",
            f"{cpus}/cpu1/cpufreq/scaling_cur_freq": "1700000\n",
            **{f"{cpus}/cpu{n}/cpufreq/scaling_governor": "powersave\n" for n in (0, 1)},
        },
    )
    found = device_condition(tmp_path)
    assert found == {
        "temperature_celsius": 61.5,
        "load": 3.25,
        "clock_ratio": 0.85,
        "governor": "powersave",
    }
    shown = condition_text(WorkerCondition.model_validate(found))
    assert shown == "62 °C, load 3.2, clock 85 %, powersave"


@pytest.mark.parametrize("said", ["", "nan", "inf", "-1e30", "1e300", "hot", "\x1b[2J", "\0"])
def test_what_a_broken_sensor_says_does_not_cost_a_heartbeat(tmp_path: Path, said: str) -> None:
    cpu = "sys/devices/system/cpu/cpu0/cpufreq"
    names = ("scaling_cur_freq", "cpuinfo_max_freq", "scaling_governor")
    write(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/temp": said,
            "proc/loadavg": f"{said} 0 0",
            **{f"{cpu}/{name}": said for name in names},
        },
    )
    HeartbeatRequest.model_validate({"condition": device_condition(tmp_path)})


def test_a_device_that_says_nothing_has_no_condition(tmp_path: Path) -> None:
    found = WorkerCondition.model_validate(device_condition(tmp_path))
    assert found == WorkerCondition() and condition_text(found) == "-" == condition_text(None)


def test_a_worker_reports_its_condition(
    storage: Storage, start: Callable[[], Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"temperature_celsius": 61.0, "load": 1.5, "clock_ratio": 0.5, "governor": "schedutil"}
    monkeypatch.setattr("tilewright.service.worker.process.device_condition", lambda: said)
    start()
    until(lambda: any(worker.condition for worker in storage.workers.list()))
    assert [worker.condition for worker in storage.workers.list()] == [said]


@pytest.mark.parametrize(
    "wrong",
    [{"load": -1}, {"temperature_celsius": 1e9}, {"governor": "x" * 101}, {"fan": 1}],
)
def test_a_condition_beyond_reason_is_refused(client: TestClient, wrong: dict[str, Any]) -> None:
    body = {"name": "w", "protocol": PROTOCOL, "targets": ["x86-64-v3"]}
    made = client.post("/v1/workers", json=body).json()["worker"]["id"]
    path = f"/v1/workers/{made}/heartbeat"
    assert client.post(path, json={"condition": wrong}).status_code == 422
    assert client.post(path, json={"condition": {"load": 2.0}}).status_code == 200
    (listed,) = client.get("/v1/workers").json()
    assert listed["condition"]["load"] == 2.0


def test_the_condition_is_shown(
    server: Any,
    owner: str,
    storage: Storage,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TILEWRIGHT_SERVER", server.url)
    monkeypatch.setenv("TILEWRIGHT_TOKEN", owner)
    monkeypatch.setenv("COLUMNS", "250")
    worker = storage.workers.register("w", [], {}, protocol=PROTOCOL)
    storage.workers.heartbeat(worker.id, condition={"temperature_celsius": 71.0, "load": 1.0})
    assert run(["device", "list"]) == 0
    assert capsys.readouterr().out.count("71 °C") == 2, "of the device, and of its worker"
