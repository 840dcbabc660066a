"""Tables of workloads and targets, by key. A key is the hash of the workload or target."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from tilewright.db.models.base import Base, Json


class WorkloadRow(Base):
    __tablename__ = "workloads"
    __table_args__ = (sa.Index(None, "created_at", "key"),)

    key: Mapped[str] = mapped_column(primary_key=True)
    text: Mapped[str]
    created_at: Mapped[float]


class WorkloadShapeRow(Base):
    """Derived properties of a workload, computed when first needed.

    Attributes:
        structure: the workload without its sizes.
        family: the key of the workload's family, whose members differ only in numbers such as
            scales.
        sizes: the sizes that `structure` leaves out.
        extent: sum of the sizes' binary logarithms.
        operator: the operator that names the workload, such as "conv".
        name: the readable name, such as "conv 3x3 +relu 64x56x56".
    """

    __tablename__ = "workload_shapes"
    __table_args__ = (sa.Index(None, "structure", "extent"),)

    workload_key: Mapped[str] = mapped_column(primary_key=True)
    structure: Mapped[str]
    family: Mapped[str] = mapped_column(index=True)
    sizes: Mapped[list[Any]]
    extent: Mapped[float]  # sum of the sizes' binary logarithms: near shapes have near ones
    operator: Mapped[str]  # that names it: "conv"
    name: Mapped[str]  # for users: "conv 3x3 +relu 64x56x56"


class TargetRow(Base):
    __tablename__ = "targets"

    key: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    description: Mapped[Json]
    created_at: Mapped[float]
