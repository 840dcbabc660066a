"""`tilewright cost-model`: commands on the cost models of this machine's database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import JsonOption, TargetOption, UserError, load_settings
from tilewright.service.cli.terminal import console, say_json

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.db.storage import Storage
    from tilewright.db.stores.cost_models import StoredCostModel


def list_models(
    target: Annotated[
        str | None, typer.Option("--target", help="Only of this target (name or key)")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the versions of cost models, the newest first.

    Example: tilewright cost-model list --target host
    """
    from tilewright.service.jobs.device.targets import target_key

    storage = _storage()
    models = storage.cost_models.list(None if target is None else target_key(target))
    if as_json:
        _tell(models)
    else:
        console().print(_table(models, storage.workloads.targets()))
    storage.close()


def train(target: TargetOption = "host", as_json: JsonOption = False) -> None:
    """Train a version on all trials of a target, and promote it if it is better.

    Example: tilewright cost-model train --target znver4
    """
    from tilewright.service.jobs.device.targets import target_key
    from tilewright.service.jobs.knowledge.cost_models import describe, train_cost_model

    storage = _storage()
    trained = train_cost_model(storage, target_key(target))
    storage.close()
    if trained is None:
        raise UserError(
            f"target '{target}' has too few tuned tasks that this release can read, to learn from "
            "and to judge by"
        )
    if as_json:
        _tell([trained.model])
    else:
        console().print(describe(trained), soft_wrap=True)


def promote(
    version: Annotated[int, typer.Argument(min=1, help="Version, as `list` shows it")],
    target: TargetOption = "host",
    as_json: JsonOption = False,
) -> None:
    """Promote a version: later tuning runs start from it.

    Example: tilewright cost-model promote 3
    """
    from tilewright.service.jobs.device.targets import target_key

    storage = _storage()
    model = storage.cost_models.promote(target_key(target), version)
    storage.close()
    if as_json:
        _tell([model])
    else:
        console().print(f"version {model.version} is promoted")


def rollback(target: TargetOption = "host", as_json: JsonOption = False) -> None:
    """Promote again the version that was in use before.

    Example: tilewright cost-model rollback --target znver4
    """
    from tilewright.service.jobs.device.targets import target_key

    storage = _storage()
    model = storage.cost_models.roll_back(target_key(target))
    storage.close()
    if as_json:
        _tell([model])
    else:
        console().print(f"version {model.version} is promoted again")


def _tell(models: Sequence[StoredCostModel]) -> None:
    from tilewright.service.api.views import cost_model_view

    say_json([cost_model_view(model) for model in models])


def _storage() -> Storage:
    from tilewright.service.storage import open_storage

    return open_storage(load_settings())


def _table(models: Sequence[StoredCostModel], names: Mapping[str, str]) -> Table:
    from tilewright.service.api.schemas.cost_models import CostModelView
    from tilewright.service.api.views import cost_model_view
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import CellKind, Column, table
    from tilewright.service.show.tables.records import MEANINGS, cost_models

    def chance(model: CostModelView) -> str:
        return " ".join(f"{model.chance[name]:.3f}" for name in ("pairwise", "top1", "top5"))

    target = Column[CostModelView](
        "target", lambda model: names.get(model.target_key, model.target_key[:12]), CellKind.TEXT
    )
    described = (target, *cost_models(MEANINGS), Column[CostModelView]("by chance", chance))
    return rich_table(table(described, map(cost_model_view, models)))
