"""Replays a stored tuning run from its recorded measurements, without a device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.targets.target import Target
from tilewright.db.storage import Storage
from tilewright.db.stores.runs import StoredRun
from tilewright.tuner.events import Event, Finished, TaskInputs
from tilewright.tuner.protocol.batches import MeasureRequest
from tilewright.tuner.protocol.measurement import Phase
from tilewright.tuner.protocol.version import ProtocolError
from tilewright.tuner.recording import RecordedRun, ReplayError
from tilewright.tuner.replay import replay
from tilewright.tuner.tasks import Task, make_task


@dataclass(frozen=True, slots=True)
class Repeated:
    """The result of replaying a tuning run.

    Attributes:
        finished: the result of the replayed run.
        origins: the number of trials by the origin of their schedule, such as "default" or
            "mutation" (a move of the search strategy).
        events: the events of the replayed run.
    """

    finished: Finished
    origins: Mapping[str, int]
    events: tuple[Event, ...]


def repeat(run: StoredRun, storage: Storage) -> Repeated:
    """Replay a tuning run from its recorded measurements, without a device.

    Raises:
        ReplayError: if the run did not end, or was made by another version of the code generator;
            if old trials that it needs were deleted; or if the present tuner decides differently.
        NotFoundError: if the database does not have one of the run's workloads.
    """
    events: list[Event] = []
    recorded = load_run(run, storage)
    tasks = [_task(inputs, storage) for inputs in run.inputs]
    finished, _ = replay(recorded, tasks, events.append)
    return Repeated(finished, Counter(trial.origin for trial in recorded.trials), tuple(events))


def load_run(run: StoredRun, storage: Storage) -> RecordedRun:
    """Read from the database the data for a replay of a tuning run.

    Raises:
        ReplayError: if the run did not end, was made by another version of the code generator, or
            needs old trials that were deleted.
    """
    if run.journal is None:
        raise ReplayError(f"run '{run.id}' did not end: the order of its batches is not known")
    if run.options.codegen_version != CODEGEN_VERSION:
        raise ReplayError(
            f"run '{run.id}' is of code generation {run.options.codegen_version}, "
            f"this is {CODEGEN_VERSION}"
        )
    ended = math.inf if run.finished_at is None else run.finished_at
    retired = storage.retention.retired([inputs.key for inputs in run.inputs], ended)
    if retired:
        names = [f"'{inputs.name}'" for inputs in run.inputs if inputs.key in retired]
        raise ReplayError(
            f"run '{run.id}' cannot be repeated any more: its evidence was retired, as trials of "
            f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''} were forgotten by "
            "age (TILEWRIGHT_KEEP_TRIALS_DAYS)"
        )
    known = {
        inputs.key: storage.records.trials(inputs.key)[: inputs.known_trials]
        for inputs in run.inputs
    }
    before = {trial.id for trials in known.values() for trial in trials}
    trials = [
        trial
        for trial in storage.records.trials_of_job(run.options.job_id)
        # confirmations of its records were measured after the run
        if trial.key in known and trial.id not in before and trial.phase is not Phase.CONFIRM
    ]
    try:
        adopted = tuple(map(MeasureRequest.from_json, run.adopted))
    except ProtocolError as error:
        raise ReplayError(f"run '{run.id}': what it took over: {error}") from error
    return RecordedRun(run.options, run.inputs, run.journal, known, trials, adopted)


def _task(inputs: TaskInputs, storage: Storage) -> Task:
    key = inputs.key
    return make_task(
        Workload.parse(storage.workloads.workload(key.workload_key)),
        Mode(
            Target.from_json(storage.workloads.target(key.target_key)[1]), key.threads, key.numerics
        ),
        name=inputs.name,
        count=inputs.count,
        points=inputs.points,
        scale=inputs.scale,
    )
