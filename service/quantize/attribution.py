"""Attributes kernel times to the layers of a quantised model, and groups layers that share kernels.

A plan keeps the names of the model's values. A kernel belongs to the layers whose outputs it
computes, as floats or as integers, including outputs that stay inside the kernel. A kernel that
computes no layer's output belongs to the layers for which it prepares data: for example, it
quantises a layer's input. A kernel that computes no value of the model, such as a relayout, belongs
to the layers of the kernels that read its output.

Layers that share a kernel, in the float32 model or in the quantised one, cannot be timed
separately: they form one part. A layer without a kernel (a Reshape in place) joins the part of the
layer that it reads from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.compiler.plan.plan import GraphPlan, KernelStep, ViewStep
from tilewright.service.quantize.layers import Layer, Owners

Indices = frozenset[int]


@dataclass(frozen=True, slots=True)
class ModelPart:
    """Layers that are timed together, because they share kernels.

    Attributes:
        layers: the positions of the layers in the model's list of layers.
        float_seconds: the time of their kernels in one run of the float32 model; None if unknown.
        quantised_seconds: the time in one run of the quantised model; None if unknown.
    """

    layers: tuple[int, ...]
    float_seconds: float | None
    quantised_seconds: float | None

    @property
    def saved_seconds(self) -> float | None:
        """The seconds that quantising this part saves; negative if the quantised part takes longer.

        None if a time is unknown.
        """
        if self.float_seconds is None or self.quantised_seconds is None:
            return None
        return self.float_seconds - self.quantised_seconds


@dataclass(frozen=True, slots=True)
class Timed:
    """A plan with the measured times of its kernels.

    Attributes:
        plan: the plan of the float32 or the quantised model.
        seconds: the time of each kernel, in the order of `plan.kernels`.
        owners: finds the layers that compute a value.
        values: the names of all values of the model.
        tuned: the number of kernels with a tuned schedule.
    """

    plan: GraphPlan
    seconds: Sequence[float]
    owners: Owners
    values: Collection[str]
    tuned: int = 0


@dataclass(frozen=True, slots=True)
class Attribution:
    """The kernel times of the float32 and the quantised model, attributed to parts.

    A part consists of the layers that share kernels, so that only their total time can be measured.

    Attributes:
        parts: the parts with their times.
        float_elsewhere: the seconds of the float32 model's kernels that belong to no part.
        quantised_elsewhere: the seconds of the quantised model's kernels that belong to no part.
    """

    parts: tuple[ModelPart, ...]
    float_elsewhere: float | None
    quantised_elsewhere: float | None


def attribute(
    layers: Sequence[Layer],
    before: Timed | None,
    after: Timed | None,
) -> Attribution:
    """Group layers that share kernels, in either model, into parts, and compute the time of each
    part.

    If `before` or `after` is None, each layer is a part, and its times are unknown.

    Args:
        layers: the layers of the model.
        before: the timed plan of the float32 model.
        after: the timed plan of the quantised model.

    Returns:
        the parts with their times.
    """
    if before is None or after is None:
        return Attribution(
            tuple(ModelPart((i,), None, None) for i in range(len(layers))), None, None
        )
    both = [list(zip(kernel_layers(t), t.seconds, strict=True)) for t in (before, after)]
    groups = _Groups(len(layers))
    for found, _ in both[0] + both[1]:
        groups.join(found)
    timed = {index for found, _ in both[0] + both[1] for index in found}
    makers = {value: i for i, layer in enumerate(layers) for value in layer.outputs}
    for index, layer in enumerate(layers):
        sources = [makers[value] for value in layer.inputs if value in makers]
        if index not in timed and sources:
            groups.join((index, sources[0]))
    totals = [_totals(kernels, groups) for kernels in both]
    parts = tuple(
        ModelPart(members, totals[0].get(members[0], 0.0), totals[1].get(members[0], 0.0))
        for members in groups.members()
    )
    return Attribution(parts, totals[0].get(None, 0.0), totals[1].get(None, 0.0))


def kernel_layers(timed: Timed) -> list[Indices]:
    """Return, for each of `plan.kernels`, the positions of the layers to which the kernel belongs.

    A kernel in a body of a loop or branch belongs to no layer.
    """
    plan = timed.plan
    readers: dict[str, Indices] = {}
    found: dict[int, Indices] = {}
    for position in reversed(range(len(plan.steps))):
        step = plan.steps[position]
        layers: Indices = frozenset()
        match step:
            case KernelStep():
                made = [v for v in _made(plan, step) if v in timed.values]
                layers = _layers(timed, made) if made else readers.get(step.output, frozenset())
                found[id(step)] = layers
            case ViewStep():
                if step.output in timed.values:
                    layers = _layers(timed, [step.output])
                layers = layers or readers.get(step.output, frozenset())
        for value in step.inputs:
            readers[value] = readers.get(value, frozenset()) | layers
    return [found.get(id(kernel), frozenset()) for kernel in plan.kernels]


def _layers(timed: Timed, made: Iterable[str]) -> Indices:
    """Return the layers to which a kernel belongs; `made` are the values that it computes.

    A kernel belongs to the layers whose outputs it computes. If it computes no layer's output, it
    belongs to the layers for which its values prepare data (`Owners.served`).
    """
    nobody: Indices = frozenset()
    return nobody.union(*map(timed.owners.makers, made)) or nobody.union(
        *map(timed.owners.served, made)
    )


def _made(plan: GraphPlan, step: KernelStep) -> Iterable[str]:
    """Yield the values that a kernel computes: its output, and values inside the kernel."""
    inputs = set(step.inputs)
    seen = {step.output}
    pending = [step.output]
    while pending:
        value = pending.pop()
        yield value
        node = plan.graph.producer(value)
        fresh = [] if node is None else [v for v in node.inputs if v not in inputs | seen]
        seen.update(fresh)
        pending += [v for v in fresh if plan.graph.producer(v) is not None]


def _totals(
    kernels: Iterable[tuple[Indices, float]], groups: _Groups
) -> Mapping[int | None, float]:
    """Return the total seconds of each part (layers that share kernels).

    Args:
        kernels: for each kernel, the positions of its layers, and its seconds.
        groups: the positions of the layers of each part.

    Returns:
        the seconds by the position of the part's first layer. The key None has the seconds of
        kernels that belong to no layer.
    """
    totals: dict[int | None, float] = {}
    for found, seconds in kernels:
        key = groups.first(min(found)) if found else None
        totals[key] = totals.get(key, 0.0) + seconds
    return totals


class _Groups:
    """Disjoint sets of the integers from 0 to `count - 1`, which can be joined (union-find)."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def first(self, index: int) -> int:
        """Return the smallest element of the set that contains `index`. It identifies the set."""
        while self._parents[index] != index:
            index = self._parents[index]
        return index

    def join(self, indices: Iterable[int]) -> None:
        firsts = sorted({self.first(index) for index in indices})
        for other in firsts[1:]:
            self._parents[other] = firsts[0]

    def members(self) -> list[tuple[int, ...]]:
        sets: dict[int, list[int]] = {}
        for index in range(len(self._parents)):
            sets.setdefault(self.first(index), []).append(index)
        return [tuple(each) for each in sets.values()]
