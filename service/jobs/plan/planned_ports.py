"""Derives the inputs and outputs of an artifact from the plans of a model at several sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.compiler.errors import InvalidArgumentError
from tilewright.compiler.frontend.dimensions import model_ports
from tilewright.compiler.frontend.model_file import read_model
from tilewright.compiler.runtime.ports import Dims, ModelPorts
from tilewright.service.jobs.plan.planning import Planned


def open_ports(planned: Sequence[Planned], *, pad: bool) -> ModelPorts | None:
    """Return the inputs and outputs of a model that is compiled for several sizes.

    Their shapes have a name for each dimension whose size differs between the plans.

    Args:
        planned: the plans of the model, one per size.
        pad: whether the artifact pads inputs of other sizes.

    Returns:
        the inputs and outputs; None if no dimension varies.

    Raises:
        InvalidArgumentError: if `pad` is set, but no dimension varies or the model has
            data-dependent sizes; or if several sizes are given for a dimension that the model
            fixes.
    """
    first = planned[0]
    if first.stages is not None:
        return _staged_ports(first, pad=pad)
    names = dict(first.sizes)
    if not names:
        if pad:
            raise InvalidArgumentError(
                "nothing can be padded with one size: give several, or omit --pad"
            )
        return None
    fixed = {n: s for n, s in (first.request.dims or {}).items() if n not in names}
    ports = model_ports(read_model(first.request.model).proto.graph).fixed(fixed)
    if not ports.open:
        raise InvalidArgumentError(
            f"dimension '{next(iter(names))}' is given several sizes, "
            "but the model leaves no dimension open"
        )
    outputs = {name: _as_made(name, dims, planned) for name, dims in ports.outputs.items()}
    ports = replace(ports, outputs=outputs, pad=pad)
    if first.open is not None:
        ports = replace(ports, ranges=first.open.implied, hints=first.open.hinted)
    ports.check_padding()
    return ports


def _staged_ports(first: Planned, *, pad: bool) -> ModelPorts:
    if pad:
        raise InvalidArgumentError("inputs of a model whose data decide sizes cannot be padded")
    assert first.stages is not None
    ports = model_ports(read_model(first.request.model).proto.graph)
    reads = {crossing.name: crossing.dims for crossing in first.stages.reads.crossings}
    return replace(ports, inputs={name: reads[name] for name in ports.inputs})


def _as_made(name: str, dims: Dims, planned: Sequence[Planned]) -> Dims:
    """Return the declared shape of an output, with -1 for each size that contradicts a plan.

    If the declaration and the plans differ in the number of dimensions, all sizes are -1. The shape
    is returned unchanged if a plan lacks the output.

    Args:
        name: the name of the output.
        dims: the declared shape: sizes and names of dimensions.
        planned: the plans of the model.
    """
    if any(name not in each.graph.types for each in planned):
        return dims
    shapes = [(each.graph.types[name].shape, dict(each.sizes)) for each in planned]
    rank = len(shapes[0][0])
    if len(dims) != rank:
        return (-1,) * rank
    return tuple(
        dim if all(shape[position] == sizes.get(str(dim), dim) for shape, sizes in shapes) else -1
        for position, dim in enumerate(dims)
    )
