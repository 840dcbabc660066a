"""Commands that maintain the database: check, backup, restore, migrate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import JsonOption, UserError, load_settings, write_down
from tilewright.service.cli.terminal import console, say_json

if TYPE_CHECKING:
    import sqlalchemy as sa

    from tilewright.db.stores.blob_bytes import BlobBytes


def check(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every blob and compute its digest")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check rows, references and blobs. The status is 1 if data is lost, or will be.

    Example: tilewright db check --deep
    """
    from tilewright.db.check import Severity
    from tilewright.db.check import check as find

    findings = []
    with _opened() as (engine, place):
        for finding in find(engine, place, deep=deep):
            findings.append(finding)
            console(as_json).print(
                f"{finding.severity}: {finding.what}", soft_wrap=True, markup=False
            )
    if as_json:
        say_json(findings)
    if errors := sum(finding.severity is Severity.ERROR for finding in findings):
        raise UserError(f"the check found {errors} errors, listed above")
    console(as_json).print("no errors")


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive to write")],
    as_json: JsonOption = False,
) -> None:
    """Save all rows and blobs in one archive. The service may run meanwhile.

    Example: tilewright db backup tilewright.tar
    """
    from tilewright.db.backup import backup as save

    if file.exists():
        raise UserError(f"'{file}' exists already")
    with _opened() as (engine, place):
        manifest = save(engine, place, file)
    if as_json:
        say_json(manifest)
        return
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
    as_json: JsonOption = False,
) -> None:
    """Fill an empty database from an archive of any kind of database.

    Example: tilewright db restore tilewright.tar
    """
    from tilewright.db.backup import restore as fill
    from tilewright.db.stores.audit import Action, AuditStore

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
    if as_json:
        say_json(manifest)
        return
    rows = sum(manifest.tables.values())
    console().print(f"restored: {rows} rows, {manifest.blobs} blobs", soft_wrap=True)


def migrate(as_json: JsonOption = False) -> None:
    """Bring the database to this release's schema, as `server run` does when it starts.

    Example: tilewright db migrate
    """
    from tilewright.db.migrate import current_revision, upgrade

    with _opened() as (engine, _):
        before = current_revision(engine)
        upgrade(engine)
        after = current_revision(engine)
    if as_json:
        say_json({"before": before, "after": after})
        return
    said = f"was at {after} already" if before == after else f"is at {after}, was at {before}"
    console().print(f"the database {said}", soft_wrap=True)


@contextmanager
def _opened() -> Iterator[tuple[sa.Engine, BlobBytes]]:
    """Yield the engine of the configured database and its blob store.

    The schema is not migrated.
    """
    from tilewright.db.engine import open_engine
    from tilewright.db.storage import open_place

    settings = load_settings()
    engine = open_engine(settings.effective_database_url)
    try:
        yield engine, open_place(settings.blob_folder, settings.blob_url)
    finally:
        engine.dispose()
