"""A whole job whose candidates are built by a Dask cluster that breaks down in the middle."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.dask_cluster import Cluster, until
from tests.unit.service.devices import FakeDevice
from tests.unit.tuner.fakes import FakeQueue
from tilewright.compiler.codegen.link import linkers
from tilewright.compiler.mode import Mode
from tilewright.compiler.targets.host import resolve_target
from tilewright.db.storage import Storage
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.pipeline.run_job import JobContext, JobWatcher, run_job
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.service.options import JobOptions
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Event, Progress
from tilewright.tuner.measure.builder import ProcessBuilder
from tilewright.tuner.measure.dask_builder import DaskBuilder
from tilewright.tuner.protocol.measurement import Status

pytest.importorskip("distributed")
pytestmark = pytest.mark.skipif(not linkers(), reason="no linker")

TRIALS = 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage.open(f"sqlite:///{tmp_path}/jobs.db", tmp_path / "blobs")
    yield made
    made.close()


@dataclass
class Trouble(JobWatcher):
    """Something happens after so many trials."""

    plans: dict[int, Callable[[], None]]

    def event(self, event: Event, tracker: Tracker) -> None:
        tracker.take(event)
        if isinstance(event, Progress):
            for trials in [n for n in self.plans if event.trials_done >= n]:
                self.plans.pop(trials)()


def model() -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [96, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [96, 192])],
        [numpy_helper.from_array(np.ones((64, 192), np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return made.SerializeToString()


def seconds(schedule: Any) -> float:
    return 1e-3 * (1 + int(schedule.digest[:4], 16) / 65536)


def test_a_job_outlives_a_worker_and_then_the_scheduler(
    cluster: Cluster, storage: Storage, tmp_path: Path
) -> None:
    scheduler = cluster.scheduler()
    workers = [cluster.worker() for _ in range(3)]
    builder = DaskBuilder(cluster.address, local=partial(ProcessBuilder, 1))
    try:
        builder.start()
        until(lambda: builder.workers == 3, "workers")
        watcher = Trouble(
            {
                4: lambda: workers[0].send_signal(signal.SIGKILL),
                12: lambda: scheduler.send_signal(signal.SIGKILL),
            }
        )
        outcome = run_job(
            JobSpec(
                model(),
                Mode(resolve_target("x86-64-v3")),
                options=JobOptions(TRIALS, stop_gain=0.0),
            ),
            FakeDevice([0.9] * 8, runner=FakeQueue(seconds)),
            JobContext(storage, builder),
            watcher,
            job_id="job",
            token=CancelToken(),
            output=tmp_path / "artifact",
        )
    finally:
        builder.close()
    assert not watcher.plans, f"nothing was killed in the middle of {outcome.finished}"
    assert workers[0].poll() is not None and scheduler.poll() is not None
    assert outcome.finished.trials_done == TRIALS
    counts = storage.records.count_trials("job")
    built = {s: n for s, n in counts.items() if n and s is not Status.SPILLS}
    assert set(built) == {Status.OK}, "a loss became a failed candidate"
    assert outcome.selected is not None and outcome.selected.known == 1
    assert (tmp_path / "artifact").exists()
