"""Columns of tables of workers, including the device's current speed relative to its best speed."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.service.api.schemas.workers import WorkerCondition, WorkerView
from tilewright.service.show.table import Cell, CellKind, Column
from tilewright.service.show.text import failures_text, one_sentence
from tilewright.service.show.units import ago, count, moment, speedup

WorkerColumn = Column[WorkerView]


def condition_text(condition: WorkerCondition | None) -> str:
    """Return the current condition of a device: `61 °C, load 3.2, clock 85 %, powersave`."""
    if condition is None:
        return "-"
    parts = []
    if condition.temperature_celsius is not None:
        parts.append(f"{condition.temperature_celsius:.0f} °C")
    if condition.load is not None:
        parts.append(f"load {condition.load:.1f}")
    if condition.clock_ratio is not None:
        parts.append(f"clock {100 * condition.clock_ratio:.0f} %")
    return one_sentence(", ".join([*parts, *filter(None, [condition.governor])])) or "-"


def failed_text(trials: Mapping[str, int]) -> str:
    """Return the number of failed trials of a worker and of all its trials: "3 of 1,204".

    Returns "-" without trials. `trials` has the number of trials by outcome.
    """
    whole = sum(trials.values())
    return f"{whole - trials.get('ok', 0):,} of {whole:,}" if whole else "-"


def failed_kinds(trials: Mapping[str, int]) -> str:
    """Return the number of a worker's failed trials by kind, the most frequent first.

    `trials` has the number of trials by outcome.
    """
    failed = {kind: count for kind, count in trials.items() if count and kind != "ok"}
    return failures_text(dict(sorted(failed.items(), key=lambda item: (-item[1], item[0]))))


def _health(worker: WorkerView) -> str:
    return worker.health + (", drained" if worker.draining and worker.health != "draining" else "")


def _state(worker: WorkerView) -> Cell:
    if worker.quarantine is not None:
        again = f"tries again at {moment(worker.quarantine.canary_at)}"
        return Cell(worker.quarantine.reason, note=again)
    if worker.speed is None or not worker.speed.disturbed:
        return Cell("-" if worker.speed is None else "steady")
    return Cell("throttled" if worker.speed.throttled else "disturbed")


def _targets(worker: WorkerView) -> Cell:
    more = len(worker.target_keys) - 1
    note = f"and {more} more" if more > 0 else ""
    return Cell((worker.targets or ["-"])[0], note=note, hint=", ".join(worker.targets))


def _failed(worker: WorkerView) -> Cell:
    kinds = failed_kinds(worker.trials)
    return Cell(failed_text(worker.trials), note="" if kinds == "none" else kinds)


def _speed(what: str) -> WorkerColumn:
    hint = f"Speed of {what}, relative to the best of this device"
    return Column(what, lambda w: speedup(getattr(w.speed, f"{what}_ratio", None)), hint=hint)


WORKER = WorkerColumn("worker", lambda worker: worker.id[:12], CellKind.TEXT)
NAME = WorkerColumn("name", lambda worker: worker.name, CellKind.NAME)
HEALTH = WorkerColumn("health", _health, CellKind.STATE)
DEVICE = WorkerColumn(
    "device", lambda worker: str(worker.device.get("model") or "-"), CellKind.TEXT
)
TARGETS = WorkerColumn("targets", _targets, CellKind.TEXT)
TARGET_COUNT = WorkerColumn("targets", lambda worker: str(len(worker.target_keys)))
IN_HAND = WorkerColumn("in hand", lambda worker: count(worker.in_hand))
LOST = WorkerColumn("leases lost", lambda worker: count(worker.leases_lost))
FAILED = WorkerColumn("failed", _failed, hint="Failed trials")
ARITHMETIC, MEMORY = _speed("arithmetic"), _speed("memory")
STATE = WorkerColumn("state", _state, CellKind.TEXT)
CONDITION = WorkerColumn("device just now", lambda w: condition_text(w.condition), CellKind.TEXT)


def heard(now: float) -> WorkerColumn:
    """Return the column with the time since each worker's last heartbeat.

    `now` is in Unix seconds.
    """
    return Column("heard of", lambda worker: ago(now, worker.last_heartbeat))


TERMINAL = (
    *(WORKER, NAME, HEALTH, IN_HAND, FAILED, TARGET_COUNT, ARITHMETIC, MEMORY, STATE),
    CONDITION,
)


def page(now: float) -> tuple[WorkerColumn, ...]:
    """Return the columns of workers on the dashboard. `now` is in Unix seconds."""
    device = (WORKER, NAME, HEALTH, STATE, DEVICE, TARGETS, CONDITION, ARITHMETIC, MEMORY)
    return (*device, IN_HAND, LOST, FAILED, heard(now))
