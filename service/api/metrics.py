"""Prometheus metrics of requests, queues, jobs and workers.

HTTP requests are counted as they are served. The other numbers are read from the database whenever
metrics are fetched.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tilewright.db.storage import Storage
from tilewright.db.stores.leases import RequestState
from tilewright.db.stores.workers import Health

# Long polls and event streams last until an event or a timeout, so their time is not informative.
_UNTIMED = frozenset(
    {"/v1/leases/claim", "/v1/jobs/{job_id}/events", "/dashboard/jobs/{job_id}/events"}
)


_STATEMENT_BUCKETS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Metrics:
    """The Prometheus metrics of one application.

    Each application has a separate registry, because tests run many applications in one process.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tilewright_http_requests",
            "Requests by route and status",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tilewright_http_seconds",
            "Time to the end of the answer",
            ("method", "route"),
            registry=self.registry,
        )
        self._requests_queued = Gauge(
            "tilewright_measure_requests",
            "Measurement requests by state",
            ("state",),
            registry=self.registry,
        )
        self._jobs = Gauge(
            "tilewright_jobs_open", "Jobs that are not final", ("state",), registry=self.registry
        )
        self._served = _Totals(
            "tilewright_served",
            "Models by the program that is served after the race: tuned or untuned",
            "served",
        )
        self.registry.register(self._served)
        self._fallbacks = _Totals(
            "tilewright_fallbacks", "Models of which tuned schedules fell back to defaults"
        )
        self.registry.register(self._fallbacks)
        self.leases_over = Counter(
            "tilewright_leases_over", "Leases that ran out", registry=self.registry
        )
        self.notifier_failures = Counter(
            "tilewright_notifier_failures",
            "Failed attempts to receive notices from the database",
            registry=self.registry,
        )
        self._removed = Counter(
            "tilewright_removed",
            "What housekeeping removed: finished requests, bytes of blobs, silent workers",
            ("what",),
            registry=self.registry,
        )
        self._workers_slow = Gauge(
            "tilewright_workers_throttled",
            "Living workers whose reference kernel is slow for long",
            registry=self.registry,
        )
        self._workers = Gauge(
            "tilewright_workers_alive", "Workers with a recent heartbeat", registry=self.registry
        )

        self._workers_health = Gauge(
            "tilewright_workers", "Workers by health", ("health",), registry=self.registry
        )
        self._oldest_lease = Gauge(
            "tilewright_lease_age_seconds",
            "Age of the oldest lease that holds",
            registry=self.registry,
        )
        self._oldest_queued = Gauge(
            "tilewright_queue_age_seconds",
            "Age of the oldest request that waits for a worker",
            registry=self.registry,
        )
        self._ended = Gauge(
            "tilewright_leases_ended",
            "Leases that ended within the last hour, by outcome and by who is to blame",
            ("outcome", "blame"),
            registry=self.registry,
        )
        self._trials = _Totals("tilewright_trials", "Trials that were stored")
        self.registry.register(self._trials)
        self._statements = Histogram(
            "tilewright_database_seconds",
            "Time of one SQL statement",
            buckets=_STATEMENT_BUCKETS,
            registry=self.registry,
        )

    def time_statements(self, engine: sa.Engine) -> None:
        """Measure the time of every SQL statement that this engine executes from now on."""

        def before(connection: sa.Connection, *_: Any) -> None:
            connection.info["tilewright_statement_began"] = time.perf_counter()

        def after(connection: sa.Connection, *_: Any) -> None:
            began = connection.info.pop("tilewright_statement_began", None)
            if began is not None:  # else the statement began before timing was on
                self._statements.observe(time.perf_counter() - began)

        sa.event.listen(engine, "before_cursor_execute", before)
        sa.event.listen(engine, "after_cursor_execute", after)

    def count_removed(self, removed: Mapping[str, int]) -> None:
        """Add to the metric of removed data: `removed` has the number of rows or bytes by kind."""
        for what, count in removed.items():
            self._removed.labels(what).inc(count)

    def render(self, storage: Storage) -> bytes:
        """Return all metrics in the Prometheus text format.

        The call reads the numbers of measurement requests, jobs, leases and workers from the
        database.
        """
        depth = storage.leases.depth()
        for state in RequestState:
            self._requests_queued.labels(state.value).set(depth.get(state, 0))
        for job_state, jobs in storage.jobs.counts().items():
            if not job_state.final:
                self._jobs.labels(job_state.value).set(jobs)
        figures = storage.gauges.read()
        self._oldest_lease.set(figures.oldest_lease)
        self._oldest_queued.set(figures.oldest_queued)
        self._trials.values = {"": figures.trials}
        self._ended.clear()
        for (outcome, blame), count in figures.ended.items():
            self._ended.labels(outcome, blame).set(count)
        everybody = Counts(worker.health for worker in storage.workers.list())
        for health in Health:
            self._workers_health.labels(health.value).set(everybody[health])
        workers = storage.workers.list(alive=True)
        self._workers.set(len(workers))
        self._workers_slow.set(sum(worker.throttled for worker in workers))
        served = storage.ledger.race_counts()
        self._served.values = served
        self._fallbacks.values = {"": sum(served.get(name, 0) for name in ("partly", "default"))}
        return generate_latest(self.registry)


class _Totals(Collector):
    """A Prometheus counter whose values come from the database.

    So the values survive restarts, and all processes report the same ones. `values` maps each value
    of the label to a count. A counter without a label has one entry, "".
    """

    def __init__(self, name: str, text: str, label: str = "") -> None:
        self._name = name
        self._text = text
        self._label = label
        self.values: dict[str, int] = {}

    def collect(self) -> Iterable[CounterMetricFamily]:
        labels = [self._label] if self._label else []
        family = CounterMetricFamily(self._name, self._text, labels=labels)
        for value, count in sorted(self.values.items()):
            family.add_metric([value] if labels else [], count)
        yield family


class MetricsMiddleware:
    """ASGI middleware that counts and times requests by route template, such as `/jobs/{id}`."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._found: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        started = time.perf_counter()

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = int(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            route = _template(scope)
            method = scope["method"]
            counted, timed = self._of(method, route, status)
            counted.inc()
            if route not in _UNTIMED:
                timed.observe(time.perf_counter() - started)

    def _of(self, method: str, route: str, status: int) -> tuple[Counter, Histogram]:
        """Return the counter and the histogram for a method, route and status.

        They are cached, because looking them up costs more than counting.
        """
        found = self._found.get((method, route, status))
        if found is None:
            found = (
                self._metrics.requests.labels(method, route, str(status)),
                self._metrics.seconds.labels(method, route),
            )
            self._found[method, route, status] = found
        return found


def _template(scope: Scope) -> str:
    """Return the path of a request with `{name}` in place of each parameter's value.

    Otherwise the metrics would have a separate time series for each job id. The result is
    "unmatched" for a path without a route.
    """
    if "route" not in scope:
        return "unmatched"
    parts = scope["path"].split("/")
    for name, value in scope.get("path_params", {}).items():
        parts = [f"{{{name}}}" if part == str(value) else part for part in parts]
    return "/".join(parts)
