"""Response bodies for the partition of a model into kernels."""

from __future__ import annotations

from pydantic import Field

from tilewright.service.api.schemas.bodies import View
from tilewright.service.api.schemas.fields import Key


class StepKernelView(View):
    """A workload (a fused subgraph) that a step of the model executes.

    `runs` states how often one execution of the step executes the workload.
    """

    workload_key: Key
    runs: float = Field(description="In one run of the step", examples=[1.0])


class OnnxNodeView(View):
    name: str = Field(examples=["/layer1/conv/Conv"])
    operator: str = Field(examples=["Conv"])


class GraphStepView(View):
    """A step of a model's plan, such as a kernel.

    `x`, `y` and `width` place its box in a drawing of the graph.
    """

    kind: str = Field(
        description="input, output, kernel, native, loop, branch or refusal", examples=["kernel"]
    )
    name: str = Field(examples=["conv 3x3 +relu 64x56x56"])
    value: str = Field(description="What it makes", examples=["relu_1"])
    type: str = Field(examples=["float32 1x64x56x56"])
    layout: str = Field(description="How that lies in memory", examples=["0 1/16 2 3 1%16"])
    precision: str = Field(
        description="Types that it multiplies, or else what it makes", examples=["float32"]
    )
    operators: list[str] = Field(examples=[["conv", "relu"]])
    kernels: list[StepKernelView]
    nodes: list[OnnxNodeView] = Field(description="Nodes of the ONNX file behind it")
    more: int = Field(description="How many such nodes are left out")
    x: float
    y: float
    width: float


class GraphEdgeView(View):
    """An edge of the graph: step `start` computes a value that step `end` reads.

    `start` and `end` are positions in `GraphView.steps`.
    """

    start: int
    end: int
    path: list[list[float]] = Field(
        description="Points (x, y) that a drawing leads it through",
        examples=[[[120.0, 44.0], [120.0, 78.0]]],
    )


class GraphView(View):
    """The graph of a job's model: steps in execution order, edges, and size of its drawing."""

    steps: list[GraphStepView]
    edges: list[GraphEdgeView]
    width: float
    height: float
    staged: bool = Field(description="Whether other programs follow, of which the data decide")
