"""Tasks on which cost models are evaluated: of networks, and of operators with random sizes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import operators
from benchmarks.models import build
from benchmarks.search_tables import heaviest_workload
from tilewright.compiler.mode import Mode
from tilewright.compiler.plan import costs
from tilewright.compiler.plan.workload import Workload
from tilewright.compiler.schedule.select import schedule_space
from tilewright.compiler.targets.target import Target
from tilewright.service.jobs.plan.planning import ModelRequest, plan_model
from tilewright.service.jobs.report.workload_facts import workload_name

NETWORKS = (
    "resnet50",
    "mobilenetv2",
    "bert-base-128",
    "squeezenet",
    "densenet121",
    "gpt2-prefill-64",
    "efficientnet-b0",
    "vgg16-features",
    "inception-v1",
    "shufflenet",
    "deit-small",
)

TASKS = 10
"""Number of tasks per network."""

DRAWN_TASKS = 90
"""Number of tasks per operator. Random sizes cost nothing, and with twice as many tasks a model
orders two more of a hundred pairs correctly."""

MOST_FLOPS = 1.5e9
LEAST_FLOPS = 2e5
"""Range of a task's operations. Larger tasks take too long, and times of smaller ones are too short
to be compared."""


LEAST_SCHEDULES = 24
"""Tasks with fewer schedules are excluded: all of them would be measured, so a ranking is
useless."""


def families(folder: Path, target: Target) -> dict[str, list[Workload]]:
    """The distinct workloads (fused subgraphs) of each family, a network or an operator.

    They are computed once, and then read from workloads.json in `folder`.
    """
    kept = folder / "workloads.json"
    if not kept.exists():
        found: dict[str, list[str]] = {}
        taken: set[str] = set()
        for name in NETWORKS:
            planned = plan_model(ModelRequest(build(name).SerializeToString()))
            new = [w for w, _ in planned.workloads if w.key not in taken and _is_fit(w, target)]
            random.Random(name).shuffle(new)
            found[name] = [w.text() for w in _various(new)]
            taken.update(w.key for w in new)
        for name, draw in DRAWN.items():
            found[name] = [w.text() for w in _drawn(name, draw, target)]
        kept.write_text(json.dumps(found, indent=1))
    return {n: [Workload.parse(t) for t in ts] for n, ts in json.loads(kept.read_text()).items()}


def _drawn(name: str, draw: Callable[[random.Random], Any], target: Target) -> list[Workload]:
    """Generate DRAWN_TASKS distinct workloads of one operator with random sizes.

    `draw` makes a model from a random generator. The generator is seeded with `name`, so every
    process gets the same workloads.
    """
    rng = random.Random(name)
    found: dict[str, Workload] = {}
    while len(found) < DRAWN_TASKS:
        workload = heaviest_workload(draw(rng))
        if _is_fit(workload, target):
            found.setdefault(workload.key, workload)
    return list(found.values())


def _size(rng: random.Random, least: int, most: int) -> int:
    """A random size in `least`..`most` with a uniform distribution of its logarithm.

    Half of the sizes are rounded down to a multiple of 16.
    """
    size = round(math.exp(rng.uniform(math.log(least), math.log(most))))
    return max(least, size // 16 * 16) if rng.random() < 0.5 else size


def _product(rng: random.Random) -> Any:
    rows = rng.choice((1, _size(rng, 2, 512)))
    return operators.matmul(rows, _size(rng, 16, 2048), _size(rng, 16, 2048))


def _batch_product(rng: random.Random) -> Any:
    rows, columns, depth = (_size(rng, 8, 256) for _ in range(3))
    return operators.matmul(rows, columns, depth, batch=rng.choice((3, 8, 12, 16)))


def _convolution(rng: random.Random) -> Any:
    kernel, stride = rng.choice((1, 3, 3, 3, 5, 7)), rng.choice((1, 1, 2))
    channels, filters = _size(rng, 3, 384), _size(rng, 8, 384)
    size = (_size(rng, 7, 80),) * 2
    return operators.conv(channels, filters, size, (kernel, kernel), (stride, stride))


def _depthwise(rng: random.Random) -> Any:
    kernel, stride = rng.choice((3, 3, 5, 7)), rng.choice((1, 2))
    channels, size = _size(rng, 16, 768), (_size(rng, 7, 112),) * 2
    return operators.conv(
        channels, channels, size, (kernel, kernel), (stride, stride), group=channels
    )


def _pool(rng: random.Random) -> Any:
    operator, kernel = rng.choice(("MaxPool", "AveragePool")), rng.choice((2, 3, 3, 5))
    size, stride = (_size(rng, 14, 112),) * 2, rng.choice((1, 2))
    return operators.pool(operator, _size(rng, 16, 512), size, (kernel, kernel), (stride, stride))


def _rows(rng: random.Random) -> Any:
    shape = (_size(rng, 8, 768), _size(rng, 32, 4096))
    draw = rng.choice(
        (
            operators.softmax,
            operators.layer_norm,
            operators.gelu,
            partial(operators.reduction, "ReduceMean"),
            partial(operators.reduction, "ReduceMax", axis=0),
        )
    )
    return draw(shape)


DRAWN: dict[str, Callable[[random.Random], Any]] = {
    "products": _product,
    "batch products": _batch_product,
    "convolutions": _convolution,
    "depthwise": _depthwise,
    "pools": _pool,
    "rows": _rows,
}
"""Functions that make a model of one operator with random sizes, by family."""


def _is_fit(workload: Workload, target: Target) -> bool:
    return (
        LEAST_FLOPS <= costs.flops(workload) <= MOST_FLOPS
        and len(schedule_space(workload, Mode(target))) >= LEAST_SCHEDULES
    )


def _various(workloads: Sequence[Workload]) -> list[Workload]:
    """Choose TASKS of the workloads, with as many combinations of operators as possible."""
    groups: dict[tuple[str, ...], dict[str, Workload]] = {}
    for workload in workloads:
        groups.setdefault(workload.operators, {}).setdefault(workload_name(workload), workload)
    chosen: list[Workload] = []
    while len(chosen) < TASKS and any(groups.values()):
        for group in groups.values():
            if group:
                chosen.append(group.popitem()[1])
    return chosen[:TASKS]
