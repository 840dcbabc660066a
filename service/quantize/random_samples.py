"""Generates random samples of a model's inputs, at the size hints of its dynamic dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tilewright.compiler.frontend.dimensions import model_ports
from tilewright.compiler.frontend.model_file import read_model
from tilewright.compiler.program.random_integers import random_integer_range
from tilewright.service.jobs.plan.planning import ModelRequest
from tilewright.service.jobs.plan.segment_planning import plan_first_program
from tilewright.service.quantize.samples import Samples, model_inputs, random_samples


def random_samples_at_hints(model: Path, given: Mapping[str, int]) -> Samples:
    """Generate random samples of a model's inputs.

    Random indices are within the bounds of their tables.

    Args:
        model: the ONNX file.
        given: sizes of dynamic dimensions. All other dimensions get the sizes at which a tuning job
            would plan the model.

    Raises:
        CompilerError: if the model does not compile.
        QuantizeError: if an input has a type that samples do not support.
    """
    graph = read_model(model).proto.graph
    ports = model_ports(graph).fixed(given)
    model_inputs(graph, ports.inputs)  # refuses unsupported inputs before planning
    planned = plan_first_program(ModelRequest(model), {n: (size,) for n, size in given.items()})
    types = planned.graph.types
    sizes = {
        dim: types[name].shape[axis]
        for name, dims in ports.inputs.items()
        for axis, dim in enumerate(dims)
        if isinstance(dim, str) and name in types
    }
    sizes = {**given, **(planned.request.dims or {}), **dict(planned.sizes), **sizes}
    inputs = model_inputs(graph, ports.fixed(sizes).inputs)
    integers = {one.name: random_integer_range(planned.graph, one.name) for one in inputs}
    return random_samples(inputs, sizes, integers)
