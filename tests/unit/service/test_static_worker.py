"""The worker in C, compiled for this machine, behind the real application."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.static_worker import build, host_compiler
from tests.unit.service.added_arrays import measure, submit
from tests.unit.service.leased import K, N, compile_program, loadable
from tests.unit.service.proxies import PAGE, Proxy
from tests.unit.service.slow_service import SlowService, slow_service
from tests.unit.service.workers import until
from tilewright.compiler.codegen.link import link_shared
from tilewright.compiler.targets.device import find_device
from tilewright.compiler.targets.host import host_target
from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState
from tilewright.db.stores.tokens import Scope
from tilewright.db.stores.workers import Health
from tilewright.service.jobs.device import DeviceError
from tilewright.service.jobs.leased_device import LeasedDevice
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.measure.measurement import Phase, Status
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.measure.wire import PROTOCOL

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
KERNEL(also_good) { ADD out[0] = a[0] + b[0]; }
KERNEL(wrong) { ADD out[7] += 1.0f; }
KERNEL(unfinished) { ADD out[9] = ((const float *)scratch)[0]; }
KERNEL(traps) { ADD __builtin_trap(); }
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

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="it is compiled by gcc")


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("static") / "worker"
    build([*host_compiler(), "-O0", "-Wall", "-Wextra", "-Werror"], output)
    return output


@pytest.fixture
def device(storage: Storage) -> Iterator[LeasedDevice]:
    target = host_target()
    job = storage.jobs.create(storage.models.add(b"model", "m").digest, "host").id
    with LeasedDevice(storage, job, target, CancelToken(), CancelToken()) as found:
        yield found


@pytest.fixture
def worker(server: Any, storage: Storage, binary: Path, tmp_path: Path) -> Iterator[None]:
    """As a user starts it, with a token that measures and does nothing else."""
    secret, _ = storage.tokens.create("phone", [Scope.MEASURE], lifetime_seconds=600)
    (tmp_path / "token").write_text(secret)
    options = ["--server", server.url, "--name", "phone", "--spool", str(tmp_path / "spool")]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [binary, *options, "--token-file", str(tmp_path / "token")], stdout=log, stderr=log
        )
        try:
            yield
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
            sys.stderr.write((tmp_path / "log").read_text())  # shown where a test fails
    (gone,) = storage.workers.list()
    assert gone.health is Health.GONE and not storage.leases.in_hand()


@pytest.mark.usefixtures("worker")
def test_whole_programs_are_checked_raced_and_profiled(
    device: LeasedDevice, tmp_path: Path
) -> None:
    target = host_target()
    model = loadable(compile_program(target))
    x = draw_inputs(model.program.inputs, SEED)["x"]
    rng = np.random.default_rng(3)
    w1 = rng.standard_normal((K, N), dtype=np.float32) / np.float32(K**0.5)
    w2 = rng.standard_normal((N, 10), dtype=np.float32) / np.float32(N**0.5)
    expected = np.maximum(x @ w1, 0) @ w2
    checked = device.check(model, 1, SEED, {"y": expected}, ["y"])
    assert checked.errors["y"] < 1e-5
    assert np.allclose(checked.fetched["y"], expected, atol=1e-4)
    assert device.check(model, 2, SEED, {"y": expected + 1}).errors["y"] > 0.1

    race = device.race([[model], [model]], 1)
    assert race.incumbent_seconds > 0 and len(race.comparisons[0].ratios) >= 2
    assert all(seconds > 0 for seconds in device.profile(model, 1, 3))
    speeds = device.speeds(target)
    assert speeds.flops_per_second > 1e8 and speeds.levels[-1].name == "memory"
    facts = device.facts
    assert facts is not None and facts.processor == find_device().processor

    code = library_of("void other(void) {}", tmp_path)
    with pytest.raises(DeviceError, match="the library has no function"):
        device.check(replace(model, link=lambda: code), 1, SEED, {})


@pytest.mark.usefixtures("worker")
def test_a_candidate_harms_nobody_but_itself(device: LeasedDevice, tmp_path: Path) -> None:
    statuses = {
        "good": Status.OK,
        "wrong": Status.WRONG_ANSWER,
        "traps": Status.CRASH,
        "unfinished": Status.WRONG_ANSWER,
        "hangs": Status.RUN_TIMEOUT,
        "beyond": Status.CRASH,
        "absent": Status.RUN_ERROR,
        "also_good": Status.OK,
    }
    if platform.machine() == "x86_64":
        statuses |= dict.fromkeys(("asks", "forges", "floods"), Status.CRASH)
    measured = measure(
        device, host_target(), library_of(KERNELS, tmp_path), tuple(statuses), Phase.SCREEN
    )
    assert {name: m.status for name, m in measured.items()} == statuses
    good = measured["good"]
    assert good.run_seconds is not None and good.checks == 1 and len(good.samples_seconds) > 1
    assert good.device["system"] == "Linux" and good.speed is not None
    assert measured["hangs"].error == "no answer within 1 seconds"
    assert measured["beyond"].error == "killed by SIGSEGV"
    if "asks" in measured:
        assert measured["asks"].error.startswith("killed by SIGSYS: it asked the system for")
        assert measured["forges"].error == "spoke in the worker's name"
        assert measured["floods"].error in (
            measured["forges"].error,
            "said an event that has no end",
        )
        assert good.run_seconds > 2e-9


@pytest.mark.usefixtures("worker")
def test_finalists_are_paired_with_the_incumbent(device: LeasedDevice, tmp_path: Path) -> None:
    code = library_of(KERNELS, tmp_path)
    measured = measure(device, host_target(), code, ("good", "also_good"), Phase.FINAL)
    compared = measured["also_good"].comparison
    assert compared is not None and compared.against == "good" and len(compared.ratios) > 1
    assert measured["good"].comparison is None


@pytest.fixture
def proxied(
    server: Any, storage: Storage, binary: Path, tmp_path: Path
) -> Iterator[tuple[Proxy, subprocess.Popen[bytes]]]:
    """A worker that reaches the service by a proxy."""
    secret, _ = storage.tokens.create("phone", [Scope.MEASURE], lifetime_seconds=600)
    proxy = Proxy(server.url)
    options = ["--server", proxy.url, "--name", "phone", "--spool", str(tmp_path / "spool")]
    process = subprocess.Popen([binary, *options], env={"TILEWRIGHT_TOKEN": secret})
    try:
        yield proxy, process
    finally:
        process.kill()
        process.wait()
        proxy.close()


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_result_is_reported_before_the_worker_ends(
    device: LeasedDevice,
    storage: Storage,
    proxied: tuple[Proxy, subprocess.Popen[bytes]],
    tmp_path: Path,
    comes_back: bool,
) -> None:
    """It has some seconds for that; a second signal gives it none, and the lease back."""
    proxy, process = proxied
    proxy.instead = lambda path: PAGE if path.endswith("/result") else None
    submit(device, host_target(), library_of(KERNELS, tmp_path), ("good",), Phase.SCREEN)
    device.runner.poll(0.0)  # which queues it
    until(lambda: bool(proxy.answered))
    process.terminate()
    before = len(proxy.answered)
    until(lambda: len(proxy.answered) >= before + 2)  # it goes on
    if comes_back:
        proxy.instead = lambda path: None
    else:
        process.terminate()
    assert process.wait(8) == 0
    found = storage.leases.status(["r1"])["r1"]
    assert found.state is (RequestState.DONE if comes_back else RequestState.QUEUED)


class Liar(BaseHTTPRequestHandler):
    """Answers as the service does, with damage: a reply that breaks off, then a lease that the key
    which it names has not signed."""

    claims = 0

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        worker = {"id": "0" * 32, "target_keys": []}
        seconds = {"heartbeat_seconds": 1e300, "long_poll_seconds": 0.1}
        answer: dict[str, Any] = {"worker": worker, "service_key": 43 * "A" + "=", **seconds}
        if self.path.endswith("/claim"):
            Liar.claims += 1
            lease = {"lease_id": "1" * 32, "request_id": "r", "payload": {"protocol": PROTOCOL}}
            answer = {"leases": [{**lease, "signature": 86 * "A" + "=="}]}
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text) + (Liar.claims == 1)))
        self.end_headers()
        self.wfile.write(text)

    def do_DELETE(self) -> None:
        self.send_response(204)
        self.end_headers()


def test_a_lease_that_is_not_signed_ends_the_worker(binary: Path, tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Liar) as liar:
        threading.Thread(target=liar.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{liar.server_port}"
        command = [str(binary), "--server", url, "--spool", str(tmp_path)]
        environment = {"TILEWRIGHT_TOKEN": "secret"}
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=60, check=False
        )
        liar.shutdown()
    said = done.stderr.decode()
    assert done.returncode == 1 and "no leases" in said and "the answer broke off" in said
    assert f"request 'r' is not signed with the key of the service at {url}" in said


@pytest.fixture
def slow() -> type[SlowService]:
    """A service of its own."""
    return slow_service()


def test_a_lease_is_renewed_while_it_waits_and_given_back_for_a_full_disk(
    binary: Path, tmp_path: Path, slow: type[SlowService]
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), slow) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        folder = tmp_path / hashlib.sha256(url.encode()).hexdigest()[:16] / "static"
        folder.mkdir(parents=True)
        (folder / "arriving").symlink_to("/dev/full")
        process = subprocess.Popen(
            [str(binary), "--server", url, "--spool", str(tmp_path)],
            env={"TILEWRIGHT_TOKEN": "secret"},
            preexec_fn=lambda: os.closerange(0, 3),  # as some start what is to have no terminal
        )
        try:
            assert process.wait(20) == 1
        finally:
            process.kill()
            service.shutdown()
    assert slow.senseless < 20  # after each a pause
    meanwhile = [beat for beat in slow.beats if beat["is_spelling"]]
    assert len(meanwhile) > 1 and all(beat["leases"] == ["1" * 32] for beat in meanwhile)
    assert slow.beats[-1]["speed"] is not None
    (failure,) = slow.failures
    assert failure["cause"] == "worker"
    assert failure["error"].endswith("cannot be kept: No space left on device")


@pytest.mark.parametrize("right", [True, False])
def test_blobs_that_it_cannot_have_end_their_lease(
    binary: Path, tmp_path: Path, slow: type[SlowService], right: bool
) -> None:
    """Each would fit into the cache, all together do not; or they always arrive damaged."""
    blobs = [bytes([number]) * (400 << 10) for number in range(4)] if right else []
    slow.blobs = {hashlib.sha256(blob).hexdigest(): blob for blob in blobs}
    slow.SPELLING_SECONDS = 0.0
    with ThreadingHTTPServer(("127.0.0.1", 0), slow) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        command = [str(binary), "--server", url, "--spool", str(tmp_path), "--cache-mib", "1"]
        process = subprocess.Popen(command, env={"TILEWRIGHT_TOKEN": "secret"})
        try:
            assert process.wait(20) == 1
        finally:
            process.kill()
            service.shutdown()
    (failure,) = slow.failures
    assert failure["cause"] == ("worker" if right else "service")
    left = (1 << 20) - 2 * (400 << 10)
    said = f"has more than {left} bytes" if right else "arrived damaged 4 times"
    assert failure["error"].endswith(said)


def test_a_device_is_looked_at_without_a_service(binary: Path, tmp_path: Path) -> None:
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
    command = [str(binary), "--check", "--root", str(tmp_path)]
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


@pytest.mark.skipif(os.geteuid() != 0, reason="the worker's memory is closed to its own user")
def test_no_copy_of_the_token_is_left_behind(
    binary: Path, tmp_path: Path, slow: type[SlowService]
) -> None:
    """A sandbox is a copy of the worker's memory, of which only the token itself is overwritten."""
    secret = b"a-token-that-stands-nowhere-else"
    (tmp_path / "token").write_bytes(secret)
    with ThreadingHTTPServer(("127.0.0.1", 0), slow) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{service.server_port}"
        command = [str(binary), "--server", url, "--spool", str(tmp_path)]
        process = subprocess.Popen([*command, "--token-file", str(tmp_path / "token")])
        try:
            while not slow.is_spelling:
                assert process.poll() is None
                time.sleep(0.02)
            found = sum(part.count(secret) for part in memory_of(process.pid))
        finally:
            process.kill()
            process.wait()
            service.shutdown()
    assert found == 2, "the token itself, and the request that is on its way"


def memory_of(process: int) -> Iterator[bytes]:
    """What a process may write to, part by part."""
    with open(f"/proc/{process}/mem", "rb") as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(each, 16) for each in place.split("-"))
                memory.seek(start)
                yield memory.read(end - start)


def test_it_has_no_tls(binary: Path, tmp_path: Path) -> None:
    command = [str(binary), "--server", "https://host", "--spool", str(tmp_path)]
    done = subprocess.run(command, env={"TILEWRIGHT_TOKEN": "t"}, capture_output=True, check=False)
    assert done.returncode == 2 and b"this worker has no TLS: let a proxy" in done.stderr


def library_of(source: str, folder: Path) -> bytes:
    """C as a library of kernels, as the service links them."""
    (folder / "kernels.c").write_text(source)
    command = [*host_compiler(), "-O1", "-fPIC", "-ffreestanding", "-w", "-c", "kernels.c"]
    subprocess.run([*command, "-o", "kernels.o"], cwd=folder, check=True)
    link_shared([(folder / "kernels.o").read_bytes()], folder / "kernels.so")
    return (folder / "kernels.so").read_bytes()
