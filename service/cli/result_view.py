"""The results of a job in sentences: the same for `tune`, `submit` and `jobs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.cli.plan_view import decision_line
from service.cli.view import ending_text, known_text, verdict_text
from service.sentences import one_sentence


def result_lines(result: Mapping[str, Any]) -> list[str]:
    """Lines for a job's report (`JobOutcome.report`); what an older release left out is left out.

    They say how its plan was chosen at each size, why it ended and on which device, whether the
    artifact was verified there, and what is served and why.
    """
    lines = []
    for each in result.get("plans", [{"sizes": {}, "plan": result.get("plan")}]):
        sizes = ", ".join(f"{name}={size}" for name, size in each["sizes"].items())
        lines.append(decision_line(each["plan"]) + (f" ({sizes})" if sizes else ""))
    if "ended" in result:
        ended = ending_text(result["ended"], result.get("forecast"), result.get("forecast_error"))
        lines.append(ended)
    device = result.get("device")
    if device is not None:
        model = (device["facts"] or {}).get("model", "")
        lines.append(f"device: {device['name']}" + (f", {model}" if model else ""))
    if result.get("not_verified"):
        lines.append(f"not verified: {result['not_verified']}")
    elif result.get("largest_error") is not None or result.get("unverified"):
        lines.append(f"verified: {_certificate(result)}")
    verdict = result.get("end_to_end")
    if verdict is not None:
        known = ""
        if result.get("workloads") is not None:
            related = result.get("workloads_related") or 0
            known = known_text(result["workloads_known"], result["workloads"], related) + "; "
        where = f" (on {verdict['device']})" if verdict.get("device") else ""
        lines.append(f"end to end: {known}{verdict_text(verdict)}{where}")
    # a worker chooses its name, and says what its device is
    return [one_sentence(line) for line in lines]


def _certificate(result: Mapping[str, Any]) -> str:
    parts = []
    if result.get("largest_error") is not None:
        parts.append(f"largest error {result['largest_error']:.1e} of the largest output")
    if result.get("unverified"):
        parts.append(f"not these outputs: {', '.join(result['unverified'])}")
    return "; ".join(parts)
