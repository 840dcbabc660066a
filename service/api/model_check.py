"""Refuse a model that cannot be tuned when it is sent, so that no job fails a minute later."""

from __future__ import annotations

from pathlib import Path

from tilewright.service.jobs.inputs.random_choices import check_draws
from tilewright.service.jobs.pipeline.job_spec import JobSpec
from tilewright.service.jobs.plan.planned_ports import open_ports
from tilewright.service.jobs.plan.stage_planning import plan_first_program


def check_model_bytes(path: Path, name: str) -> None:
    """Whether a file is an ONNX model at all: one that parses and has a graph.

    Raises:
        InvalidModelError: if it is not.
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
    """Import and plan the model as the tuner will, at the first of its sizes.

    The model is bytes, not a file: an uploaded model has no folder that external data could be read
    from.

    Raises:
        CompilerError: what is wrong, in one sentence.
    """
    first = plan_first_program(spec.request, spec.options.sizes)
    spec.check_deliverable(first)
    check_draws([first])
    open_ports([first], pad=spec.options.pad)
