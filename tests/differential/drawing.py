"""Strategies that all random workloads share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.graphs import Maker
from tests.kernels import as_workload
from tilewright.compiler.dtypes import DType
from tilewright.compiler.loops.layout import ROW_MAJOR, Layout, blocked
from tilewright.compiler.plan.layouts.options import channels_last
from tilewright.compiler.plan.workload import Halo, Workload

Array = np.ndarray[Any, Any]


Random = np.random.Generator


Places = dict[str, tuple[Layout, Halo]]


@dataclass(frozen=True)
class Case:
    """A workload, the arrays of its inputs, and whether its result is exact in float32."""

    workload: Workload
    arrays: tuple[Array, ...]
    exact: bool


def pick(random: Random, *values: Any) -> Any:
    return values[int(random.integers(len(values)))]


def extent(random: Random, low: int, high: int) -> int:
    """Odd sizes as likely as round ones."""
    return int(random.integers(low, high + 1))


def case(
    make: Maker,
    output: str,
    random: Random,
    weights: tuple[str, ...] = (),
    places: Places | None = None,
    *,
    exact: bool = True,
) -> Case:
    graph = make.graph(output)
    arrays = []
    for name in graph.inputs:
        kind = graph.types[name]
        if kind.dtype is DType.BOOL:
            array = random.integers(0, 2, kind.shape)
        elif exact or not kind.dtype.is_float:
            array = random.integers(-4, 5, kind.shape)
        else:
            array = random.standard_normal(kind.shape)
        arrays.append(array.astype(kind.dtype.numpy))
    return Case(as_workload(graph, weights, places), tuple(arrays), exact)


def epilogue(make: Maker, value: str, random: Random, places: Places) -> tuple[str, list[str]]:
    """Up to two exact elementwise operators behind an anchor. Returns the added weights."""
    shape, weights = make.types[value].shape, []
    place = places.get("out", (ROW_MAJOR, ()))
    if random.integers(3) == 0:
        other = make.input("residual", *shape)
        places["residual"] = (place[0], ())
        value = make("add", value, other)
    if random.integers(3) == 0:
        per_channel = (shape[1], *(1,) * (len(shape) - 2)) if len(shape) > 2 else shape[-1:]
        weights.append(make.input("scale", *per_channel))
        value = make("mul", value, "scale")
    if random.integers(2):
        value = make(pick(random, "relu", "neg", "abs"), value)
    return value, weights


def placed(
    random: Random, lanes: int, channels: int, rank: int, pads: tuple[int, ...]
) -> tuple[Layout, Halo]:
    """A random layout that the channels allow, with a halo of at least the padding or none."""
    layouts = [ROW_MAJOR, channels_last(rank)]
    if channels % lanes == 0:
        layouts += [blocked(rank, 1, lanes)] * 4
    if channels % (lanes // 2) == 0:
        layouts.append(blocked(rank, 1, lanes // 2))
    layout = pick(random, *layouts)
    halo: Halo = ()
    if random.integers(3):
        more = int(random.integers(2))
        rest = rank - 2
        halo = ((0, 0), (0, 0), *((pads[d] + more, pads[d + rest] + more) for d in range(rest)))
    return layout, halo


def named(places: Places, output: str) -> Places:
    return {output if name == "out" else name: place for name, place in places.items()}
