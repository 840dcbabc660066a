"""Results about a task: its code, its trials, and their predicted times."""

from __future__ import annotations

from typing import Any

from tilewright.service import notebook
from tilewright.service.api.schemas.jobs import CodeView, OrderView, PredictionsView
from tilewright.service.api.schemas.records import StoredRecordView
from tilewright.service.api.schemas.resources import TrialView
from tilewright.service.units import finite, microseconds


class Code(CodeView):
    """A task's schedule as loop nest and assembly."""

    def _repr_html_(self) -> str:
        facts = (
            f"{self.instructions:,} instructions, {self.fmas:,} multiply-adds, "
            f"{self.spills:,} spills, {self.registers} of {self.all_registers} vector registers"
        )
        loops = notebook.table(
            ("<innermost loop", "instructions", "multiply-adds", "registers", "spills"),
            [
                (loop.label, loop.instructions, loop.fmas, loop.registers, loop.spills)
                for loop in self.loops
            ],
        )
        return notebook.section(
            schedule_text(self.schedule),
            notebook.paragraph(facts),
            loops if self.loops else "",
            notebook.listing("loop nest", self.nest),
            notebook.listing("assembly", self.assembly),
        )


class Predictions(PredictionsView):
    """Predicted and measured times of a task's newest trials."""

    def _repr_html_(self) -> str:
        pairs = [
            (found, said)
            for each in self.trials
            if (found := finite(each.measured_seconds)) and (said := finite(each.estimated_seconds))
        ]
        of = (
            "no cost model" if self.version is None else f"version {self.version} of the cost model"
        )
        parts = [
            notebook.dots(pairs, "measured seconds", "those that the roofs estimate"),
            notebook.paragraph(
                f"{of} puts {_order(self.by_score)}, the roofs {_order(self.by_estimate)}"
            ),
        ]
        if self.refusal:
            parts.append(notebook.paragraph(self.refusal))
        return "".join(parts)


class Trials(list[TrialView]):
    """Measured candidates, the newest first."""

    def _repr_html_(self) -> str:
        return notebook.table(
            ("us", "<status", "<from", "<phase", "<schedule"),
            [
                (
                    microseconds(trial.run_seconds),
                    "withdrawn" if trial.withdrawn else trial.status,
                    trial.origin,
                    trial.phase,
                    schedule_text(trial.schedule),
                )
                for trial in self
            ],
        )


class Records(list[StoredRecordView]):
    """Records, the newest first."""

    def _repr_html_(self) -> str:
        return notebook.table(
            ("<workload", "<target", "threads", "us", "<state", "<attestation", "<schedule"),
            [
                (
                    stored.name or stored.record.workload_key[:12],
                    stored.record.target_key[:12],
                    stored.record.threads,
                    microseconds(stored.record.run_seconds),
                    stored.state,
                    stored.attestation,
                    schedule_text(stored.record.schedule),
                )
                for stored in self
            ],
        )


def schedule_text(chosen: Any) -> str:
    """Return the algorithm and its knobs of a schedule in the service's JSON."""
    if isinstance(chosen, dict) and "algorithm" in chosen:
        choices = chosen.get("choices", {})
        knobs = choices.items() if isinstance(choices, dict) else ()
        return " ".join([str(chosen["algorithm"]), *(f"{k}={v}" for k, v in knobs)])
    return "-" if chosen is None else str(chosen)


def _order(scores: OrderView | None) -> str:
    return (
        "nothing in order" if scores is None else f"{100 * scores.pairwise:.0f} % of pairs in order"
    )
