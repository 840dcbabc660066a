"""Runs of whole programs in the harness of this machine: their results, and their failures."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from tests.processes import hangs_below
from tests.small_program import compile_program
from tests.unit.c_library.conftest import drawing
from tests.unit.service.leased import broken, loadable
from tests.waiting import until
from tilewright.compiler import driver
from tilewright.compiler.mode import Mode
from tilewright.compiler.ops.interpret import run_graph
from tilewright.compiler.program.builder import ProgramBuilder
from tilewright.compiler.runtime.native_build import SOURCES
from tilewright.compiler.targets.host import host_target
from tilewright.service.jobs.device.device import Loadable
from tilewright.tuner.measure.harness.binary import FOLDER
from tilewright.tuner.measure.local_runner import LocalRunner
from tilewright.tuner.measure.model_runs import draw_inputs
from tilewright.tuner.measure.roofline import probe_library, vector_bytes
from tilewright.tuner.measure.run_packing import Blobs, make_request, pack_program
from tilewright.tuner.protocol.blobs import array_to_bytes, digest_bytes
from tilewright.tuner.protocol.run_results import RunStatus
from tilewright.tuner.protocol.runs import (
    CheckWork,
    ProfileWork,
    RaceWork,
    RunRequest,
    SpeedsWork,
    Work,
)


@pytest.fixture(scope="module")
def model() -> Loadable:
    return loadable(compile_program())


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    found = LocalRunner("w1")
    yield found
    found.close()


_numbers = itertools.count()


def ask(
    models: list[Loadable], work: Work, more: Blobs | None = None, threads: int = 1
) -> tuple[RunRequest, dict[str, memoryview]]:
    """A request, and its blobs."""
    packed = [pack_program(m.program, m.weights, m.link()) for m in models]
    request, blobs = make_request("job", threads, packed, work, more or {}, 0, 20.0)
    return replace(request, request_id=f"run{next(_numbers)}"), dict(blobs)


def hanging(model: Loadable) -> tuple[RunRequest, dict[str, memoryview]]:
    return ask([broken(model, "br label %entry")], CheckWork(0, 1, {}))


def until_it_hangs() -> None:
    """Wait until a harness of this process runs the program of `hanging`."""
    until(lambda: hangs_below(os.getpid()))


@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_are_those_of_this_process(
    runner: LocalRunner, model: Loadable, threads: int
) -> None:
    executable = model.load(threads)
    (expected,) = executable.run(draw_inputs(executable.program.inputs, 3))
    file = array_to_bytes(expected)
    work = CheckWork(0, 3, {"y": digest_bytes(file)}, ("y",))
    found = runner.run(*ask([model], work, {digest_bytes(file): memoryview(file)}, threads))
    assert (found.status, found.errors, found.worker) == (RunStatus.OK, {"y": 0.0}, "w1")
    np.testing.assert_array_equal(found.arrays()["y"], expected)


def test_random_numbers_are_those_of_the_reference(runner: LocalRunner) -> None:
    graph = driver.load_graph(drawing())
    plan = driver.make_plan(driver.optimise(graph, Mode()), Mode())
    made = loadable(ProgramBuilder(None, Mode()).build(plan))
    found = runner.run(*ask([made], CheckWork(0, 3, {}, ("y",))))
    (expected,) = run_graph(graph, draw_inputs(made.program.inputs, 3))
    np.testing.assert_allclose(found.arrays()["y"], expected, rtol=1e-6)


def test_variants_of_several_programs_race_in_one_block_or_two(
    runner: LocalRunner, model: Loadable
) -> None:
    other = loadable(compile_program())
    request, blobs = ask([model, model, other], RaceWork(((0, 1), (2,), (0,))))
    assert len(request.block_bytes) == 2 and request.programs[0].block == request.programs[1].block
    found = runner.run(request, blobs)
    assert found.status is RunStatus.OK and found.race is not None
    assert len(found.race.comparisons) == 2 and found.race.incumbent_seconds > 0


def test_every_instruction_has_its_time(runner: LocalRunner, model: Loadable) -> None:
    found = runner.run(*ask([model], ProfileWork(0, 4)))
    assert len(found.seconds) == len(list(model.program.walk())) and min(found.seconds) > 0


def test_a_blob_that_is_cut_short_is_a_sentence(model: Loadable) -> None:
    runner = LocalRunner("w1")  # that has not seen it whole
    request, blobs = ask([model], ProfileWork(0, 1))
    part = request.programs[0].parts[0]
    short = bytes(blobs[part.digest])[:-1]
    blobs[part.digest] = memoryview(short)
    with pytest.raises(RuntimeError, match="arrived damaged"):
        runner.run(request, blobs)
    runner.close()


def test_a_program_that_would_leave_its_memory_is_not_run(
    runner: LocalRunner, model: Loadable
) -> None:
    short = replace(model, program=replace(model.program, arena_bytes=64))
    with pytest.raises(ValueError, match="do not lie"):
        runner.run(*ask([short], ProfileWork(0, 1)))


def test_a_library_without_the_probes_is_a_sentence(runner: LocalRunner, model: Loadable) -> None:
    code = model.link()
    work = SpeedsWork(digest_bytes(code), 64, (0, 0, 0), 1 << 30)
    found = runner.run(*ask([], work, {work.library: memoryview(code)}))
    assert found.status is RunStatus.FAILED and "has no function 'read'" in found.error


def test_a_device_that_hides_its_caches_has_a_memory(runner: LocalRunner) -> None:
    target = host_target()
    code = probe_library(target)
    work = SpeedsWork(digest_bytes(code), vector_bytes(target), (0, 0, 0), 0)
    found = runner.run(*ask([], work, {work.library: memoryview(code)}))
    assert found.speeds is not None
    assert [level.name for level in found.speeds.levels] == ["memory"]


def test_a_run_ends_with_its_runner(model: Loadable) -> None:
    runner = LocalRunner("w1")
    with ThreadPoolExecutor(1) as callers:
        found = callers.submit(runner.run, *hanging(model))
        until_it_hangs()
        runner.close()
        assert found.result(timeout=30.0).status is RunStatus.CANCELLED


def test_runs_that_wait_when_a_runner_is_closed_are_cancelled(model: Loadable) -> None:
    runner = LocalRunner("w1")
    with ThreadPoolExecutor(2) as callers:
        found = [callers.submit(runner.run, *hanging(model)) for _ in range(2)]
        until_it_hangs()
        runner.close()
        statuses = {each.result(timeout=30.0).status for each in found}
    assert statuses == {RunStatus.CANCELLED}
    assert runner.run(*hanging(model)).status is RunStatus.CANCELLED


def test_a_run_with_a_missing_blob_fails_alone(model: Loadable) -> None:
    runner = LocalRunner("w1")  # its harness has no blobs yet
    request, blobs = ask([model], ProfileWork(0, 1))
    digest = request.programs[0].parts[0].digest
    with pytest.raises(KeyError, match=digest):
        runner.run(request, {name: data for name, data in blobs.items() if name != digest})
    assert runner.run(request, blobs).status is RunStatus.OK
    runner.close()


def test_a_step_that_does_not_end_is_ended(runner: LocalRunner, model: Loadable) -> None:
    request, blobs = hanging(model)
    found = runner.run(replace(request, limit_seconds=1.0), blobs)
    assert found.status is RunStatus.TIMED_OUT


def test_every_native_function_is_in_the_harness() -> None:
    """The harness must link the functions of the C runtime that a program calls, too."""
    text = (FOLDER / "programs.c").read_text()
    linked = set(re.findall(r"each\((\w+)\)", text))
    runtime = "".join(source.read_text() for source in SOURCES)
    assert linked == set(re.findall(r"void tw_native_(\w+)\(", runtime)) != set()
