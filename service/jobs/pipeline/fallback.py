"""Delivers a verified program. Default schedules replace tuned ones that make the program wrong.

The kernel that wrote a wrong value gets its default schedule. If the kernel cannot be identified,
all kernels get their defaults. A job fails only if the program with all defaults is wrong, too.

On the service's own machine, a record is withdrawn if the program was wrong with it and is right
without it. No other job then uses the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import pairwise

from tilewright.compiler.plan.intervals import pieces
from tilewright.db.storage import Storage
from tilewright.service.jobs.device.device import Device
from tilewright.service.jobs.device.loadables import LoadableOf
from tilewright.service.jobs.evidence.bounded_verification import BoundedVerifier, VerificationBound
from tilewright.service.jobs.evidence.certificate import WrongProgramError
from tilewright.service.jobs.evidence.end_to_end import FixedSchedules, SelectedSchedules, Served
from tilewright.service.jobs.evidence.verification import Verification, Verifier
from tilewright.service.jobs.evidence.withdrawal import withdraw_records
from tilewright.service.jobs.plan.planning import Planned

Deliver = Callable[[SelectedSchedules, Callable[[LoadableOf], object]], None]
"""A function that compiles the served schedules, calls the given check with the program, and
delivers the program if the check does not raise."""


def deliver_verified(
    selected: SelectedSchedules,
    device: Device,
    storage: Storage,
    deliver: Deliver,
    bound: VerificationBound | None = None,
    *,
    job_id: str,
    more_seconds: float,
) -> tuple[SelectedSchedules, Verification]:
    """Compile, verify and deliver a program; retry with defaults in place of wrong kernels.

    Args:
        selected: the schedules for the first attempt.
        device: the device that runs the program.
        storage: the database, in which wrong records are withdrawn.
        deliver: compiles and delivers the program.
        bound: the limits of the child process that verifies; None to verify in this process.
        job_id: the job. The database stores which records it uses; records that were replaced by
            defaults are removed from this list.
        more_seconds: the time for verifying sizes other than the hints.

    Returns:
        the schedules of the delivered program, and the result of its verification.

    Raises:
        WrongProgramError: if the program with all defaults is wrong.
        CompilerError: if the program cannot be compiled, linked or written.
        DatabaseError: if the database fails.
    """
    fallen: list[tuple[SelectedSchedules, str]] = []
    while True:
        with _verifier(selected.planned, device, bound, more_seconds) as verifier:
            try:
                deliver(selected, verifier.verify)
            except WrongProgramError as error:
                if not selected.schedules.schedules:
                    raise
                fallen.append((selected, str(error)))
                selected = _without(selected, error)
                continue
        served = [*(each for each, _ in fallen), selected]
        for (before, after), (_, reason) in zip(pairwise(served), fallen, strict=True):
            gone = before.schedules.schedules.keys() - after.schedules.schedules.keys()
            # before the withdrawal, which notifies all users of a record: this artifact is not one
            storage.ledger.leave(_ids(before, gone), job_id)
            if device.trusted and len(gone) == 1:  # certainly this kernel
                withdraw_records(storage, reason, record_ids=_ids(before, gone))
        return selected, verifier.found


def _verifier(
    planned: Sequence[Planned],
    device: Device,
    bound: VerificationBound | None,
    more_seconds: float,
) -> AbstractContextManager[Verifier | BoundedVerifier]:
    if bound is None:
        return Verifier(planned, device, more_seconds)
    return nullcontext(BoundedVerifier(planned, device, bound, more_seconds))


def _without(selected: SelectedSchedules, error: WrongProgramError) -> SelectedSchedules:
    """Replace the schedules of the kernels that wrote a wrong value by defaults.

    If no tuned kernel wrote that value, all kernels get their defaults.

    Args:
        selected: the schedules with which the program was wrong.
        error: names the wrong value.

    Returns:
        the changed schedules.
    """
    kept = dict(selected.schedules.schedules)
    at_fault = kept.keys() & {
        piece.workload.key
        for planned in selected.planned
        for step in planned.served_plan.kernels
        if step.output in error.written
        for piece in pieces(step.workload)
    }
    for key in at_fault or tuple(kept):
        del kept[key]
    gone = selected.schedules.schedules.keys() - kept.keys()
    verdict = replace(
        selected.verdict,
        served=Served.PARTLY if kept else Served.DEFAULT,
        outcome="not_run",
        comparison=None,
        dropped=tuple(sorted({*selected.verdict.dropped, *gone})),
        reason=f"tuned, {error}",
    )
    return replace(
        selected,
        schedules=FixedSchedules(kept),
        verdict=verdict,
        records={key: one for key, one in selected.records.items() if key in kept},
    )


def _ids(selected: SelectedSchedules, keys: Collection[str]) -> tuple[str, ...]:
    return tuple(selected.records[key] for key in keys if key in selected.records)
