"""The commands' output about models: complete, for reports with invented numbers.

`pytest tests/golden/service --update-golden` writes the files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import RenderableType

from tests.golden.service.canned import CONDITION, LONG, RESULT, VERDICT, speed
from tests.unit.service.jobs.test_cost_models import product
from tilewright.compiler.codegen.statistics import InnerLoop
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan.costs import PlanSummary, TaskSummary
from tilewright.compiler.plan.product_types import ProductMacs
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.compiler.targets.target import known_targets
from tilewright.compiler.timings import StageTime
from tilewright.db.stores.cost_models import CostModelState, StoredCostModel
from tilewright.service.cli import replaying
from tilewright.service.cli.cost_model import _table as cost_model_table
from tilewright.service.cli.devices import device_table
from tilewright.service.cli.explain_view import assembly_text, kernel_view, report_view
from tilewright.service.cli.inspect_view import summary_view
from tilewright.service.cli.terminal import console
from tilewright.service.cli.tune_view import LineWatcher, tell
from tilewright.service.cli.view import rate_line, timings_table
from tilewright.service.jobs.evidence.verification import Verification
from tilewright.service.jobs.pipeline.run_job import JobOutcome
from tilewright.service.jobs.pipeline.tracker import Tracker
from tilewright.service.jobs.report.explain import KernelReport, ModelReport
from tilewright.service.jobs.report.replaying import Repeated
from tilewright.service.show.messages import ending_text, result_lines, verdict_text
from tilewright.service.show.progress import LiveLine, progress_line
from tilewright.service.show.text import failures_text
from tilewright.tuner.cancel import CancelToken
from tilewright.tuner.events import Ended, Finished, Progress, Recorded, Started, TaskSnapshot
from tilewright.tuner.forecast import Forecast
from tilewright.tuner.measure.roofline import Level, Speeds, TimeBound
from tilewright.tuner.protocol.measurement import Measurement, RecordKey, Status, TuningRecord
from tilewright.tuner.tasks import make_task

LOOP = InnerLoop("kernel_1", ".L2", ("vmovaps ymm0, [rax]", "vfmadd231ps ymm1, ymm0, ymm2"), 1, 2)
DEAR = KernelReport(
    number=1,
    name="matmul [red] k64",
    workload_key="a" * 64,
    operators="y = matmul(a, b)\n",
    count=3,
    serves={},
    schedule=Schedule.of("gemm", tile=4),
    tuned=True,
    nest="for i in 4\n",
    loops=(LOOP, replace(LOOP, label=".L7", spills=0, fmas=0)),
    flops=2_000_000,
    executed_flops=1e6,
    weight_bytes=4096,
    value_bytes=3_000_000,
    seconds=2e-4,
    bound=TimeBound(1e-4, 0.5e-4),
)
CHEAP = replace(
    DEAR,
    number=2,
    name="relu",
    schedule=Schedule.of("map"),
    tuned=False,
    loops=(),
    executed_flops=2_000_000,
    seconds=1e-4,
    bound=TimeBound(1e-5, 9e-5),
    count=1,
)
UNTIMED = replace(CHEAP, seconds=None, bound=None)
SPEEDS = Speeds(1.234e11, (Level("L1", 1 << 15, 4.5e11), Level("memory", 0, 1.25e10)))
REPORT = ModelReport("net", {}, "x86-64-v3", 2, "fast", "float32", (CHEAP, DEAR), SPEEDS, "a CPU")
OF_RANGE = replace(
    REPORT, sizes={"rows": 200}, kernels=(CHEAP, replace(DEAR, serves={"rows": "129..512"}))
)
ABROAD = replace(REPORT, threads=1, precision="bfloat16", kernels=(UNTIMED,), speeds=None)

SUMMARY = PlanSummary(
    name="net [red]",
    inputs=(("x", "float32[1, 4]"), ("z", "int8[2]")),
    outputs=(("y", "float32[1, 2]"),),
    operators=(("matmul", 3), ("relu", 1)),
    parameters=12_345_678,
    parameter_bytes=49_382_712,
    macs=4_100_000_000,
    flops=8_200_000,
    bytes_read=1 << 20,
    bytes_written=999,
    kernels=4,
    views=2,
    natives=0,
    controls=0,
    relayouts=1,
    arena_bytes=4096,
    tasks=(
        TaskSummary("a" * 64, ("matmul", "relu"), "y", 3, 4_000, 8_000, 2048, 1024, 0.75),
        TaskSummary("b" * 64, ("softmax", "[red]"), "z", 1, 1_000, 2_000, 512, 256, 0.25),
    ),
    products=(
        ProductMacs("uint8 x int8", 3_000_000_000),
        ProductMacs("float32", 1_100_000_000, "both factors [red] are computed"),
    ),
)

DEVICES = [
    {
        "name": "this machine",
        "targets": ["x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64", "generic"],
        "device": {
            "model": "a CPU [red]",
            "cores": 8,
            "physical_cores": 4,
            "memory_bytes": 8 << 30,
            "governor": "performance",
            "caches": [{"bytes": 1 << 15, "kind": "data"}, {"bytes": 9, "kind": "instruction"}],
        },
        "health": "",
        "speed": None,
        "condition": CONDITION,
    },
    {
        "name": "board",
        "targets": [],
        "device": {"cores": 2, "physical_cores": 2, "model": None},
        "health": "healthy",
        "speed": speed(False, False),
        "condition": None,
    },
    {
        "name": "three",
        "targets": ["a", "b", "c"],
        "device": {},
        "health": "gone",
        "speed": None,
    },
]

SCORES = {"pairwise": 0.91234, "top1": 0.8, "top5": 0.75, "recall30": 0.6, "tasks": 7}
COST_MODELS = [
    StoredCostModel(
        target_key=key * 64,
        version=version,
        state=CostModelState.PROMOTED,
        digest="d" * 64,
        feature_version=1,
        objective="rank:pairwise",
        rows=384,
        tasks=16,
        trials=1384,
        scores=SCORES,
        chance={"pairwise": 0.5, "top1": 0.1, "top5": 0.25},
        created_at=1_795_348_800.0,
        promoted_at=None,
    )
    for version, key in enumerate("ab", 1)
]

RUNS = [
    SimpleNamespace(
        id="done",
        inputs=(1, 2),
        trials=40,
        model_seconds=2e-3,
        seconds=12.34,
        ended="gain",
        forecast_gain=0.0123,
        forecast_error={"expected": 0.05, "gained": 0.04},
    ),
    SimpleNamespace(
        id="killed",
        inputs=(1,),
        trials=None,
        model_seconds=None,
        seconds=None,
        ended=None,
        forecast_gain=None,
        forecast_error=None,
    ),
]

PROGRESS: dict[str, Any] = {
    "phase": "tuning",
    "tasks_total": 5,
    "tasks_done": 4,
    "trials_budget": 100,
    "trials_done": 90,
    "default_seconds": 0.0041,
    "best_seconds": 0.0032,
    "forecast_gain": 0.05,
    "seconds_left": 90.4,
}
WAITING = {**PROGRESS, "phase": "", "best_seconds": None, "forecast_gain": None}


def sentences() -> list[str]:
    """Every way to end, and to be served."""
    screened = SimpleNamespace(candidates=12, seconds=3.0)
    finished: Any = SimpleNamespace(screened=screened, seconds_elapsed=4.5)
    idle: Any = SimpleNamespace(screened=SimpleNamespace(candidates=0, seconds=0.0))
    alone = {"comparison": None, "dropped": [], "reason": "no device"}
    full, waiting = (
        SimpleNamespace(**PROGRESS),
        SimpleNamespace(**{**WAITING, "seconds_left": None}),
    )
    return [
        *(ending_text(each, None, None) for each in Ended),
        ending_text("gain", RESULT["forecast"], RESULT["forecast_error"]),
        *(verdict_text({**VERDICT, **alone, "served": s}) for s in ("tuned", "partly", "default")),
        verdict_text(VERDICT),
        verdict_text({**VERDICT, "attestation": "two-owners", "reason": "", "served": "tuned"}),
        verdict_text({k: v for k, v in VERDICT.items() if k != "attestation"}),
        failures_text({"build_error": 2, "crash": 1}),
        failures_text({}),
        rate_line(finished),
        rate_line(idle),
        progress_line(full, {"candidates_per_second": 12.34, "workers": 0}),  # type: ignore[arg-type]
        progress_line(waiting, {"candidates_per_second": 3, "workers": 1}),  # type: ignore[arg-type]
        *result_lines(RESULT),
        *result_lines({**RESULT, "not_verified": "it is away", "workloads": None}),
        *result_lines({"end_to_end": {**VERDICT, "device": ""}}),
    ]


def listed() -> None:
    """Print the runs."""
    storage: Any = SimpleNamespace(runs=SimpleNamespace(list=lambda: RUNS))
    replaying._list(storage, console())


def repeated(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Print a run that is repeated, and its curve."""
    key = RecordKey("a" * 64, "c" * 64)
    began = TaskSnapshot(f"a product {LONG}", key, 2, 1, 0, 4e-4, 4e-4)
    went = replace(began, trials=3, best_seconds=3e-4)
    measured = Measurement(Status.OK, samples_seconds=(3e-4,))
    record = TuningRecord(key, Schedule.of("gemm", tile=4), measured, "t", "4", "0.1")
    finished = Finished((went,), (record,), 3, 2.0)
    events = (
        Started((began,), 40),
        Progress(began, 1, 40, None, 1.0, 90.0, 12.5),
        Progress(went, 3, 40, 6e-4, 2.0, 80.0, 12.5, Forecast(0.02, 30.0, 50, 6e-4)),
        Recorded(went, record),
        finished,
    )
    told = Repeated(finished, {"random": 2, "": 1}, events)
    monkeypatch.setattr("tilewright.service.jobs.report.replaying.repeat", lambda *_: told)
    nothing: Any = None
    replaying._repeat(nothing, nothing, folder / "curve.csv", console())
    console().print((folder / "curve.csv").read_text())


def tuned(speed: dict[str, Any] | None, failed: int = 0, output: str = "", **told: Any) -> None:
    """Print the output of `tune` for a run of one task."""
    task = make_task(product(8), Mode(known_targets()["x86-64-v3"]), name="product")
    state = TaskSnapshot(
        *(task.name, task.key, 1, 5, failed, 4e-4, 3e-4),
        origins=(("random", 4),) if failed else (),
        best_origin="random",
    )
    store: Any = SimpleNamespace(
        records=SimpleNamespace(count_trials=lambda job: {Status.CRASH: 2})
    )
    device: Any = SimpleNamespace(
        local_runner=SimpleNamespace(speed=speed), name="this machine", facts=None
    )
    tracker = Tracker([task], 7)
    watcher = LineWatcher(console(), LiveLine(None), store, "job", device, CancelToken())
    watcher.event(Progress(state, 5, 40, None, 1.0, 90.0, 12.5), tracker)
    finished = Finished((state,), (None,), 5, 61.23, **told)
    served: Any = SimpleNamespace(sizes={}, stages=None, open=None, notes=())
    checked: Any = Verification(1e-6, ()) if output else None
    outcome = JobOutcome((served,), tracker, finished, device, verification=checked)
    watcher.tuned(outcome)
    tell(console(), outcome.report(), Path(output) if output else None)


VIEWS: dict[str, Callable[[], RenderableType]] = {
    "explain": lambda: report_view(REPORT),
    "explain, not run here": lambda: report_view(ABROAD),
    "explain, of a range": lambda: report_view(OF_RANGE),
    "kernel of a range": lambda: kernel_view([OF_RANGE], OF_RANGE.kernels[1]),
    "kernel": lambda: kernel_view([REPORT], DEAR),
    "kernel without a loop": lambda: kernel_view([REPORT], CHEAP),
    "kernel that was not timed": lambda: kernel_view([ABROAD], UNTIMED),
    "assembly": lambda: assembly_text(DEAR),
    "inspect": lambda: summary_view(SUMMARY, {"a" * 64: "the [dear] one"}),
    "inspect, with control flow": lambda: summary_view(replace(SUMMARY, natives=2, controls=3), {}),
    "devices": lambda: device_table(DEVICES),
    "cost models": lambda: cost_model_table(COST_MODELS, {"a" * 64: "x86-64-v3"}),
    "timings": lambda: timings_table([StageTime("import", 0.0123, 2)]),
    "timings with a title": lambda: timings_table([], "Beside it"),
    "sentences": lambda: "\n".join(sentences()),
}


def test_views(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pytestconfig: pytest.Config,
) -> None:
    for name, view in VIEWS.items():
        out = console()
        out.print(f"--- {name}")
        out.print(view(), soft_wrap=name == "sentences")
        out.print()
    console().print("--- runs")
    listed()
    console().print("--- replay")
    repeated(monkeypatch, tmp_path)
    console().print("--- tune")
    tuned(speed(True, True), failed=2, reason=LONG)
    tuned(speed(True, False), output=LONG)
    tuned(None)
    text = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    path = Path(__file__).parent / "views.txt"
    if pytestconfig.getoption("--update-golden", default=False):
        path.write_text(text)
    assert path.read_text() == text
