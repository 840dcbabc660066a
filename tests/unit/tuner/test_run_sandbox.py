"""Runs of whole programs in the sandbox's child: what they give, and how they fail."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.c_library.conftest import drawing
from tests.unit.service.leased import broken, compile_program, loadable
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.targets.host import host_target
from tilewright.service.jobs.device.device import Loadable
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.measure.roofline import probe_library, vector_bytes
from tilewright.tuner.measure.run_packing import Blobs, make_request, pack_program
from tilewright.tuner.measure.run_result import RunStatus
from tilewright.tuner.measure.run_wire import (
    CheckWork,
    ProfileWork,
    RaceWork,
    RunRequest,
    SpeedsWork,
    Work,
)
from tilewright.tuner.measure.sandbox import Sandbox
from tilewright.tuner.measure.wire import array_to_bytes, digest_bytes


@pytest.fixture(scope="module")
def model() -> Loadable:
    return loadable(compile_program())


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    box = Sandbox("w1")
    yield box
    box.close()


@pytest.fixture
def blob(tmp_path: Path) -> Callable[[str], Path]:
    return lambda digest: tmp_path / digest


Blob = Callable[[str], Path]


def ask(
    blob: Blob, models: list[Loadable], work: Work, more: Blobs | None = None, threads: int = 1
) -> RunRequest:
    """A request whose blobs lie ready."""
    packed = [pack_program(m.program, m.weights, m.link()) for m in models]
    request, blobs = make_request("job", threads, packed, work, more or {}, 0, 20.0)
    for digest, data in blobs.items():
        blob(digest).write_bytes(data)
    return replace(request, request_id="run")


def hanging(blob: Blob, model: Loadable) -> RunRequest:
    return ask(blob, [broken(model, "br label %entry")], CheckWork(0, 1, {}))


@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_are_those_of_this_process(
    sandbox: Sandbox, model: Loadable, blob: Blob, threads: int
) -> None:
    executable = model.load(threads)
    (expected,) = executable.run(draw_inputs(executable.program.inputs, 3))
    file = array_to_bytes(expected)
    work = CheckWork(0, 3, {"y": digest_bytes(file)}, ("y",))
    request = ask(blob, [model], work, {digest_bytes(file): memoryview(file)}, threads)
    found = sandbox.run(request, blob)
    assert (found.status, found.errors, found.worker) == (RunStatus.OK, {"y": 0.0}, "w1")
    np.testing.assert_array_equal(found.arrays()["y"], expected)


def test_random_numbers_are_those_of_the_reference(sandbox: Sandbox, blob: Blob) -> None:
    graph = driver.load_graph(drawing())
    plan = driver.make_plan(driver.optimise(graph, Mode()), Mode())
    made = loadable(ProgramBuilder(None, Mode()).build(plan))
    request = ask(blob, [made], CheckWork(0, 3, {}, ("y",)))
    found = sandbox.run(request, blob)
    (expected,) = run_graph(graph, draw_inputs(made.program.inputs, 3))
    np.testing.assert_allclose(found.arrays()["y"], expected, rtol=1e-6)


def test_variants_of_several_programs_race_in_one_block_or_two(
    sandbox: Sandbox, model: Loadable, blob: Blob
) -> None:
    other = loadable(compile_program())
    request = ask(blob, [model, model, other], RaceWork(((0, 1), (2,), (0,))))
    assert len(request.block_bytes) == 2 and request.programs[0].block == request.programs[1].block
    found = sandbox.run(request, blob)
    assert found.status is RunStatus.OK and found.race is not None
    assert len(found.race.comparisons) == 2 and found.race.incumbent_seconds > 0


def test_every_instruction_has_its_time(sandbox: Sandbox, model: Loadable, blob: Blob) -> None:
    found = sandbox.run(ask(blob, [model], ProfileWork(0, 4)), blob)
    assert len(found.seconds) == len(list(model.program.walk())) and min(found.seconds) > 0


def test_a_blob_that_is_cut_short_is_a_sentence(
    sandbox: Sandbox, model: Loadable, blob: Blob
) -> None:
    request = ask(blob, [model], ProfileWork(0, 1))
    part = request.programs[0].parts[0]
    path = blob(part.digest)
    path.write_bytes(path.read_bytes()[:-1])
    found = sandbox.run(request, blob)
    assert (found.status, found.error) == (
        RunStatus.FAILED,
        f"blob {part.digest} has not {part.bytes} bytes at 0",
    )


def test_a_program_that_would_leave_its_memory_is_not_run(
    sandbox: Sandbox, model: Loadable, blob: Blob
) -> None:
    short = replace(model, program=replace(model.program, arena_bytes=64))
    found = sandbox.run(ask(blob, [short], ProfileWork(0, 1)), blob)
    assert found.status is RunStatus.FAILED and "do not lie" in found.error


def test_a_library_without_the_probes_is_a_sentence(
    sandbox: Sandbox, model: Loadable, blob: Blob
) -> None:
    code = model.link()
    work = SpeedsWork(digest_bytes(code), 64, (0, 0, 0), 1 << 30)
    found = sandbox.run(ask(blob, [], work, {work.library: memoryview(code)}), blob)
    assert found.status is RunStatus.FAILED and "undefined symbol: peak" in found.error


def test_a_device_that_hides_its_caches_has_a_memory(sandbox: Sandbox, blob: Blob) -> None:
    target = host_target()
    code = probe_library(target)
    work = SpeedsWork(digest_bytes(code), vector_bytes(target), (0, 0, 0), 0)
    found = sandbox.run(ask(blob, [], work, {work.library: memoryview(code)}), blob)
    assert found.speeds is not None
    assert [level.name for level in found.speeds.levels] == ["memory"]


def test_a_run_is_interrupted(sandbox: Sandbox, model: Loadable, blob: Blob) -> None:
    ends = time.monotonic() + 1.0
    found = sandbox.run(hanging(blob, model), blob, lambda: time.monotonic() > ends)
    assert found.status is RunStatus.CANCELLED


def test_a_child_that_the_system_kills_ran_out_of_memory(model: Loadable, blob: Blob) -> None:
    sandbox = Sandbox("w1")
    request = hanging(blob, model)
    sandbox.probe()  # starts the child
    child = sandbox._child._process
    assert child is not None
    timer = threading.Timer(1.0, os.kill, (child.pid, signal.SIGKILL))
    timer.start()
    found = sandbox.run(request, blob)
    timer.join()
    sandbox.close()
    assert found.status is RunStatus.OUT_OF_MEMORY and "killed by SIGKILL" in found.error
