"""Checks at upload and submission that reject a model before a job would fail on it."""

from __future__ import annotations

from pathlib import Path

from tilewright.service.jobs.inputs.random_choices import check_draws
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.planned_ports import open_ports
from tilewright.service.jobs.plan.segment_planning import plan_first_program


def check_model_bytes(path: Path, name: str) -> None:
    """Check that a file is an ONNX model: it parses, and it has a graph.

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
    """Check that the model of a job can be planned like in the tuner, at the first of its sizes.

    The model is given as bytes, because an uploaded model has no folder with external data.

    Raises:
        CompilerError: if the model cannot be planned; the message is one sentence.
    """
    first = plan_first_program(spec.request, spec.options.sizes)
    spec.check_deliverable(first)
    check_draws([first])
    open_ports([first], pad=spec.options.pad)
