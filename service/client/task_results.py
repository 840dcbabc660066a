"""Results of the client about tasks and workloads: code, predicted times, trials and records."""

from __future__ import annotations

from tilewright.service.api.schemas.jobs import CodeView, PredictionsView
from tilewright.service.api.schemas.records import StoredRecordView
from tilewright.service.api.schemas.resources import TrialView
from tilewright.service.show import notebook
from tilewright.service.show.job_charts import prediction_charts
from tilewright.service.show.table import table
from tilewright.service.show.tables import kernels, records
from tilewright.service.show.text import schedule_text


class Code(CodeView):
    """The code of a task's schedule. A notebook shows its loop nest and assembly."""

    def _repr_html_(self) -> str:
        facts = (
            f"{self.instructions:,} instructions, {self.fmas:,} multiply-adds, "
            f"{self.spills:,} spills, {self.registers} of {self.all_registers} vector registers"
        )
        return notebook.section(
            schedule_text(self.schedule),
            notebook.paragraph(facts),
            notebook.table(table(kernels.LOOPS, self.loops)) if self.loops else "",
            notebook.listing("loop nest", self.nest),
            notebook.listing("assembly", self.assembly),
        )


class Predictions(PredictionsView):
    """Predicted and measured times of a task's newest trials. A notebook shows them as charts."""

    def _repr_html_(self) -> str:
        charts = map(notebook.chart, prediction_charts(self))
        return "".join(charts) + (notebook.paragraph(self.refusal) if self.refusal else "")


class Trials(list[TrialView]):
    """A list of trials, the newest first. A notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return notebook.table(table(records.TRIALS, self))


class Records(list[StoredRecordView]):
    """A list of tuning records, the newest first. A notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return notebook.table(table(records.NOTEBOOK, self))
