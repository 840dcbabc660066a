"""Commands for who keeps the database: check, backup, restore, migrate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.common import UserError, load_settings, write_down
from service.cli.terminal import console

if TYPE_CHECKING:
    import sqlalchemy as sa

    from db.stores.blob_bytes import BlobBytes


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    group = typer.Typer(
        help="The database that the settings name, and its blobs.", no_args_is_help=True
    )
    group.command()(check)
    group.command()(backup)
    group.command()(restore)
    group.command()(migrate)
    app.add_typer(group, name="db")


def check(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every blob and compute its digest")
    ] = False,
) -> None:
    """Compare rows, references and blobs; status 1 if something is lost, or will be."""
    from db.check import Severity
    from db.check import check as find

    errors = 0
    with _opened() as (engine, place):
        for finding in find(engine, place, deep=deep):
            errors += finding.severity is Severity.ERROR
            console().print(f"{finding.severity}: {finding.what}", soft_wrap=True, markup=False)
    if errors:
        raise UserError(f"{errors} errors")
    console().print("no errors")


def backup(file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive to write")]) -> None:
    """Save all rows and blobs in one archive; the service may go on meanwhile."""
    from db.backup import backup as save

    if file.exists():
        raise UserError(f"'{file}' is there already")
    with _opened() as (engine, place):
        manifest = save(engine, place, file)
    rows = sum(manifest.tables.values())
    console().print(
        f"{file}: {rows} rows, {manifest.blobs} blobs of {manifest.blob_bytes} bytes",
        soft_wrap=True,
        markup=False,
    )
    for digest in manifest.missing:
        console().print(f"missing: blob {digest}", soft_wrap=True)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive that `db backup` wrote")],
) -> None:
    """Fill an empty database from an archive, whichever kind of database that was made of."""
    from db.backup import restore as fill
    from db.stores.audit import Action, AuditStore

    with _opened() as (engine, place):
        manifest = fill(engine, place, file)
        write_down(
            AuditStore(engine),
            "db restore",
            Action.DATABASE_RESTORED,
            file.name,
            created_at=manifest.created_at,
            revision=manifest.revision,
        )
    rows = sum(manifest.tables.values())
    console().print(f"restored: {rows} rows, {manifest.blobs} blobs", soft_wrap=True)


def migrate() -> None:
    """Bring the database to this release's schema, as `serve` does when it starts."""
    from db.migrate import current_revision, upgrade

    with _opened() as (engine, _):
        before = current_revision(engine)
        upgrade(engine)
        after = current_revision(engine)
    said = f"was at {after} already" if before == after else f"is at {after}, was at {before}"
    console().print(f"the database {said}", soft_wrap=True)


@contextmanager
def _opened() -> Iterator[tuple[sa.Engine, BlobBytes]]:
    """The database as it is, and where its blobs lie."""
    from db.engine import open_engine
    from db.storage import open_place

    settings = load_settings()
    engine = open_engine(settings.effective_database_url)
    try:
        yield engine, open_place(settings.blob_folder, settings.blob_url)
    finally:
        engine.dispose()
