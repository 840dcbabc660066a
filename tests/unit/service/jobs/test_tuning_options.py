"""No option of a tuning run is silently ignored, and a run can be repeated from the database."""

from __future__ import annotations

import csv
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.command_tree import COMMANDS
from tilewright.compiler.program.build import CODEGEN_VERSION
from tilewright.compiler.schedule.schedule import Schedule
from tilewright.db.stores.retention import Retention
from tilewright.service.api.schemas.jobs import JobRequest, JobView
from tilewright.service.cli import run as run_cli
from tilewright.service.dashboard.commands import job_commands
from tilewright.service.jobs.pipeline import tuning
from tilewright.service.jobs.pipeline.job_spec import JobSpec, tune_options
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.report.replaying import load_run
from tilewright.service.option_texts import OptionError, parse_share, parse_sizes, share_text
from tilewright.service.options import JobBudget, JobOptions
from tilewright.service.settings import Settings
from tilewright.service.storage import open_storage
from tilewright.tuner import task_scheduler
from tilewright.tuner.events import Finished
from tilewright.tuner.options import TuneOptions, TuningError
from tilewright.tuner.protocol.measurement import Measurement, Phase, RecordKey, Status, Trial

OF_THE_MODEL = {
    *(
        "model",
        "target",
        "threads",
        "numerics",
        "precision",
        "dims",
        "pad",
        "samples",
        "values",
        "weight_limit",
    ),
}
OF_THE_QUEUE = {"priority", "wait_seconds"}
"""The fields that describe a job's model and its turn, not its tuning."""

CHOSEN = {
    "trials": 7,
    "seconds": 11.0,
    "seed": 13,
    "stop_gain": 0.25,
    "target_ms": 1.5,
    "strategy": "random",
    # all boolean options are inverted
    **{each.name: not each.default for each in fields(JobBudget) if each.default is False},
}


def _reached(budget: JobBudget) -> dict[str, Any]:
    options = tune_options(budget)
    assert options.target_seconds is not None
    same = {name: getattr(options, name) for name in CHOSEN if name != "target_ms"}
    return {**same, "target_ms": 1000 * options.target_seconds}


def test_every_option_of_a_job_reaches_the_loop() -> None:
    assert set(JobRequest.model_fields) - OF_THE_MODEL - OF_THE_QUEUE == set(CHOSEN)
    assert {field.name for field in fields(JobBudget)} == set(CHOSEN)
    job = JobRequest(
        model="0" * 64,
        dims={"n": "1..64@32:0.50,7", "m": [4, 5], "k": "@9"},
        pad=True,
        weight_limit=1 << 20,
        precision="bfloat16",
        **CHOSEN,
    )
    spec = JobSpec.of_options(ModelRequest(b""), job.stored())
    assert _reached(spec.options) == pytest.approx(CHOSEN)
    assert spec.options.sizes == {"n": ("1..64@32:0.5,7",), "m": (4, 5), "k": ("@9",)}
    assert (spec.options.pad, spec.options.weight_limit) == (True, 1 << 20)
    assert spec.mode.precision == spec.request.mode.precision == "bfloat16"


def test_an_option_that_nobody_knows_fails_the_job() -> None:
    with pytest.raises(TuningError, match="horoscope"):
        JobSpec.of_options(ModelRequest(b""), {"trials": 1, "horoscope": True})


@pytest.mark.parametrize(
    ("name", "stored", "read"),
    [
        ("seconds", 1e-5, 0.001),
        ("target_ms", 5e-324, 1e-6),
        ("stop_gain", 0.999, 0.99),
        ("stop_gain", None, JobBudget().stop_gain),
        ("dims", None, {}),
        ("precision", None, "float32"),
        ("seconds", 0.5, 0.5),
    ],
)
def test_a_job_that_an_earlier_release_queued_runs(name: str, stored: Any, read: Any) -> None:
    spec = JobSpec.of_options(ModelRequest(b""), {"trials": 5, name: stored})
    holder = spec.mode if name == "precision" else spec.options
    assert (getattr(holder, name), spec.options.trials) == (read, 5)
    job = JobView.model_construct(
        model_name="m.onnx",
        target="host",
        threads=1,
        numerics="fast",
        id="1f0e",
        priority=0,
        wait_seconds=None,
        artifact=None,
        options={name: stored},
    )
    assert [purpose for purpose, _ in job_commands(job, "http://s") if purpose.startswith("tune")]


@pytest.mark.parametrize(
    ("name", "stored"),
    [("seconds", 0.0), ("seconds", "1"), ("target_ms", -1.0), ("stop_gain", 1.0), ("pad", 1)],
)
def test_a_value_that_no_release_accepted_fails_the_job(name: str, stored: Any) -> None:
    with pytest.raises(TuningError, match=name):
        JobSpec.of_options(ModelRequest(b""), {name: stored})


def test_every_option_of_a_job_is_one_of_the_commands() -> None:
    for words in ("tune", "job submit"):
        options = set(CHOSEN) | {"dims", "pad", "weight_limit", "precision"}
        options |= {"samples", "values"}
        assert options <= {each.name for each in COMMANDS[words].params}


def test_defaults_are_the_same_wherever_they_are_written() -> None:
    job = JobRequest(model="0" * 64)
    assert job.job_options == JobOptions() and share_text(JobOptions().stop_gain) == "0.5%"
    assert JobSpec.of_options(ModelRequest(b""), job.stored()) == JobSpec(b"")
    assert tune_options(JobBudget()).strategy == TuneOptions().strategy


@pytest.mark.parametrize(
    ("text", "share"), [("0", 0.0), ("2%", 0.02), ("0.5%", 0.005), ("0.1", 0.1)]
)
def test_shares(text: str, share: float) -> None:
    assert parse_share("--stop-gain", text) == pytest.approx(share)


def test_hints_go_behind_the_sizes_of_a_dimension() -> None:
    assert parse_sizes(["n=4,4..64:4@8,32", "m=3"]) == {"n": (4, "4..64:4@8,32"), "m": (3,)}
    shared = parse_sizes(["n=4,4..64:4@8:0.5,32", "m=@3:2,5"])
    assert shared == {"n": (4, "4..64:4@8:0.5,32"), "m": ("@3:2,5",)}
    for text, message in (
        ("n=@3:0", r"--dim 'n=@3:0': dimension 'n': the share of hint 3 is '0'"),
        ("n=7@7", "dimension 'n' has the one size 7, which takes no hints"),
        ("n=4,@8", "hints alone next to sizes"),
        ("=@8", "expected NAME=SIZE"),
        ("batch", "--dim 'batch': expected NAME=SIZE"),
        ("n=4,x", "--dim 'n=4,x': expected NAME=SIZE"),
    ):
        with pytest.raises(OptionError, match=message):
            parse_sizes([text])


@pytest.mark.parametrize("share", [0.0, 0.005, 0.02, 0.007, 0.123456789, 1 / 3])
def test_shares_are_written_as_they_are_read(share: float) -> None:
    assert parse_share("--stop-gain", share_text(share)) == share


@pytest.mark.parametrize("text", ["", "%", "half", "100%", "1", "-1%", "nan"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(OptionError, match="--stop-gain"):
        parse_share("--stop-gain", text)


# ---- the command line


@pytest.fixture
def model(tmp_path: Path, settings: Settings) -> Path:
    """y = x @ w with 24 schedules and more."""
    weights = np.linspace(-1, 1, 64 * 48, dtype=np.float32).reshape(64, 48)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "fc")],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 48])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "small.onnx"
    opset = [helper.make_opsetid("", 17)]
    path.write_bytes(helper.make_model(graph, opset_imports=opset).SerializeToString())
    return path


@pytest.mark.usefixtures("few_children")
def test_the_commands_options_reach_the_loop(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[TuneOptions] = []

    def loop(tasks: Any, *rest: Any, **more: Any) -> Finished:
        seen.append(rest[3])
        raise TuningError("that is all")

    monkeypatch.setattr(tuning, "tune", loop)
    arguments = ["--trials", "7", "--seconds", "11", "--seed", "13", "--stop-gain", "25%"]
    arguments += ["--target-ms", "1.5", "--strategy", "random", "--unconstrained"]
    assert run_cli(["tune", str(model), *arguments]) == 1
    (options,) = seen
    assert options.unconstrained
    assert (options.trials, options.seed, options.stop_gain) == (7, 13, 0.25)
    assert (options.target_seconds, options.strategy) == (pytest.approx(0.0015), "random")
    assert options.seconds is not None and options.seconds <= 11
    assert "that is all" in capsys.readouterr().err


@pytest.mark.usefixtures("few_children")
def test_a_run_is_repeated_from_the_database(
    model: Path,
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A machine that other work slows down while it is measured has a bound that kernels reach.
    monkeypatch.setattr(task_scheduler, "AT_BOUND", -1.0)
    arguments = ["tune", str(model), "--trials", "10", "--stop-gain", "0", "--timings"]
    assert run_cli(arguments) == 0
    told = capsys.readouterr().out
    assert "the trials are spent; another 60 s is expected to gain" in told
    assert all(stage in told for stage in ("propose", "idle", "LLVM codegen", "run"))
    assert re.search(r"10 candidates screened in \d+\.\d s: \d+\.\d/s; finalists compared in", told)
    storage = open_storage(settings)
    (run,) = storage.runs.list()
    assert (run.ended, run.trials) == ("trials", 10) and run.forecast_gain is not None
    bounds = [inputs.bound_seconds for inputs in run.inputs]
    assert all(0 < bound < 1e-3 for bound in bounds), "the machine was measured"
    best = storage.records.best_record(run.inputs[0].key)
    storage.close()
    curve = tmp_path / "curve.csv"
    assert run_cli(["job", "replay", run.id, "--curve", str(curve)]) == 0
    again = capsys.readouterr().out
    assert best is not None and str(best.schedule) in again and "10 trials: as then" in again
    rows = list(csv.reader(curve.read_text().splitlines()))
    assert rows[0] == ["trials", "model_seconds", "forecast_gain"] and rows[-1][0] == "10"
    assert run_cli(["job", "replay"]) == 0
    assert run.id in capsys.readouterr().out
    # everything is known now: nothing is measured, nor is the machine
    assert run_cli(["tune", str(model), "--trials", "10"]) == 0
    assert "everything was known" in capsys.readouterr().out


def test_runs_that_cannot_be_repeated_say_why(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilewright.tuner.events import Started

    storage = open_storage(settings)
    storage.runs.start(Started((), 0, TuneOptions(job_id="open")))
    storage.close()
    assert run_cli(["job", "replay", "open"]) == 1
    assert "did not end" in capsys.readouterr().err
    assert run_cli(["job", "replay", "nothing"]) == 1
    assert "nothing" in capsys.readouterr().err


def test_a_run_whose_evidence_was_forgotten_by_age_says_so(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message does not claim that the code decides differently, which it does not."""
    from tilewright.tuner.events import Finished, Started, TaskInputs

    now = [1e6]
    storage = open_storage(settings, lambda: now[0])
    key = RecordKey("w" * 64, "t" * 64)
    schedule, measured = Schedule.of("direct", tile=4), Measurement(Status.OK, worker="w")
    kept = Trial("a", key, schedule, measured, Phase.SCREEN, "earlier", CODEGEN_VERSION)
    storage.records.add_trials([kept])
    inputs = (TaskInputs(key, "conv 3x3", 1, 1, None, 0.0),)
    options = TuneOptions(job_id="job", codegen_version=CODEGEN_VERSION)
    run_id = storage.runs.start(Started((), 1, options, inputs))
    storage.runs.finish(run_id, Finished((), (), 1, 1.0))
    now[0] += 10 * 86400.0
    assert load_run(storage.runs.get(run_id), storage).known == {key: [kept]}
    assert storage.retention.apply(Retention(trials=1.0))["trials"] == 1
    storage.close()
    assert run_cli(["job", "replay", "job"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "its evidence was retired" in said and "'conv 3x3' were forgotten by age" in said


def test_runs_of_another_code_generation_are_refused(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilewright.tuner.events import Finished, Started

    storage = open_storage(settings)
    old = storage.runs.start(Started((), 0, TuneOptions(job_id="old", codegen_version="0")))
    storage.runs.finish(old, Finished((), (), 0, 1.0))
    storage.close()
    assert run_cli(["job", "replay", "old"]) == 1
    assert "of code generation 0" in capsys.readouterr().err
