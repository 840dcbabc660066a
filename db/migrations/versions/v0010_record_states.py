"""Records keep their history and say how sure they are; those of a bad device can be withdrawn."""

from __future__ import annotations

import hashlib
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_KEY = ("workload_key", "target_key", "threads", "numerics")
_ROWS = 1000


def _json() -> sa.JSON:
    return sa.JSON(none_as_null=True)


def _facts() -> list[sa.Column[Any]]:
    """The columns that a record had before, but for its key."""
    return [
        sa.Column("trial_id", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("schedule", _json(), nullable=False),
        sa.Column("schedule_digest", sa.Text(), nullable=False),
        sa.Column("object_digest", sa.Text(), nullable=False),
        sa.Column("codegen_version", sa.Text(), nullable=False),
        sa.Column("compiler_version", sa.Text(), nullable=False),
        sa.Column("run_seconds", sa.Double(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("spread", sa.Double(), nullable=False),
        sa.Column("measurement", _json(), nullable=False),
        sa.Column("measured_at", sa.Double(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=False),
    ]


def _key_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("workload_key", sa.Text(), nullable=False),
        sa.Column("target_key", sa.Text(), nullable=False),
        sa.Column("threads", sa.Integer(), nullable=False),
        sa.Column("numerics", sa.Text(), nullable=False),
    ]


def upgrade() -> None:
    with op.batch_alter_table("trials") as table:
        table.add_column(
            sa.Column("withdrawn", sa.Boolean(), nullable=False, server_default=sa.false())
        )
    op.create_table(
        "record_uses",
        sa.Column("record_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("record_id", "job_id", name=op.f("pk_record_uses")),
    )
    op.create_index(op.f("ix_record_uses_job_id"), "record_uses", ["job_id"], unique=False)

    # the primary key changes, so the table is made anew
    op.drop_index(op.f("ix_records_target_key"), table_name="records")
    before = _set_aside()
    new = op.create_table(
        "records",
        sa.Column(
            "serial",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=True,
            nullable=False,
        ),
        sa.Column("id", sa.Text(), nullable=False),
        *_key_columns(),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        *_facts(),
        sa.Column("confirmation", _json(), nullable=True),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_records")),
        sa.UniqueConstraint("id", name=op.f("uq_records_id")),
    )
    for columns in ([*_KEY, "state"], ["target_key"], ["job_id"], ["worker"]):
        name = op.f(f"ix_records_{'_'.join(columns)}")
        op.create_index(name, "records", columns, unique=False)
    _copy(before, new, _confirmed)
    op.drop_table("records_before")


def downgrade() -> None:
    for columns in ([*_KEY, "state"], ["target_key"], ["job_id"], ["worker"]):
        op.drop_index(op.f(f"ix_records_{'_'.join(columns)}"), table_name="records")
    after = _set_aside()
    old = op.create_table(
        "records",
        *_key_columns(),
        *_facts(),
        sa.PrimaryKeyConstraint(*_KEY, name=op.f("pk_records")),
    )
    op.create_index(op.f("ix_records_target_key"), "records", ["target_key"], unique=False)
    served: dict[tuple[Any, ...], dict[str, Any]] = {}
    query = sa.select(after).where(after.c.state == "confirmed").order_by(after.c.serial)
    for row in op.get_bind().execute(query):
        values = dict(row._mapping)
        served[tuple(values[name] for name in _KEY)] = {c.name: values[c.name] for c in old.c}
    if served:
        op.bulk_insert(old, list(served.values()))
    op.drop_table("records_before")
    op.drop_index(op.f("ix_record_uses_job_id"), table_name="record_uses")
    op.drop_table("record_uses")
    with op.batch_alter_table("trials") as table:
        table.drop_column("withdrawn")


def _set_aside() -> sa.Table:
    """The rows of `records` in a table without keys, so that its name is free."""
    op.execute("CREATE TABLE records_before AS SELECT * FROM records")
    op.drop_table("records")
    table = sa.Table("records_before", sa.MetaData(), autoload_with=op.get_bind())
    for name in ("schedule", "measurement", "confirmation"):
        if name in table.c:  # SQLite forgets that they are JSON
            table.c[name].type = _json()
    return table


def _copy(source: sa.Table, goal: sa.Table, change: Any) -> None:
    rows: list[dict[str, Any]] = []
    for row in op.get_bind().execute(sa.select(source)).all():
        rows.append(change(dict(row._mapping)))
    for start in range(0, len(rows), _ROWS):
        op.bulk_insert(goal, rows[start : start + _ROWS])


def _confirmed(values: dict[str, Any]) -> dict[str, Any]:
    """A record of an earlier release: it was served, and stays so."""
    parts = [str(values[name]) for name in (*_KEY, "schedule_digest", "trial_id")]
    return {
        **values,
        "id": hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32],
        "state": "confirmed",
        "reason": "",
        "job_id": "",
        "worker": str((values["measurement"] or {}).get("worker", "")),
        "confirmation": None,
    }
