"""Messages about jobs, devices and their results, for the command line and the dashboard.

Names and reasons from outside the service are not escaped here. The caller escapes them for its
output medium.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.db.review_state import Attestation
from tilewright.service.show.text import one_sentence
from tilewright.service.show.units import microseconds, milliseconds, speedups
from tilewright.tuner.events import Ended
from tilewright.tuner.forecast import Forecast


def event_text(kind: str, data: Mapping[str, Any]) -> str:
    """Return a text for an event of a job, such as "running" or "conv 3x3: tuned, 12.3 us"."""
    if kind == "task":
        seconds = microseconds(data.get("best_seconds"))
        return f"{data.get('name', 'a task')}: {data.get('status', 'done')}, {seconds} us"
    said = str(data.get("state", kind)).replace("_", " ")
    why = data.get("error") or data.get("reason")
    return f"{said}: {why}" if why else said


def verdict_text(verdict: Mapping[str, Any]) -> str:
    """Return a line that states whether tuned or default schedules are used, and the speed-up.

    `verdict` is the result of the end-to-end comparison as JSON data. The speed-up is that of the
    tuned program over the untuned one.
    """
    served = {
        "tuned": "the tuned schedules are served",
        "partly": _fallen_back(len(verdict["dropped"])),
        "default": "the defaults are served",
    }[verdict["served"]]
    comparison = verdict["comparison"]
    if comparison is None:
        return f"{served}; {verdict['reason']}"
    known = verdict.get("attestation")
    attestation = None if known is None else Attestation(known)
    return (
        f"{served}; tuned: {speedups(comparison, 'untuned')}, {verdict['outcome']}"
        + (f"; {verdict['reason']}" if verdict["reason"] else "")
        + (f"; {attestation.sentence}" if attestation and attestation.weak else "")
    )


def _fallen_back(tasks: int) -> str:
    return (
        "1 task falls back to its default"
        if tasks == 1
        else f"{tasks} tasks fall back to their defaults"
    )


def known_text(known: int, workloads: int, related: int) -> str:
    """Return a phrase such as "3 of 5 workloads known, 1 by relatives".

    `known` is the number of workloads with a record, and `related` the number of workloads for
    which only a related workload has a record.
    """
    return f"{known} of {workloads} workloads known" + (
        f", {related} by relatives" if related else ""
    )


def ending_text(
    ended: str, forecast: Mapping[str, Any] | None, error: Mapping[str, Any] | None
) -> str:
    """Return a line that states why a tuning run ended, and what more tuning would gain.

    Args:
        ended: the reason, a value of `Ended`.
        forecast: the expected gain of another minute, or None.
        error: the average gains that were forecast and that were reached so far, or None.
    """
    line = {
        Ended.KNOWN: "everything was known",
        Ended.TRIALS: "the trials are spent",
        Ended.TIME: "the time limit was reached",
        Ended.GAIN: "little is left to gain",
        Ended.TARGET: "the target is met",
        Ended.SPACES: "there is nothing left to try",
        Ended.DEVICE: "the device was lost",
        Ended.ABSENT: "nothing was measured, as no worker came",
        Ended.CANCELLED: "cancelled",
    }[Ended(ended)]
    if forecast is not None:
        line += f"; {Forecast(**forecast)}"
    if error is not None:
        line += (
            f" (forecasts so far: {100 * error['expected']:.1f} % on average, "
            f"{100 * error['gained']:.1f} % came)"
        )
    return line


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the lines of a job's report (`JobOutcome.report`).

    The lines state the sizes for which programs exist, why the job ended, the device, the schedules
    in use and the reason, why nothing was tuned, and the time per phase. The last lines matter most
    to users: the latency before and after, the latency of another engine, and the verification of
    the artifact. Lines whose data are missing in the report of an older release are left out.
    """
    lines = [*result.get("ranges", ())]
    if "ended" in result:
        ended = ending_text(result["ended"], result.get("forecast"), result.get("forecast_error"))
        lines.append(ended)
    device = result.get("device")
    if device is not None:
        model = (device["facts"] or {}).get("model", "")
        lines.append(f"device: {device['name']}" + (f", {model}" if model else ""))
    verdict = result.get("end_to_end")
    if verdict is not None:
        known = ""
        if result.get("workloads") is not None:
            related = result.get("workloads_related") or 0
            known = known_text(result["workloads_known"], result["workloads"], related) + "; "
        where = f" (on {verdict['device']})" if verdict.get("device") else ""
        lines.append(f"end to end: {known}{verdict_text(verdict)}{where}")
    if result.get("note"):
        lines.append(result["note"])
    if result.get("phases"):
        lines.append(phases_text(result["phases"]))
    lines += [latency_text(each) for each in result.get("latency") or ()]
    lines += [peer_text(each) for each in result.get("peers") or ()]
    if result.get("not_verified"):
        lines.append(f"not verified: {result['not_verified']}")
    elif result.get("verified") or result.get("unverified"):
        lines.append(f"verified: {_certificate(result)}")
    # the device's name and model come from the worker, and are not trusted
    return [one_sentence(line) for line in lines]


def kernels_text(untuned: float | None, tuned: float | None) -> str:
    """Return the start of a line: "kernels 2.100 ms untuned, 1.900 ms tuned; ".

    Both arguments are the time of all kernels in one run, in seconds. Returns "" if `tuned` is
    None.
    """
    if tuned is None:
        return ""
    return f"kernels {milliseconds(untuned)} untuned, {milliseconds(tuned)} tuned; "


def latency_text(latency: Mapping[str, Any]) -> str:
    """Return a line with the latency of a run before and after tuning.

    An example is "latency: 2.1 ms before, 1.9 ms after (1.8 to 2.0) at batch=1". The parentheses
    contain the confidence interval of the latency after tuning. If default schedules are used,
    there is only one latency.
    """
    before, low = milliseconds(latency["before_seconds"]), latency.get("low_seconds")
    at = _at(latency)
    if low is None:
        return f"latency: {before}{at}, as before: the defaults are served"
    interval = f"{milliseconds(low)} to {milliseconds(latency['high_seconds'])}"
    return (
        f"latency: {before} before, {milliseconds(latency['after_seconds'])} after ({interval}){at}"
    )


def peer_text(peer: Mapping[str, Any]) -> str:
    """Return a line with another engine's latency and the artifact's speed-up over that engine.

    If the engine was not timed, the line states the reason instead.
    """
    if "reason" in peer:
        return f"{peer['engine']} was not timed: {peer['reason']}"
    return (
        f"{peer['engine']}: {milliseconds(peer['seconds'])}{_at(peer)}; "
        f"the artifact, in turns with it: {peer['ratio']:.2f}x {peer['engine']}"
    )


def run_text(artifact: Path) -> str:
    """Return the command line that runs an artifact."""
    return f"run it: tilewright run {shlex.quote(str(artifact))} --inputs IN.npz --outputs OUT.npz"


def _at(sized: Mapping[str, Any]) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in sized["sizes"].items())
    return f" at {sizes}" if sizes else ""


def phases_text(phases: Mapping[str, float]) -> str:
    """Return the time of each phase of a job: "time: import 0.4 s, tuning 10.0 s".

    Phases below 0.05 s are left out.
    """
    parts = (f"{name} {seconds:.1f} s" for name, seconds in phases.items() if seconds >= 0.05)
    return "time: " + (", ".join(parts) or "less than 0.1 s")


def _compared_text(steps: Mapping[str, Any], unverified: bool) -> str:
    """Return the number of values that a verification compared: "all 12 compared values right".

    Args:
        steps: the certificate of the step-by-step comparison, as JSON data.
        unverified: whether some values after a loop or branch differ from the reference, perhaps
            because of rounding. The text then does not state that all are right.
    """
    compared, written, excused = steps["compared"], steps["written"], steps["excused"]
    values = (
        f"{compared} values compared" if unverified else f"all {compared} compared values right"
    )
    if rest := written - compared:
        has = "has" if rest == 1 else "have"
        values += f" ({rest} of {written} {has} no counterpart in the imported graph)"
    return f"{values}, {excused} element{'s' * (excused != 1)} at rounding ties"


def _certificate(result: Mapping[str, Any]) -> str:
    parts = []
    steps = result.get("by_steps")
    if steps is not None:
        parts.append(f"by steps: {_compared_text(steps, bool(result.get('unverified')))}")
    if result.get("largest_error") is not None:
        whole = "" if steps else "as a whole: "
        parts.append(f"{whole}largest error {result['largest_error']:.1e} of the largest output")
    elif steps is not None:
        parts.append("choices that fell the other way give the whole model's outputs other extents")
    sizes = result.get("verified_sizes") or {"count": 1, "cut_short": False}
    if sizes["count"] > 1 or sizes["cut_short"]:
        more = ", and no time for others" if sizes["cut_short"] else ""
        parts.append(f"at {sizes['count']} size{'s' * (sizes['count'] > 1)}{more}")
    if result.get("unverified"):
        parts.append(f"not these values: {', '.join(result['unverified'])}")
    return "; ".join(parts)
