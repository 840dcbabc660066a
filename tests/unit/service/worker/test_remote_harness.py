"""The harness in C, driven by an agent behind the real application, and by agents that lie."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kernel_code import library_of
from tests.processes import children_of, hangs_below
from tests.unit.service.added_arrays import adding, measure, submit
from tests.waiting import until
from tilewright.compiler.targets.host import host_target
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState
from tilewright.db.stores.tokens import Scope
from tilewright.db.stores.workers import Health
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.harness import driver as remote_harness
from tilewright.tuner.measure.harness.binary import harness_path
from tilewright.tuner.measure.harness.command import DeviceCommand, DeviceLost, ViaError, target_of
from tilewright.tuner.measure.harness.driver import (
    Blob,
    Bytes,
    Harness,
    HarnessLimits,
    is_complete,
)
from tilewright.tuner.protocol.batches import MeasureRequest, MeasureResult
from tilewright.tuner.protocol.blobs import digest_bytes
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status
from tilewright.tuner.protocol.run_results import RunResult, RunStatus
from tilewright.tuner.protocol.runs import RunRequest, SpeedsWork
from tilewright.tuner.protocol.version import PROTOCOL, ProtocolError

SEED = 5
KERNELS = """
#define KERNEL(name) \\
  void name(void *const *buffers, void *scratch, const long long *sizes, long long lo, long long hi)
#define ADD \\
  (void)scratch, (void)sizes, (void)lo, (void)hi; \\
  const float *a = buffers[0], *b = buffers[1]; float *out = buffers[2]; \\
  for (int i = 0; i < 256; i++) out[i] = a[i] + b[i];
static void say(const char *text, long length) { /* into every file, as the worker does */
#ifdef __x86_64__
  for (long file = 3; file < 16; file++) {
    long call = 1;
    __asm__ volatile("syscall" : "+a"(call) : "D"(file), "S"(text), "d"(length)
                     : "rcx", "r11", "memory");
  }
#endif
}
KERNEL(good) { ADD }
KERNEL(beyond) { ADD *(volatile float *)16 = 1.0f; }
KERNEL(floods) { ADD
  static char text[1 << 16];
  for (int i = 0; i < 1 << 16; i++) text[i] = '[';
  for (int i = 0; i < 64; i++) say(text, sizeof text); }
KERNEL(forges) { ADD
  char text[] = "{\\"event\\":\\"sample\\",\\"trial\\":0,\\"seconds\\":[1e-9]}\\n";
  say(text, sizeof text - 1); }
KERNEL(hangs) { ADD for (volatile int r = 0; r < 1; ) {} }
#ifdef __x86_64__
KERNEL(asks) { ADD
  long call = 41; /* socket */
  __asm__ volatile("syscall" : "+a"(call) : "D"(2), "S"(1), "d"(0) : "rcx", "r11", "memory"); }
#endif
"""

SHELL = "env HOME={home} XDG_CACHE_HOME="
"""Starts a shell on this machine, with a home that stands for the device's."""

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="it is compiled by gcc")


@pytest.fixture
def folder(compiled: Path, tmp_path: Path) -> Path:
    """Where an agent keeps harnesses, with one for this machine."""
    path = tmp_path / "spool" / "harness"
    path.mkdir(parents=True)
    shutil.copy(compiled, harness_path(target_of(platform.machine()), path))
    return path


@pytest.fixture
def device(storage: Storage) -> Iterator[LeasedDevice]:
    target = host_target()
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host", "host-key").id
    with LeasedDevice(storage, job, target, CancelToken(), CancelToken()) as found:
        yield found


@pytest.fixture
def worker(
    server: Any, storage: Storage, folder: Path, tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """As a user starts it, with a token that has only the measure scope. The file `environment` has
    the variables of the command that starts the harness."""
    secret, _ = storage.tokens.create("phone", [Scope.MEASURE], lifetime_seconds=600)
    (tmp_path / "token").write_text(secret)
    options = ["--server", server.url, "--name", "phone", "--spool", str(folder.parent)]
    options += ["--token-file", str(tmp_path / "token")]
    options += ["--via", f"sh -c 'env >{tmp_path}/environment; exec \"$@\"' x {{}}"]
    environment = {**os.environ, "TILEWRIGHT_TOKEN": "another"}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.service.worker", *options],
            stdout=log,
            stderr=log,
            env=environment,
        )
        try:
            yield process
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            sys.stderr.write((tmp_path / "log").read_text())  # shown where a test fails
    (gone,) = storage.workers.list()
    assert gone.health is Health.GONE and not storage.leases.in_hand()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="calls of the system are in assembly")
@pytest.mark.usefixtures("worker")
def test_a_candidate_asks_the_system_for_nothing_and_speaks_for_nobody(
    device: LeasedDevice, tmp_path: Path
) -> None:
    names = ("good", "asks", "forges", "floods", "beyond")
    code = library_of(KERNELS, tmp_path)
    measured = measure(device, host_target(), code, names, Phase.SCREEN)
    good = measured.pop("good")
    assert good.status is Status.OK and good.run_seconds is not None and good.run_seconds > 2e-9
    assert {m.status for m in measured.values()} == {Status.CRASH}
    assert measured["beyond"].error == "killed by SIGSEGV"
    assert measured["asks"].error.startswith("killed by SIGSYS: it asked the system for")
    assert measured["forges"].error == "spoke in the worker's name"
    assert measured["floods"].error in (
        measured["forges"].error,
        "said an event that has no end",
    )


def test_a_device_is_looked_at_without_a_service(compiled: Path, tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"
        "CPU part\t: 0xd08\n",
        "proc/meminfo": "MemTotal: 524288 kB\nMemAvailable: 131072 kB\n",
        "proc/loadavg": "3.5 1 1 1/1 1\n",
        "sys/class/thermal/thermal_zone0/temp": "81000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "ondemand\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "1500000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "1800000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    command = [str(compiled), "--check", "--root", str(tmp_path)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    found = {each["name"]: each for each in json.loads(done.stdout)}
    noise = found.pop("noise")
    assert noise["grade"] in ("fine", "poor") and "(arithmetic) and " in noise["found"]
    assert {name: (each["grade"], each["found"]) for name, each in found.items()} == {
        "cores": ("fine", "0x41-0xd08@1.8 (0)"),
        "features": (
            "fine",
            f"'implementer 0x41 part 0xd08', {platform.machine()}; 2 features "
            "are named; the service says which target that is",
        ),
        "governor": ("poor", "ondemand: clocks change with the load"),
        "clock": ("fine", "1.50 of 1.80 GHz"),
        "heat": ("poor", "81 °C"),
        "memory": ("poor", "128 of 512 MiB are free"),
        "load": ("poor", "3.50 processes wanted to run in the last minute"),
    }
    assert found["governor"]["do"].startswith("for n in 0; do echo performance | sudo tee /sys/")
    assert done.returncode == 3
    (tmp_path / "proc/meminfo").write_text("MemTotal: 524288 kB\nMemAvailable: 32768 kB\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "wrong    memory    32 of 512 MiB are free, 64 are needed\n" in done.stdout


def request_of(symbols: Sequence[str], code: bytes) -> tuple[MeasureRequest, Blob]:
    """The request that measures kernels that add two arrays, and its blobs."""
    request, blobs = adding(host_target(), code, symbols, Phase.SCREEN)
    return request, blobs.__getitem__


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def harness(folder: Path, log: list[str]) -> Iterator[Harness]:
    found = Harness(DeviceCommand("{}", folder, log.append), HarnessLimits(1 << 20), log.append)
    yield found
    found.close()


def never() -> bool:
    return False


def test_a_harness_is_copied_to_the_device_once_and_again_where_it_is_damaged(
    folder: Path, tmp_path: Path, log: list[str]
) -> None:
    (tmp_path / "home").mkdir()
    via = DeviceCommand(SHELL.replace("{home}", str(tmp_path / "home")), folder, log.append)

    def facts() -> Mapping[str, Any]:
        found = Harness(via, HarnessLimits(1 << 20, 1 << 30), log.append)
        try:
            return found.facts()
        finally:
            found.close()

    first = facts()
    assert first["architecture"] == platform.machine()
    (there,) = (tmp_path / "home/.cache/tilewright").glob("harness-*")
    assert facts() == first
    assert sum(text.startswith("copying the harness") for text in log) == 1
    there.write_bytes(there.read_bytes() + b"damage")
    facts()
    assert sum(text.startswith("copying the harness") for text in log) == 2


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("true", "no shell answers on the device"),
        ("sh -c 'echo no route to host >&2; exit 255'", "no route to host"),
        ("sh -c 'read line; echo tilewright runs m68k; cat'", "no harness for a device of 'm68k'"),
        ("no-such-command-at-all", "'no-such-command-at-all' cannot be started"),
        ("false {}", "the harness does not start there"),
    ],
)
def test_a_command_that_reaches_no_device_says_why(
    folder: Path, tmp_path: Path, command: str, why: str
) -> None:
    options = ["--server", "http://127.0.0.1:1", "--token", "t", "--spool", str(folder.parent)]
    done = subprocess.run(
        [sys.executable, "-m", "tilewright.service.worker", *options, "--via", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and why in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["", "'", "{m68k}", "{aarch64} {}"])
def test_what_is_no_command_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ViaError):
        DeviceCommand(text, tmp_path, print)


def test_work_that_is_not_wanted_any_more_ends_at_once(harness: Harness, tmp_path: Path) -> None:
    code = library_of(KERNELS, tmp_path)
    request, blob = request_of(["hangs"], code)
    request = replace(request, repeat=replace(request.repeat, limit_seconds=60.0))
    harness.begin("w")
    started = time.monotonic()
    cancelled = lambda: time.monotonic() > started + 1.0  # noqa: E731
    (cut,) = harness.work([request], blob, cancelled)
    assert isinstance(cut, MeasureResult) and not is_complete(cut)
    assert time.monotonic() < started + 10.0
    good, blob = request_of(["good"], code)
    (result,) = harness.work([good], blob, never)
    assert isinstance(result, MeasureResult) and result.measurements[0][1].status is Status.OK
    assert result.worker == "w" and harness.state()["speed"] is not None


def test_a_disk_that_is_full_fails_the_work_and_says_so(
    harness: Harness, folder: Path, tmp_path: Path
) -> None:
    (folder / "device/0").mkdir(parents=True)
    (folder / "device/0/arriving").symlink_to("/dev/full")
    request, blob = request_of(["good"], library_of(KERNELS, tmp_path))
    with pytest.raises(RuntimeError, match="cannot be kept: No space left on device"):
        harness.work([request], blob, never)


def test_a_request_beyond_the_cache_of_the_device_is_refused(
    harness: Harness, tmp_path: Path
) -> None:
    work = SpeedsWork("5" * 64, 64, (0, 0, 0), 0)
    size = (1 << 32) + 6  # cut to 32 bits it would look small
    run = RunRequest("r", "", 1, (), (), work, {"5" * 64: size}, 0, 60.0)
    (result,) = harness.work([run], lambda _: b"", never)
    assert isinstance(result, RunResult) and result.status is RunStatus.REFUSED
    assert result.error == (
        f"the run needs {size} bytes of blobs, the device has room for {1 << 20}"
    )


def test_a_worker_may_have_any_name_that_is_not_too_long(harness: Harness, tmp_path: Path) -> None:
    request, blob = request_of(["good"], library_of(KERNELS, tmp_path))
    work = SpeedsWork(request.library_digest, 64, (0, 0, 0), 0)
    run = RunRequest("r", "", 1, (), (), work, {request.library_digest: 1}, 1 << 45, 60.0)
    harness.begin('lab "A" \\ \u00e9')
    (result,) = harness.work([request], blob, never)
    assert isinstance(result, MeasureResult)
    assert [m.status for _, m in result.measurements] == [Status.OK]
    (ran,) = harness.work([run], blob, never)
    assert isinstance(ran, RunResult) and ran.status is RunStatus.REFUSED
    harness.begin("w" * 65)
    with pytest.raises(ProtocolError, match="the worker's name has more than 64 bytes"):
        harness.work([request], blob, never)


def test_a_run_that_needs_more_memory_than_is_free_is_refused(folder: Path, tmp_path: Path) -> None:
    """The device has enough, but other programs use it."""
    (tmp_path / "root/proc").mkdir(parents=True)
    meminfo = "MemTotal: 524288 kB\nMemAvailable: 131072 kB\n"
    (tmp_path / "root/proc/meminfo").write_text(meminfo)
    command = DeviceCommand(
        f"sh -c 'exec {{}} \"$@\" --root {tmp_path}/root' x", folder, print, {}, tmp_path / "blobs"
    )
    harness = Harness(command, HarnessLimits(1 << 20), print)
    code = b"never loaded"
    digest = digest_bytes(code)
    try:
        for needed, why in ((1 << 28, f"{1 << 27} are free on this device"), (1 << 30, "has")):
            work = SpeedsWork(digest, 64, (0, 0, 0), 0)
            run = RunRequest("r", "", 1, (), (), work, {digest: len(code)}, needed, 60.0)
            (result,) = harness.work([run], lambda _: code, never)
            assert isinstance(result, RunResult) and result.status is RunStatus.REFUSED
            assert result.error.startswith(f"the run needs {needed} bytes of memory, ")
            assert why in result.error
    finally:
        harness.close()


def test_a_device_that_is_lost_gives_its_work_back_and_is_found_again(
    worker: subprocess.Popen[bytes], device: LeasedDevice, storage: Storage, tmp_path: Path
) -> None:
    code = library_of(KERNELS, tmp_path)
    submit(device, host_target(), code, ("hangs",), Phase.SCREEN, limit_seconds=8.0)
    device.runner.poll(0.0)  # which queues it
    until(lambda: hangs_below(worker.pid))
    for child in children_of(worker.pid):
        os.kill(child, signal.SIGKILL)
    until(lambda: "the device is lost" in (tmp_path / "log").read_text())
    until(lambda: len(storage.leases.history("r1")) == 2)  # taken again, by the device that is back
    assert storage.leases.status(["r1"])["r1"].state is RequestState.LEASED
    ends = time.monotonic() + 60
    while not (results := device.runner.poll(1.0)):
        assert time.monotonic() < ends
    assert results[0].measurements[0][1].status is Status.RUN_TIMEOUT


def test_work_that_brings_a_device_down_twice_is_not_tried_there_again(
    worker: subprocess.Popen[bytes], device: LeasedDevice, storage: Storage, tmp_path: Path
) -> None:
    code = library_of(KERNELS, tmp_path)
    submit(device, host_target(), code, ("hangs",), Phase.SCREEN, limit_seconds=60.0)
    device.runner.poll(0.0)  # which queues it
    for time_ in ("a first", "a second"):
        until(lambda: hangs_below(worker.pid))
        for child in children_of(worker.pid):
            os.kill(child, signal.SIGKILL)
        lost = "the device is lost"
        seen = 1 if time_ == "a first" else 2
        until(lambda: (tmp_path / "log").read_text().count(lost) == seen)  # noqa: B023
    until(lambda: "the device was lost twice" in (tmp_path / "log").read_text())


def test_a_request_that_comes_during_a_probe_is_worked_on_after_it(
    folder: Path, tmp_path: Path
) -> None:
    binary = harness_path(target_of(platform.machine()), folder)
    process = subprocess.Popen(
        [binary, "--serve", tmp_path / "blobs"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    request, _ = request_of(["good"], b"code")
    work = {"do": "work", "worker": "w", "requests": [request.to_json()]}
    for _ in range(50):  # until the child of a probe is met
        process.stdin.write(b'{"do":"probe"}\n')
        process.stdin.flush()
        ends = time.monotonic() + 0.2
        children: set[int] = set()
        while not children and time.monotonic() < ends:
            children = children_of(process.pid)
        if children:
            (probe,) = children
            os.kill(probe, signal.SIGSTOP)
            break
    process.stdin.write(json.dumps(work).encode() + b"\n")
    process.stdin.flush()
    time.sleep(0.6)
    os.kill(probe, signal.SIGCONT)
    found = next(line for line in process.stdout if line.startswith(b'{"need"'))
    assert set(json.loads(found)["need"]) == set(request.digests)
    process.stdin.close()  # its agent has ended
    assert process.wait(10) == 0


def test_a_request_of_another_kind_is_refused(folder: Path, tmp_path: Path) -> None:
    request, _ = request_of(["good"], b"code")
    payload = {**request.to_json(), "kind": "shell"}
    done = subprocess.run(
        [harness_path(target_of(platform.machine()), folder), "--serve", tmp_path / "blobs"],
        input=json.dumps({"do": "work", "worker": "w", "requests": [payload]}).encode() + b"\n",
        capture_output=True,
        check=True,
    )
    refusal = {"failed": "there is no request of kind 'shell'", "cause": "service"}
    assert refusal in map(json.loads, done.stdout.splitlines())


def test_a_device_that_is_away_is_not_taken_for_found(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to("/usr/bin/env")
    found = Harness(
        DeviceCommand(f"{tmp_path}/way {{}}", folder, print), HarnessLimits(1 << 20), print
    )
    assert found.facts()
    found.close()
    (tmp_path / "way").unlink()
    (tmp_path / "way").symlink_to("/bin/false")
    for _ in range(3):
        with pytest.raises(DeviceLost, match="the harness does not start there"):
            found.begin("w")


def test_a_blob_that_is_damaged_here_costs_its_request_alone(
    harness: Harness, tmp_path: Path
) -> None:
    request, blob = request_of(["good"], library_of(KERNELS, tmp_path))

    def damaged(digest: str) -> Bytes:
        if digest == request.library_digest:
            raise OSError("it was damaged")
        return blob(digest)

    with pytest.raises(OSError, match="it was damaged") as raised:
        harness.work([request], damaged, never)
    assert not isinstance(raised.value, DeviceLost)
    (result,) = harness.work([request], blob, never)
    assert isinstance(result, MeasureResult)


def test_neither_the_command_nor_the_device_sees_the_token(
    worker: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    until(lambda: "registered as" in (tmp_path / "log").read_text())
    (child,) = children_of(worker.pid)
    found = (tmp_path / "environment").read_text()
    assert "PATH=" in found and "TILEWRIGHT" not in found
    assert not Path(f"/proc/{child}/environ").read_bytes().strip(b"\0")


def test_a_device_where_nothing_can_be_copied_says_so(folder: Path, tmp_path: Path) -> None:
    """Its shell has no `base64`."""
    (tmp_path / "bin").mkdir()
    for name in ("sh", "uname", "mkdir", "chmod", "mv", "rm"):
        path = shutil.which(name)
        assert path is not None
        (tmp_path / "bin" / name).symlink_to(path)
    command = f"env HOME={tmp_path} XDG_CACHE_HOME= PATH={tmp_path}/bin"
    with pytest.raises(DeviceLost, match=r"cannot be copied to the device .*base64"):
        Harness(DeviceCommand(command, folder, print), HarnessLimits(1 << 20), print).facts()
    assert not [*(tmp_path / ".cache/tilewright").iterdir()]


def test_what_wraps_a_harness_ends_with_it(folder: Path) -> None:
    others = children_of(os.getpid())
    command = DeviceCommand("sh -c '{} \"$@\"; true' x", folder, print)
    harness = Harness(command, HarnessLimits(1 << 20), print)
    harness.begin("w")
    (wrapper,) = children_of(os.getpid()) - others
    (inner,) = children_of(wrapper)
    harness.close()
    until(lambda: not Path(f"/proc/{inner}/environ").exists())


def test_a_device_that_floods_is_lost(folder: Path, tmp_path: Path) -> None:
    text = FAKE.replace("ANSWER", "pass").replace("PROTOCOL", str(PROTOCOL))
    text = text.replace("for line in", "while True: say(more=1)\nfor line in")
    (tmp_path / "fake.py").write_text(text)
    via = DeviceCommand(f"{sys.executable} {tmp_path}/fake.py {{}}", folder, print)
    harness = Harness(via, HarnessLimits(1 << 30), print)
    with pytest.raises(DeviceLost):
        for _ in range(100):
            harness.begin("w")
            time.sleep(0.05)
    harness.close()


FAKE = """
import hashlib, json, sys, time
def say(**message): print(json.dumps(message), flush=True)
digest = hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()
facts = {"architecture": "x86_64"}
say(hello=PROTOCOL, digest=digest, facts=facts, cache_bytes=1 << 30)
for line in sys.stdin:
    if json.loads(line).get("do") == "work":
        ANSWER
"""


UNFINISHED = json.dumps(
    MeasureResult("r1", (("good", Measurement(Status.CANCELLED)),), "w").to_json()
)


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        ('say(need=["f" * 64])', DeviceLost, "not part of the request"),
        ("print('[' * 100000, flush=True)", DeviceLost, "it ended"),
        ("say(nothing=1)", DeviceLost, "its answer is malformed"),
        ("sys.exit()", DeviceLost, "it ended"),
        ("say(results=[{}])", RuntimeError, "the device's result is malformed"),
        (
            f"say(results=[json.loads({json.dumps(MeasureResult('x', ()).to_json())!r})])",
            RuntimeError,
            "belongs to another request",
        ),
        (
            f"say(results=[json.loads({json.dumps(RunResult('r1', RunStatus.OK).to_json())!r})])",
            RuntimeError,
            "belongs to another request",
        ),
        ("say(results=[])", RuntimeError, "belong to other requests"),
        (f"say(results=[json.loads({UNFINISHED!r})])", RuntimeError, "that was not cancelled"),
        ('say(failed="no process", cause="worker")', RuntimeError, "the device: no process"),
        ('say(failed="no sense", cause="service")', ProtocolError, "the device: no sense"),
        ("say(cancelled=True)", DeviceLost, "its answer is malformed"),
        ("pass", DeviceLost, "it ended"),
        ("time.sleep(99)", DeviceLost, "it ended"),
    ],
)
def test_a_device_is_not_believed(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    error: type[Exception],
    why: str,
) -> None:
    """Nor waited for: a silent device is lost."""
    monkeypatch.setattr(remote_harness, "SILENT_SECONDS", 1.5)
    text = FAKE.replace("ANSWER", answer).replace("PROTOCOL", str(PROTOCOL))
    (tmp_path / "fake.py").write_text(text)
    via = DeviceCommand(f"{sys.executable} {tmp_path}/fake.py {{}}", folder, print)
    harness = Harness(via, HarnessLimits(1 << 30), print)
    request, blob = request_of(["good"], b"code")
    with pytest.raises(error, match=why):
        harness.work([request], blob, never)
    harness.close()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_device_that_sends_but_does_not_read_is_lost(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    log: list[str],
    cancelled: bool,
) -> None:
    """Sooner if its work was cancelled in the middle of the transfer."""
    limit, other = "SILENT_SECONDS", "CANCEL_SECONDS"
    if cancelled:
        limit, other = other, limit
    monkeypatch.setattr(remote_harness, limit, 2.0)
    monkeypatch.setattr(remote_harness, other, 600.0)
    request, blob = request_of(["good"], bytes(1 << 22))
    digest = request.library_digest
    sending = threading.Event()

    def sent(wanted: str) -> bytes:
        if wanted == digest:
            sending.set()
        return blob(wanted)

    answer = f"""say(need=["{digest}"])
        while True: say(state=dict(speed=None, condition={{}})), time.sleep(0.2)"""
    text = FAKE.replace("ANSWER", answer).replace("PROTOCOL", str(PROTOCOL))
    (tmp_path / "fake.py").write_text(text)
    via = DeviceCommand(f"{sys.executable} {tmp_path}/fake.py {{}}", folder, log.append)
    harness = Harness(via, HarnessLimits(1 << 30), log.append)
    started = time.monotonic()
    with pytest.raises(DeviceLost, match="it ended"):
        harness.work([request], sent, lambda: cancelled and sending.is_set())
    assert time.monotonic() < started + 30.0
    assert "the device has read nothing for 2 seconds" in log
    harness.close()
