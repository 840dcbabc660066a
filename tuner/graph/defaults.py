"""Measures untuned defaults, once each: plans are compared by these times before tuning."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from compiler.errors import CompilerError
from tuner.measure.batch import BuiltCandidate, Link, link_to_bytes, make_request, trials_of
from tuner.measure.builder import Builder, Built, Ticket
from tuner.measure.measurement import Measurement, Phase, Status, Trial, trial_id
from tuner.measure.oracle import ReferenceCache
from tuner.measure.runner import Runner
from tuner.measure.wire import MeasureRequest, RepeatSettings
from tuner.options import TuneOptions
from tuner.store import RecordStore
from tuner.tasks import Task

AHEAD = 8
"""How many builds are under way while the runner measures."""

WAITING = 6
"""Requests beyond the runner's capacity. What is measured here does not depend on results. So the
device never waits for a build, and takes as many requests at a time as it can."""

POLL_SECONDS = 0.05
"""How long to wait for a result before `stopped` is asked again."""


@dataclass(slots=True)
class Defaults:
    """Measures the untuned defaults of tasks, as trials of the job that the options name.

    Such a trial counts in the job that tunes the task, and the search starts from it.
    """

    builder: Builder
    runner: Runner
    store: RecordStore
    options: TuneOptions
    references: ReferenceCache
    link: Link = link_to_bytes

    def measure(self, tasks: Iterable[Task], stopped: Callable[[], bool]) -> int:
        """Measure each task once, in this order, until `stopped`; returns the number of trials.

        A default that fails is a trial, too. A task is taken from the iterator when the builders
        have room: to make one takes time, in which earlier ones are built.

        Raises:
            CompilerError: if a task cannot be made; everything under way is stopped first.
        """
        coming = iter(tasks)
        task = next(coming, None)
        building: deque[tuple[Task, Ticket]] = deque()
        running: dict[str, MeasureRequest] = {}
        done = 0
        failed: CompilerError | None = None
        while task is not None or building or running:
            if failed is not None or stopped():
                for _, ticket in building:
                    ticket.cancel()
                self.runner.cancel(list(running))
                task = None
                building.clear()
            try:
                while task is not None and len(building) < AHEAD:
                    self.references.prepare(task.workload, Phase.SCREEN)
                    building.append((task, self.builder.submit(task, [task.space.default()])))
                    task = next(coming, None)
            except CompilerError as error:
                failed = error
                continue
            room = self.runner.capacity + WAITING
            while building and building[0][1].done() and len(running) < room:
                built, ticket = building.popleft()
                sent = self._send(built, ticket.results()[0])
                if sent is None:
                    done += 1
                else:
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
                done += len(trials)
            for result in results:
                self.runner.acknowledge(result.request_id)
        if failed is not None:
            raise failed
        return done

    def _send(self, task: Task, built: Built) -> MeasureRequest | None:
        """Send a default to the runner; None if its build failed, which is stored as a trial."""
        name = trial_id(task.key, built.schedule.digest, Phase.SCREEN, self.options.job_id, 0)
        entry = BuiltCandidate(name, built, "default")
        failure = Measurement(built.status, built.error, build_seconds=built.build_seconds)
        if built.status is Status.OK:
            try:
                request, blobs = make_request(
                    task.key,
                    [entry],
                    self.references.cases(task.workload, Phase.SCREEN),
                    RepeatSettings(
                        samples=self.options.screen_samples,
                        sample_seconds=self.options.sample_seconds,
                        limit_seconds=self.options.limit_seconds,
                        seed=self.options.seed,
                    ),
                    link=self.link,
                    phase=Phase.SCREEN,
                    job_id=self.options.job_id,
                    codegen_version=self.options.codegen_version,
                )
            except CompilerError as error:
                failure = Measurement(Status.BUILD_ERROR, f"the default does not link: {error}")
            else:
                self.runner.submit(request, blobs)
                return request
        self.store.add_trials(
            [
                Trial(
                    name,
                    task.key,
                    built.schedule,
                    failure,
                    Phase.SCREEN,
                    self.options.job_id,
                    self.options.codegen_version,
                    "default",
                )
            ]
        )
        return None
