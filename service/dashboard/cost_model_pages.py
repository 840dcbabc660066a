"""Pages of cost models: the ranking scores of each version, and the version in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response

from tilewright.service.api.deps import Reader, StorageDep
from tilewright.service.api.pages import PagesDep
from tilewright.service.api.routes import cost_models as routes
from tilewright.service.api.schemas.cost_models import CostModelView
from tilewright.service.dashboard.pages import next_link, page
from tilewright.service.dashboard.session import PageRoute
from tilewright.service.jobs.device.job_target import target_names
from tilewright.service.show.chart import Chart, ChartAxis, ChartPoint, Mark, Series
from tilewright.service.show.table import Table, table
from tilewright.service.show.tables.records import HELD_OUT
from tilewright.service.show.tables.records import cost_models as columns

router = APIRouter(route_class=PageRoute)

MOST_SCORES = 6


@dataclass(frozen=True, slots=True)
class TargetModels:
    """The cost models of one target.

    Attributes:
        target: the name of the target.
        versions: a table with a row per version, the newest first.
        chart: the scores of the versions, from the oldest to the newest.
    """

    target: str
    versions: Table
    chart: Chart

    @classmethod
    def of(cls, target: str, models: Sequence[CostModelView]) -> TargetModels:
        ordered = sorted(models, key=lambda model: model.version)
        scored = (name for model in models for name in sorted(model.scores))
        names = tuple(dict.fromkeys(name for name in scored if name != HELD_OUT))[:MOST_SCORES]
        lines = [line for n, name in enumerate(names) for line in _lines(name, n, ordered)]
        span = ordered[0].version - 0.5, ordered[-1].version + 0.5
        said = f"Scores of {len(ordered)} versions, from 0 to 1, dashed the scores of chance"
        axes = ChartAxis("version", whole=True, span=span), ChartAxis("score", span=(0.0, 1.0))
        versions = table(columns(names), reversed(ordered))
        return cls(target, versions, Chart(said, *axes, tuple(lines)))


def _lines(name: str, colour: int, models: Sequence[CostModelView]) -> tuple[Series, Series]:
    """Return two lines of a chart: the score of each version, and the score of a random ranking.

    The second line is horizontal.

    Args:
        name: the name of the score.
        colour: the number of the lines' colour.
        models: the versions, the oldest first. The newest one states the score of a random ranking.
    """
    chance = models[-1].chance.get(name)
    scores = tuple(ChartPoint(model.version, model.scores.get(name)) for model in models)
    level = tuple(ChartPoint(n, chance) for n in sorted({models[0].version, models[-1].version}))
    return (
        Series(name, scores, Mark.LINE, f"c{colour}"),
        Series(f"{name}, by chance", level, Mark.LINE, f"c{colour}", dashed=True),
    )


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
        next=next_link(request, response),
    )
