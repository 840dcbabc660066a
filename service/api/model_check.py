"""Checks that reject an invalid model at upload or submission, before a job fails because of it."""

from __future__ import annotations

from pathlib import Path

from tilewright.service.jobs.inputs.random_choices import check_draws
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.planned_ports import open_ports
from tilewright.service.jobs.plan.segment_planning import plan_first_program


def check_model_bytes(path: Path, name: str) -> None:
    """Check that a file is an ONNX model: it can be parsed, and it has a graph and an opset.

    `name` names the model in error messages.

    Raises:
        InvalidModelError: if the file is not an ONNX model.
    """
    import onnx

    from tilewright.compiler.errors import InvalidModelError

    if path.stat().st_size == 0:
        raise InvalidModelError(f"model '{name}' is empty")
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise InvalidModelError(f"model '{name}' is not an ONNX file: {error}") from error
    if not model.HasField("graph") or not model.opset_import:
        raise InvalidModelError(f"model '{name}' is not an ONNX model: it has no graph or no opset")


def check_job(spec: JobSpec) -> None:
    """Check that the tuner will be able to partition a job's model into workloads to tune.

    The check runs the tuner's own code, for the first combination of sizes that the job tunes.
    `spec` must contain the model as bytes: an uploaded model has no folder with external data.

    Raises:
        CompilerError: if the model cannot be partitioned; the message is one sentence.
    """
    first = plan_first_program(spec.request, spec.options.sizes)
    spec.check_deliverable(first)
    check_draws([first])
    open_ports([first], pad=spec.options.pad)
