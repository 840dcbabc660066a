"""Backup and restore of the whole database: one tar archive with all rows and blobs.

    manifest.json        format number, schema revision, time of the backup, number of rows per
                         table, number and bytes of the blobs
    tables/NAME.jsonl    the first line lists the column names; every other line is one row, a JSON
                         array in that order; bytes are base64
    blobs/DIGEST         the bytes of a blob

SQLite and PostgreSQL share this format, so a backup of either can be restored into the other. An
archive of an earlier schema revision is restored at that revision and then migrated.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa

from tilewright.db.clock import Clock, system_clock
from tilewright.db.engine import translated_errors, writing
from tilewright.db.errors import DatabaseError, NotFoundError, SchemaVersionError
from tilewright.db.migrate import current_revision, head_revision, require_known, upgrade
from tilewright.db.models import Base
from tilewright.db.stores.blob_bytes import CHUNK_BYTES, BlobBytes, os_errors, stage

FORMAT = 1

_ROWS = 500
_MANIFEST, _TABLES, _BLOBS = "manifest.json", "tables/", "blobs/"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The table of contents of an archive, stored in it as `manifest.json`.

    Attributes:
        format: the version number of the archive format.
        revision: the schema revision of the database.
        created_at: the time of the backup, in seconds since the epoch.
        tables: number of rows per table.
        blobs: number of blobs in the archive.
        blob_bytes: total size of these blobs.
        missing: digests of blobs that the database lists, but whose bytes were not found.
    """

    format: int
    revision: str
    created_at: float
    tables: Mapping[str, int]  # rows
    blobs: int
    blob_bytes: int
    missing: tuple[str, ...]  # blobs that have a row and no bytes


class NotEmptyError(DatabaseError):
    """The database has rows. A backup can be restored only into an empty database."""


class BackupError(DatabaseError):
    """The file is not a backup archive, or it is damaged. No row was restored."""


def backup(
    engine: sa.Engine, place: BlobBytes, file: Path, clock: Clock = system_clock
) -> Manifest:
    """Save the rows of all tables and all blobs to an archive, while the service is running.

    All rows come from one database snapshot. The archive is readable by its owner only. It is
    written to a temporary file and renamed when complete, so an interrupted backup leaves no
    partial archive.

    Args:
        engine: the database.
        place: the store of the blobs' bytes.
        file: the path of the archive. An existing file is replaced.
        clock: returns the present time for the manifest, in seconds since the epoch.

    Raises:
        SchemaVersionError: if the database is not at this release's revision.
        StorageError: if the database cannot be read, or the file cannot be written.
    """
    revision = current_revision(engine)
    if revision != head_revision():
        raise SchemaVersionError(
            f"the database is at revision '{revision}', this release is at '{head_revision()}':"
            " `tilewright db migrate` comes first"
        )
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with os_errors(file):
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os_errors(file), os.fdopen(handle, "wb") as stream:
            with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
                counts, digests = _save_rows(engine, archive)
                sizes: list[int] = []
                missing: list[str] = []
                for digest in digests:
                    try:
                        with place.local(digest) as path:
                            archive.add(path, _BLOBS + digest, filter=_plain)
                            sizes.append(path.stat().st_size)
                    except NotFoundError:  # deleted by a sweep meanwhile, or lost: see `db check`
                        missing.append(digest)
                manifest = Manifest(
                    FORMAT, revision, clock(), counts, len(sizes), sum(sizes), tuple(missing)
                )
                text = json.dumps(asdict(manifest), indent=1).encode()
                archive.addfile(_entry(_MANIFEST, len(text)), BytesIO(text))
            stream.flush()
            os.fsync(stream.fileno())
        with os_errors(file):
            os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    return manifest


def restore(engine: sa.Engine, place: BlobBytes, file: Path) -> Manifest:
    """Fill an empty database and its blob store from an archive, and migrate it to this release.

    Args:
        engine: the database.
        place: the store of the blobs' bytes.
        file: the path of the archive.

    Return the manifest of the archive.

    Raises:
        BackupError: if the file is not an archive, or a blob or table in it is damaged.
        NotEmptyError: if the database has rows.
        SchemaVersionError: if a newer release made the archive, or it is too old to be migrated.
        StorageError: if the file cannot be read, or the database or the blobs cannot be written.
    """
    with _opened(file) as archive:
        manifest = _manifest(archive, file)
        _make_ready(engine, manifest.revision)
        for entry in archive:
            if entry.name.startswith(_BLOBS):
                _restore_blob(archive, entry, place)
        tables = sa.MetaData()
        with writing(engine) as connection:
            tables.reflect(connection)
            for table in tables.sorted_tables:
                if table.name in manifest.tables:
                    _restore_rows(connection, table, archive, manifest.tables[table.name])
    upgrade(engine)
    return manifest


def _save_rows(engine: sa.Engine, archive: tarfile.TarFile) -> tuple[dict[str, int], list[str]]:
    """Write one `tables/NAME.jsonl` per table to the archive, all from one database snapshot.

    Return the number of rows per table, and the digests of all blobs.
    """
    counts: dict[str, int] = {}
    digests: list[str] = []
    with translated_errors(engine), engine.connect() as connection:
        if engine.dialect.name == "postgresql":  # SQLite's transactions are snapshots anyway
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            for table in Base.metadata.sorted_tables:
                with tempfile.TemporaryFile("w+b") as lines:
                    names = [column.name for column in table.columns]
                    _write_line(lines, names)
                    query = sa.select(table).order_by(*table.primary_key.columns)
                    rows = connection.execution_options(yield_per=_ROWS).execute(query)
                    counts[table.name] = 0
                    for row in rows:
                        _write_line(lines, list(row))
                        counts[table.name] += 1
                        if table.name == "blobs":
                            digests.append(row.digest)
                    entry = _entry(f"{_TABLES}{table.name}.jsonl", lines.tell())
                    lines.seek(0)
                    archive.addfile(entry, lines)
    return counts, digests


def _write_line(file: IO[bytes], value: object) -> None:
    text = json.dumps(value, separators=(",", ":"), default=_base64)
    file.write(text.encode() + b"\n")


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    try:
        with (
            os_errors(file),
            file.open("rb") as stream,
            tarfile.open(fileobj=stream, mode="r:") as archive,
        ):
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise BackupError(f"'{file}' is not an archive of a database: {error}") from error


def _manifest(archive: tarfile.TarFile, file: Path) -> Manifest:
    try:
        found = json.loads(_read(archive, _MANIFEST).read())
        manifest = Manifest(**{**found, "missing": tuple(found["missing"])})
    except (BackupError, KeyError, TypeError, ValueError) as error:
        raise BackupError(f"'{file}' is not an archive of a database: no manifest") from error
    if manifest.format != FORMAT:
        raise SchemaVersionError(
            f"'{file}' has format {manifest.format}, which this release does not know: it was made"
            " by a newer one"
        )
    require_known(manifest.revision, f"'{file}' was saved")
    return manifest


def _make_ready(engine: sa.Engine, revision: str) -> None:
    """Create the tables of schema revision `revision` in a database without rows.

    Empty tables of another revision are dropped first.

    Raises:
        NotEmptyError: if a table of the database has rows.
        SchemaVersionError: if the database has a schema that this release does not know.
    """
    current = current_revision(engine)
    if current is not None:
        where = engine.url.render_as_string(hide_password=True)
        require_known(current, f"the database {where} is")
        found = sa.MetaData()
        with writing(engine) as connection:
            found.reflect(connection)
            for table in found.sorted_tables:
                if table.name == "alembic_version":
                    continue
                if connection.execute(sa.select(sa.literal(1)).select_from(table)).first():
                    raise NotEmptyError(
                        f"{where} has rows in '{table.name}': only an empty database is restored"
                    )
            if current != revision:
                found.drop_all(connection)
    upgrade(engine, revision)


def _restore_blob(archive: tarfile.TarFile, entry: tarfile.TarInfo, place: BlobBytes) -> None:
    digest = entry.name.removeprefix(_BLOBS)
    source = _read(archive, entry.name)
    with stage(place.staging, iter(lambda: source.read(CHUNK_BYTES), b"")) as staged:
        if staged.digest != digest:
            raise BackupError(f"blob '{digest}' is damaged in the archive")
        place.keep(staged)


def _restore_rows(
    connection: sa.Connection, table: sa.Table, archive: tarfile.TarFile, expected: int
) -> None:
    for column in table.columns:
        if isinstance(column.type, sa.JSON):  # NULL stays NULL, instead of a JSON null
            column.type = sa.JSON(none_as_null=True)
    binary = [c.name for c in table.columns if isinstance(c.type, sa.LargeBinary)]
    lines = iter(_read(archive, f"{_TABLES}{table.name}.jsonl"))
    batch: list[dict[str, Any]] = []
    count = 0
    try:
        names = json.loads(next(lines))
        for line in lines:
            row = dict(zip(names, json.loads(line), strict=True))
            row |= {name: b64decode(row[name]) for name in binary if row.get(name) is not None}
            batch.append(row)
            count += 1
            if len(batch) == _ROWS:
                connection.execute(sa.insert(table), batch)
                batch = []
    except (ValueError, StopIteration) as error:
        raise BackupError(f"row {count} of table '{table.name}' cannot be read") from error
    if batch:
        connection.execute(sa.insert(table), batch)
    if count != expected:
        raise BackupError(f"table '{table.name}' has {count} rows instead of {expected}")
    _continue_numbers(connection, table)


def _continue_numbers(connection: sa.Connection, table: sa.Table) -> None:
    """Set PostgreSQL's sequences of a table's primary key to the largest restored value.

    Without this, the next insert would reuse a restored number. Does nothing on SQLite.
    """
    if connection.dialect.name != "postgresql":
        return
    for column in table.primary_key.columns:
        sequence = sa.func.pg_get_serial_sequence(table.name, column.name)
        name = connection.execute(sa.select(sequence)).scalar()
        last = connection.execute(sa.select(sa.func.max(column))).scalar() if name else None
        if last is not None:
            connection.execute(sa.select(sa.func.setval(name, last)))


def _read(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Open the archive's file `name` for reading.

    Raises BackupError if the archive does not have it.
    """
    try:
        found = archive.extractfile(name)
    except KeyError:
        found = None
    if found is None:
        raise BackupError(f"there is no '{name}' in the archive")
    return found


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size = size
    entry.mode = 0o600
    return entry


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    return _entry(entry.name, entry.size)
