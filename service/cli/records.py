"""`tilewright record`: commands on the records of this machine's database."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.service.cli.common import JsonOption, UserError, load_settings, write_down
from tilewright.service.cli.terminal import complain, console, say_json

if TYPE_CHECKING:
    from rich.table import Table

    from tilewright.db.storage import Storage
    from tilewright.db.stores.claim_rows import StoredRecord
    from tilewright.service.api.schemas.records import StoredRecordView

TargetFilter = Annotated[
    str | None, typer.Option("--target", help="Only of this target (name or key)")
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option("--trust", metavar="KEY", help="Public key whose records are trusted; repeatable"),
]
LinesPath = Annotated[Path, typer.Argument(metavar="FILE", help="Signed lines, as `export` writes")]


def list_records(
    target: TargetFilter = None,
    worker: Annotated[
        str | None, typer.Option("--worker", help="Only records of this worker (name or id)")
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", help="provisional, confirmed, superseded, disputed or withdrawn only"
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=100_000, help="Maximum number of rows")
    ] = 50,
    as_json: JsonOption = False,
) -> None:
    """List tuning records, the newest first.

    Example: tilewright record list --target znver4 --state disputed
    """
    from tilewright.compiler.errors import unknown_choice
    from tilewright.db.review_state import ReviewState
    from tilewright.service.jobs.device.targets import target_key
    from tilewright.service.jobs.evidence.withdrawal import worker_names

    try:
        wanted = None if state is None else ReviewState(state)
    except ValueError:
        raise UserError(unknown_choice("--state", state, ReviewState)) from None
    with _storage() as storage:
        names = [None] if worker is None else sorted(worker_names(storage, [worker]))
        found: list[StoredRecord] = []
        for name in names:
            found += storage.ledger.list(
                target_key=None if target is None else target_key(target),
                worker=name,
                state=wanted,
                limit=limit,
            )
        found.sort(key=lambda one: -one.stored_at)
        views = _views(found[:limit], storage, every_name=as_json)
        if as_json:
            say_json(views)
        else:
            console().print(_table(views, storage))


def withdraw(
    record: Annotated[
        list[str] | None, typer.Option("--record", metavar="ID", help="A record; repeatable")
    ] = None,
    worker: Annotated[
        list[str] | None,
        typer.Option("--worker", help="All records of a worker (name or id); repeatable"),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the records")] = "",
    as_json: JsonOption = False,
) -> None:
    """Withdraw the records of a faulty device. Jobs that used them are notified.

    Example: tilewright record withdraw --worker board --reason "it throttles"
    """
    from tilewright.db.stores.audit import Action
    from tilewright.service.jobs.evidence.withdrawal import withdraw_records

    if not record and not worker:
        raise UserError("nothing to withdraw: give --record or --worker")
    with _storage() as storage, storage.together():
        done = withdraw_records(
            storage, reason or "withdrawn", record_ids=record or (), workers=worker or ()
        )
        taken = done.withdrawn
        write_down(
            storage.audit,
            "record withdraw",
            Action.RECORDS_WITHDRAWN,
            ", ".join((*taken.named, *(worker or ()))),
            reason=reason,
            records=[one.id for one in taken.records],
            trials=taken.trials,
        )
    if as_json:
        from tilewright.service.api.record_views import withdraw_view

        say_json(withdraw_view(done))
        return
    console().print(
        f"withdrawn: {len(taken.records)} records, {taken.trials} trials; "
        f"{len(taken.restored)} earlier records are served again",
        soft_wrap=True,
    )
    if done.notified:
        console().print(f"built on it, and notified: {', '.join(done.notified)}", soft_wrap=True)


def export(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output without")
    ] = None,
    target: TargetFilter = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --output: print what was written as JSON")
    ] = False,
) -> None:
    """Write one signed JSON line for each tuning record that lookups return.

    Example: tilewright record export -o ours.jsonl --target znver4
    """
    from tilewright.service.jobs.device.targets import target_key
    from tilewright.service.jobs.knowledge.record_exchange import export_records
    from tilewright.service.signing import signing_key

    if as_json and output is None:
        raise UserError("--json describes the file that --output names: give --output as well")
    signer = signing_key(load_settings().signing_key_file)
    count = 0
    with _storage() as storage:
        lines = export_records(
            storage, signer, target_key=None if target is None else target_key(target)
        )
        if output is None:
            for line in lines:
                sys.stdout.write(line + "\n")
            return
        with output.open("w", encoding="utf-8") as file:
            for count, line in enumerate(lines, 1):  # noqa: B007
                file.write(line + "\n")
    if as_json:
        say_json({"output": str(output), "records": count, "public_key": signer.public})
    else:
        console().print(f"{count} records, signed by {signer.public}", soft_wrap=True)


def import_(path: LinesPath, trust: TrustOption = None, as_json: JsonOption = False) -> None:
    """Import signed records of a trusted service.

    Example: tilewright record import theirs.jsonl --trust KEY
    """
    from tilewright.db.stores.audit import Action
    from tilewright.service.jobs.knowledge.record_exchange import Imported, import_records

    trusted = _trusted(trust)
    with _storage() as storage, _lines(path) as lines:

        def note(done: Imported) -> None:
            write_down(
                storage.audit, "record import", Action.RECORDS_IMPORTED, path.name, **done.counts
            )

        done = import_records(lines, storage, trusted, note)
    if as_json:
        from tilewright.service.api.record_views import import_view

        say_json(import_view(done))
    console(as_json).print(
        f"{done.served} are served, {done.slower} are slower than known records, "
        f"{done.known} were here before, {len(done.refused)} were refused",
        soft_wrap=True,
    )
    _refuse(path, done.refused)


def verify(path: LinesPath, trust: TrustOption = None, as_json: JsonOption = False) -> None:
    """Check the signatures and the contents of signed records, without an import.

    Example: tilewright record verify theirs.jsonl --trust KEY
    """
    from tilewright.service.jobs.knowledge.record_exchange import checked_lines
    from tilewright.service.jobs.knowledge.record_lines import RecordLineError

    good, refused = 0, []
    with _lines(path) as lines:
        for number, line in checked_lines(lines, _trusted(trust)):
            if isinstance(line, RecordLineError):
                refused.append((number, str(line)))
            else:
                good += 1
    if as_json:
        say_json({"hold": good, "refused": [{"line": n, "reason": why} for n, why in refused]})
    console(as_json).print(f"{good} of {good + len(refused)} records hold", soft_wrap=True)
    _refuse(path, refused)


def key(as_json: JsonOption = False) -> None:
    """Print the public key of the key with which this machine signs exported records.

    Example: tilewright record key
    """
    from tilewright.service.signing import signing_key

    public = signing_key(load_settings().signing_key_file).public
    if as_json:
        say_json({"public_key": public})
    else:
        console().print(public, soft_wrap=True)


def _trusted(more: Sequence[str] | None) -> set[str]:
    from tilewright.service.signing import is_public_key, signing_key

    settings = load_settings()
    for text in (*settings.trusted_keys, *(more or ())):
        if not is_public_key(text):
            raise UserError(f"'{text}' is not a public key (32 bytes in base64)")
    own = signing_key(settings.signing_key_file).public
    return {own, *settings.trusted_keys, *(more or ())}


def _refuse(path: Path, refused: Sequence[tuple[int, str]]) -> None:
    for number, reason in refused[:10]:
        complain(f"{path}:{number}: {reason}")
    if refused:
        raise UserError(f"{len(refused)} lines of '{path}' were refused")


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[str]]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        yield iter(file)


@contextmanager
def _storage() -> Iterator[Storage]:
    from tilewright.service.storage import open_storage

    storage = open_storage(load_settings())
    try:
        yield storage
    finally:
        storage.close()


def _views(
    records: Sequence[StoredRecord], storage: Storage, *, every_name: bool
) -> list[StoredRecordView]:
    """Convert tuning records to response bodies of the REST interface, with their workloads' names.

    The names are computed and stored on first use. If `every_name` is true, all missing names are
    computed first. Otherwise only a limited number of them is computed, so that the call is fast.
    """
    from tilewright.service.api.record_views import stored_record_view
    from tilewright.service.jobs.knowledge.families import name_workloads

    while name_workloads(storage) and every_name:
        pass
    keys = [one.record.key.workload_key for one in records]
    called = storage.shapes.names(keys)
    pairs = zip(records, keys, strict=True)
    return [stored_record_view(one, called.get(key, "")) for one, key in pairs]


def _table(views: Sequence[StoredRecordView], storage: Storage) -> Table:
    from tilewright.service.show.console import rich_table
    from tilewright.service.show.table import table
    from tilewright.service.show.tables import records

    workers = {worker.id: worker.name for worker in storage.workers.list()}
    where = (records.target(storage.workloads.targets()), records.THREADS, records.TIME)
    who = (records.ATTESTATION, records.worker(workers))
    what = (records.ID, records.STATE, records.NAME, records.KEY)
    described = (*what, *where, *who, records.SCHEDULE, records.REASON)
    return rich_table(table(described, views))
