"""`tilewright plans`: the plans of a model that jobs measured as a whole, or chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from service.cli.common import ModelPath, existing_file, load_settings, milliseconds
from service.cli.terminal import console

if TYPE_CHECKING:
    from rich.table import Table

    from db.storage import Storage
    from db.stores.plans import StoredPlan


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(plans)


def plans(model: ModelPath) -> None:
    """The plans known of a model: for what, what each takes as a whole, which one is in use."""
    from service.jobs.known_plan import model_digest
    from service.storage import open_storage

    digest = model_digest(existing_file(model))
    out = console()
    storage = open_storage(load_settings())
    try:
        known = storage.plans.list(digest)
        if known:
            out.print(_table(known, storage))
        else:
            out.print("no job has planned this model yet")
    finally:
        storage.close()


def _table(known: Sequence[StoredPlan], storage: Storage) -> Table:
    """One row a plan, the newest first. In use is what a confirmed verdict says."""
    import json

    from rich.text import Text

    from compiler.build import CODEGEN_VERSION
    from service.cli.view import make_table
    from service.jobs.known_plan import plan_identity

    columns = ("<target", "threads", "<numerics", "<sizes", "kernels", "whole", "<plan", "<")
    table = make_table(*columns)
    targets = storage.workloads.targets()
    for plan in known:
        model = plan.model_digest, plan.target_key, plan.threads, plan.numerics
        verdict = storage.verdicts.find(plan_identity(*model, plan.dims))
        use = ""
        if plan.codegen_version != CODEGEN_VERSION:
            use = f"of code generation {plan.codegen_version}"
        elif verdict is not None and verdict.served == plan.digest:
            use = "in use"
        sizes = json.loads(plan.dims)
        table.add_row(
            Text(targets.get(plan.target_key, plan.target_key[:12])),
            str(plan.threads),
            plan.numerics,
            Text(" ".join(f"{name}={size}" for name, size in sizes.items()) or "-"),
            str(sum("kernel" in step for step in plan.plan["steps"])),
            milliseconds(plan.run_seconds),
            Text("-" if plan.decision is None else str(plan.decision["name"])),
            use,
        )
    return table
