"""Pages of cost models: how well each version ranks, and which version tuning runs start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fastapi import APIRouter, Request, Response

from tilewright.service.api.deps import Reader, StorageDep
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.routes import cost_models as routes
from tilewright.service.api.schemas.cost_models import CostModelView
from tilewright.service.dashboard.pages import next_link, page
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.jobs.device.job_target import target_names
from tilewright.service.units import finite

router = APIRouter(route_class=PageRoute)

WIDTH, HEIGHT = 640.0, 160.0
MOST_SCORES = 6

HELD_OUT = "tasks"
"""Key of the number of held-out tasks over which scores are averaged. It is not a score itself."""

MEANINGS = {
    "pairwise": "share of pairs of candidates that it puts in order",
    "top1": "the fastest time over that of its first pick",
    "top5": "the fastest time over the fastest of its first five picks",
    "recall30": "share of the fastest 30 that are among its first 30 picks",
}


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One score per version, the oldest first: (x, y, version, value), and the score of chance."""

    name: str
    points: tuple[tuple[float, float, int, float], ...]
    path: str
    chance: float | None
    colour: int
    meaning: str


@dataclass(frozen=True, slots=True)
class TargetModels:
    """The versions for one target, the newest first, and lines of their scores, from 0 to 1."""

    target: str
    models: tuple[CostModelView, ...]
    lines: tuple[ScoreLine, ...]

    @classmethod
    def of(cls, target: str, models: Sequence[CostModelView]) -> TargetModels:
        ordered = sorted(models, key=lambda model: model.version)
        told = (name for model in models for name in sorted(model.scores))
        names = dict.fromkeys(name for name in told if name != HELD_OUT)
        lines = (_line(name, n, ordered) for n, name in enumerate(list(names)[:MOST_SCORES]))
        return cls(target, tuple(reversed(ordered)), tuple(line for line in lines if line.points))


def _line(name: str, colour: int, models: Sequence[CostModelView]) -> ScoreLine:
    step = WIDTH / max(1, len(models) - 1)
    points = []
    for n, model in enumerate(models):
        value = finite(model.scores.get(name))
        if value is not None:
            y = HEIGHT * (1.0 - min(1.0, max(0.0, value)))
            points.append((n * step, y, model.version, value))
    parts = [
        f"M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}" for (ax, ay, *_), (bx, by, *_) in pairwise(points)
    ]
    chance = finite(models[-1].chance.get(name))
    level = None if chance is None else HEIGHT * (1.0 - min(1.0, max(0.0, chance)))
    meaning = MEANINGS.get(name, name)
    return ScoreLine(name, tuple(points), "".join(parts), level, colour, meaning)


@router.get("/cost-models")
def cost_models(
    request: Request, response: Response, storage: StorageDep, token: Reader, pages: PagesDep
) -> Response:
    found = routes.list_cost_models(storage, token, pages)
    names: Mapping[str, str] = target_names(storage)
    by_target: dict[str, list[CostModelView]] = defaultdict(list)
    for model in found:
        by_target[model.target_key].append(model)
    return page(
        request,
        "cost_models.html",
        targets=[TargetModels.of(names.get(k, k[:12]), v) for k, v in by_target.items()],
        width=WIDTH,
        height=HEIGHT,
        held_out=HELD_OUT,
        next=next_link(request, response),
    )
