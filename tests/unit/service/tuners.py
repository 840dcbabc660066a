"""A tuner in a thread, with a stand-in for the measuring."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tilewright.compiler.targets.host import resolve_target
from tilewright.compiler.targets.target import Target
from tilewright.db.storage import Storage
from tilewright.db.stores.jobs import Job
from tilewright.service.jobs.device.device import Checked
from tilewright.service.jobs.device.leased_device import LeasedDevice
from tilewright.service.jobs.device.local_device import LocalDevice
from tilewright.service.jobs.device.remote_runner import RemoteRunner
from tilewright.service.jobs.process.tuner_process import TunerProcess
from tilewright.tuner.events import Ended, Finished, Started, TaskSnapshot
from tilewright.tuner.protocol.run_results import Race


def model_bytes() -> bytes:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.ones((4, 4), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def queue_job(storage: Storage, model_digest: str, name: str = "host", **more: Any) -> Job:
    """A job for a target by its name, as the route makes it."""
    target = resolve_target(name)
    storage.workloads.put_target(target.key, target.name, target.to_json())
    return storage.jobs.create(model_digest, name, target.key, **more)


def work_once(tuner: TunerProcess) -> bool:
    """Take a job, if there is one, and work on it here to its end."""
    run = tuner.take()
    if run is not None:
        run.run()
    return run is not None


class LocalWorker(LeasedDevice):
    """A worker on this machine, without the queue between: whole runs happen here."""

    here = LocalDevice()

    def runs(self, target: Target) -> bool:
        return self.here.runs(target)

    def check(self, *arguments: Any, **more: Any) -> Checked:
        return self.here.check(*arguments, **more)

    def race(self, *arguments: Any, **more: Any) -> Race:
        return self.here.race(*arguments, **more)


def loop(body: Callable[[RemoteRunner, Any], bool]) -> Callable[..., Finished]:
    """A tune loop that only reports; `body` returns whether it was cancelled."""

    def tune(
        tasks: Any, storage: Any, builder: Any, device: LeasedDevice, budget: Any, **options: Any
    ) -> Finished:
        statuses = tuple(TaskSnapshot(t.name, t.key, t.count, from_store=True) for t in tasks)
        options["on_event"](Started(statuses, 0))
        cancelled = body(device.runner, options["token"])
        ended = Ended.CANCELLED if cancelled else Ended.TRIALS
        finished = Finished(statuses, (None,) * len(statuses), 0, 0.1, ended=ended)
        options["on_event"](finished)
        return finished

    return tune


@contextmanager
def running(tuner: TunerProcess) -> Iterator[None]:
    """The tuner in a thread, as its process runs it, and a worker that serves this machine."""
    tuner._storage.workers.register("here", [resolve_target("host").key], {})
    thread = threading.Thread(target=tuner.run)
    thread.start()
    try:
        yield
    finally:
        tuner.stop()
        thread.join(60)
        assert not thread.is_alive()
