"""Measurement of given schedules, once each, without a search.

The service uses this module to measure the best known schedule of a workload a second time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.compiler.errors import CompilerError
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.tuner.measure.batch import (
    BuiltCandidate,
    Link,
    link_to_bytes,
    make_request,
    trials_of,
)
from tilewright.tuner.measure.builder import Builder, Built, Ticket
from tilewright.tuner.measure.references import NoReference, Prepared, ReferenceCache
from tilewright.tuner.measure.runner import Runner
from tilewright.tuner.options import TuneOptions
from tilewright.tuner.protocol.batches import MeasureRequest, RepeatSettings
from tilewright.tuner.protocol.measurement import Measurement, Phase, Status, Trial, trial_id
from tilewright.tuner.store import RecordStore
from tilewright.tuner.tasks import Task

AHEAD = 8
"""Limit of the builds in progress while the runner measures."""

WAITING = 6
"""Number of requests that are sent beyond the runner's capacity. The device then never waits for a
build, and takes as many requests at a time as it can.

These measurements do not depend on earlier results, so they can be sent in advance.
"""

POLL_SECONDS = 0.05
"""Longest time in seconds to wait for a result before `stopped` is called again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Schedules of one task (a workload to tune) that are measured in one request.

    Attributes:
        task: the task.
        schedules: the schedules.
        phase: the purpose of the measurement. In the phase SCREEN, each schedule is timed
            independently. In every other phase, the first schedule is the one to beat, and each
            other schedule is timed alternately with it.
        origin: the source of the schedules, such as "default", which is stored in the trials.
        serial: a number or text that enters the trials' ids, so that repeated measurements of a
            schedule have different ids (`measurement.trial_id`).
    """

    task: Task
    schedules: tuple[Schedule, ...]
    phase: Phase
    origin: str
    serial: int | str = 0


@dataclass(slots=True)
class FixedTrials:
    """Measures given schedules and stores the results as trials of the job `options.job_id`.

    Attributes:
        builder: compiles the candidates.
        runner: measures the compiled candidates.
        store: stores the trials.
        options: the settings of the job.
        references: computes the inputs and the correct outputs of each task.
        link: links the object files of a request into a shared library.
    """

    builder: Builder
    runner: Runner
    store: RecordStore
    options: TuneOptions
    references: ReferenceCache
    link: Link = link_to_bytes

    def measure(self, wanted: Iterable[Wanted], stopped: Callable[[], bool]) -> list[Trial]:
        """Measure each schedule once, in order. Return the stored trials.

        A schedule that fails to build or run also gives a trial. Once `stopped` returns true,
        pending builds and requests are cancelled. `wanted` may be a generator that creates its
        tasks: the next entry is taken only when fewer than AHEAD builds are in progress.

        Raises:
            CompilerError: if `wanted` raises it. Pending builds and requests are cancelled first.
        """
        coming = iter(wanted)
        one = next(coming, None)
        building: deque[tuple[Wanted, Ticket, Prepared]] = deque()
        running: dict[str, MeasureRequest] = {}
        done: list[Trial] = []
        failed: CompilerError | None = None
        while one is not None or building or running:
            if failed is not None or stopped():
                for _, ticket, _ in building:
                    ticket.cancel()
                self.runner.cancel(list(running))
                one = None
                building.clear()
            try:
                while one is not None and len(building) < AHEAD:
                    task = one.task
                    prepared = self.references.prepare(task.workload, one.phase, task.points)
                    ticket = self.builder.submit(task, list(one.schedules))
                    building.append((one, ticket, prepared))
                    one = next(coming, None)
            except CompilerError as error:
                failed = error
                continue
            room = self.runner.capacity + WAITING
            while building and len(running) < room:
                built, ticket, prepared = building[0]
                if not (ticket.done() and prepared.done()):
                    break
                building.popleft()
                sent, trials = self._send(built, ticket.results(), prepared)
                done += trials
                if sent is not None:
                    running[sent.request_id] = sent
            results = [r for r in self.runner.poll(POLL_SECONDS) if r.request_id in running]
            trials = [
                trial
                for result in results
                for trial in trials_of(running.pop(result.request_id), result)
                if trial.measurement.status is not Status.CANCELLED
            ]
            if results:
                self.store.add_trials(trials)
                done += trials
                self.runner.acknowledge([result.request_id for result in results])
        if failed is not None:
            raise failed
        return done

    def _send(
        self, wanted: Wanted, built: Sequence[Built], prepared: Prepared
    ) -> tuple[MeasureRequest | None, list[Trial]]:
        """Send the successfully built candidates to the runner, and store the other ones as trials.

        Return the request and the stored trials. The request is None if no candidate was sent.
        """
        entries = [
            BuiltCandidate(self._trial_id(wanted, one.schedule), one, wanted.origin)
            for one in built
        ]
        good = [entry for entry in entries if entry.built.status is Status.OK]
        failed = {
            entry.trial_id: Measurement(
                entry.built.status, entry.built.error, build_seconds=entry.built.build_seconds
            )
            for entry in entries
            if entry.built.status is not Status.OK
        }
        request, references = None, prepared.cases()
        if isinstance(references, NoReference):
            failed |= {
                entry.trial_id: references.measurement(wanted.task.name, entry.built.build_seconds)
                for entry in good
            }
        elif good:
            try:
                request, blobs = make_request(
                    wanted.task.key,
                    good,
                    references,
                    RepeatSettings(
                        samples=self.options.screen_samples,
                        sample_seconds=self.options.sample_seconds,
                        limit_seconds=self.options.limit_seconds,
                        seed=self.options.seed,
                    ),
                    link=self.link,
                    phase=wanted.phase,
                    job_id=self.options.job_id,
                    codegen_version=self.options.codegen_version,
                    least_seconds=wanted.task.least_seconds,
                )
            except CompilerError as error:
                why = Measurement(Status.BUILD_ERROR, f"the code does not link: {error}")
                failed |= {
                    entry.trial_id: replace(why, build_seconds=entry.built.build_seconds)
                    for entry in good
                }
            else:
                self.runner.submit(request, blobs)
        trials = [
            Trial(
                entry.trial_id,
                wanted.task.key,
                entry.built.schedule,
                failed[entry.trial_id],
                wanted.phase,
                self.options.job_id,
                self.options.codegen_version,
                entry.origin,
            )
            for entry in entries
            if entry.trial_id in failed and failed[entry.trial_id].status is not Status.CANCELLED
        ]
        if trials:
            self.store.add_trials(trials)
        return request, trials

    def _trial_id(self, wanted: Wanted, schedule: Schedule) -> str:
        key, job = wanted.task.key, self.options.job_id
        return trial_id(key, schedule.digest, wanted.phase, job, wanted.serial)
