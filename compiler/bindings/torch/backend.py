"""The backend for `torch.compile`, which dynamo finds by the entry point
`torch_dynamo_backends`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext

from tilewright.compiler.bindings.torch.decomposed import DECOMPOSITIONS
from tilewright.compiler.bindings.torch.graph_function import GraphFunction
from tilewright.compiler.bindings.torch.options import BackendOptions
from tilewright.compiler.bindings.torch.translation import rules
from tilewright.compiler.errors import ModelWarning


def tilewright(
    graph: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that dynamo captured, for inference.

        model = torch.compile(model.eval(), backend="tilewright")
        with torch.no_grad():
            model(x)

    A graph that needs gradients runs in PyTorch's eager mode. An operator that cannot be compiled
    also runs in PyTorch, and the rest of its graph is compiled. A warning reports each case.

    Args:
        graph: the graph that dynamo captured.
        example_inputs: the arguments of the first call.
        options: the fields of `BackendOptions` by name.
        mode: accepted and ignored.

    Returns:
        A function with the graph's inputs as arguments and its outputs as results.

    Raises:
        InvalidArgumentError: if an option is unknown, or its value is invalid.
    """
    chosen = BackendOptions.of(options)
    if torch.is_grad_enabled() and any(
        isinstance(each, torch.Tensor) and each.requires_grad for each in example_inputs
    ):
        warnings.warn(
            "a graph runs in PyTorch's eager mode, since it needs gradients: call the model under "
            "torch.no_grad() or torch.inference_mode()",
            ModelWarning,
            stacklevel=2,
        )
        forward: Callable[..., Any] = graph.forward
        return forward

    def compiled(flat: fx.GraphModule, _: Sequence[Any]) -> GraphFunction:
        context = TracingContext.get()
        known = context.fw_metadata
        mutated = {k for k, info in enumerate(known.input_info) if info.mutates_data}
        weights = set(known.static_input_indices) - mutated
        shapes = context.fake_mode.shape_env
        ranges = {} if shapes is None else shapes.var_to_range
        return GraphFunction(flat, weights, ranges, chosen)

    traced = aot_autograd(
        fw_compiler=compiled, inference_compiler=compiled, decompositions=decompositions()
    )
    found: Callable[..., Any] = traced(graph, example_inputs)
    return found


@cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return decomposition functions for ATen operators: PyTorch's, and those of this package.

    The keys are operators. Operators with a translation rule to ONNX have no decomposition.
    """
    known = rules()
    theirs = {op: way for op, way in core_aten_decompositions().items() if op not in known}
    return {**theirs, **DECOMPOSITIONS}
