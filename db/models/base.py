"""Definitions shared by all tables: constraint names and column types."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase

from tilewright.db.types import SafeText

# Names for every constraint: SQLite's batch migrations can only drop what has a name.
NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Json = dict[str, Any]


class Base(DeclarativeBase):
    metadata = sa.MetaData(naming_convention=NAMING)
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy's own protocol)
        str: SafeText(),
        float: sa.Double(),
        Json: sa.JSON(none_as_null=True),
        list[Any]: sa.JSON(none_as_null=True),
    }
