"""`tilewright plans`: the plans of a model that jobs measured as a whole, or chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from tilewright.service.cli.common import JsonOption, ModelPath, existing_file, load_settings
from tilewright.service.cli.terminal import console, say_json
from tilewright.service.units import milliseconds

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.db.storage import Storage
    from tilewright.db.stores.plans import StoredPlan


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(plans)


def plans(model: ModelPath, as_json: JsonOption = False) -> None:
    """The plans known of a model: for what, what each takes as a whole, which one is in use.

    Example: tilewright plans model.onnx
    """
    from tilewright.service.jobs.known_plan import model_digest
    from tilewright.service.storage import open_storage

    digest = model_digest(existing_file(model))
    out = console()
    storage = open_storage(load_settings())
    try:
        known = storage.plans.list(digest)
        rows = [_facts(plan, storage) for plan in known]
        if as_json:
            say_json(rows)
        elif rows:
            out.print(_table(rows))
        else:
            out.print("no job has planned this model yet")
    finally:
        storage.close()


def _facts(plan: StoredPlan, storage: Storage) -> dict[str, Any]:
    """Plain data for `json`. In use is what a confirmed verdict says."""
    import json

    from tilewright.compiler.program.build import CODEGEN_VERSION
    from tilewright.service.jobs.known_plan import plan_identity

    model = plan.model_digest, plan.target_key, plan.threads, plan.numerics
    verdict = storage.verdicts.find(plan_identity(*model, plan.dims))
    current = plan.codegen_version == CODEGEN_VERSION
    return {
        "digest": plan.digest,
        "target": storage.workloads.targets().get(plan.target_key, plan.target_key[:12]),
        "target_key": plan.target_key,
        "threads": plan.threads,
        "numerics": plan.numerics,
        "sizes": json.loads(plan.dims),
        "kernels": sum("kernel" in step for step in plan.plan["steps"]),
        "seconds": plan.run_seconds,
        "plan": None if plan.decision is None else plan.decision["name"],
        "codegen_version": plan.codegen_version,
        "codegen_is_current": current,
        "in_use": current and verdict is not None and verdict.served == plan.digest,
    }


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row a plan, the newest first."""
    from rich.text import Text

    from tilewright.service.cli.view import make_table

    columns = ("<target", "threads", "<numerics", "<sizes", "kernels", "whole", "<plan", "<")
    table = make_table(*columns)
    for row in rows:
        use = "in use" if row["in_use"] else ""
        if not row["codegen_is_current"]:
            use = f"of code generation {row['codegen_version']}"
        table.add_row(
            Text(row["target"]),
            str(row["threads"]),
            row["numerics"],
            Text(" ".join(f"{name}={size}" for name, size in row["sizes"].items()) or "-"),
            str(row["kernels"]),
            milliseconds(row["seconds"]),
            Text("-" if row["plan"] is None else str(row["plan"])),
            use,
        )
    return table
